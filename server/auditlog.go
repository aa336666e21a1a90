package server

import (
	"cmp"
	"encoding/json"
	"net/http"
	"strconv"
	"strings"
	"time"

	"kiln/gen/r4"
	"kiln/oauth"
	"kiln/server/target"
	"kiln/server/web"
)

// Events of the authorization server become AuditEvents by the same recorder as the
// interactions of REST: outside of the requests, one for each request.

// recordAuthorization keeps an event of the authorization server.
func (s *Server) recordAuthorization(e oauth.Event) {
	s.audit.RecordBody(func() ([]byte, error) { return json.Marshal(auditEvent(e)) })
}

type object = map[string]any

// The codes of an AuditEvent. DICOM PS3.16, CID 400 and CID 401.
var auditCodes = map[string]struct{ typ, typName, subtype, subtypeName, action string }{
	oauth.EventLogin:    {"110114", "User Authentication", "110122", "Login", "E"},
	oauth.EventLogout:   {"110114", "User Authentication", "110123", "Logout", "E"},
	oauth.EventToken:    {"110114", "User Authentication", "110114", "User Authentication", "E"},
	oauth.EventRevoke:   {"110114", "User Authentication", "110123", "Logout", "D"},
	oauth.EventRegister: {"110113", "Security Alert", "110137", "User security Attributes Changed", "C"},
	oauth.EventManage:   {"110113", "Security Alert", "110137", "User security Attributes Changed", "U"},
}

const dicom = "http://dicom.nema.org/resources/ontology/DCM"

// actions are the actions of requests, by method.
// Spec: https://hl7.org/fhir/R4/valueset-audit-event-action.html.
var actions = map[string]string{"GET": "R", "HEAD": "R", "POST": "C", "PUT": "U", "PATCH": "U", "DELETE": "D"}

// recordAccessDecision records how access decided on a request: auth.audit.log_access_decisions.
// One that audit.rest has recorded is not recorded again.
func (s *Server) recordAccessDecision(x *web.Exchange, r *http.Request) {
	if x.Status() == http.StatusUnauthorized && x.Route == "other" {
		if interaction, resource := s.Service.InteractionOf(r.Method, r.URL.Path); interaction != "" {
			s.audit.RecordRefusal(r.Context(), x, r, interaction, resource)
		}
	}
	if x.Audited || !s.now().Auth.Audit.LogAccessDecisions {
		return
	}
	e := oauth.Event{
		Kind: oauth.EventAccess, Time: time.Now(), Address: s.derived.Load().web.Proxies.ClientAddress(r),
		Failed: x.Status() == http.StatusUnauthorized || x.Status() == http.StatusForbidden,
		Detail: r.Method + " " + x.Path() + ": " + strconv.Itoa(x.Status()), Object: x.Path(), Interaction: x.Route, Method: r.Method, RequestID: x.ID,
	}
	if p := x.Principal; p != nil {
		e.User, e.Client, e.FHIRUser = p.Subject, p.ClientID, p.FHIRUser
		if e.User == e.Client {
			e.User = ""
		}
	}
	s.recordAuthorization(e)
}

// accessEvent turns an event of the authorization server into the AuditEvent of a request.
func accessEvent(e oauth.Event, event object) {
	event["type"] = object{"system": "http://terminology.hl7.org/CodeSystem/audit-event-type", "code": "rest", "display": "RESTful Operation"}
	event["subtype"] = []object{{"code": e.Interaction}}
	event["action"] = cmp.Or(actions[e.Method], "E")
	if strings.HasPrefix(e.Interaction, "search") || e.Interaction == "operation" || e.Interaction == "bundle" {
		event["action"] = "E"
	}
	event["source"] = object{"observer": object{"display": "Kiln"}}
	what := object{"display": e.Object}
	if t, err := target.Read(r4.Model, strings.TrimPrefix(e.Object, "/fhir")); err == nil && t.Resource() != "" {
		what["reference"] = t.Resource()
	}
	event["entity"] = []object{{"what": what}}
}

func auditEvent(e oauth.Event) object {
	c := auditCodes[e.Kind]
	event := object{
		"resourceType": "AuditEvent",
		"type":         object{"system": dicom, "code": c.typ, "display": c.typName},
		"subtype":      []object{{"system": dicom, "code": c.subtype, "display": c.subtypeName}},
		"action":       c.action,
		"recorded":     e.Time.UTC().Format(time.RFC3339Nano),
		"outcome":      "0",
		"source":       object{"observer": object{"display": "Kiln authorization server"}},
	}
	if e.Failed {
		event["outcome"] = "4" // minor failure: the action was not carried out
	}
	if e.Detail != "" {
		event["outcomeDesc"] = e.Detail
	}
	agent := func(who object, network bool) object {
		a := object{"who": who, "requestor": network}
		if network && e.Address.IsValid() {
			a["network"] = object{"address": e.Address.String(), "type": "2"}
		}
		return a
	}
	var agents []object
	if e.User != "" {
		who := object{"display": e.User}
		if e.FHIRUser != "" {
			who["reference"] = e.FHIRUser
		}
		agents = append(agents, agent(who, true))
	}
	if e.Client != "" {
		agents = append(agents, agent(object{"display": e.Client}, e.User == ""))
	}
	if len(agents) == 0 {
		agents = append(agents, agent(object{"display": "unknown"}, true))
	}
	event["agent"] = agents
	switch {
	case e.Kind == oauth.EventAccess:
		accessEvent(e, event)
	case e.Object != "":
		event["entity"] = []object{{"what": object{"display": e.Object}}}
	}
	if e.RequestID != "" {
		entities, _ := event["entity"].([]object)
		event["entity"] = append(entities, object{
			"what": object{"identifier": object{"value": e.RequestID}},
			"type": object{"system": "https://profiles.ihe.net/ITI/BALP/CodeSystem/BasicAuditEntityType", "code": "XrequestId"},
		})
	}
	return event
}

package server

import (
	"cmp"
	"context"
	"encoding/json"
	"log/slog"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"time"

	"kiln/gen/r4"
	"kiln/oauth"
	"kiln/server/access"
	"kiln/server/fhir"
	"kiln/server/interaction"
	"kiln/server/web"
)

// auditLog writes what the authorization server tells of as AuditEvents, many in one
// batch, off the path of the requests.
type auditLog struct {
	s       *Server
	events  chan oauth.Event
	stopped sync.WaitGroup
	closing sync.Once
	mu      sync.RWMutex
	closed  bool
}

// How many events wait, and how many are written together. Where more happens than
// can be written, requests wait: none is lost.
const (
	maxWaitingEvents = 4096
	maxBatchedEvents = 200
)

func newAuditLog(s *Server) *auditLog {
	l := &auditLog{s: s, events: make(chan oauth.Event, maxWaitingEvents)}
	l.stopped.Go(l.run)
	return l
}

// add takes an event.
func (l *auditLog) add(e oauth.Event) {
	l.mu.RLock()
	defer l.mu.RUnlock()
	if !l.closed {
		l.events <- e
	}
}

// close writes what waits, and takes nothing more.
func (l *auditLog) close() {
	l.closing.Do(func() {
		l.mu.Lock()
		l.closed = true
		close(l.events)
		l.mu.Unlock()
	})
	l.stopped.Wait()
}

func (l *auditLog) run() {
	for e := range l.events {
		batch := []oauth.Event{e}
	more:
		for len(batch) < maxBatchedEvents {
			select {
			case e, ok := <-l.events:
				if !ok {
					break more
				}
				batch = append(batch, e)
			default:
				break more
			}
		}
		if err := l.write(batch); err != nil {
			l.s.Logger.Error("write audit events", slog.Int("events", len(batch)), slog.Any("error", err))
		}
	}
}

type object = map[string]any

func (l *auditLog) write(batch []oauth.Event) error {
	entries := make([]object, len(batch))
	for i, e := range batch {
		entries[i] = object{"resource": auditEvent(e), "request": object{"method": "POST", "url": "AuditEvent"}}
	}
	body, err := json.Marshal(object{"resourceType": "Bundle", "type": "batch", "entry": entries})
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	_, err = l.s.Service.Bundle(access.With(ctx, access.Open), interaction.BundleParams{Body: body})
	return err
}

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

// actions are what a request does, by its method.
// Spec: https://hl7.org/fhir/R4/valueset-audit-event-action.html.
var actions = map[string]string{"GET": "R", "HEAD": "R", "POST": "C", "PUT": "U", "PATCH": "U", "DELETE": "D"}

// decided records how access decided on a request: auth.audit.log_access_decisions.
func (s *Server) decided(x *web.Exchange, r *http.Request) {
	if !s.now().Auth.Audit.LogAccessDecisions {
		return
	}
	e := oauth.Event{
		Kind: oauth.EventAccess, Time: time.Now(), Address: s.derived.Load().web.Proxies.Client(r),
		Failed: x.Status() == http.StatusUnauthorized || x.Status() == http.StatusForbidden,
		Detail: r.Method + " " + x.Path() + ": " + strconv.Itoa(x.Status()), Object: x.Path(), Interaction: x.Route, Method: r.Method,
	}
	if p := x.Principal; p != nil {
		e.User, e.Client, e.FHIRUser = p.Subject, p.ClientID, p.FHIRUser
		if e.User == e.Client {
			e.User = ""
		}
	}
	s.authorizationEvents.add(e)
}

// accessEvent makes the AuditEvent of a request from that of other events.
func accessEvent(e oauth.Event, event object) {
	event["type"] = object{"system": "http://terminology.hl7.org/CodeSystem/audit-event-type", "code": "rest", "display": "RESTful Operation"}
	event["subtype"] = []object{{"code": e.Interaction}}
	event["action"] = cmp.Or(actions[e.Method], "E")
	if strings.HasPrefix(e.Interaction, "search") || e.Interaction == "operation" || e.Interaction == "bundle" {
		event["action"] = "E"
	}
	event["source"] = object{"observer": object{"display": "Kiln"}}
	what := object{"display": e.Object}
	parts := strings.Split(strings.Trim(strings.TrimPrefix(e.Object, "/fhir"), "/"), "/")
	if len(parts) > 1 && r4.Model.Resources[parts[0]] != nil && fhir.ValidID(parts[1]) {
		what["reference"] = parts[0] + "/" + parts[1]
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
	return event
}

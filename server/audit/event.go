package audit

import (
	"encoding/base64"
	"encoding/json"
	"net/url"
	"strings"
	"time"

	"kiln/gen/r4"
	"kiln/server/fhir"
	"kiln/server/target"
)

// Event is something that an AuditEvent tells of.
type Event struct {
	Time        time.Time `json:"-"`
	Interaction string    `json:"i,omitempty"` // of FHIR: read, search-type, create; or one of ours: login, configure
	Action      string    `json:"a,omitempty"` // C, R, U, D or E
	Outcome     string    `json:"o,omitempty"` // 0 success, 4 the request's fault, 8 the server's
	Description string    `json:"d,omitempty"` // of a failure, or of a changed setting
	Subject     string    `json:"s,omitempty"` // user
	Client      string    `json:"c,omitempty"`
	FHIRUser    string    `json:"f,omitempty"` // reference
	App         string    `json:"w,omitempty"` // id of the App that wrote
	Address     string    `json:"n,omitempty"` // of the client
	Resource    string    `json:"r,omitempty"` // reference
	Patient     string    `json:"p,omitempty"` // reference
	Query       string    `json:"q,omitempty"` // path and parameters of a search
	RequestID   string    `json:"x,omitempty"`
	Purpose     string    `json:"u,omitempty"` // of use, a code of v3 ActReason
	// Version of Resource that Patient is still to be taken from, 0 for none, below 0
	// for the last one before its deletion.
	Version int `json:"v,omitempty"`

	// body is that version, while it is at hand.
	body []byte
}

// The outcomes. Spec: https://hl7.org/fhir/R4/valueset-audit-event-outcome.html.
const (
	Success = "0"
	Minor   = "4"
	Serious = "8"
)

type coding struct {
	System  string `json:"system,omitempty"`
	Code    string `json:"code"`
	Display string `json:"display,omitempty"`
}

type concept struct {
	Coding []coding `json:"coding"`
}

type identifier struct {
	System string `json:"system,omitempty"`
	Value  string `json:"value"`
}

type reference struct {
	Reference  string      `json:"reference,omitempty"`
	Identifier *identifier `json:"identifier,omitempty"`
	Display    string      `json:"display,omitempty"`
}

type network struct {
	Address string `json:"address"`
	Type    string `json:"type"`
}

type agent struct {
	Type      *concept   `json:"type,omitempty"`
	Who       *reference `json:"who,omitempty"`
	AltID     string     `json:"altId,omitempty"`
	Name      string     `json:"name,omitempty"`
	Requestor bool       `json:"requestor"`
	Network   *network   `json:"network,omitempty"`
}

type entity struct {
	What  *reference `json:"what,omitempty"`
	Type  *coding    `json:"type,omitempty"`
	Role  *coding    `json:"role,omitempty"`
	Query string     `json:"query,omitempty"`
}

type auditEvent struct {
	ResourceType string    `json:"resourceType"`
	Type         coding    `json:"type"`
	Subtype      []coding  `json:"subtype,omitempty"`
	Action       string    `json:"action"`
	Recorded     string    `json:"recorded"`
	Outcome      string    `json:"outcome"`
	OutcomeDesc  string    `json:"outcomeDesc,omitempty"`
	Purpose      []concept `json:"purposeOfEvent,omitempty"`
	Agent        []agent   `json:"agent"`
	Source       struct {
		Observer reference `json:"observer"`
		Type     []coding  `json:"type"`
	} `json:"source"`
	Entity []entity `json:"entity,omitempty"`
}

const (
	dicom        = "http://dicom.nema.org/resources/ontology/DCM"
	participants = "http://terminology.hl7.org/CodeSystem/v3-ParticipationType"
	entityTypes  = "http://terminology.hl7.org/CodeSystem/audit-entity-type"
	objectRoles  = "http://terminology.hl7.org/CodeSystem/object-role"
)

// JSON is the event as an AuditEvent without id.
func (e *Event) JSON() ([]byte, error) {
	a := auditEvent{ResourceType: "AuditEvent", Action: e.Action, Outcome: e.Outcome, OutcomeDesc: e.Description,
		Recorded: e.Time.UTC().Format("2006-01-02T15:04:05.000Z"),
		Type:     coding{"http://terminology.hl7.org/CodeSystem/audit-event-type", "rest", "RESTful Operation"},
		Subtype:  []coding{{"http://hl7.org/fhir/restful-interaction", e.Interaction, ""}}}
	switch e.Interaction {
	case "login", "logout", "token", "revoke":
		a.Type = coding{dicom, "110114", "User Authentication"}
		a.Subtype[0].System = "urn:kiln:audit"
	case "configure", "register", "manage", "retention-start", "retention-end":
		a.Type = coding{dicom, "110100", "Application Activity"}
		a.Subtype[0].System = "urn:kiln:audit"
	}
	for job, code := range map[string]coding{"export": {dicom, "110106", "Export"}, "import": {dicom, "110107", "Import"}} {
		if strings.HasPrefix(e.Interaction, job+"-") {
			a.Type = code
			a.Subtype[0].System = "urn:kiln:audit"
		}
	}
	if e.Purpose != "" {
		a.Purpose = []concept{{[]coding{{"http://terminology.hl7.org/CodeSystem/v3-ActReason", e.Purpose, ""}}}}
	}
	client := agent{Type: &concept{[]coding{{dicom, "110153", "Source Role ID"}}}, Requestor: e.Subject == "" || e.Subject == e.Client, Name: e.Client}
	if e.Client != "" {
		client.Who = &reference{Identifier: &identifier{Value: e.Client}}
	} else {
		client.Who = &reference{Display: "anonymous"}
	}
	if e.Address != "" {
		client.Network = &network{e.Address, "2"}
	}
	server := agent{Type: &concept{[]coding{{dicom, "110152", "Destination Role ID"}}}, Who: &reference{Display: "Kiln"}}
	a.Agent = []agent{client, server}
	if e.App != "" {
		writer := agent{Type: &concept{[]coding{{dicom, "110150", "Application"}}}, Who: &reference{Reference: "App/" + e.App}}
		if e.Client == "" && e.Subject == "" && e.Address == "" { // an event without authorization: nobody else asked
			writer.Requestor = true
			a.Agent = []agent{writer, server}
		} else {
			a.Agent = append(a.Agent, writer)
		}
	}
	if e.Subject != "" && e.Subject != e.Client {
		user := agent{Type: &concept{[]coding{{participants, "IRCP", "information recipient"}}}, AltID: e.Subject, Requestor: true, Who: &reference{Identifier: &identifier{Value: e.Subject}}}
		if e.FHIRUser != "" {
			user.Who.Reference = e.FHIRUser
		}
		a.Agent = append(a.Agent, user)
	}
	a.Source.Observer = reference{Display: "Kiln"}
	a.Source.Type = []coding{{"http://terminology.hl7.org/CodeSystem/security-source-type", "4", "Application Server"}}
	if e.Patient == "" && len(e.body) > 0 {
		e.Patient = patientOf(e.Resource, e.body)
	}
	if e.Patient == "" && strings.HasPrefix(e.Interaction, "search") {
		e.Patient = patientOfSearch(e.Query)
	}
	if e.Resource != "" {
		a.Entity = append(a.Entity, entity{What: &reference{Reference: e.Resource}, Type: &coding{entityTypes, "2", "System Object"}, Role: &coding{objectRoles, "4", "Domain Resource"}})
	}
	if e.Patient != "" {
		a.Entity = append(a.Entity, entity{What: &reference{Reference: e.Patient}, Type: &coding{entityTypes, "1", "Person"}, Role: &coding{objectRoles, "1", "Patient"}})
	}
	if e.Query != "" {
		a.Entity = append(a.Entity, entity{Type: &coding{entityTypes, "2", "System Object"}, Role: &coding{objectRoles, "24", "Query"},
			Query: base64.StdEncoding.EncodeToString([]byte(e.Query))})
	}
	if e.RequestID != "" {
		a.Entity = append(a.Entity, entity{What: &reference{Identifier: &identifier{Value: e.RequestID}},
			Type: &coding{"https://profiles.ihe.net/ITI/BALP/CodeSystem/BasicAuditEntityType", "XrequestId", ""}})
	}
	return json.Marshal(a)
}

// patientOf is the patient that a resource is about, "" where it names none.
func patientOf(resource string, body []byte) string {
	if strings.HasPrefix(resource, "Patient/") {
		id, _, _ := strings.Cut(strings.TrimPrefix(resource, "Patient/"), "/")
		return "Patient/" + id
	}
	for _, name := range []string{"subject", "patient", "beneficiary", "for"} {
		text := fhir.Property(fhir.Property(body, name), "reference")
		var ref string
		if len(text) == 0 || json.Unmarshal(text, &ref) != nil {
			continue
		}
		at := strings.LastIndex("/"+ref, "/Patient/")
		if at >= 0 {
			id, _, _ := strings.Cut(ref[at+len("Patient/"):], "/")
			return "Patient/" + id
		}
	}
	return ""
}

// patientOfSearch is the one patient that a search names, by its path (a compartment)
// or by a parameter for the patient, "" where it names none or several.
// Spec: https://profiles.ihe.net/ITI/BALP/StructureDefinition-IHE.BasicAudit.PatientQuery.html
func patientOfSearch(query string) string {
	t, err := target.Read(r4.Model, strings.TrimPrefix(strings.TrimPrefix(query, "/"), "fhir/"))
	if err != nil {
		return ""
	}
	values, err := url.ParseQuery(t.Query)
	if err != nil {
		return ""
	}
	of := make(map[string]bool)
	if t.Type == "Patient" && t.ID != "" {
		of[t.ID] = true
	}
	for name, list := range values {
		bare := false // the value may be an id alone
		switch name {
		case "patient", "patient:Patient", "subject:Patient":
			bare = true
		case "subject":
		case "_id":
			if t.Type != "Patient" || t.ID != "" {
				continue
			}
			bare = true
		default:
			continue
		}
		for _, value := range list {
			at := strings.LastIndex("/"+value, "/Patient/")
			if at >= 0 {
				value = value[at+len("Patient/"):]
			}
			if at >= 0 || bare {
				of[value] = true
			}
		}
	}
	if len(of) != 1 {
		return ""
	}
	for id := range of {
		if fhir.ValidID(id) {
			return "Patient/" + id
		}
	}
	return ""
}

package journal

import (
	"time"

	"kiln/server/access"
	"kiln/server/outcome"
)

// An AuditEvent is the input of an operation's AuditEvent.
type AuditEvent struct {
	ResourceType string        `json:"resourceType"`
	Type         coding        `json:"type"`
	Subtype      []coding      `json:"subtype"`
	Action       string        `json:"action"`
	Recorded     time.Time     `json:"recorded"`
	Outcome      string        `json:"outcome"`
	Agent        []auditAgent  `json:"agent"`
	Source       auditSource   `json:"source"`
	Entity       []auditEntity `json:"entity,omitempty"`
}

type (
	coding struct {
		System  string `json:"system"`
		Code    string `json:"code"`
		Display string `json:"display,omitempty"`
	}
	reference struct {
		Reference string `json:"reference,omitempty"`
		Display   string `json:"display,omitempty"`
	}
	auditAgent struct {
		Who       reference `json:"who"`
		Requestor bool      `json:"requestor"`
	}
	auditSource struct {
		Observer reference `json:"observer"`
	}
	auditEntity struct {
		What reference `json:"what"`
		Role coding    `json:"role"`
	}
)

// NewAuditEvent returns the AuditEvent of a run of an operation of an App. on is the resource of the call, "" for none.
func NewAuditEvent(app, operation, on string, caller *access.Principal, at time.Time, status int, failed error) *AuditEvent {
	result := "0"
	if outcome.Theirs(failed) || failed == nil && status >= 400 {
		result = "4"
	} else if failed != nil {
		result = "8"
	}
	event := &AuditEvent{ResourceType: "AuditEvent", Recorded: at.UTC(), Action: "E", Outcome: result,
		Type:    coding{System: "http://terminology.hl7.org/CodeSystem/audit-event-type", Code: "rest"},
		Subtype: []coding{{System: "http://hl7.org/fhir/restful-interaction", Code: "operation", Display: operation}},
		Agent:   []auditAgent{{Who: whoAsks(caller), Requestor: true}, {Who: reference{Reference: "App/" + app}}},
		Source:  auditSource{Observer: reference{Display: "Kiln"}},
	}
	if on != "" {
		event.Entity = []auditEntity{{What: reference{Reference: on}, Role: coding{System: "http://terminology.hl7.org/CodeSystem/object-role", Code: "4"}}}
	}
	return event
}

// whoAsks names a caller in an AuditEvent.
func whoAsks(c *access.Principal) reference {
	switch {
	case c != nil && c.FHIRUser != "":
		return reference{Reference: c.FHIRUser}
	case c != nil && c.Subject != "":
		return reference{Display: c.Subject}
	}
	return reference{Display: "anonymous"}
}

package queue

import (
	"context"
	"strings"

	"kiln/server/fhir"
	"kiln/server/notify/matching"
	"kiln/server/outcome"
	"kiln/server/store"
)

// Audit keeps AuditEvents, which raise no event.
type Audit interface {
	// Keep keeps them with a transaction.
	Keep(ctx context.Context, t *store.Tx, bodies [][]byte) error
	// Wake has them stored, once the transaction is committed: in history and search they
	// are like any other.
	Wake()
}

// auditEvent is the AuditEvent of an attempt. Spec: https://hl7.org/fhir/R4/auditevent.html.
func auditEvent(f finished) []byte {
	d := f.delivery
	code, text := "0", "delivered"
	if !f.result.OK() {
		code, text = "4", f.result.Err // minor: it is tried again
		if f.status == Failed {
			code = "8"
		}
	}
	b := []byte(`{"resourceType":"AuditEvent","type":{"system":"http://terminology.hl7.org/CodeSystem/audit-event-type","code":"rest","display":"RESTful Operation"},` +
		`"subtype":[{"code":"notification","display":"Notification"}],"action":"R","recorded":`)
	b = fhir.AppendString(b, matching.FormatInstant(f.result.At))
	b = append(b, `,"outcome":"`+code+`","outcomeDesc":`...)
	b = fhir.AppendString(b, strings.ToValidUTF8(outcome.Clip(text), "?"))
	b = append(b, `,"agent":[{"type":{"coding":[{"system":"http://dicom.nema.org/resources/ontology/DCM","code":"110153","display":"Source Role ID"}]},`+
		`"who":{"display":"Notification service"},"requestor":false}],"source":{"observer":{"display":"Kiln"}},"entity":[{"what":{"reference":`...)
	b = fhir.AppendString(b, referenceOf(d.Subscriber))
	b = append(b, `},"type":{"system":"http://terminology.hl7.org/CodeSystem/audit-entity-type","code":"2"}},{"what":{"reference":`...)
	b = fhir.AppendString(b, d.Event.Version.ResourceType+"/"+d.Event.Version.ID)
	return append(b, `},"role":{"system":"http://terminology.hl7.org/CodeSystem/object-role","code":"4"}}]}`...)
}

// referenceOf is the resource that a subscriber is part of: App/1 of App/1/0.
func referenceOf(subscriber string) string {
	typ, rest, _ := strings.Cut(subscriber, "/")
	id, _, _ := strings.Cut(rest, "/")
	return typ + "/" + id
}

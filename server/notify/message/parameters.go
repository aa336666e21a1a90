package message

import (
	"strconv"
	"time"

	"kiln/server/fhir"
	"kiln/server/notify/matching"
	"kiln/server/notify/subscription"
)

// StatusParameters is the SubscriptionStatus of the Backport IG.
// Spec: http://hl7.org/fhir/uv/subscriptions-backport/STU1.1/StructureDefinition-backport-subscription-status-r4.html.
type StatusParameters struct {
	ID           string // of the Parameters
	Kind         string // handshake, heartbeat, event-notification, query-status, query-event
	Status       string
	Subscription string // URL
	Topic        string // canonical, "" for none
	Events       int64  // since the start
	Error        string // "" for none
	Notified     []Notified
}

// A Notified is one notification-event.
type Notified struct {
	Number int64
	At     time.Time
	Focus  string // URL, "" for none
}

// Append appends the Parameters as JSON.
func (p StatusParameters) Append(b []byte) []byte {
	b = append(b, `{"resourceType":"Parameters","id":"`+p.ID+`","meta":{"profile":["`+subscription.BackportBase+`backport-subscription-status-r4"]},"parameter":[`+
		`{"name":"subscription","valueReference":{"reference":`...)
	b = fhir.AppendString(b, p.Subscription)
	b = append(b, '}', '}')
	if p.Topic != "" {
		b = append(b, `,{"name":"topic","valueCanonical":`...)
		b = fhir.AppendString(b, p.Topic)
		b = append(b, '}')
	}
	b = append(b, `,{"name":"status","valueCode":`...)
	b = fhir.AppendString(b, p.Status)
	b = append(b, `},{"name":"type","valueCode":`...)
	b = fhir.AppendString(b, p.Kind)
	b = append(b, `},{"name":"events-since-subscription-start","valueString":"`...)
	b = strconv.AppendInt(b, p.Events, 10)
	b = append(b, '"', '}')
	for _, e := range p.Notified {
		b = append(b, `,{"name":"notification-event","part":[{"name":"event-number","valueString":"`...)
		b = strconv.AppendInt(b, e.Number, 10)
		b = append(b, `"},{"name":"timestamp","valueInstant":"`+matching.FormatInstant(e.At)+`"}`...)
		if e.Focus != "" {
			b = append(b, `,{"name":"focus","valueReference":{"reference":`...)
			b = fhir.AppendString(b, e.Focus)
			b = append(b, '}', '}')
		}
		b = append(b, ']', '}')
	}
	if p.Error != "" {
		b = append(b, `,{"name":"error","valueCodeableConcept":{"text":`...)
		b = fhir.AppendString(b, p.Error)
		b = append(b, '}', '}')
	}
	return append(b, `]}`...)
}

package message

import (
	"context"
	"log/slog"
	"time"

	"github.com/google/uuid"

	"kiln/server/fhir"
	"kiln/server/interaction"
	"kiln/server/notify/matching"
	"kiln/server/notify/owner"
	"kiln/server/notify/queue"
	"kiln/server/notify/subscription"
	"kiln/server/store"
)

// A Composer makes the bodies of messages about Subscriptions. Its fields are set before its first use.
type Composer struct {
	Store        *store.Store
	Interactions *interaction.Service
	Rights       owner.Rights // nil: everybody may read everything
	Evaluator    *matching.Evaluator
	// MaskHeaders masks the headers of a Subscription for everybody but its owner.
	MaskHeaders func(v fhir.Version) fhir.Version
	// Address returns the base URL.
	Address func() string
	Log     *slog.Logger
}

// ComposeDelivery is the body of a delivery, with its media type.
func (s *Composer) ComposeDelivery(ctx context.Context, c *subscription.Subscription, status string, events int64, d *queue.Delivery) (body []byte, contentType string) {
	if c.Backport {
		return s.ComposeBackport(ctx, c, d.ID.String(), "event-notification", status, events, d), c.MediaType()
	}
	contentType = c.Payload
	if contentType == "" {
		contentType = "application/json"
	}
	return AppendEvent(nil, d.Event, d.ID, c.Reference(), "", c.Payload != "" && c.Content == subscription.FullResource), contentType
}

// ComposeStatus is a handshake or a heartbeat; id is the id of the Bundle.
func (s *Composer) ComposeStatus(c *subscription.Subscription, id, kind, state string, events int64) (body []byte, contentType string) {
	if c.Backport {
		return s.ComposeBackport(context.Background(), c, id, kind, state, events, nil), c.MediaType()
	}
	return Status{Type: kind, Subscription: c.Reference(), Status: state, Events: events}.Append(nil), subscription.FHIRJSON
}

// ComposeBackport is the message of a delivery, or without one of a handshake or heartbeat.
func (s *Composer) ComposeBackport(ctx context.Context, c *subscription.Subscription, id, kind, state string, events int64, d *queue.Delivery) []byte {
	var list []*queue.Delivery
	if d != nil {
		list = []*queue.Delivery{d}
	}
	return s.ComposeBundle(ctx, c, id, kind, state, numberOf(d, events), list)
}

// ComposeBundle is a history Bundle of the Backport IG: its first entry is a
// SubscriptionStatus as Parameters. The id of a notification is the same at each attempt.
// Spec: http://hl7.org/fhir/uv/subscriptions-backport/STU1.1/StructureDefinition-backport-subscription-notification-r4.html.
func (s *Composer) ComposeBundle(ctx context.Context, c *subscription.Subscription, id, kind, state string, events int64, list []*queue.Delivery) []byte {
	base := s.Address()
	absolute := func(path string) string { return base + "/" + path }
	p := StatusParameters{ID: uuid.NewString(), Kind: kind, Status: state, Subscription: absolute(c.Reference()), Topic: c.Topic, Events: events}
	if c.Content == subscription.Empty { // such a payload contains nothing but the number of the event
		p.Topic = ""
	}
	for _, d := range list {
		e := Notified{Number: d.Number, At: d.Event.Version.LastUpdated}
		if c.Content != subscription.Empty {
			e.Focus = absolute(d.Event.Version.ResourceType + "/" + d.Event.Version.ID)
		}
		p.Notified = append(p.Notified, e)
	}
	b := []byte(`{"resourceType":"Bundle","id":"` + id + `","type":"history","timestamp":"` + matching.FormatInstant(time.Now()) + `","entry":[{"fullUrl":"urn:uuid:` + p.ID + `","resource":`)
	b = p.Append(b)
	b = append(b, `,"request":{"method":"GET","url":`...)
	b = fhir.AppendString(b, absolute(c.Reference()+"/$status"))
	b = append(b, `},"response":{"status":"200"}}`...)
	if c.Content != subscription.Empty {
		for _, d := range list {
			b = s.appendEventEntries(ctx, b, c, d, absolute)
		}
	}
	return append(b, `]}`...)
}

// appendEventEntries appends the entries of an event: the resource, and those that the topic includes.
func (s *Composer) appendEventEntries(ctx context.Context, b []byte, c *subscription.Subscription, d *queue.Delivery, absolute func(string) string) []byte {
	e := d.Event
	path := e.Version.ResourceType + "/" + e.Version.ID
	b = append(b, `,{"fullUrl":`...)
	b = fhir.AppendString(b, absolute(path))
	if c.Content == subscription.FullResource && len(e.Version.Body) > 0 {
		b = append(b, `,"resource":`...)
		b = append(b, e.Version.Body...)
	}
	b = append(b, `,"request":{"method":"`+methodOf(e.Kind)+`","url":`...)
	if e.Kind == matching.Create {
		b = fhir.AppendString(b, e.Version.ResourceType)
	} else {
		b = fhir.AppendString(b, path)
	}
	b = append(b, `},"response":{"status":"`+responseOf(e.Kind)+`"}}`...)
	if c.Content != subscription.FullResource || e.Kind == matching.Delete {
		return b
	}
	for _, v := range s.shaped(ctx, c, e) {
		b = append(b, `,{"fullUrl":`...)
		b = fhir.AppendString(b, absolute(v.ResourceType+"/"+v.ID))
		b = append(b, `,"resource":`...)
		b = append(b, s.MaskHeaders(v).Body...)
		b = append(b, `,"request":{"method":"GET","url":`...)
		b = fhir.AppendString(b, v.ResourceType+"/"+v.ID)
		b = append(b, `},"response":{"status":"200"}}`...)
	}
	return b
}

// numberOf is the number of a delivery's event; without a delivery, of the last event.
func numberOf(d *queue.Delivery, events int64) int64 {
	if d == nil {
		return events
	}
	return d.Number
}

func methodOf(k matching.Kind) string {
	switch k {
	case matching.Create:
		return "POST"
	case matching.Delete:
		return "DELETE"
	case matching.VRead:
		return "GET"
	}
	return "PUT"
}

func responseOf(k matching.Kind) string {
	switch k {
	case matching.Create:
		return "201"
	case matching.Delete:
		return "204"
	}
	return "200"
}

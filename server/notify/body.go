package notify

import (
	"context"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/google/uuid"

	"kiln/gen/db"
	"kiln/server/access"
	"kiln/server/fhir"
	"kiln/server/notify/matching"
	"kiln/server/notify/subscription"
	"kiln/server/search"
	"kiln/server/search/match"
	"kiln/server/store"
)

// deliveryBody is the body of a delivery, with its media type.
func (s *Service) deliveryBody(ctx context.Context, c *subscription.Subscription, status string, events int64, d *Delivery) (body []byte, contentType string) {
	if c.Backport {
		return s.backportBody(ctx, c, d.ID.String(), "event-notification", status, events, d), c.MediaType()
	}
	contentType = c.Payload
	if contentType == "" {
		contentType = "application/json"
	}
	return appendMessage(nil, d.Event, d.ID, c.Reference(), "", c.Payload != "" && c.Content == subscription.FullResource), contentType
}

// statusBody is a handshake or a heartbeat; id is the id of the Bundle.
func (s *Service) statusBody(c *subscription.Subscription, id, kind, state string, events int64) (body []byte, contentType string) {
	if c.Backport {
		return s.backportBody(context.Background(), c, id, kind, state, events, nil), c.MediaType()
	}
	return status{Type: kind, Subscription: c.Reference(), Status: state, Events: events}.append(nil), subscription.FHIRJSON
}

// backportBody is the message of a delivery, or without one of a handshake or heartbeat.
func (s *Service) backportBody(ctx context.Context, c *subscription.Subscription, id, kind, state string, events int64, d *Delivery) []byte {
	var list []*Delivery
	if d != nil {
		list = []*Delivery{d}
	}
	return s.backportBundle(ctx, c, id, kind, state, numberOf(d, events), list)
}

// backportBundle is a history Bundle of the Backport IG: its first entry is a
// SubscriptionStatus as Parameters. The id of a notification is the same at each attempt.
// Spec: http://hl7.org/fhir/uv/subscriptions-backport/STU1.1/StructureDefinition-backport-subscription-notification-r4.html.
func (s *Service) backportBundle(ctx context.Context, c *subscription.Subscription, id, kind, state string, events int64, list []*Delivery) []byte {
	base := s.Settings().Address
	absolute := func(path string) string { return base + "/" + path }
	p := statusParameters{ID: uuid.NewString(), Kind: kind, Status: state, Subscription: absolute(c.Reference()), Topic: c.Topic, Events: events}
	if c.Content == subscription.Empty { // such a payload contains nothing but the number of the event
		p.Topic = ""
	}
	for _, d := range list {
		e := notified{Number: d.Number, At: d.Event.Version.LastUpdated}
		if c.Content != subscription.Empty {
			e.Focus = absolute(d.Event.Version.ResourceType + "/" + d.Event.Version.ID)
		}
		p.Notified = append(p.Notified, e)
	}
	b := []byte(`{"resourceType":"Bundle","id":"` + id + `","type":"history","timestamp":"` + rfc3339(time.Now()) + `","entry":[{"fullUrl":"urn:uuid:` + p.ID + `","resource":`)
	b = p.append(b)
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
func (s *Service) appendEventEntries(ctx context.Context, b []byte, c *subscription.Subscription, d *Delivery, absolute func(string) string) []byte {
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
		b = append(b, s.subscriptions.MaskHeaders(v).Body...)
		b = append(b, `,"request":{"method":"GET","url":`...)
		b = fhir.AppendString(b, v.ResourceType+"/"+v.ID)
		b = append(b, `},"response":{"status":"200"}}`...)
	}
	return b
}

// numberOf is the number of a delivery's event; without a delivery, of the last event.
func numberOf(d *Delivery, events int64) int64 {
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

// statusParameters is the SubscriptionStatus of the Backport IG.
// Spec: http://hl7.org/fhir/uv/subscriptions-backport/STU1.1/StructureDefinition-backport-subscription-status-r4.html.
type statusParameters struct {
	ID           string // of the Parameters
	Kind         string // handshake, heartbeat, event-notification, query-status, query-event
	Status       string
	Subscription string // URL
	Topic        string // canonical, "" for none
	Events       int64  // since the start
	Error        string // "" for none
	Notified     []notified
}

// notified is one notification-event.
type notified struct {
	Number int64
	At     time.Time
	Focus  string // URL, "" for none
}

// append appends the Parameters as JSON.
func (p statusParameters) append(b []byte) []byte {
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
		b = append(b, `"},{"name":"timestamp","valueInstant":"`+rfc3339(e.At)+`"}`...)
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

// shaped are the resources that the topic's notification shape adds, as far as the principal
// of ctx may read them: those that the version of the event refers to, and those that refer to
// its resource.
func (s *Service) shaped(ctx context.Context, c *subscription.Subscription, e *matching.Event) []fhir.Version {
	if len(c.Include) == 0 {
		return nil
	}
	values := url.Values{"_id": {e.Version.ID}, "_count": {"1"}, "_total": {"none"}}
	for _, text := range c.Include {
		name, value, _ := strings.Cut(text, "=")
		if name == "_include" && !strings.HasPrefix(value, e.Version.ResourceType+":") {
			continue
		}
		values.Add(name, value)
	}
	q, err := search.Parse(s.Service.Parameters.Current(), e.Version.ResourceType, values, s.Service.SearchOptions(ctx, false, nil))
	if err != nil {
		return nil
	}
	list := s.referred(ctx, q.Includes, e)
	if q.Includes = nil; len(q.RevIncludes) > 0 {
		if result, err := s.Store.Search(ctx, q); err == nil {
			list = append(list, result.Includes...)
		}
	}
	seen := make(map[string]bool)
	return slices.DeleteFunc(list, func(v fhir.Version) bool {
		reference := v.ResourceType + "/" + v.ID
		if seen[reference] {
			return true
		}
		seen[reference] = true
		if s.Rights == nil {
			return false
		}
		may, err := s.Rights.Sees(ctx, access.PrincipalFrom(ctx), v, s.evaluator().IndexEntries(v))
		return err != nil || !may
	})
}

// referred are the resources to which the version of an event refers by some parameters.
func (s *Service) referred(ctx context.Context, includes []search.Include, e *matching.Event) []fhir.Version {
	_, x := s.evaluator().IndexedVersion(e, false)
	if x == nil || len(includes) == 0 {
		return nil
	}
	about := &match.Resource{Type: e.Version.ResourceType, ID: e.Version.ID, Index: x}
	var refs []int64
	types := make(map[int64][]string) // that are asked for; "" is every one
	for _, target := range x.Targets {
		for _, in := range includes {
			if slices.ContainsFunc(in.Keys, func(k fhir.Key) bool { return about.HasTerm(k.Term(fhir.Value(target))) }) {
				if types[target] == nil {
					refs = append(refs, target)
				}
				types[target] = append(types[target], in.Target)
			}
		}
	}
	if len(refs) == 0 {
		return nil
	}
	found, err := s.Store.Search(ctx, &search.Query{
		Count: matching.MaxMatches, Total: search.TotalNone, Clauses: []match.Clause{{Name: "_id", Any: []match.Match{match.IDs{Refs: refs}}}},
	})
	if err != nil {
		return nil
	}
	return slices.DeleteFunc(s.asSeen(ctx, refs, found.Matches, e.Version.LastUpdated), func(v fhir.Version) bool {
		wanted := types[int64(fhir.ValueReference(v.ResourceType, v.ID))]
		return !slices.Contains(wanted, "") && !slices.Contains(wanted, v.ResourceType)
	})
}

// asSeen returns the versions that resources had at an instant. current are their current versions,
// which it returns where the history does not reach back. It leaves out a resource whose current
// version the principal of ctx may not read.
func (s *Service) asSeen(ctx context.Context, refs []int64, current []fhir.Version, at time.Time) []fhir.Version {
	now := make(map[int64]fhir.Version, len(current))
	for _, v := range current {
		now[int64(fhir.ValueReference(v.ResourceType, v.ID))] = v
	}
	rows, err := s.db().ReferredVersions(ctx, db.ReferredVersionsParams{Refs: refs, At: at})
	if err != nil {
		s.Log.Warn("read the versions of included resources", "error", err)
		return current
	}
	var keys []store.VersionKey
	types := make(map[int64]string)
	for _, r := range rows {
		if v, ok := now[r.Ref]; !ok || v.VersionID != int(r.Version) {
			keys = append(keys, store.VersionKey{Ref: r.Ref, VersionID: int(r.Version)})
			types[r.Ref] = r.Name
		}
	}
	versions, err := s.Store.ChangedVersions(ctx, keys, types)
	if err != nil {
		s.Log.Warn("read the versions of included resources", "error", err)
		return current
	}
	var list []fhir.Version
	for _, ref := range refs {
		v, exists := now[ref]
		if exists && s.Rights != nil {
			if may, err := s.Rights.Sees(ctx, access.PrincipalFrom(ctx), v, s.evaluator().IndexEntries(v)); err != nil || !may {
				continue
			}
		}
		for key, then := range versions {
			if key.Ref == ref {
				v, exists = then, true
			}
		}
		if exists && len(v.Body) > 0 {
			list = append(list, v)
		}
	}
	return list
}

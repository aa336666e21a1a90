package notify

import (
	"context"
	"net/http"
	"strings"

	"github.com/google/uuid"

	"kiln/server/access"
	"kiln/server/interaction"
	"kiln/server/notify/matching"
	"kiln/server/notify/message"
	"kiln/server/operation"
	"kiln/server/outcome"
)

// local is where the OperationDefinitions of the service are.
const local = "http://kiln/fhir/OperationDefinition/"

// Operations returns the operations of the service. The operations of the Backport IG run like every
// other. The rest have paths of their own (Mount): here they are listed, and refused by name as
// entries of a Bundle.
func (s *Service) Operations() []operation.Operation {
	list := []operation.Operation{
		{Definition: local + "subscription-status", Needs: allowed(access.Read), Run: s.status},
		{Definition: local + "subscription-events", Needs: allowed(access.Read), Run: s.pastEventsOf},
		{Definition: local + "subscription-get-ws-binding-token", Needs: allowed(access.Read), Run: s.bindingToken},
	}
	for _, o := range []struct {
		name, what string
		needs      []access.Interaction
	}{
		{"events", "$events is a stream", []access.Interaction{access.Read, access.Search}},
		{"events-history", "$events-history is paged by links of its own", []access.Interaction{access.Read, access.Search}},
		{"notify", "$notify takes JSON that is no resource", []access.Interaction{access.Admin}},
		{"subscription-secret", "$secret answers with JSON that is no resource", []access.Interaction{access.Update}},
		{"subscription-test", "$test waits for an endpoint", []access.Interaction{access.Update}},
	} {
		list = append(list, operation.Operation{Definition: local + o.name, OwnBody: true, Needs: allowed(o.needs...), Run: func(_ context.Context, p operation.Request, _ *operation.Inputs) (interaction.Response, error) {
			if p.Bundled {
				return interaction.Response{}, outcome.NotSupported("%s: it is a request of its own, and no entry of a Bundle", o.what)
			}
			return interaction.Response{}, outcome.MethodNotAllowed("%s is called by GET", p.Name)
		}})
	}
	return list
}

// allowed returns a function for operation.Operation.Needs.
func allowed(list ...access.Interaction) func(operation.Request) []access.Interaction {
	return func(operation.Request) []access.Interaction { return list }
}

// maxStatuses bounds the subscriptions of one $status on the type.
const maxStatuses = 1000

// status is $status. For one Subscription it returns its SubscriptionStatus; for a Backport
// Subscription, and on the type, it returns a searchset of Parameters.
// Spec: http://hl7.org/fhir/uv/subscriptions-backport/STU1.1/OperationDefinition-backport-subscription-status.html.
func (s *Service) status(ctx context.Context, p operation.Request, in *operation.Inputs) (interaction.Response, error) {
	if p.ID != "" {
		row, v, err := s.subscriptions.ReadVisible(ctx, access.Read, p.ID)
		if err != nil {
			return interaction.Response{}, err
		}
		st := s.statusOf(row, v)
		if !st.Backport {
			return interaction.Response{Status: http.StatusOK, Body: st.Append(nil)}, nil
		}
		return statusBundle("Subscription/"+p.ID+"/$status", []interaction.Entry{s.statusEntry(st)}), nil
	}
	if err := s.Service.CheckAllowed(ctx, access.Read, "Subscription", ""); err != nil {
		return interaction.Response{}, err
	}
	given := in.Values()
	ids, states := matching.TakeList(given, "id"), matching.TakeList(given, "status")
	if len(ids) == 0 {
		var err error
		if ids, err = s.allSubscriptions(ctx); err != nil {
			return interaction.Response{}, err
		}
	}
	if len(ids) > maxStatuses {
		return interaction.Response{}, outcome.New(outcome.CodeTooCostly, "$status is asked of more than %d subscriptions: name some by id", maxStatuses)
	}
	self := "Subscription/$status" + queryOf(p.Values.Encode())
	var found []interaction.Entry
	for _, id := range ids {
		row, v, err := s.subscriptions.ReadVisible(ctx, access.Read, strings.TrimPrefix(id, "Subscription/"))
		if outcome.Is(err, outcome.CodeNotFound, outcome.CodeDeleted) {
			continue
		}
		if err != nil {
			return interaction.Response{}, err
		}
		st := s.statusOf(row, v)
		if len(states) > 0 && !containsText(states, st.Status) {
			continue
		}
		found = append(found, s.statusEntry(st))
	}
	return statusBundle(self, found), nil
}

// statusBundle is the searchset of an answer to $status. self is its URL, relative to the base.
func statusBundle(self string, entries []interaction.Entry) interaction.Response {
	return interaction.Response{Status: http.StatusOK, Bundle: &interaction.Bundle{
		Type: "searchset", Total: len(entries), Links: []interaction.Link{{Relation: "self", URL: self}}, Entries: entries,
	}}
}

// statusEntry is a status as the Parameters of the Backport IG, in an entry of a searchset.
func (s *Service) statusEntry(st message.Status) interaction.Entry {
	id := uuid.NewString()
	base := s.Settings().Address
	b := message.StatusParameters{
		ID: id, Kind: st.Type, Status: st.Status, Subscription: base + "/" + st.Subscription, Topic: st.Topic, Events: st.Events, Error: st.Error,
	}.Append(nil)
	return interaction.Entry{FullURL: "urn:uuid:" + id, Body: b, Mode: "match"}
}

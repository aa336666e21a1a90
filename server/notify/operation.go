package notify

import (
	"context"
	"net/http"
	"strings"

	"kiln/server/access"
	"kiln/server/interaction"
	"kiln/server/operation"
	"kiln/server/outcome"
)

// local is where the OperationDefinitions of the service are.
const local = "http://kiln/fhir/OperationDefinition/"

// Operations are those of the service. $status is carried out like every other; the rest
// have paths of their own (Mount), and are here to be listed, and refused by name as
// entries of a Bundle.
func (s *Service) Operations() []operation.Operation {
	list := []operation.Operation{{Definition: local + "subscription-status", Run: s.status}}
	for name, what := range map[string]string{
		"events": "$events is a stream", "events-history": "$events-history is paged by links of its own", "notify": "$notify takes JSON that is no resource",
		"subscription-secret": "$secret answers with JSON that is no resource", "subscription-test": "$test waits for an endpoint",
	} {
		list = append(list, operation.Operation{Definition: local + name, OwnBody: true, Run: func(_ context.Context, p operation.Request, _ *operation.Inputs) (interaction.Response, error) {
			if p.Bundled {
				return interaction.Response{}, outcome.NotSupported("%s: it is a request of its own, and no entry of a Bundle", what)
			}
			return interaction.Response{}, outcome.MethodNotAllowed("%s is called by GET", p.Name)
		}})
	}
	return list
}

// maxStatuses bounds the subscriptions of one $status on the type.
const maxStatuses = 1000

// status is $status: of one Subscription the SubscriptionStatus, on the type a searchset
// of them.
// Spec: http://hl7.org/fhir/uv/subscriptions-backport/STU1.1/OperationDefinition-backport-subscription-status.html.
func (s *Service) status(ctx context.Context, p operation.Request, in *operation.Inputs) (interaction.Response, error) {
	if p.ID != "" {
		row, v, err := s.readable(ctx, access.Read, p.ID)
		if err != nil {
			return interaction.Response{}, err
		}
		return interaction.Response{Status: http.StatusOK, Body: s.statusOf(row, v).append(nil)}, nil
	}
	if err := s.Service.May(ctx, access.Read, "Subscription", ""); err != nil {
		return interaction.Response{}, err
	}
	given := in.Values()
	ids, states := list(given, "id"), list(given, "status")
	if len(ids) == 0 {
		var err error
		if ids, err = s.allSubscriptions(ctx); err != nil {
			return interaction.Response{}, err
		}
	}
	if len(ids) > maxStatuses {
		return interaction.Response{}, outcome.New(outcome.CodeTooCostly, "$status is asked of more than %d subscriptions: name some by id", maxStatuses)
	}
	self := "Subscription/$status" + query(p.Values.Encode())
	found := &interaction.Bundle{Type: "searchset", Links: []interaction.Link{{Relation: "self", URL: self}}}
	for _, id := range ids {
		row, v, err := s.readable(ctx, access.Read, strings.TrimPrefix(id, "Subscription/"))
		if outcome.Is(err, outcome.CodeNotFound, outcome.CodeDeleted) {
			continue
		}
		if err != nil {
			return interaction.Response{}, err
		}
		st := s.statusOf(row, v)
		if len(states) > 0 && !contains(states, st.Status) {
			continue
		}
		found.Entries = append(found.Entries, interaction.Entry{Body: st.append(nil), Mode: "match"})
	}
	found.Total = len(found.Entries)
	return interaction.Response{Status: http.StatusOK, Bundle: found}, nil
}

package notify

import (
	"context"
	"math"
	"net/http"
	"strconv"

	"github.com/google/uuid"

	"kiln/server/access"
	"kiln/server/interaction"
	"kiln/server/notify/queue"
	"kiln/server/notify/subscription"
	"kiln/server/operation"
	"kiln/server/outcome"
)

// maxPastEvents bounds the events in one answer to $events.
const maxPastEvents = 1000

// pastEventsOf is $events of a Subscription: it returns a notification Bundle of the events since the
// Subscription started, as far as the caller may read their resources. An answer has at most
// maxPastEvents; eventsSinceNumber asks for later ones.
// Spec: http://hl7.org/fhir/uv/subscriptions-backport/STU1.1/OperationDefinition-backport-subscription-events.html.
func (s *Service) pastEventsOf(ctx context.Context, p operation.Request, in *operation.Inputs) (interaction.Response, error) {
	row, v, err := s.subscriptions.ReadVisible(ctx, access.Read, p.ID)
	if err == nil {
		err = checkOwner(ctx, row)
	}
	if err != nil {
		return interaction.Response{}, err
	}
	r, err := s.subscriptions.Decode(v.Body)
	if err != nil {
		return interaction.Response{}, err
	}
	c, err := s.subscriptions.Compile(ctx, p.ID, r)
	if err != nil {
		return interaction.Response{}, err
	}
	switch text := in.Text("content"); text {
	case "":
	case "empty":
		c.Content = subscription.Empty
	case "id-only":
		c.Content = subscription.IDOnly
	case "full-resource":
		c.Content = subscription.FullResource
	default:
		return interaction.Response{}, outcome.Invalid("content is %q: expected empty, id-only or full-resource", outcome.Clip(text))
	}
	first, last := int64(1), int64(math.MaxInt64)
	for name, number := range map[string]*int64{"eventsSinceNumber": &first, "eventsUntilNumber": &last} {
		text := in.Text(name)
		if text == "" {
			continue
		}
		if *number, err = strconv.ParseInt(text, 10, 64); err != nil || *number < 0 {
			return interaction.Response{}, outcome.Invalid("%s is %q: expected the number of an event", name, outcome.Clip(text))
		}
	}
	list, err := queue.FindEvents(ctx, s.Store, s.subscriptions.ReadVersions, p.ID, first, last, maxPastEvents)
	if err != nil {
		return interaction.Response{}, err
	}
	seen := list[:0]
	for _, d := range list {
		may, err := s.evaluator().PrincipalSees(ctx, access.PrincipalFrom(ctx), d.Event)
		if err != nil {
			return interaction.Response{}, err
		}
		if may {
			seen = append(seen, d)
		}
	}
	body := s.messages.ComposeBundle(ctx, c, uuid.NewString(), "query-event", r.Status.Text, row.Events, seen)
	return interaction.Response{Status: http.StatusOK, Body: body}, nil
}

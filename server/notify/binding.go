package notify

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/json"
	"net/http"
	"strings"
	"time"

	"kiln/gen/db"
	"kiln/server/access"
	"kiln/server/interaction"
	"kiln/server/notify/config"
	"kiln/server/notify/live"
	"kiln/server/notify/matching"
	"kiln/server/notify/owner"
	"kiln/server/notify/subscription"
	"kiln/server/operation"
	"kiln/server/outcome"
)

// A binding token binds a WebSocket to Backport Subscriptions of the channel websocket:
//
//	client                                    server
//	POST Subscription/$get-ws-binding-token
//	                                          token, websocket-url
//	connects to websocket-url
//	bind-with-token: TOKEN
//	                                          handshake of each Subscription
//	                                          event-notification, heartbeat …
//
// The events come from the log of deliveries, by their numbers. So any server can send them.
// Spec: http://hl7.org/fhir/uv/subscriptions-backport/STU1.1/channels.html#websockets.

// bindingLife is how long a binding token is valid.
const bindingLife = 10 * time.Minute

// bindingToken is $get-ws-binding-token: on one Subscription, on some, or without ids on all
// Subscriptions of the caller that have the channel websocket.
// Spec: http://hl7.org/fhir/uv/subscriptions-backport/STU1.1/OperationDefinition-backport-subscription-get-ws-binding-token.html.
func (s *Service) bindingToken(ctx context.Context, p operation.Request, in *operation.Inputs) (interaction.Response, error) {
	if err := s.watch.CheckServed(ctx, config.WebSocketFeature); err != nil {
		return interaction.Response{}, err
	}
	if err := s.Service.CheckAllowed(ctx, access.Read, "Subscription", ""); err != nil {
		return interaction.Response{}, err
	}
	ids := matching.TakeList(in.Values(), "id")
	if p.ID != "" {
		ids = []string{p.ID}
	}
	all := len(ids) == 0
	if all {
		var err error
		if ids, err = s.allSubscriptions(ctx); err != nil {
			return interaction.Response{}, err
		}
	}
	var bound []string
	for _, id := range ids {
		id = strings.TrimPrefix(id, "Subscription/")
		err := s.mayBind(ctx, id)
		if all && outcome.Theirs(err) {
			continue
		}
		if err != nil {
			return interaction.Response{}, err
		}
		bound = append(bound, id)
	}
	if len(bound) == 0 {
		return interaction.Response{}, outcome.New(outcome.CodeNotFound, "there is no Backport Subscription of yours on the channel websocket")
	}
	if len(bound) > live.MaxListeners {
		return interaction.Response{}, outcome.New(outcome.CodeTooCostly, "a connection has at most %d subscriptions: name some by id", live.MaxListeners)
	}
	token := rand.Text() + rand.Text()
	sum := sha256.Sum256([]byte(token))
	expires := time.Now().Add(bindingLife)
	if err := s.db().TrimBindings(ctx); err != nil {
		return interaction.Response{}, err
	}
	err := s.db().AddBinding(ctx, db.AddBindingParams{Token: sum[:], Subscriptions: bound, Owner: owner.FromPrincipal(access.PrincipalFrom(ctx)).Encode(), Expires: expires})
	if err != nil {
		return interaction.Response{}, err
	}
	type parameter map[string]any
	out := []parameter{{"name": "token", "valueString": token}, {"name": "expiration", "valueDateTime": expires.UTC().Format(time.RFC3339)}}
	for _, id := range bound {
		out = append(out, parameter{"name": "subscription", "valueString": id})
	}
	out = append(out, parameter{"name": "websocket-url", "valueUrl": s.bindingURL()})
	b, err := json.Marshal(map[string]any{"resourceType": "Parameters", "parameter": out})
	return interaction.Response{Status: http.StatusOK, Body: b}, err
}

// bindingURL is the URL of the WebSocket that takes binding tokens.
func (s *Service) bindingURL() string {
	return "ws" + strings.TrimPrefix(strings.TrimSuffix(s.Settings().Address, "/fhir"), "http") + "/notifications/bind"
}

// mayBind refuses a Subscription that the caller does not own, or that no token can be for.
func (s *Service) mayBind(ctx context.Context, id string) error {
	row, v, err := s.subscriptions.ReadVisible(ctx, access.Read, id)
	if err == nil {
		err = checkOwner(ctx, row)
	}
	if err != nil {
		return err
	}
	r, err := s.subscriptions.Decode(v.Body)
	if err != nil {
		return err
	}
	if !subscription.IsBackport(r) || r.Channel == nil || r.Channel.Type_.Text != "websocket" || r.Status.Text == subscription.Off {
		return outcome.UnprocessableContent(outcome.CodeNotSupported, "Subscription/%s is off, or no Backport Subscription on the channel websocket", outcome.Clip(id))
	}
	return nil
}

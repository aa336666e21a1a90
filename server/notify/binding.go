package notify

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"math"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"kiln/gen/db"
	"kiln/server/access"
	"kiln/server/interaction"
	"kiln/server/notify/owner"
	"kiln/server/notify/subscription"
	"kiln/server/notify/webhook"
	"kiln/server/operation"
	"kiln/server/outcome"
	"kiln/server/store"
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

const (
	// bindingLife is how long a binding token is valid.
	bindingLife = 10 * time.Minute
	// bindingWait is how long a connection without an access token may stay unbound.
	bindingWait = 30 * time.Second
	// bindingInterval is how often a server looks for events that another server has queued.
	bindingInterval = time.Second
	// bindingPage is how many events a connection reads at a time.
	bindingPage = 64

	bindWithToken = "bind-with-token"
)

// bindingToken is $get-ws-binding-token: on one Subscription, on some, or without ids on all
// Subscriptions of the caller that have the channel websocket.
// Spec: http://hl7.org/fhir/uv/subscriptions-backport/STU1.1/OperationDefinition-backport-subscription-get-ws-binding-token.html.
func (s *Service) bindingToken(ctx context.Context, p operation.Request, in *operation.Inputs) (interaction.Response, error) {
	if err := s.checkServed(ctx, featureWebSocket); err != nil {
		return interaction.Response{}, err
	}
	if err := s.Service.CheckAllowed(ctx, access.Read, "Subscription", ""); err != nil {
		return interaction.Response{}, err
	}
	ids := listOf(in.Values(), "id")
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
	if len(bound) > maxListeners {
		return interaction.Response{}, outcome.New(outcome.CodeTooCostly, "a connection has at most %d subscriptions: name some by id", maxListeners)
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

// bindings are the Subscriptions that WebSockets of this server are bound to by tokens.
type bindings struct {
	wake chan struct{} // has an element when this server has queued events

	mu    sync.Mutex
	bound map[string]map[*binding]struct{} // by id of the Subscription
}

// binding is one Subscription that one WebSocket is bound to.
type binding struct {
	id      string
	owner   owner.Owner   // of the token
	ready   chan struct{} // has an element when there may be events, or the Subscription has changed
	last    int64         // number of the last event that was sent
	started time.Time     // of the Subscription, whose events are counted from then on
	beating time.Duration // the heartbeat period when it was last read
}

func newBindings() *bindings {
	return &bindings{wake: make(chan struct{}, 1), bound: make(map[string]map[*binding]struct{})}
}

func (b *bindings) wakeUp() { signal(b.wake) }

// signal puts an element into a channel that has room for one.
func signal(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// add makes a binding known.
func (b *bindings) add(one *binding) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.bound[one.id] == nil {
		b.bound[one.id] = make(map[*binding]struct{})
	}
	b.bound[one.id][one] = struct{}{}
}

func (b *bindings) remove(one *binding) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if delete(b.bound[one.id], one); len(b.bound[one.id]) == 0 {
		delete(b.bound, one.id)
	}
}

// ids lists the Subscriptions that somebody is bound to.
func (b *bindings) ids() []string {
	b.mu.Lock()
	defer b.mu.Unlock()
	ids := make([]string, 0, len(b.bound))
	for id := range b.bound {
		ids = append(ids, id)
	}
	return ids
}

// run tells bindings of new events and of changes, until ctx ends. One query asks for all of them.
func (b *bindings) run(ctx context.Context, s *Service) {
	known := make(map[string]db.EventCountsRow)
	tick := time.NewTicker(bindingInterval)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
		case <-b.wake:
		case <-ctx.Done():
			return
		}
		ids := b.ids()
		if len(ids) == 0 {
			clear(known)
			continue
		}
		rows, err := s.db().EventCounts(ctx, ids)
		if err != nil {
			if ctx.Err() == nil {
				s.Log.Warn("look for events of bound subscriptions", "error", err)
			}
			continue
		}
		now := make(map[string]db.EventCountsRow, len(rows))
		for _, r := range rows {
			now[r.ID] = r
		}
		b.mu.Lock()
		for _, id := range ids {
			if before, ok := known[id]; ok && before == now[id] {
				continue
			}
			for one := range b.bound[id] {
				signal(one.ready)
			}
		}
		b.mu.Unlock()
		known = now
	}
}

// boundSocket answers /notifications/bind: a WebSocket without an access token, which a binding
// token gives its rights.
func (s *Service) boundSocket(w http.ResponseWriter, r *http.Request) {
	p := access.Open
	if s.Rights != nil {
		p = new(access.Principal) // may do nothing
	}
	s.serveSocket(w, r.WithContext(access.WithPrincipal(r.Context(), p)), true)
}

// bindToken binds the connection to the Subscriptions of a token.
func (k *socket) bindToken(token string) {
	sum := sha256.Sum256([]byte(token))
	row, err := k.s.db().Binding(k.ctx, sum[:])
	if errors.Is(err, pgx.ErrNoRows) {
		err = outcome.New(outcome.CodeLogin, "the binding token is unknown or has expired: ask for another with $get-ws-binding-token")
	}
	if err != nil {
		k.sendError("", err)
		return
	}
	o := owner.Decode(row.Owner)
	for _, id := range row.Subscriptions {
		one := &binding{id: id, owner: o, ready: make(chan struct{}, 1)}
		c, status, events, err := k.bindingState(one)
		if err != nil {
			k.sendError("", err)
			continue
		}
		k.mu.Lock()
		before := k.bindings[id]
		if before == nil {
			k.bindings[id] = one
		}
		k.mu.Unlock()
		k.bound.Store(true)
		k.s.bindings.add(one)
		// An event that is queued between the count and add is found at the first signal.
		signal(one.ready)
		k.sendText(k.s.messages.ComposeBackport(k.ctx, c, uuid.NewString(), "handshake", status, events, nil))
		if before != nil { // bound already: the token is answered, and nothing is sent twice
			k.s.bindings.remove(one)
			continue
		}
		one.last = events
		k.working.Go(func() {
			defer func() {
				k.s.bindings.remove(one)
				k.mu.Lock()
				delete(k.bindings, id)
				k.mu.Unlock()
			}()
			if err := k.follow(one); err != nil && k.ctx.Err() == nil {
				k.sendError("", err)
			}
		})
	}
}

// bindingState reads the Subscription of a binding with the rights of the token's owner. It fails
// where that owner may not read it any more, or where the Subscription is off or has another channel.
func (k *socket) bindingState(one *binding) (c *subscription.Subscription, status string, events int64, err error) {
	s := k.s
	p, err := owner.FindPrincipal(k.ctx, s.Rights, one.owner)
	if err != nil {
		return nil, "", 0, err
	}
	ctx := owner.WithPrincipal(access.WithPrincipal(k.ctx, access.Open), p)
	row, v, err := s.subscriptions.ReadVisible(ctx, access.Read, one.id)
	if err != nil {
		return nil, "", 0, err
	}
	r, err := s.subscriptions.Decode(v.Body)
	if err != nil {
		return nil, "", 0, err
	}
	if c, err = s.subscriptions.Compile(ctx, one.id, r); err != nil {
		return nil, "", 0, err
	}
	if !c.Backport || !c.WebSocket || c.Status == subscription.Off {
		return nil, "", 0, outcome.Invalid("Subscription/%s is off, or no Backport Subscription on the channel websocket", one.id)
	}
	if !row.StartedAt.Equal(one.started) {
		one.started, one.last = row.StartedAt, 0
	}
	return c, r.Status.Text, row.Events, nil
}

// follow sends the events of a binding, in the order of their numbers, and heartbeats, until the
// connection ends. It returns an error where the Subscription ends first.
func (k *socket) follow(one *binding) error {
	beat := time.NewTimer(math.MaxInt64)
	defer beat.Stop()
	for {
		kind := "event-notification"
		select {
		case <-one.ready:
		case <-beat.C:
			kind = "heartbeat"
		case <-k.ctx.Done():
			return nil
		}
		c, status, events, err := k.bindingState(one)
		if err != nil {
			if outcome.Theirs(err) {
				return err
			}
			k.s.Log.Warn("read the subscription of a WebSocket", "subscription", one.id, "error", err)
			store.SleepFor(k.ctx, bindingInterval)
			signal(one.ready)
			continue
		}
		sent, err := k.sendEvents(one, c, status)
		if err != nil {
			k.s.Log.Warn("read the events of a WebSocket", "subscription", one.id, "error", err)
			store.SleepFor(k.ctx, bindingInterval)
			signal(one.ready)
			continue
		}
		if kind == "heartbeat" && !sent {
			k.sendText(k.s.messages.ComposeBackport(k.ctx, c, uuid.NewString(), kind, status, events, nil))
			sent = true
		}
		if c.Heartbeat > 0 && (sent || kind == "heartbeat" || one.beating != c.Heartbeat) {
			beat.Reset(c.Heartbeat)
		} else if c.Heartbeat <= 0 {
			beat.Stop()
		}
		one.beating = c.Heartbeat
	}
}

// sendEvents sends the events of a binding that it has not had, and reports whether there were some.
func (k *socket) sendEvents(one *binding, c *subscription.Subscription, status string) (sent bool, err error) {
	s := k.s
	for {
		list, err := s.eventsByNumber(k.ctx, one.id, one.last+1, math.MaxInt64, bindingPage)
		if err != nil {
			return sent, err
		}
		for _, d := range list {
			p, err := owner.FindPrincipal(k.ctx, s.Rights, one.owner)
			if err != nil {
				return sent, err
			}
			may, err := s.maySee(k.ctx, p, d.Event)
			if err != nil {
				return sent, err
			}
			one.last = d.Number
			if !may {
				continue
			}
			ctx := owner.WithPrincipal(access.WithPrincipal(k.ctx, access.Open), p)
			k.sendText(s.messages.ComposeBackport(ctx, c, d.ID.String(), "event-notification", status, d.Number, d))
			sent = true
			s.metrics.countDelivery("websocket", "", webhook.Result{}, d.Event.Written)
		}
		if len(list) < bindingPage || k.ctx.Err() != nil {
			return sent, nil
		}
	}
}

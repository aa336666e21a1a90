package live

import (
	"crypto/sha256"
	"errors"
	"math"
	"net/http"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"kiln/gen/db"
	"kiln/server/access"
	"kiln/server/notify/owner"
	"kiln/server/notify/queue"
	"kiln/server/notify/subscription"
	"kiln/server/outcome"
	"kiln/server/store"
)

const (
	// bindingWait is how long a connection without an access token may stay unbound.
	bindingWait = 30 * time.Second
	// bindingPage is how many events a connection reads at a time.
	bindingPage = 64

	bindWithToken = "bind-with-token"
)

// ServeBound answers /notifications/bind: a WebSocket without an access token, which a binding
// token gives its rights.
func (s *Hub) ServeBound(w http.ResponseWriter, r *http.Request) {
	p := access.Open
	if s.Rights != nil {
		p = new(access.Principal) // may do nothing
	}
	s.serveSocket(w, r.WithContext(access.WithPrincipal(r.Context(), p)), true)
}

// bindToken binds the connection to the Subscriptions of a token.
func (k *socket) bindToken(token string) {
	sum := sha256.Sum256([]byte(token))
	row, err := db.New(k.s.Store.Pool()).Binding(k.ctx, sum[:])
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
		k.s.bindings.addBinding(one)
		// An event that is queued between the count and add is found at the first signal.
		signal(one.ready)
		k.sendText(k.s.Messages.ComposeBackport(k.ctx, c, uuid.NewString(), "handshake", status, events, nil))
		if before != nil { // bound already: the token is answered, and nothing is sent twice
			k.s.bindings.removeBinding(one)
			continue
		}
		one.last = events
		k.working.Go(func() {
			defer func() {
				k.s.bindings.removeBinding(one)
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
	row, v, err := s.Subscriptions.ReadVisible(ctx, access.Read, one.id)
	if err != nil {
		return nil, "", 0, err
	}
	r, err := s.Subscriptions.Decode(v.Body)
	if err != nil {
		return nil, "", 0, err
	}
	if c, err = s.Subscriptions.Compile(ctx, one.id, r); err != nil {
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
			k.sendText(k.s.Messages.ComposeBackport(k.ctx, c, uuid.NewString(), kind, status, events, nil))
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
		list, err := queue.FindEvents(k.ctx, s.Store, s.Subscriptions.ReadVersions, one.id, one.last+1, math.MaxInt64, bindingPage)
		if err != nil {
			return sent, err
		}
		for _, d := range list {
			p, err := owner.FindPrincipal(k.ctx, s.Rights, one.owner)
			if err != nil {
				return sent, err
			}
			may, err := s.Evaluator.PrincipalSees(k.ctx, p, d.Event)
			if err != nil {
				return sent, err
			}
			one.last = d.Number
			if !may {
				continue
			}
			ctx := owner.WithPrincipal(access.WithPrincipal(k.ctx, access.Open), p)
			k.sendText(s.Messages.ComposeBackport(ctx, c, d.ID.String(), "event-notification", status, d.Number, d))
			sent = true
			if s.CountDelivery != nil {
				s.CountDelivery("websocket", d.Event.Written)
			}
		}
		if len(list) < bindingPage || k.ctx.Err() != nil {
			return sent, nil
		}
	}
}

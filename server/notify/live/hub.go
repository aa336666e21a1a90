// Package live tells the connections of this server of events: WebSockets and server-sent events.
//
// A Hub follows the change log in two lanes: one for the listeners whose criteria the index entries of an event
// decide, and one for those that need the database. A listener receives the past by a replay and then
// each event once, in the order of the log. The queue of a connection is bounded: one that reads too slowly is
// closed with a cursor from which it goes on.
//
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
package live

import (
	"context"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"kiln/gen/db"
	"kiln/gen/r4"
	"kiln/server/access"
	"kiln/server/fhir"
	"kiln/server/interaction"
	"kiln/server/notify/config"
	"kiln/server/notify/matching"
	"kiln/server/notify/owner"
	"kiln/server/notify/queue"
	"kiln/server/notify/subscription"
	"kiln/server/outcome"
	"kiln/server/store"
	"kiln/server/web"
)

// Parts are the parts of the service that a Hub uses.
type Parts struct {
	Store        *store.Store
	Interactions *interaction.Service
	Evaluator    *matching.Evaluator
	Rights       owner.Rights // nil: everybody may read everything
	Settings     *config.Watch
	Streams      *web.OpenStreams
	// Subscriptions reads the Subscriptions that connections are bound to.
	Subscriptions Subscriptions
	// Messages makes the messages of bound Subscriptions.
	Messages Messages
	// Refresh makes the search parameters in force as new as the database.
	Refresh func(ctx context.Context) error
	// CountDelivery counts a message that was written; nil counts nothing.
	CountDelivery func(channel string, written time.Time)
	Log           *slog.Logger
}

// Subscriptions reads Subscriptions. Package subscription implements it.
type Subscriptions interface {
	// Read compiles a Subscription as it is stored.
	Read(ctx context.Context, id string) (*subscription.Subscription, error)
	// ReadVisible returns the row of a Subscription that the caller may read, and its current version.
	ReadVisible(ctx context.Context, i access.Interaction, id string) (db.SubscriptionRow, fhir.Version, error)
	// Decode reads a Subscription as it is stored, and Compile compiles it.
	Decode(body []byte) (*r4.Subscription, error)
	Compile(ctx context.Context, id string, r *r4.Subscription) (*subscription.Subscription, error)
	// ReadVersions reads the versions of events as subscribers may see them.
	ReadVersions(ctx context.Context, keys []store.VersionKey, types map[int64]string) (map[store.VersionKey]fhir.Version, error)
}

// Messages makes messages in the form of the Backport IG. Package message implements it.
type Messages interface {
	// ComposeBackport makes the message of a delivery, or without one of a handshake or heartbeat.
	ComposeBackport(ctx context.Context, c *subscription.Subscription, id, kind, state string, events int64, d *queue.Delivery) []byte
}

// Hub tells the connections of this server of events. It follows the whole change log, and
// so the writes of all servers.
type Hub struct {
	Parts
	sockets, streams atomic.Int64
	bindings         *bindings
	lanes            [2]*lane
	// begun is closed when the lanes have their positions: a connection that listened
	// earlier would miss the writes until then.
	begun chan struct{}

	mu        sync.Mutex
	listeners map[*matching.Subscriber]*listener
	clients   map[*client]struct{}
	bound     map[string]map[*listener]struct{} // by id of the Subscription
	// messages is the transaction from which on messages to users are still to be passed on;
	// the zero value before begun.
	messages store.ChangePosition
}

// replayPage is how many changes are read at a time.
const replayPage = 1000

// New returns a Hub that has not begun.
func New(p Parts) *Hub {
	h := &Hub{Parts: p, bindings: newBindings(), begun: make(chan struct{}), listeners: make(map[*matching.Subscriber]*listener), clients: make(map[*client]struct{}), bound: make(map[string]map[*listener]struct{})}
	for i := range h.lanes {
		h.lanes[i] = &lane{matcher: matching.NewMatcher()}
	}
	return h
}

// CountConnections returns the number of WebSockets and of streams of server-sent events that are open.
func (h *Hub) CountConnections() (sockets, streams int64) { return h.sockets.Load(), h.streams.Load() }

// WakeBindings makes the bound WebSockets look for new events.
func (h *Hub) WakeBindings() { h.bindings.wakeUp() }

// Run passes events of a feed on until ctx ends.
func (h *Hub) Run(ctx context.Context, feed *store.Feed) {
	var now store.ChangeSnapshot
	for ctx.Err() == nil {
		var err error
		if now, err = h.Store.ChangeSnapshot(ctx); err == nil {
			break
		}
		store.SleepFor(ctx, 100*time.Millisecond)
	}
	at := now.Last()
	var working sync.WaitGroup
	for _, l := range h.lanes {
		l.mu.Lock()
		l.passOn(at)
		l.epoch = at.Epoch
		l.mu.Unlock()
		working.Go(func() { follower{l, h}.run(ctx, feed, at) })
	}
	h.mu.Lock()
	h.messages = now.Horizon()
	for c := range h.clients {
		c.messages = now.Horizon()
	}
	h.mu.Unlock()
	close(h.begun)
	working.Go(func() { h.passMessages(ctx) })
	working.Go(func() { h.bindings.run(ctx, h.Store, h.Log) })
	working.Go(func() { h.watchConnections(ctx) })
	working.Wait()
}

// follower passes the changes of the log on in a lane: a matching.ChangeHandler.
type follower struct {
	*lane
	h *Hub
}

func (l follower) run(ctx context.Context, feed *store.Feed, at store.ChangePosition) {
	changeLog := feed.Follow(at)
	changeLog.Idle = l.idle
	defer changeLog.Close()
	for ctx.Err() == nil {
		changes, err := changeLog.Next(ctx, replayPage, 0)
		if err == nil {
			err = l.publish(ctx, changes)
		}
		if err != nil && ctx.Err() == nil {
			l.h.Log.Warn("pass events on to connections", "error", err)
			changeLog.Position = *l.passed.Load()
			store.SleepFor(ctx, 200*time.Millisecond)
		}
	}
}

// idle reports that nobody listens in the lane.
func (l follower) idle() bool {
	l.h.mu.Lock()
	defer l.h.mu.Unlock()
	return l.matcher.Size() == 0 && len(l.h.bound) == 0
}

// publish passes changes on. While it runs no connection begins to listen in this lane, so
// each receives an event by replay or live, and none twice. Criteria are parsed again if
// their meaning has changed.
func (l follower) publish(ctx context.Context, changes []store.Change) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if e := l.h.Store.Epoch(); e != l.epoch && len(changes) > 0 { // definitions may have been lost
		if err := l.renew(ctx); err != nil {
			return err
		}
		l.epoch = e
	}
	return matching.HandleChanges(ctx, l, changes)
}

// AltersRules implements matching.ChangeHandler.
func (l follower) AltersRules(c store.Change) bool { return matching.DefinesCriteria(c) }

// ApplyChanges implements matching.ChangeHandler.
func (l follower) ApplyChanges(ctx context.Context, _ []store.Change) error { return l.renew(ctx) }

// renew parses again the criteria of the lane's listeners and of the Subscriptions that
// they are bound to. A listener whose criteria are no longer possible is refused.
func (l follower) renew(ctx context.Context) error {
	h := l.h
	if err := h.Refresh(ctx); err != nil {
		return err
	}
	reg := h.Interactions.Parameters.Current()
	if err := reg.Err(); err != nil {
		return err
	}
	l.parameters = reg.Version()
	var stale []*listener
	bound := make(map[string]bool)
	h.mu.Lock()
	for _, one := range h.listeners {
		switch {
		case one.lane != l.lane:
		case one.bind != "":
			bound[one.bind] = true
		case one.wish.criteria != nil && one.wish.criteria.Parameters < l.parameters:
			stale = append(stale, one)
		}
	}
	h.mu.Unlock()
	for id := range bound {
		h.rebind(ctx, l.lane, id)
	}
	for _, one := range stale {
		wish, err := h.renewed(ctx, one)
		if err != nil && !outcome.Theirs(err) {
			return err
		}
		h.mu.Lock()
		if h.listeners[one.subscriber] == one {
			if err != nil {
				h.dropListener(one)
				one.refused(err)
			} else {
				// It stays in this lane, also where its criteria are now of the other kind: the lanes
				// differ only in who waits for whom.
				one.wish = wish
				one.subscriber.Rules = wish.rules()
				l.matcher.AddSubscriber(one.subscriber)
			}
		}
		h.mu.Unlock()
	}
	return nil
}

// MatchChanges implements matching.ChangeHandler: it passes changes on by the criteria as they are; mu is held.
func (l follower) MatchChanges(ctx context.Context, changes []store.Change) error {
	h := l.h
	h.mu.Lock()
	bound := len(h.bound) > 0
	h.mu.Unlock()
	events, hits, costly, err := h.Evaluator.MatchChanges(ctx, l.matcher, changes, func(c store.Change) bool {
		return c.ResourceType == "Subscription" && bound
	})
	if err != nil {
		return err
	}
	h.deliver(ctx, hits)
	h.refuseCostly(costly)
	for _, e := range events {
		if e.ResourceType() == "Subscription" {
			h.rebind(ctx, l.lane, e.Version.ID)
		}
	}
	l.passOn(changes[len(changes)-1].Position)
	return nil
}

// listenersOf are the listeners of hits, nil for one that has left.
func (h *Hub) listenersOf(hits []matching.Hit) []*listener {
	h.mu.Lock()
	defer h.mu.Unlock()
	list := make([]*listener, len(hits))
	for i, hit := range hits {
		list[i] = h.listeners[hit.Subscriber]
	}
	return list
}

// refuseCostly ends listeners whose criteria cost too much.
func (h *Hub) refuseCostly(costly []*matching.Subscriber) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, sub := range costly {
		if l := h.listeners[sub]; l != nil {
			h.dropListener(l)
			if l.refused != nil {
				l.refused(h.Evaluator.RefuseCostly())
			}
		}
	}
}

// deliver queues events for the connections that they are for.
func (h *Hub) deliver(ctx context.Context, hits []matching.Hit) {
	type key struct {
		event *matching.Event
		id    string
	}
	made := make(map[key]*notification)
	listeners := h.listenersOf(hits)
	for i, hit := range hits {
		l := listeners[i]
		if l == nil || !l.from.includesPosition(hit.Event.Position) {
			continue
		}
		k := key{hit.Event, l.id + "\n" + l.bind}
		m := made[k]
		if m == nil {
			m = l.newNotification(hit.Event)
			made[k] = m
		}
		l.client.pushNotification(addressed{m, l})
	}
}

// awaitBegun waits until the hub has begun: only then it tells messages to a user that came behind a connection, which
// are for it, from those before, which another connection may have got. It fails with exception, 503, where
// ctx ends before.
func (h *Hub) awaitBegun(ctx context.Context) error {
	select {
	case <-h.begun:
		return nil
	case <-ctx.Done():
		return outcome.Unavailable("%v", context.Cause(ctx)).Because(ctx.Err())
	}
}

// joinClient makes a connection known, and returns it with the function that ends it.
func (h *Hub) joinClient(p *access.Principal, channel string) (*client, func()) {
	c := &client{count: h.CountDelivery, principal: p, channel: channel, queue: newOutgoing(), replay: make(chan []addressed), slow: make(chan struct{}), ended: make(chan struct{})}
	h.mu.Lock()
	h.clients[c], c.messages = struct{}{}, h.messages
	h.mu.Unlock()
	return c, func() {
		h.mu.Lock()
		defer h.mu.Unlock()
		delete(h.clients, c)
		for _, l := range h.listeners {
			if l.client == c {
				h.dropListener(l)
			}
		}
	}
}

// findLane returns the lane of a subscriber.
func (h *Hub) findLane(s *matching.Subscriber) *lane {
	if s.NeedsDatabase() {
		return h.lanes[1]
	}
	return h.lanes[0]
}

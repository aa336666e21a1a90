package notify

import (
	"context"
	"crypto/sha256"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgtype"

	"kiln/gen/db"
	"kiln/server/access"
	"kiln/server/notify/matching"
	"kiln/server/notify/message"
	"kiln/server/notify/owner"
	"kiln/server/notify/subscription"
	"kiln/server/notify/webhook"
	"kiln/server/outcome"
	"kiln/server/store"
)

// hub tells the connections of this server of events. It follows the whole change log, and
// so the writes of all servers.
type hub struct {
	s                *Service
	sockets, streams atomic.Int64
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

// lane passes events on to some of the listeners: those whose criteria the index entries of an
// event decide, or those that need the database, for which the others do not wait.
type lane struct {
	h       *hub
	matcher *matching.Matcher

	mu       sync.Mutex           // taken before the mutex of the hub
	position store.ChangePosition // of the last change that was passed on
	// passed is position for callers that do not wait for mu, which is held during queries.
	passed atomic.Pointer[store.ChangePosition]
	// epoch is the one in which the criteria were last read anew as a whole.
	epoch store.EpochID
	// parameters is the least version of the search parameters that criteria may be read with:
	// a change of them was passed on.
	parameters int64
}

// passOn notes that all changes up to p were passed on; mu is held.
func (l *lane) passOn(p store.ChangePosition) {
	l.position = p
	l.passed.Store(&p)
}

// lane returns the lane of a subscriber.
func (h *hub) lane(s *matching.Subscriber) *lane {
	if s.NeedsDatabase() {
		return h.lanes[1]
	}
	return h.lanes[0]
}

// client is one connection.
type client struct {
	hub       *hub
	principal *access.Principal
	channel   string           // websocket or sse
	queue     outgoing         // live events
	replay    chan []addressed // of the past, as fast as they are taken
	slow      chan struct{}    // closed when it has read too slowly
	ended     chan struct{}    // closed when its access was revoked
	// messages is the transaction from which on messages to its user are passed on live;
	// earlier messages were stored if no connection received them. The hub's mu guards it.
	messages store.ChangePosition

	events    atomic.Int64
	slowOnce  sync.Once
	endedOnce sync.Once
}

// notification is one event for one connection.
type notification struct {
	position store.ChangePosition // the zero value: of no event
	name     string               // of the server-sent event
	data     []byte
	written  time.Time
	cursor   int // where in data the text of the cursor begins; 0 where there is none
}

// addressed is a message for a listener; nil is the connection itself. Connections that
// wish for the same share the message.
type addressed struct {
	*notification
	to *listener
}

// listener is one thing that a connection wants to hear of.
type listener struct {
	client     *client
	subscriber *matching.Subscriber
	id         string // subscriptionId; "" for server-sent events
	typ        string // "" for all
	kinds      matching.Kinds
	bind       string // id of the Subscription of R4's websocket channel

	from since // the events that it has not received yet
	wish wish  // its filter, unless it is bound to Subscriptions
	lane *lane
	progress
	// refused is told when the criteria cannot be carried out any more, or cost too much; it
	// does not wait.
	refused func(error)
}

// progress is how far a listener's messages have come.
type progress struct {
	mu        sync.Mutex
	unwritten int                  // messages on their way to the connection
	written   store.ChangePosition // up to here the connection has all of them
	live      bool                 // the replay is over
}

// newListener is a listener of a connection that begins with the events of from.
func newListener(c *client, from since) *listener {
	return &listener{client: c, from: from, progress: progress{written: from.position}}
}

// replayPage is how many changes are read at a time.
const replayPage = 1000

func newHub(s *Service) *hub {
	h := &hub{s: s, begun: make(chan struct{}), listeners: make(map[*matching.Subscriber]*listener), clients: make(map[*client]struct{}), bound: make(map[string]map[*listener]struct{})}
	for i := range h.lanes {
		h.lanes[i] = &lane{h: h, matcher: matching.NewMatcher()}
	}
	return h
}

// run passes events on until ctx ends.
func (h *hub) run(ctx context.Context) {
	var now store.ChangeSnapshot
	for ctx.Err() == nil {
		var err error
		if now, err = h.s.Store.ChangeSnapshot(ctx); err == nil {
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
		working.Go(func() { l.run(ctx, at) })
	}
	h.mu.Lock()
	h.messages = now.Horizon()
	for c := range h.clients {
		c.messages = now.Horizon()
	}
	h.mu.Unlock()
	close(h.begun)
	working.Go(func() { h.passMessages(ctx) })
	working.Go(func() { h.watchConnections(ctx) })
	working.Wait()
}

func (l *lane) run(ctx context.Context, at store.ChangePosition) {
	follower := l.h.s.feed.Follow(at)
	follower.Idle = l.idle
	defer follower.Close()
	for ctx.Err() == nil {
		changes, err := follower.Next(ctx, replayPage, 0)
		if err == nil {
			err = l.publish(ctx, changes)
		}
		if err != nil && ctx.Err() == nil {
			l.h.s.Log.Warn("pass events on to connections", "error", err)
			follower.Position = *l.passed.Load()
			store.SleepFor(ctx, 200*time.Millisecond)
		}
	}
}

// idle reports that nobody listens in the lane.
func (l *lane) idle() bool {
	l.h.mu.Lock()
	defer l.h.mu.Unlock()
	return l.matcher.Size() == 0 && len(l.h.bound) == 0
}

// publish passes changes on. While it runs no connection begins to listen in this lane, so
// each receives an event by replay or live, and none twice. Criteria are parsed again if
// their meaning has changed.
func (l *lane) publish(ctx context.Context, changes []store.Change) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if e := l.h.s.Store.Epoch(); e != l.epoch && len(changes) > 0 { // definitions may have been lost
		if err := l.renew(ctx); err != nil {
			return err
		}
		l.epoch = e
	}
	return matching.HandleChanges(ctx, l, changes)
}

// AltersRules implements matching.ChangeHandler.
func (l *lane) AltersRules(c store.Change) bool { return matching.DefinesCriteria(c) }

// ApplyChanges implements matching.ChangeHandler.
func (l *lane) ApplyChanges(ctx context.Context, _ []store.Change) error { return l.renew(ctx) }

// renew parses again the criteria of the lane's listeners and of the Subscriptions that
// they are bound to. A listener whose criteria are no longer possible is refused.
func (l *lane) renew(ctx context.Context) error {
	h := l.h
	if err := h.s.refreshSearchParameters(ctx); err != nil {
		return err
	}
	reg := h.s.Service.Parameters.Current()
	if err := reg.Err(); err != nil {
		return err
	}
	l.parameters = reg.Version()
	var stale []*listener
	bound := make(map[string]bool)
	h.mu.Lock()
	for _, one := range h.listeners {
		switch {
		case one.lane != l:
		case one.bind != "":
			bound[one.bind] = true
		case one.wish.criteria != nil && one.wish.criteria.Parameters < l.parameters:
			stale = append(stale, one)
		}
	}
	h.mu.Unlock()
	for id := range bound {
		h.rebind(ctx, l, id)
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

// renewed is the filter of a listener, parsed with the present search parameters.
func (h *hub) renewed(ctx context.Context, l *listener) (wish, error) {
	w := l.wish
	if p := l.client.principal; p != nil {
		ctx = access.WithPrincipal(ctx, p)
	}
	var err error
	w.criteria, err = h.s.evaluator().ParseCriteria(ctx, w.typ, w.criteria.Text)
	return w, err
}

// MatchChanges implements matching.ChangeHandler: it passes changes on by the criteria as they are; mu is held.
func (l *lane) MatchChanges(ctx context.Context, changes []store.Change) error {
	h := l.h
	h.mu.Lock()
	bound := len(h.bound) > 0
	h.mu.Unlock()
	events, hits, costly, err := h.s.evaluator().MatchChanges(ctx, l.matcher, changes, func(c store.Change) bool {
		return c.ResourceType == "Subscription" && bound
	})
	if err != nil {
		return err
	}
	h.deliver(ctx, hits)
	h.refuseCostly(costly)
	for _, e := range events {
		if e.ResourceType() == "Subscription" {
			h.rebind(ctx, l, e.Version.ID)
		}
	}
	l.passOn(changes[len(changes)-1].Position)
	return nil
}

// listenersOf are the listeners of hits, nil for one that has left.
func (h *hub) listenersOf(hits []matching.Hit) []*listener {
	h.mu.Lock()
	defer h.mu.Unlock()
	list := make([]*listener, len(hits))
	for i, hit := range hits {
		list[i] = h.listeners[hit.Subscriber]
	}
	return list
}

// refuseCostly ends listeners whose criteria cost too much.
func (h *hub) refuseCostly(costly []*matching.Subscriber) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, sub := range costly {
		if l := h.listeners[sub]; l != nil {
			h.dropListener(l)
			if l.refused != nil {
				l.refused(errCostly(h.s.questionTimeout))
			}
		}
	}
}

// deliver queues events for the connections that they are for.
func (h *hub) deliver(ctx context.Context, hits []matching.Hit) {
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
		l.client.push(addressed{m, l})
	}
}

// newNotification is an event as the listener's connection gets it.
func (l *listener) newNotification(e *matching.Event) *notification {
	m := &notification{position: e.Position, written: e.Written}
	if l.bind != "" {
		m.data = []byte("ping " + l.bind)
		return m
	}
	m.name = strings.ToLower(e.ResourceType()) + "-" + e.Kind.PastTense()
	reference := ""
	if l.id != "" {
		reference = "Subscription/" + l.id
	}
	m.data = message.AppendEvent(nil, e, e.NotificationID(reference), reference, matching.Cursor(e.Position), true)
	m.cursor = len(m.data) - len(`"}`) - matching.CursorLength
	return m
}

// push queues a message, unless the connection has read too slowly.
func (c *client) push(m addressed) {
	m.leaves()
	if !c.queue.addMessage(m) {
		c.tooSlow()
	}
}

// nextMessages returns queued messages, where queue.ready says that there are some.
func (c *client) nextMessages() []addressed {
	page, ok := c.queue.takeMessages()
	if !ok {
		c.tooSlow()
	}
	return page
}

func (c *client) tooSlow() { c.slowOnce.Do(func() { close(c.slow) }) }

// leaves counts a message that is on its way.
func (m addressed) leaves() {
	if m.to != nil {
		m.to.mu.Lock()
		m.to.unwritten++
		m.to.mu.Unlock()
	}
}

// noteWritten notes that a message was written.
func (c *client) noteWritten(m addressed) {
	if m.to == nil {
		return
	}
	m.to.mu.Lock()
	m.to.unwritten--
	m.to.progress.written = m.position
	m.to.mu.Unlock()
	c.events.Add(1)
	c.hub.s.metrics.countDelivery(c.channel, "", webhook.Result{}, m.notification.written)
}

// reached is the position up to which the connection has everything that the listener is
// for. The lanes do not wait for each other: of a listener that has heard of nothing for long it
// is how far its own lane is.
func (l *listener) reached() store.ChangePosition {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.live && l.unwritten == 0 { // the next pushed events lie after passed
		if passed := l.lane.passed.Load(); passed.Compare(l.written) > 0 {
			return *passed
		}
	}
	return l.written
}

// goOn is where a connection that ends now goes on with all of its listeners. It is false where
// none of them can.
func goOn(listeners map[string]*listener) (at store.ChangePosition, ok bool) {
	for _, l := range listeners {
		if l.bind != "" {
			continue // R4's websocket channel has no cursor
		}
		if p := l.reached(); !ok || p.Compare(at) < 0 {
			at, ok = p, true
		}
	}
	return at, ok
}

// text is the message as a connection with some listeners gets it: the cursor in it is good
// for each of them.
func (m addressed) text(listeners map[string]*listener) []byte {
	if m.cursor == 0 {
		return m.data
	}
	at := m.position
	for _, l := range listeners {
		if l == m.to || l.bind != "" {
			continue
		}
		if p := l.reached(); p.Compare(at) < 0 {
			at = p
		}
	}
	if at == m.position {
		return m.data
	}
	b := make([]byte, 0, len(m.data))
	b = append(b, m.data[:m.cursor]...)
	b = append(b, matching.Cursor(at)...)
	return append(b, `"}`...)
}

// awaitBegun waits until the hub has begun: only then it tells messages to a user that came behind a connection, which
// are for it, from those before, which another connection may have got. It fails with exception, 503, where
// ctx ends before.
func (h *hub) awaitBegun(ctx context.Context) error {
	select {
	case <-h.begun:
		return nil
	case <-ctx.Done():
		return outcome.Unavailable("%v", context.Cause(ctx)).Because(ctx.Err())
	}
}

// joinClient makes a connection known, and returns it with the function that ends it.
func (h *hub) joinClient(p *access.Principal, channel string) (*client, func()) {
	c := &client{hub: h, principal: p, channel: channel, queue: newOutgoing(), replay: make(chan []addressed), slow: make(chan struct{}), ended: make(chan struct{})}
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

// maxListeners bounds the number of listeners of one connection.
const maxListeners = 200

// wish is the filter that a connection asks for.
type wish struct {
	typ      string   // "" for all types
	types    []string // several, with typ ""; nil for typ alone
	kinds    matching.Kinds
	criteria *matching.Criteria // nil for all
}

// id is the same for the same wish: the ids of notifications are made of it.
func (w wish) id() string {
	text := ""
	if w.criteria != nil {
		text = w.criteria.Text
	}
	sum := sha256.Sum256(fmt.Appendf(nil, "%s\n%d\n%s", w.typ, w.kinds, text))
	return uuid.NewSHA1(matching.Namespace, sum[:]).String()
}

// rules are one, or one for each of several types.
func (w wish) rules() []matching.Rule {
	if len(w.types) < 2 {
		return []matching.Rule{w.rule()}
	}
	var rules []matching.Rule
	for _, t := range w.types {
		rules = append(rules, matching.Rule{ResourceType: t, Kinds: w.kinds})
	}
	return rules
}

func (w wish) rule() matching.Rule {
	r := matching.Rule{ResourceType: w.typ, Kinds: w.kinds}
	if w.criteria != nil && len(w.criteria.Query.Clauses) > 0 {
		r.Current = w.criteria
	}
	return r
}

// checkMayFollow refuses a wish of somebody who may not search and read the type.
func (h *hub) checkMayFollow(ctx context.Context, p *access.Principal, typ string) error {
	ctx = access.WithPrincipal(ctx, p)
	for _, i := range []access.Interaction{access.Search, access.Read} {
		if err := h.s.Service.CheckAllowed(ctx, i, typ, ""); err != nil {
			return err
		}
	}
	return nil
}

// listen makes a connection receive the events from l.from on, in the order of the log,
// each once: events of rules, or of l.wish if there are no rules. It returns when the
// connection listens live.
func (h *hub) listen(ctx context.Context, l *listener, rules []matching.Rule) error {
	if rules == nil {
		rules = l.wish.rules()
	}
	own := matching.NewMatcher()
	sub := &matching.Subscriber{ID: uuid.NewString(), Rules: rules, Principal: l.client.principal}
	l.lane, l.subscriber = h.lane(sub), sub
	own.AddSubscriber(l.subscriber)
	at := l.from.position
	if err := h.awaitBegun(ctx); err != nil {
		return err
	}
	for {
		// 1. Are there changes between this listener's position and the lane's?
		l.lane.mu.Lock()
		if c := l.wish.criteria; c != nil && c.Parameters < max(l.lane.parameters, h.s.Service.Parameters.Current().Version()) {
			l.lane.mu.Unlock()
			if err := h.s.refreshSearchParameters(ctx); err != nil {
				return err
			}
			w, err := h.renewed(ctx, l)
			if err != nil {
				return err
			}
			l.wish = w
			l.subscriber.Rules = w.rules()
			own.AddSubscriber(l.subscriber)
			continue
		}
		end := l.lane.position
		if at.Compare(end) >= 0 {
			l.from.position = at
			h.addListener(l)
			l.lane.mu.Unlock()
			return nil
		}
		l.lane.mu.Unlock()

		// 2. A page of it.
		changes, err := h.s.Store.Changes(ctx, at, replayPage)
		if err != nil {
			return err
		}
		full := len(changes) == replayPage
		for len(changes) > 0 && changes[len(changes)-1].Position.Compare(end) > 0 {
			changes, full = changes[:len(changes)-1], false
		}
		if len(changes) > 0 {
			at = changes[len(changes)-1].Position
		}
		if !full {
			at = end
		}
		changes = slices.DeleteFunc(changes, func(c store.Change) bool {
			return !own.WantsType(c.ResourceType) || !l.from.includesPosition(c.Position) || !l.kinds.Has(matching.KindOf(c.Method)) && l.kinds != 0
		})
		if len(changes) == 0 {
			continue
		}
		events, err := h.s.evaluator().ReadEvents(ctx, changes, own.NeedsPrevious(l.typ))
		if err != nil {
			return err
		}
		events = slices.DeleteFunc(events, func(e *matching.Event) bool { return e.Version.LastUpdated.Before(l.from.instant) })
		hits, costly, err := h.s.evaluator().MatchEvents(ctx, own, events)
		if err == nil && len(costly) > 0 {
			err = errCostly(h.s.questionTimeout)
		}
		if err != nil {
			return err
		}
		page := make([]addressed, 0, len(hits))
		for _, hit := range hits {
			m := addressed{l.newNotification(hit.Event), l}
			m.leaves()
			page = append(page, m)
		}
		if len(page) == 0 {
			continue
		}
		select {
		case l.client.replay <- page:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// addListener registers a listener for new events; the caller holds the mu of its lane.
func (h *hub) addListener(l *listener) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if _, ok := h.clients[l.client]; !ok {
		return // it has gone meanwhile
	}
	h.listeners[l.subscriber] = l
	l.lane.matcher.AddSubscriber(l.subscriber)
	l.mu.Lock()
	l.live = true
	l.mu.Unlock()
	if l.bind != "" {
		if h.bound[l.bind] == nil {
			h.bound[l.bind] = make(map[*listener]struct{})
		}
		h.bound[l.bind][l] = struct{}{}
	}
}

// removeListener ends a listener.
func (h *hub) removeListener(l *listener) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.dropListener(l)
}

func (h *hub) dropListener(l *listener) {
	if l.subscriber != nil {
		delete(h.listeners, l.subscriber)
		l.lane.matcher.RemoveSubscriber(l.subscriber.ID)
	}
	if l.bind != "" {
		if delete(h.bound[l.bind], l); len(h.bound[l.bind]) == 0 {
			delete(h.bound, l.bind)
		}
	}
}

// rebind follows a change of a Subscription that connections of a lane are bound to: the criteria keep
// to what each of them may see.
func (h *hub) rebind(ctx context.Context, in *lane, id string) {
	rules := make(map[*access.Principal][]matching.Rule)
	h.mu.Lock()
	for l := range h.bound[id] {
		rules[l.client.principal] = nil
	}
	h.mu.Unlock()
	for p := range rules {
		c, err := h.s.subscriptions.Read(owner.WithPrincipal(ctx, p), id)
		if err == nil && c.Status == subscription.Active && c.WebSocket {
			rules[p] = c.Rules
		}
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	for l := range h.bound[id] {
		if l.lane != in {
			continue
		}
		in.matcher.RemoveSubscriber(l.subscriber.ID)
		delete(h.listeners, l.subscriber)
		l.subscriber = &matching.Subscriber{ID: uuid.NewString(), Rules: rules[l.client.principal], Principal: l.client.principal}
		h.listeners[l.subscriber] = l
		in.matcher.AddSubscriber(l.subscriber)
	}
}

// messageInterval is how often a server with connections looks for messages to users.
const messageInterval = 200 * time.Millisecond

// passMessages passes messages to users on to their connections.
func (h *hub) passMessages(ctx context.Context) {
	for store.SleepFor(ctx, messageInterval) {
		now, err := h.s.Store.ChangeSnapshot(ctx)
		if err != nil {
			continue
		}
		end := now.Horizon()
		// Connections that come later get the messages after end.
		from, recipients := h.passingUpTo(end)
		if len(recipients) == 0 || end.Compare(from) <= 0 {
			continue
		}
		for ctx.Err() == nil {
			rows, err := h.s.db().NewMessages(ctx, db.NewMessagesParams{FromEpoch: int64(from.Epoch), FromXid: fmt.Sprint(from.XID),
				ToEpoch: int64(end.Epoch), ToXid: fmt.Sprint(end.XID), Recipients: recipients})
			if err != nil {
				store.SleepFor(ctx, messageInterval)
				continue
			}
			var ids []pgtype.UUID
			for _, r := range rows {
				if h.tell(r.Recipient, store.ChangePosition{Epoch: store.EpochID(r.Epoch), XID: r.Xid}, []byte(r.Body)) {
					ids = append(ids, r.ID)
				}
			}
			h.noteDelivered(ctx, ids)
			break
		}
	}
}

// passingUpTo says that messages are passed on up to a transaction: from which one on, and to
// whom.
func (h *hub) passingUpTo(end store.ChangePosition) (from store.ChangePosition, recipients []string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if from = h.messages; end.Compare(from) > 0 {
		h.messages = end
	}
	for c := range h.clients {
		recipients = append(recipients, names(c.principal)...)
	}
	slices.Sort(recipients)
	return from, slices.Compact(recipients)
}

func (h *hub) noteDelivered(ctx context.Context, ids []pgtype.UUID) {
	if len(ids) > 0 {
		if err := h.s.db().MessagesDelivered(ctx, ids); err != nil {
			h.s.Log.Warn("note that messages were delivered", "error", err)
		}
	}
}

// names are the names that address a user as a recipient.
func names(p *access.Principal) []string {
	if p == nil || p.IsOpen() {
		return nil
	}
	var list []string
	for i, name := range []string{p.User(), p.FHIRUser} {
		if i == 0 && p.Issuer != "" {
			continue // a name elsewhere is nobody's here
		}
		if name != "" {
			list = append(list, name)
		}
	}
	return list
}

// tell passes a message of a transaction on to the connections of a user, and reports whether
// there was one.
func (h *hub) tell(recipient string, at store.ChangePosition, body []byte) (told bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for c := range h.clients {
		if at.Compare(c.messages) >= 0 && slices.Contains(names(c.principal), recipient) {
			c.push(addressed{notification: &notification{name: "notify", data: body, written: time.Now()}})
			told = true
		}
	}
	return told
}

// sendStoredMessages passes on the messages stored while a user was away.
func (h *hub) sendStoredMessages(ctx context.Context, c *client) {
	if h.awaitBegun(ctx) != nil {
		return
	}
	h.mu.Lock()
	end := c.messages
	h.mu.Unlock()
	for _, name := range names(c.principal) {
		rows, err := h.s.db().WaitingMessages(ctx, db.WaitingMessagesParams{Recipient: name, ToEpoch: int64(end.Epoch), ToXid: fmt.Sprint(end.XID)})
		if err != nil || len(rows) == 0 {
			continue
		}
		var page []addressed
		var ids []pgtype.UUID
		for _, r := range rows {
			page = append(page, addressed{notification: &notification{name: "notify", data: []byte(r.Body), written: time.Now()}})
			ids = append(ids, r.ID)
		}
		select {
		case c.replay <- page:
			h.noteDelivered(ctx, ids)
		case <-ctx.Done():
			return
		}
	}
}

// parseWish reads the filter of a connection. criteria is "Type?search" or the search
// alone.
func (h *hub) parseWish(ctx context.Context, p *access.Principal, typ string, events []string, criteria string) (wish, error) {
	w := wish{typ: typ}
	var err error
	if w.kinds, err = matching.ParseKinds(events); err != nil {
		return w, err
	}
	if typ == "" || typ == "*" {
		w.typ = ""
		if criteria != "" {
			return w, outcome.Invalid("criteria need a resourceType")
		}
		return w, h.checkMayFollow(ctx, p, "")
	}
	if h.s.Service.Model.Resources[typ] == nil {
		return w, h.s.Service.UnknownType(typ)
	}
	if err := h.checkMayFollow(ctx, p, typ); err != nil {
		return w, err
	}
	if criteria == "" {
		return w, nil
	}
	query := criteria
	if t, q, ok := strings.Cut(criteria, "?"); ok {
		if t != "" && t != typ {
			return w, outcome.Invalid("the criteria are about %s, the resourceType is %s", outcome.Clip(t), typ)
		}
		query = q
	} else if criteria == typ {
		query = ""
	}
	w.criteria, err = h.s.evaluator().ParseCriteria(ctx, typ, query)
	return w, err
}

package live

import (
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"kiln/server/access"
	"kiln/server/notify/matching"
	"kiln/server/notify/message"
	"kiln/server/store"
)

// client is one connection.
type client struct {
	count     func(channel string, written time.Time) // a message that was written; nil counts nothing
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

// pushNotification queues a message, unless the connection has read too slowly.
func (c *client) pushNotification(m addressed) {
	m.countUnwritten()
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

// countUnwritten counts a message that is on its way.
func (m addressed) countUnwritten() {
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
	if c.count != nil {
		c.count(c.channel, m.notification.written)
	}
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

// findResumePosition is where a connection that ends now goes on with all of its listeners. It is false where
// none of them can.
func findResumePosition(listeners map[string]*listener) (at store.ChangePosition, ok bool) {
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

// textFor is the message as a connection with some listeners gets it: the cursor in it is good
// for each of them.
func (m addressed) textFor(listeners map[string]*listener) []byte {
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

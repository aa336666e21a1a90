package live

import (
	"bytes"
	"context"
	"errors"
	"testing"
	"time"

	"kiln/server/fhir"
	"kiln/server/notify/config"
	"kiln/server/notify/matching"
	"kiln/server/store"
)

// newHub is a Hub without a store.
func newHub() *Hub {
	return New(Parts{Settings: &config.Watch{Current: func() *config.Config { return new(config.Config) }}})
}

// Contract, Notifications 5: a client that reads too slowly is closed with a cursor, and nothing is
// missing when it goes on from there; the same holds of the cursor of each message. Listeners whose
// criteria need the database hear of events later than others of the same connection.
func TestCursorIsGoodForEveryListener(t *testing.T) {
	position := func(i int) store.ChangePosition {
		return store.ChangePosition{XID: int64(i), RID: int64(i), Version: 1}
	}
	event := func(i int) *matching.Event {
		return &matching.Event{Kind: matching.Create, Version: fhir.Version{ResourceType: "Basic", ID: "b", VersionID: 1}, Written: time.Now(), Position: position(i)}
	}
	// connect makes a connection with a listener in each of some lanes of a hub.
	connect := func(lanes ...int) (*Hub, *client, map[string]*listener) {
		h := newHub()
		c, _ := h.joinClient(nil, "websocket")
		listeners := make(map[string]*listener)
		for _, n := range lanes {
			l := newListener(c, since{position: position(10)})
			l.id, l.lane, l.subscriber = string(rune('a'+n)), h.lanes[n], &matching.Subscriber{ID: string(rune('a' + n))}
			l.lane.mu.Lock()
			l.lane.passOn(position(10))
			h.addListener(l)
			l.lane.mu.Unlock()
			listeners[l.id] = l
		}
		return h, c, listeners
	}
	// pass passes an event on in a lane.
	pass := func(h *Hub, l *listener, i int) {
		l.lane.mu.Lock()
		defer l.lane.mu.Unlock()
		h.deliver(t.Context(), []matching.Hit{{Subscriber: l.subscriber, Event: event(i)}})
		l.lane.passOn(position(i))
	}
	// write writes the oldest message, and returns its text.
	taken := make(map[*client][]addressed)
	write := func(c *client, listeners map[string]*listener) []byte {
		if len(taken[c]) == 0 {
			<-c.queue.ready
			taken[c] = c.nextMessages()
		}
		m := taken[c][0]
		taken[c] = taken[c][1:]
		text := m.textFor(listeners)
		c.noteWritten(m)
		return text
	}
	told := func(listeners map[string]*listener, want int) {
		t.Helper()
		if at, ok := findResumePosition(listeners); !ok || at != position(want) {
			t.Errorf("the cursor is at %v, want %d", at, want)
		}
	}
	says := func(text []byte, want int) {
		t.Helper()
		if !bytes.HasSuffix(text, []byte(`,"cursor":"`+matching.Cursor(position(want))+`"}`)) {
			t.Errorf("%s: want the cursor %s", text, matching.Cursor(position(want)))
		}
	}

	t.Run("the lane that needs the database is held up", func(t *testing.T) {
		h, c, listeners := connect(0, 1)
		fast, held := listeners["a"], listeners["b"]
		for i := 11; i <= 15; i++ {
			pass(h, fast, i)
			says(write(c, listeners), 10)
		}
		told(listeners, 10)
		pass(h, held, 12)
		told(listeners, 10) // it is not written
		says(write(c, listeners), 12)
		told(listeners, 12)
		held.lane.mu.Lock()
		held.lane.passOn(position(14)) // nothing of 13 and 14 is for it
		held.lane.mu.Unlock()
		told(listeners, 14)
		pass(h, fast, 16)
		says(write(c, listeners), 14)
		told(listeners, 14)
	})
	t.Run("what lies in the queue is not passed over", func(t *testing.T) {
		h, c, listeners := connect(0)
		for i := 11; i <= 13; i++ {
			pass(h, listeners["a"], i)
		}
		told(listeners, 10)
		says(write(c, listeners), 11)
		told(listeners, 11)
	})
	t.Run("a queue that is full", func(t *testing.T) {
		h, c, listeners := connect(0)
		for i := range queueMost + 10 {
			pass(h, listeners["a"], 11+i)
		}
		<-c.slow
		for range queueMost {
			write(c, listeners)
		}
		told(listeners, 10+queueMost)
	})
	t.Run("a listener that is still replaying", func(t *testing.T) {
		h, c, listeners := connect(0)
		late := newListener(c, since{position: position(3)})
		late.id, late.lane = "late", h.lanes[0]
		listeners["late"] = late
		pass(h, listeners["a"], 11)
		says(write(c, listeners), 3)
		m := addressed{late.newNotification(event(7)), late}
		m.countUnwritten()
		pass(h, listeners["a"], 12)
		says(m.textFor(listeners), 7)
		c.noteWritten(m)
		told(listeners, 7)
	})
	t.Run("one listener", func(t *testing.T) {
		h, c, listeners := connect(1)
		pass(h, listeners["b"], 20)
		says(write(c, listeners), 20)
		told(listeners, 20)
	})
	t.Run("R4's websocket channel has none", func(t *testing.T) {
		if at, ok := findResumePosition(map[string]*listener{"bind 1": {bind: "1"}}); ok {
			t.Errorf("the cursor is at %v", at)
		}
	})
}

// A connection that comes before the hub knows its position in the change log waits for it:
// otherwise writes in between would never reach the connection.
func TestNobodyListensBeforeTheHubBegins(t *testing.T) {
	h := newHub()
	c, _ := h.joinClient(nil, "sse")
	early := newListener(c, since{position: store.ChangePosition{XID: 10, RID: 10, Version: 1}})
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := h.listen(ctx, early, nil); !errors.Is(err, context.Canceled) || len(h.listeners) != 0 {
		t.Errorf("it listens before the hub begins: %v", err)
	}
	for _, l := range h.lanes {
		l.passOn(early.from.position)
	}
	close(h.begun)
	if err := h.listen(t.Context(), early, nil); err != nil || len(h.listeners) != 1 {
		t.Errorf("it does not listen afterwards: %v", err)
	}
}

// Contract, Notifications 5: a client is too slow if it reads nothing, not if one
// transaction brings many events at once.
func TestBurstIsNotSlow(t *testing.T) {
	connect := func() *client {
		c, _ := newHub().joinClient(nil, "websocket")
		return c
	}
	slow := func(c *client) bool {
		select {
		case <-c.slow:
			return true
		default:
			return false
		}
	}
	push := func(c *client, n int, data string) {
		for range n {
			c.pushNotification(addressed{notification: &notification{data: []byte(data)}})
		}
	}
	c := connect()
	push(c, queueMost, "x")
	if slow(c) {
		t.Error("a burst is slow")
	}
	taken := 0
	for len(c.queue.ready) > 0 {
		<-c.queue.ready
		taken += len(c.nextMessages())
	}
	if taken != queueMost || c.queue.list != nil || c.queue.bytes != 0 {
		t.Errorf("%d of %d are taken, %d bytes are left", taken, queueMost, c.queue.bytes)
	}
	c.queue.since = time.Now().Add(-time.Hour) // idle
	push(c, queueLength+1, "x")
	if slow(c) {
		t.Error("a burst after an idle hour is slow")
	}

	c = connect()
	push(c, queueLength, "x")
	c.queue.since = time.Now().Add(-slowAfter - time.Second)
	if slow(c) {
		t.Error("a queue that is not full is slow")
	}
	if push(c, 1, "x"); !slow(c) {
		t.Error("a client that takes nothing is not slow")
	}
	c = connect()
	push(c, queueLength+1, "x")
	c.queue.since = time.Now().Add(-slowAfter - time.Second)
	if page := c.nextMessages(); len(page) != takenAtOnce || !slow(c) {
		t.Error("a client that took nothing for long is not slow when it takes again")
	}
	c = connect()
	if push(c, queueMost+1, "x"); !slow(c) {
		t.Error("there is no end to a queue")
	}
	c = connect()
	if push(c, queueLength+1, string(make([]byte, queueBytes/queueLength))); !slow(c) {
		t.Error("there is no end to the bytes of a queue")
	}
}

// A connection is answered when messages have their place: one that is sent from then on is for it, whoever
// else of the user has got it.
func TestConnectionsAwaitMessages(t *testing.T) {
	t.Parallel()
	h := newHub()
	ended, end := context.WithCancel(t.Context())
	end()
	if err := h.awaitBegun(ended); !errors.Is(err, context.Canceled) {
		t.Errorf("before messages have their place: %v", err)
	}
	close(h.begun)
	if err := h.awaitBegun(t.Context()); err != nil {
		t.Error(err)
	}
}

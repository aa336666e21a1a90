package live

import (
	"sync"
	"time"
)

// Bounds of the events that wait for a connection. One transaction can bring more than
// queueLength events at once, and that is no fault of the client. A client that reads
// nothing for slowAfter is too slow.
const (
	queueLength = 256     // that may wait for any time
	queueMost   = 1 << 14 // that may wait at all
	queueBytes  = 32 << 20
	slowAfter   = 2 * time.Second
	takenAtOnce = 64
)

// outgoing are the events that wait for a connection, in order.
type outgoing struct {
	ready chan struct{} // has a value while events wait that nobody was told of

	mu    sync.Mutex
	list  []addressed
	bytes int       // of list
	since time.Time // the first of list is the next to be taken since then
}

func newOutgoing() outgoing { return outgoing{ready: make(chan struct{}, 1)} }

// addMessage adds an event. It is false where the connection has read too slowly to have it.
func (o *outgoing) addMessage(m addressed) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	if len(o.list) >= queueLength && (len(o.list) >= queueMost || o.bytes >= queueBytes || o.stands()) {
		return false
	}
	if len(o.list) == 0 {
		o.since = time.Now()
	}
	o.list = append(o.list, m)
	o.bytes += len(m.data)
	o.tell()
	return true
}

// takeMessages returns the events that have waited longest, takenAtOnce of them at most. It is false
// where the connection has read too slowly to have those behind them.
func (o *outgoing) takeMessages() (page []addressed, ok bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	ok = len(o.list) <= queueLength || !o.stands()
	n := min(len(o.list), takenAtOnce)
	page = append(page, o.list[:n]...)
	for _, m := range page {
		o.bytes -= len(m.data)
	}
	clear(o.list[:n])
	o.list, o.since = o.list[n:], time.Now()
	if len(o.list) == 0 {
		o.list = nil // an idle connection holds nothing
	} else {
		o.tell()
	}
	return page, ok
}

// stands reports whether nothing was taken for long; mu is held.
func (o *outgoing) stands() bool { return time.Since(o.since) > slowAfter }

func (o *outgoing) tell() {
	select {
	case o.ready <- struct{}{}:
	default:
	}
}

package web

import (
	"sync"
	"time"
)

// InFlight measures how many requests are in flight. It does not count the requests of groups with Group.Background,
// streams, and kick-offs of jobs. The zero value has none.
type InFlight struct {
	mu    sync.Mutex
	count int
	since time.Time     // of count
	total time.Duration // before since
}

// Total returns the time that requests have been in flight so far: for two requests it grows by two seconds a second.
func (f *InFlight) Total() time.Duration {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.advance()
	return f.total
}

// advance adds the time of the present count.
func (f *InFlight) advance() {
	now := time.Now()
	if f.count > 0 {
		f.total += time.Duration(f.count) * now.Sub(f.since)
	}
	f.since = now
}

func (f *InFlight) add(n int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.advance()
	f.count += n
}

// countInFlight counts a request of a group until LeaveFlight.
func (x *Exchange) countInFlight(g Group) {
	if f := x.mux.InFlight; f != nil && !g.Background {
		f.add(1)
		x.inFlight = true
	}
}

// LeaveFlight says that the request has ended, or that nobody waits for a quick answer: it is not counted any more.
func (x *Exchange) LeaveFlight() {
	if x.inFlight {
		x.inFlight = false
		x.mux.InFlight.add(-1)
	}
}

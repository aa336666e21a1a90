package web

import (
	"sync/atomic"
	"time"
)

// InFlight counts requests in flight. It does not count the requests of groups with Group.Background, streams, and
// kick-offs of jobs. The zero value has none.
type InFlight struct {
	count atomic.Int64
	ended atomic.Int64 // the last end of a request, Unix nanoseconds
}

// Any reports whether a request is in flight or has ended within a time.
func (f *InFlight) Any(within time.Duration) bool {
	return f.count.Load() > 0 || time.Since(time.Unix(0, f.ended.Load())) < within
}

// countInFlight counts a request of a group until LeaveFlight or its end.
func (x *Exchange) countInFlight(g Group) {
	if f := x.mux.InFlight; f != nil && !g.Background {
		f.count.Add(1)
		x.inFlight = true
	}
}

// LeaveFlight says that nobody waits for a quick answer to the request: it is not counted any more.
func (x *Exchange) LeaveFlight() {
	if x.inFlight {
		x.inFlight = false
		x.mux.InFlight.count.Add(-1)
	}
}

// endFlight ends the count of an answered request.
func (x *Exchange) endFlight() {
	if x.inFlight {
		x.mux.InFlight.ended.Store(time.Now().UnixNano())
		x.LeaveFlight()
	}
}

package terminology

import (
	"sync"
	"time"
)

// breaker keeps requests away from a server that does not answer. After some
// failures in a row it is open: nothing passes until a pause is over, then one
// request does, and its result decides. The pause doubles up to a minute.
type breaker struct {
	now func() time.Time

	mu       sync.Mutex
	failures int
	until    time.Time // open before this time; zero when closed
	pause    time.Duration
	trying   bool
	reason   error // of the last failure
}

const (
	breakerFailures = 5
	breakerPause    = 5 * time.Second
	breakerMaxPause = time.Minute
)

// allow returns nil when a request may be made, and the last failure otherwise.
// A caller that gets nil must call done.
func (b *breaker) allow() error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.until.IsZero() {
		return nil
	}
	if b.trying || b.now().Before(b.until) {
		return b.reason
	}
	b.trying = true
	return nil
}

// done tells how a request ended: err is nil when the server answered, whatever
// it said.
func (b *breaker) done(err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.trying = false
	if err == nil {
		b.failures, b.until, b.pause, b.reason = 0, time.Time{}, 0, nil
		return
	}
	b.failures++
	b.reason = err
	if b.failures >= breakerFailures {
		b.pause = min(max(2*b.pause, breakerPause), breakerMaxPause)
		b.until = b.now().Add(b.pause)
	}
}

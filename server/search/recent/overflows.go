package recent

import (
	"sync"
	"time"

	"kiln/server/telemetry"
)

// Overflows are the conditions that had too many candidates in recent searches, by the statement that finds these. The
// zero value is empty. It is safe for concurrent use.
type Overflows struct {
	mu      sync.Mutex
	entries map[Key]time.Time // when a condition had too many
	counter counter
}

// HasOverflow reports whether a condition had too many candidates within the last minute.
func (o *Overflows) HasOverflow(k Key, now time.Time) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	at, ok := o.entries[k]
	ok = ok && now.Sub(at) < maxAge
	o.counter.countLookup(ok)
	return ok
}

// StoreOverflow stores that a condition has too many candidates.
func (o *Overflows) StoreOverflow(k Key, now time.Time) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.entries == nil || len(o.entries) >= maxEntries {
		o.entries = make(map[Key]time.Time)
	}
	o.entries[k] = now
}

// Clear removes all overflows.
func (o *Overflows) Clear() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.entries = nil
}

// State returns the size and the counts of lookups.
func (o *Overflows) State() telemetry.CacheState {
	s := o.counter.state()
	o.mu.Lock()
	defer o.mu.Unlock()
	s.Size, s.Capacity, s.Bytes = len(o.entries), 2*maxEntries, uint64(len(o.entries)*entryBytes)
	return s
}

package recent

import (
	"sync"
	"time"

	"kiln/server/telemetry"
)

// Total is a number of matches.
type Total struct {
	N        int64
	Snapshot string    // in which N was counted
	At       time.Time // when it was counted
}

// Totals are the totals of recent searches. The zero value is empty. It is safe for concurrent use.
type Totals struct {
	mu      sync.Mutex
	entries map[Key]Total
	counter counter
}

// FindTotal returns the total of a statement; false if there is none of the last minute.
func (t *Totals) FindTotal(k Key, now time.Time) (Total, bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	found, ok := t.entries[k]
	ok = ok && now.Sub(found.At) < maxAge
	t.counter.countLookup(ok)
	return found, ok
}

// StoreTotal stores the total of a statement.
func (t *Totals) StoreTotal(k Key, total Total) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.entries == nil || len(t.entries) >= maxEntries {
		t.counter.evictions.Add(uint64(len(t.entries)))
		t.entries = make(map[Key]Total)
	}
	t.entries[k] = total
}

// Clear removes all totals.
func (t *Totals) Clear() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.entries = nil
}

// State returns the size and the counts of lookups.
func (t *Totals) State() telemetry.CacheState {
	s := t.counter.state()
	t.mu.Lock()
	defer t.mu.Unlock()
	s.Size, s.Capacity, s.Bytes = len(t.entries), maxEntries, uint64(len(t.entries)*entryBytes)
	return s
}

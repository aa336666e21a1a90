package strategy

import (
	"sync"
	"sync/atomic"
	"time"
)

// memory is a server's cache beside package cache: totals and orders, each valid as long as nothing has
// changed; the drivers that overflowed; and the units in use. The database has all of it too.
type memory struct {
	mu      sync.Mutex
	totals  map[totalKey]total
	drivers map[totalKey]time.Time // when a driver overflowed
	limit   int                    // Env.Limit

	orders orders

	units atomic.Pointer[unitsSeen]
	texts textsSeen

	totalsCount, queriesCount counter
}

// The limits of the cache in number and age: the change log is trimmed, and a common term can become rare.
const (
	rememberedSearches = 4096
	rememberedFor      = time.Minute
)

// overflows reports whether a driver has overflowed of late.
func (m *memory) overflows(k totalKey, now time.Time) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	at, ok := m.drivers[k]
	ok = ok && now.Sub(at) < rememberedFor
	m.queriesCount.countLookup(ok)
	return ok
}

func (m *memory) overflowed(k totalKey, now time.Time) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.drivers == nil || len(m.drivers) >= rememberedSearches {
		m.drivers = make(map[totalKey]time.Time)
	}
	m.drivers[k] = now
}

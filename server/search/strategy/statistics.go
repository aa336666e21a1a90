package strategy

import (
	"sync/atomic"

	"kiln/server/telemetry"
)

// counter counts the hits, misses and evictions of a cache.
type counter struct{ hits, misses, evictions atomic.Uint64 }

func (c *counter) countLookup(found bool) {
	if found {
		c.hits.Add(1)
	} else {
		c.misses.Add(1)
	}
}

func (c *counter) state() telemetry.CacheState {
	return telemetry.CacheState{Hits: c.hits.Load(), Misses: c.misses.Load(), Evictions: c.evictions.Load()}
}

// bytesOfTotal is the approximate size in bytes of one total, or one driver.
const bytesOfTotal = 160

// Totals is the state of the totals that are remembered.
func (s *Searcher) Totals() telemetry.CacheState {
	m := &s.memory
	c := m.totalsCount.state()
	m.mu.Lock()
	defer m.mu.Unlock()
	c.Size, c.Capacity, c.Bytes = len(m.totals), rememberedSearches, uint64(len(m.totals)*bytesOfTotal)
	return c
}

// Queries returns the state of the other caches of queries: overflowed drivers, orders, sets of matches and columns.
func (s *Searcher) Queries() telemetry.CacheState {
	m := &s.memory
	c := m.queriesCount.state()
	m.mu.Lock()
	c.Size, c.Capacity, c.Bytes = len(m.drivers), 2*rememberedSearches, uint64(len(m.drivers)*bytesOfTotal)
	m.mu.Unlock()
	m.orders.mu.Lock()
	defer m.orders.mu.Unlock()
	r := s.cache.Stat()
	c.Hits += uint64(r.Hits)
	c.Size += len(m.orders.kept) + r.Sets + r.Columns
	c.Bytes += uint64(m.orders.bytes) + uint64(r.Bytes)
	return c
}

// ForgetTotals forgets the totals.
func (s *Searcher) ForgetTotals() {
	s.memory.mu.Lock()
	defer s.memory.mu.Unlock()
	s.memory.totals = nil
}

// ForgetQueries clears the other caches of queries.
func (s *Searcher) ForgetQueries() {
	s.cache.Forget()
	m := &s.memory
	m.mu.Lock()
	m.drivers = nil
	m.mu.Unlock()
	m.orders.mu.Lock()
	defer m.orders.mu.Unlock()
	m.orders.kept, m.orders.bytes = nil, 0
}

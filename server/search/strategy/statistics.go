package strategy

import (
	"context"

	"kiln/server/search/admission"
	"kiln/server/search/cache"
	"kiln/server/search/session"
	"kiln/server/telemetry"
)

// SetMemory changes Config.MemoryBytes.
func (s *Searcher) SetMemory(bytes int64) { s.env.setMemory(bytes) }

// TotalsState returns the state of the totals of recent searches.
func (s *Searcher) TotalsState() telemetry.CacheState { return s.env.totals.State() }

// QueriesState returns the state of the other caches of queries: overflows, orders, sets of matches and columns.
func (s *Searcher) QueriesState() telemetry.CacheState {
	state := s.env.overflows.State()
	orders, bytes := s.env.orders.Size()
	c := s.env.cache.Stat()
	state.Hits += uint64(c.Hits)
	state.Size += orders + c.Sets + c.Columns
	state.Bytes += uint64(bytes) + uint64(c.Bytes)
	return state
}

// CacheState returns the state of the cache of matches and values.
func (s *Searcher) CacheState() cache.Stat { return s.env.cache.Stat() }

// ForgetTotals removes the totals.
func (s *Searcher) ForgetTotals() { s.env.totals.Clear() }

// ForgetQueries clears the other caches of queries.
func (s *Searcher) ForgetQueries() {
	s.env.cache.Clear()
	s.env.overflows.Clear()
	s.env.orders.Clear()
}

// BeginWriting begins the record of the writes of a transaction of this server. The cache follows them without reading them.
func (s *Searcher) BeginWriting() *cache.Writing { return s.env.cache.BeginWriting() }

// ReadAhead starts to read the items into the cache that broad searches need, for the types with at least so many
// resources.
func (s *Searcher) ReadAhead(from int64) { s.env.filler.ReadAhead(from) }

// AwaitCache waits until every item that was requested, or is to be read ahead, has been read, and the cache does not lag.
func (s *Searcher) AwaitCache() { s.env.filler.AwaitIdle() }

// Close ends the background work.
func (s *Searcher) Close() { s.env.filler.Close() }

// HoldConnection takes a connection as a search does, and returns how to give it back.
func (s *Searcher) HoldConnection(ctx context.Context) (release func(), err error) {
	c := session.NewConnection(s.env.admission, s.env.Store)
	_, err = c.Acquire(ctx)
	return c.Release, err
}

// HoldExpensive takes a place of an expensive search, and returns how to give it back.
func (s *Searcher) HoldExpensive(ctx context.Context) (release func(), err error) {
	c := session.NewConnection(s.env.admission, s.env.Store)
	_, err = c.BecomeExpensive(ctx, admission.Key{}, nil)
	return c.Close, err
}

// CountExpensiveWaiting returns the number of expensive searches that wait for admission.
func (s *Searcher) CountExpensiveWaiting() int { return s.env.admission.CountWaiting() }

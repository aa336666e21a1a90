package store

import (
	"context"
	"runtime"

	"kiln/server/search/strategy"
)

// SetSearchLimit limits the candidates of a search, so that a few hundred resources show how many are read, and empties
// the search cache. A cache that lags catches up, even if reading everything again would be faster.
func (s *Store) SetSearchLimit(n int) {
	s.searcher.Close()
	s.searcher = strategy.New(strategy.Config{Store: searchable{s}, MaxConns: int(s.pool.Config().MaxConns), Now: s.now, Limit: n, Walk: 3 * n,
		ChangeTakes: 1, StepTakes: 1})
}

// HoldExpensiveSearches takes every place of expensive searches.
func (s *Store) HoldExpensiveSearches(ctx context.Context) (release func(), err error) {
	var all []func()
	release = func() {
		for _, r := range all {
			r()
		}
	}
	for range max(1, runtime.NumCPU()/2) {
		r, err := s.searcher.HoldExpensive(ctx)
		if err != nil {
			return release, err
		}
		all = append(all, r)
	}
	return release, nil
}

// AwaitExpensiveSearches waits until n searches wait for a place of an expensive search.
func (s *Store) AwaitExpensiveSearches(n int) {
	for s.searcher.CountExpensiveWaiting() < n {
		runtime.Gosched()
	}
}

// HoldConnection takes a connection as a long search does, and returns how to give it back.
func (s *Store) HoldConnection(ctx context.Context) (release func(), err error) {
	return s.searcher.HoldConnection(ctx)
}

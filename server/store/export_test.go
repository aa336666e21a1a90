package store

import (
	"context"
	"runtime"

	"kiln/server/search/strategy"
)

// SetSearchLimit bounds what a search takes as candidates, so that a few hundred
// resources show how many are found, and forgets what was remembered.
func (s *Store) SetSearchLimit(n int) {
	s.searcher = strategy.New(strategy.Config{Store: searchable{s}, MaxConns: int(s.pool.Config().MaxConns), Now: s.now, Limit: n})
}

// HoldDearSearches holds every place that dear searches have.
func (s *Store) HoldDearSearches(ctx context.Context) (release func(), err error) {
	var all []func()
	release = func() {
		for _, r := range all {
			r()
		}
	}
	for range max(1, runtime.NumCPU()/2) {
		r, err := s.searcher.HoldDear(ctx)
		if err != nil {
			return release, err
		}
		all = append(all, r)
	}
	return release, nil
}

// HoldConnection holds a connection as a search does that takes long.
func (s *Store) HoldConnection(ctx context.Context) (release func(), err error) {
	return s.searcher.Hold(ctx)
}

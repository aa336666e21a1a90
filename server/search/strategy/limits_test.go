package strategy_test

import (
	"context"
	"runtime"

	"kiln/server/search/strategy"
	"kiln/server/store"
)

// limitSearches limits the candidates of a search, so that a few hundred resources show how many are read, and empties
// the search cache. A cache that lags catches up, even if reading everything again would be faster.
func limitSearches(s *store.Store, candidates int) { limitSearchesStepped(s, candidates, nil) }

// limitSearchesStepped is limitSearches. Catch-ups check every few resources whether to give way, and then call stepped.
func limitSearchesStepped(s *store.Store, candidates int, stepped func(gaveWay bool)) {
	s.Searcher().Restart(strategy.Config{Limit: candidates, ChangeTakes: 1, StepTakes: 1, Stepped: stepped})
}

// searchWithoutCache is limitSearches without a cache.
func searchWithoutCache(s *store.Store, candidates int) {
	s.Searcher().Restart(strategy.Config{Limit: candidates, MemoryBytes: -1})
}

// holdExpensiveSearches takes all places of expensive searches.
func holdExpensiveSearches(s *store.Store, ctx context.Context) (release func(), err error) {
	var all []func()
	release = func() {
		for _, r := range all {
			r()
		}
	}
	for range max(1, runtime.NumCPU()/2) {
		r, err := s.Searcher().HoldExpensive(ctx)
		if err != nil {
			return release, err
		}
		all = append(all, r)
	}
	return release, nil
}

// awaitExpensiveSearches waits until n searches wait for a place among the expensive ones.
func awaitExpensiveSearches(s *store.Store, n int) {
	for s.Searcher().CountExpensiveWaiting() < n {
		runtime.Gosched()
	}
}

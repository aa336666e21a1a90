package store

import (
	"context"
	"runtime"

	"kiln/server/search/cache"
	"kiln/server/search/strategy"

	"github.com/jackc/pgx/v5/pgxpool"
)

// SetSearchLimit bounds the candidates of a search, so that a few hundred resources show
// how many are read, and empties the search cache. A lagging cache catches up, even if
// reading everything anew would be fast.
func (s *Store) SetSearchLimit(n int) {
	s.LimitSearch(n, nil)
}

// LimitSearch is SetSearchLimit of a store whose catch-ups look after every few resources whether they
// are to give way, and call stepped then.
func (s *Store) LimitSearch(n int, stepped func(gaveWay bool)) {
	s.searcher.Close()
	s.searcher = strategy.New(strategy.Config{Store: searchable{s}, MaxConns: int(s.pool.Config().MaxConns), Now: s.now, Limit: n, Walk: walkOf(n),
		ChangeTakes: 1, StepTakes: 1, Stepped: stepped})
}

// SearchWithoutMemory is SetSearchLimit of a store that remembers nothing from then on.
func (s *Store) SearchWithoutMemory(limit int) {
	s.searcher.Close()
	s.searcher = strategy.New(strategy.Config{Store: searchable{s}, MaxConns: int(s.pool.Config().MaxConns), Now: s.now, Limit: limit, Walk: walkOf(limit), MemoryBytes: -1})
}

// walkOf is how many resources a walk tests where so few are taken as candidates.
func walkOf(limit int) int { return 3 * limit }

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

// AwaitDearSearches waits until so many wait for a place among the dear searches.
func (s *Store) AwaitDearSearches(n int) {
	for s.searcher.DearWaiting() < n {
		runtime.Gosched()
	}
}

// HoldConnection holds a connection as a search does that takes long.
func (s *Store) HoldConnection(ctx context.Context) (release func(), err error) {
	return s.searcher.Hold(ctx)
}

// SearchSettled waits until the background work of the search cache is done.
func (s *Store) SearchSettled() { s.searcher.Settled() }

// Remembered returns the statistics of the search cache.
func (s *Store) Remembered() cache.Stat { return s.searcher.Remembered() }

// ReadAheadFrom is ReadAhead of smaller types.
func (s *Store) ReadAheadFrom(n int64) { s.searcher.ReadAhead(n) }

// Acquire takes a connection as searches do.
func (s *Store) Acquire(ctx context.Context) (*pgxpool.Conn, error) {
	return searchable{s}.Acquire(ctx)
}

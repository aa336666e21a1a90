package store

import (
	"context"

	"kiln/server/search/strategy"
)

// SetSearchLimit bounds what a search takes as candidates, so that a few hundred
// resources show how many are found, and forgets what was remembered.
func (s *Store) SetSearchLimit(n int) {
	s.searcher = strategy.New(strategy.Config{Store: searchable{s}, MaxConns: int(s.pool.Config().MaxConns), Now: s.now, Limit: n})
}

// HoldConnection holds a connection as a search does that takes long.
func (s *Store) HoldConnection(ctx context.Context) (release func(), err error) {
	return s.searcher.Hold(ctx)
}

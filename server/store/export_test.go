package store

import "context"

// SetSearchLimit bounds what a search takes as candidates, so that a few hundred
// resources show how many are found, and forgets what was remembered.
func (s *Store) SetSearchLimit(n int) { s.searches = searches{limit: n} }

// HoldConnection holds a connection as a search does that takes long.
func (s *Store) HoldConnection(ctx context.Context) (release func(), err error) {
	l := &lease{s: s}
	_, err = l.get(ctx)
	return l.release, err
}

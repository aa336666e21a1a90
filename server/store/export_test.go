package store

// SetSearchLimit bounds what a search takes as candidates, so that a few hundred
// resources show how many are found, and forgets what was remembered.
func (s *Store) SetSearchLimit(n int) { s.searches = searches{limit: n} }

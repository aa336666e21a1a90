package strategy

import "cmp"

// Restart closes a Searcher, and gives it other limits and empty caches. The fields of c that only its Store
// can set stay as they are. A walk tests three times as many resources as a driver may find, unless c says otherwise.
func (s *Searcher) Restart(c Config) {
	s.Close()
	old := s.env.Config
	c.Store, c.Now, c.ReportBytes, c.MaxConns = old.Store, old.Now, old.ReportBytes, old.MaxConns
	c.Walk = cmp.Or(c.Walk, 3*c.Limit)
	s.env = newEnvironment(c)
}

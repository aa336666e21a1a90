package strategy

import "cmp"

// Restart closes a Searcher, and gives it other limits and an empty cache. The fields of c that only its Store
// can set stay as they are. A walk tests three times as many resources as a driver may find, unless c says otherwise.
func (s *Searcher) Restart(c Config) {
	s.Close()
	c.Store, c.Now, c.ReportBytes = s.store, s.now, s.reportBytes
	c.MaxConns = s.maxConns
	c.Walk = cmp.Or(c.Walk, 3*c.Limit)
	s.start(c)
}

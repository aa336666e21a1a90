package store

// Pool is how the connections of one pool are used.
type Pool struct {
	Name        string  `json:"name"` // main, side
	Max         int     `json:"max"`
	Open        int     `json:"open"`         // connections
	Busy        int     `json:"busy"`         // those in use
	Acquired    int64   `json:"acquired"`     // how often one was taken
	Waited      int64   `json:"waited"`       // how often one had to be waited for
	WaitSeconds float64 `json:"wait_seconds"` // how long, in all
}

// Pools tells how the connections are used.
func (s *Store) Pools() []Pool {
	main, side := s.pool.Stat(), s.side.Stat()
	return []Pool{
		{"main", int(main.MaxConns()), int(main.TotalConns()), int(main.AcquiredConns()), main.AcquireCount(), main.EmptyAcquireCount(), main.EmptyAcquireWaitTime().Seconds()},
		{"side", int(side.MaxConns()), int(side.TotalConns()), int(side.AcquiredConns()), side.AcquireCount(), side.EmptyAcquireCount(), side.EmptyAcquireWaitTime().Seconds()},
	}
}

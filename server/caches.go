package server

import "kiln/server/admin"

// caches are what this server remembers only to be faster.
func (s *Server) caches() []admin.Cache {
	return []admin.Cache{
		{Name: "terminology", Clear: s.Terminology.ClearCaches, Statistics: func() admin.CacheStatistics {
			c := s.Terminology.CacheState()
			return admin.CacheStatistics{Hits: c.Hits, Misses: c.Misses, Size: c.Size, Capacity: c.Capacity, Bytes: c.Bytes, Evictions: c.Evictions}
		}},
	}
}

package server

import (
	"kiln/server/admin"
	"kiln/server/telemetry"
)

// caches are this server's caches. Emptying them changes no answer.
func (s *Server) caches() []admin.Cache {
	searcher := s.Store.Searcher()
	return []admin.Cache{
		{Name: "query", Clear: searcher.ForgetQueries, Statistics: func() admin.CacheStatistics { return cacheStatistics(searcher.QueriesState()) }},
		{Name: "total", Clear: searcher.ForgetTotals, Statistics: func() admin.CacheStatistics { return cacheStatistics(searcher.TotalsState()) }},
		{Name: "token", Clear: func() {
			if t, ok := s.authorizationServer.(tokenCache); ok {
				t.ClearCache()
			}
		}, Statistics: func() admin.CacheStatistics {
			t, ok := s.authorizationServer.(tokenCache)
			if !ok { // authorization is off: there are no tokens
				return admin.CacheStatistics{}
			}
			return cacheStatistics(t.CacheState())
		}},
		{Name: "terminology", Clear: s.Terminology.ClearCaches, Statistics: func() admin.CacheStatistics {
			return cacheStatistics(s.Terminology.CacheState())
		}},
		{Name: "definitions", Clear: s.profiles.forget, Statistics: s.profiles.statistics},
	}
}

// tokenCache is an authorization server that remembers verified tokens.
type tokenCache interface {
	CacheState() telemetry.CacheState
	ClearCache()
}

// cacheStatistics is the state of a cache as administrators see it.
func cacheStatistics(c telemetry.CacheState) admin.CacheStatistics {
	return admin.CacheStatistics{Hits: c.Hits, Misses: c.Misses, Size: c.Size, Capacity: c.Capacity, Bytes: c.Bytes, Evictions: c.Evictions}
}

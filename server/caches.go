package server

import (
	"kiln/oauth"
	"kiln/server/admin"
	"kiln/server/search/strategy"
)

// caches are what this server remembers only to be faster.
func (s *Server) caches() []admin.Cache {
	searcher := s.Store.Searcher()
	return []admin.Cache{
		{Name: "query", Clear: searcher.ForgetQueries, Statistics: func() admin.CacheStatistics { return searchCache(searcher.Queries()) }},
		{Name: "total", Clear: searcher.ForgetTotals, Statistics: func() admin.CacheStatistics { return searchCache(searcher.Totals()) }},
		{Name: "token", Clear: func() {
			if t, ok := s.authorizationServer.(tokenCache); ok {
				t.ClearCache()
			}
		}, Statistics: func() admin.CacheStatistics {
			t, ok := s.authorizationServer.(tokenCache)
			if !ok { // authorization is off: there are no tokens
				return admin.CacheStatistics{}
			}
			c := t.CacheState()
			return admin.CacheStatistics{Hits: c.Hits, Misses: c.Misses, Size: c.Size, Capacity: c.Capacity, Bytes: c.Bytes, Evictions: c.Evictions}
		}},
		{Name: "terminology", Clear: s.Terminology.ClearCaches, Statistics: func() admin.CacheStatistics {
			c := s.Terminology.CacheState()
			return admin.CacheStatistics{Hits: c.Hits, Misses: c.Misses, Size: c.Size, Capacity: c.Capacity, Bytes: c.Bytes, Evictions: c.Evictions}
		}},
		{Name: "definitions", Clear: s.profiles.forget, Statistics: s.profiles.statistics},
	}
}

// tokenCache is an authorization server that remembers verified tokens.
type tokenCache interface {
	CacheState() oauth.CacheState
	ClearCache()
}

func searchCache(c strategy.CacheState) admin.CacheStatistics {
	return admin.CacheStatistics{Hits: c.Hits, Misses: c.Misses, Size: c.Size, Capacity: c.Capacity, Bytes: c.Bytes, Evictions: c.Evictions}
}

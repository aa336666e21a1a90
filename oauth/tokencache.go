package oauth

import "kiln/server/telemetry"

// bytesOfToken is about what a verified token takes: itself and its principal.
const bytesOfToken = 1600

// CacheState returns the state of this server's cache of verified tokens.
func (s *Server) CacheState() telemetry.CacheState {
	n := s.cache.EstimatedSize()
	c := s.cache.Stats()
	return telemetry.CacheState{Hits: c.Hits, Misses: c.Misses, Evictions: c.Evictions, Size: n, Capacity: s.cache.GetMaximum(), Bytes: uint64(n * bytesOfToken)}
}

// ClearCache forgets the verified tokens, and which owners of tokens have access.
func (s *Server) ClearCache() {
	s.cache.InvalidateAll()
	s.standing.InvalidateAll()
}

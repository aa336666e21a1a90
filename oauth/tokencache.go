package oauth

// CacheState is what the cache of verified tokens holds, and how often it had the
// token that was shown.
type CacheState struct {
	Hits, Misses, Evictions uint64
	Size                    int // tokens
	Capacity                uint64
	Bytes                   uint64 // roughly
}

// bytesOfToken is about what a verified token takes: its hash and its principal.
const bytesOfToken = 800

// CacheState returns the state of this server's cache of verified tokens.
func (s *Server) CacheState() CacheState {
	n := s.cache.EstimatedSize()
	c := s.cache.Stats()
	return CacheState{Hits: c.Hits, Misses: c.Misses, Evictions: c.Evictions, Size: n, Capacity: s.cache.GetMaximum(), Bytes: uint64(n * bytesOfToken)}
}

// ClearCache forgets the verified tokens, and which owners of tokens have access.
func (s *Server) ClearCache() {
	s.cache.InvalidateAll()
	s.standing.InvalidateAll()
}

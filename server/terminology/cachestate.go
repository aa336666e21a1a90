package terminology

// CacheState is what the caches of parsed resources, expansions and sets hold
// together, and how often they had what was looked for.
type CacheState struct {
	Hits, Misses, Evictions uint64
	Size                    int    // entries
	Bytes, Capacity         uint64 // roughly
}

// CacheState returns the state of this server's caches.
func (s *Service) CacheState() CacheState {
	parsed, expansions, sets := s.parsed.Stats(), s.expansions.Stats(), s.sets.Stats()
	return CacheState{
		Hits:      parsed.Hits + expansions.Hits + sets.Hits,
		Misses:    parsed.Misses + expansions.Misses + sets.Misses,
		Evictions: parsed.Evictions + expansions.Evictions + sets.Evictions,
		Size:      s.parsed.EstimatedSize() + s.expansions.EstimatedSize() + s.sets.EstimatedSize(),
		Bytes:     s.parsed.WeightedSize() + s.expansions.WeightedSize() + s.sets.WeightedSize(),
		Capacity:  s.parsed.GetMaximum() + s.expansions.GetMaximum() + s.sets.GetMaximum(),
	}
}

// ClearCaches empties the caches of this server.
func (s *Service) ClearCaches() {
	s.parsed.InvalidateAll()
	s.expansions.InvalidateAll()
	s.sets.InvalidateAll()
	s.Forget()
}

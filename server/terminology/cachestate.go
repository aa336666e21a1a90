package terminology

import "kiln/server/telemetry"

// CacheState returns the state of this server's caches.
func (s *Service) CacheState() telemetry.CacheState {
	parsed, expansions, sets := s.parsed.Stats(), s.expansions.Stats(), s.sets.Stats()
	return telemetry.CacheState{
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

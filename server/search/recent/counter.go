package recent

import (
	"sync/atomic"

	"kiln/server/telemetry"
)

// counter counts the hits, misses and evictions of a cache.
type counter struct{ hits, misses, evictions atomic.Uint64 }

// countLookup counts a lookup.
func (c *counter) countLookup(found bool) {
	if found {
		c.hits.Add(1)
	} else {
		c.misses.Add(1)
	}
}

// state returns the counts.
func (c *counter) state() telemetry.CacheState {
	return telemetry.CacheState{Hits: c.hits.Load(), Misses: c.misses.Load(), Evictions: c.evictions.Load()}
}

// entryBytes is the approximate size in bytes of one total, or one overflow.
const entryBytes = 160

package fill

import "kiln/server/search/cache"

// When a cache that lags catches up.
const (
	// calmPart is the part of cache.MaxChanges that may change between two checks while writers count as calm. While they write
	// more, the cache would lag again at once, and catching up would slow them down.
	calmPart = 4
	// calmChecks is the number of successive checks at which writers must be calm if no search waits: an import that
	// waits for the disk is not over.
	calmChecks = 2
	// maxBusyChecks is the number of checks after which the cache is cleared if a search waits: newly read items follow the
	// changes anyway.
	maxBusyChecks = 20
)

// calmChecker counts the checks at which writers were calm, in succession, and busy.
type calmChecker struct{ calm, busy int }

// checkWriters decides whether to catch up, from the number of resources that have changed since the last check. most is the number up
// to which catching up is worthwhile. If ready is true, at most atMost resources are applied: after more the
// cache is cleared. It is also cleared if writers are never calm while a search waits; atMost is 0 then.
func (c *calmChecker) checkWriters(changed, most int, awaited bool) (atMost int, ready bool) {
	switch {
	case changed <= cache.MaxChanges/calmPart:
		c.calm++
		return most, awaited || c.calm >= calmChecks
	case changed >= most:
		return most, true
	}
	c.calm = 0
	c.busy++
	return 0, awaited && c.busy >= maxBusyChecks
}

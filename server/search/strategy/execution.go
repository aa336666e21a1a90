package strategy

import (
	"slices"

	"kiln/server/fhir"
	"kiln/server/search"
	"kiln/server/search/cache"
	"kiln/server/search/plan"
	"kiln/server/search/recent"
	"kiln/server/search/session"
)

// execution is one search while it is being answered. One goroutine uses it.
type execution struct {
	env     *environment
	store   Store
	session session.Session
	q       *search.Query
	plan    *plan.Plan

	// assumed contains the texts with which the plan was made, if they were not read from the database.
	assumed map[fhir.Key]recent.Texts

	question      *cache.Question // nil if the cache cannot answer the search, or before questionKnown
	questionKnown bool
	requested     bool // the items that the cache lacks were requested

	firstDriver    recent.Key // the key of driver 0, if firstDriverSet
	firstDriverSet bool
}

// usesCache reports whether the cache may answer the search and store its result. A private search may see other data than
// the cache, which follows only types with a change log.
func (x *execution) usesCache() bool {
	if x.session.IsPrivate() || len(x.q.Types) == 0 {
		return false
	}
	return !slices.ContainsFunc(x.q.Types, func(t string) bool { return !cache.FollowsType(t) })
}

// driverKey returns the key under which an overflow of driver i is stored.
func (x *execution) driverKey(i int) recent.Key {
	if i > 0 {
		return recent.KeyOf(x.plan.SelectDriver(i))
	}
	if !x.firstDriverSet {
		x.firstDriver, x.firstDriverSet = recent.KeyOf(x.plan.SelectDriver(0)), true
	}
	return x.firstDriver
}

// countKey returns the key of the search's clauses. It is the same for every page.
func (x *execution) countKey() recent.Key { return recent.KeyOf(x.plan.CountMatches()) }

// pageSize returns the largest number of matches on the page.
func pageSize(q *search.Query) int {
	if c := q.Cursor; c != nil && c.Size > 0 {
		return min(c.Size, q.Count)
	}
	return q.Count
}

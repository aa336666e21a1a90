package strategy

import (
	"context"

	"kiln/server/search"
	"kiln/server/search/session"
)

// attempt is the common knowledge of the ways to answer one search.
type attempt struct {
	known    *cachedTotal // the total in a cache, nil for none
	many     bool         // known to have too many matches for candidates
	linked   bool         // the cache has the references that its chains follow
	estimate bool         // the client accepts an estimated total
}

// way answers a search, or returns no page: then the next way is tried. exact reports whether the page has an exact
// total.
type way struct {
	name string
	try  func(x *execution, ctx context.Context, a *attempt) (p *session.Page, exact bool, err error)
}

// ways are all ways to answer a search, in the order in which they are tried. The last one answers every search.
var ways = []way{
	{"total alone", (*execution).tryTotal},
	{"many matches: estimate", (*execution).tryManyByEstimate},
	{"many matches: links in the cache", (*execution).tryManyByLinks},
	{"many matches", (*execution).tryMany},
	{"candidates of one condition", (*execution).tryCandidates},
	{"links in the cache", (*execution).tryLinks},
	{"sort in memory", (*execution).trySorting},
	{"walk without conditions", (*execution).tryUnconditioned},
	{"walk along one condition", (*execution).tryAlongDriver},
	{"estimate", (*execution).tryEstimate},
	{"common search", (*execution).tryCommon},
}

const (
	// A search with fewer than walkFrom matches is short even if it reads all of them. Reading entriesForTest entries
	// of an index takes as long as one test.
	walkFrom       = 2_000
	entriesForTest = 15
	// requestFrom is the number of candidates from which on the cache should have the matches: for the next page, and for
	// other searches with the same conditions.
	requestFrom = 100
)

// findPage finds the page, and the total unless the query wants none. exact is false if the total is not known.
func (x *execution) findPage(ctx context.Context) (p *session.Page, exact bool, err error) {
	a, err := x.newAttempt(ctx)
	if err != nil {
		return nil, false, err
	}
	for _, w := range ways {
		if p, exact, err = w.try(x, ctx, a); p != nil || err != nil {
			break
		}
	}
	return p, exact, err
}

// newAttempt looks the total up in the caches, and decides whether the matches are many.
func (x *execution) newAttempt(ctx context.Context) (*attempt, error) {
	known, err := x.findTotalOfMany()
	if err != nil {
		return nil, err
	}
	a := &attempt{known: known, estimate: x.q.Total == search.TotalEstimate}
	if x.q.Count == 0 {
		return a, nil
	}
	a.many = known != nil && (known.approximate >= int64(x.plan.Limit) || len(x.plan.Drivers) == 0)
	if !a.many && known != nil && known.approximate > walkFrom {
		ofType, err := x.estimateTypeSize(ctx, known.approximate)
		if err != nil {
			return nil, err
		}
		a.many = x.plan.CanWalk() && x.testsOfWalk(known.approximate, ofType)*entriesForTest < known.approximate
	}
	a.linked = x.hasCachedLinks()
	return a, nil
}

func (x *execution) tryTotal(ctx context.Context, a *attempt) (*session.Page, bool, error) {
	if x.q.Count != 0 {
		return nil, false, nil
	}
	if a.estimate {
		if p, err := x.findPageWithEstimate(ctx, a.known); p != nil || err != nil {
			return p, false, err
		}
	}
	total, err := x.computeTotal(ctx, a.known)
	return &session.Page{Total: total}, true, err
}

func (x *execution) tryManyByEstimate(ctx context.Context, a *attempt) (*session.Page, bool, error) {
	if !a.many {
		return nil, false, nil
	}
	return x.tryEstimate(ctx, a)
}

func (x *execution) tryManyByLinks(ctx context.Context, a *attempt) (*session.Page, bool, error) {
	if !a.many {
		return nil, false, nil
	}
	return x.tryLinks(ctx, a)
}

func (x *execution) tryMany(ctx context.Context, a *attempt) (*session.Page, bool, error) {
	if !a.many {
		return nil, false, nil
	}
	x.requestOrder(false)
	p, err := x.findCommonPage(ctx, a.known)
	return p, true, err
}

// tryCandidates reads the matches of one condition and tests the others on each, by the conditions that have not
// overflowed before. If the cache can follow the references of the search, it tries few candidates only: the cache
// then answers faster.
func (x *execution) tryCandidates(ctx context.Context, a *attempt) (*session.Page, bool, error) {
	limit := x.plan.Limit
	if a.linked {
		x.plan.Limit = min(limit, linkedLimit)
	}
	for i := range x.plan.Drivers {
		driver := x.driverKey(i)
		if x.env.overflows.HasOverflow(driver, x.env.Now()) {
			continue
		}
		p, err := x.readCandidates(ctx, i)
		if err != nil {
			return nil, false, err
		}
		if p.Seen < int64(x.plan.Limit) {
			if p.Seen >= requestFrom {
				x.requestItems(false)
			}
			return p, true, nil
		}
		x.env.overflows.StoreOverflow(driver, x.env.Now())
	}
	x.plan.Limit = limit
	return nil, false, nil
}

// readCandidates reads the page among the candidates of a driver.
func (x *execution) readCandidates(ctx context.Context, driver int) (*session.Page, error) {
	st, err := x.plan.SelectCandidates(driver)
	if err != nil {
		return nil, err
	}
	name := "candidates by " + x.plan.Drivers[driver].Name
	if alone := len(x.q.Includes)+len(x.q.RevIncludes) == 0 && !x.q.Explain; alone {
		return x.session.ReadPageAlone(ctx, name, st)
	}
	return x.session.ReadPage(ctx, name, st)
}

func (x *execution) tryLinks(ctx context.Context, a *attempt) (*session.Page, bool, error) {
	if !a.linked {
		return nil, false, nil
	}
	p, err := x.answerByCachedLinks(ctx)
	return p, true, err
}

func (x *execution) trySorting(ctx context.Context, _ *attempt) (*session.Page, bool, error) {
	x.requestItems(true)
	if x.plan.CanWalk() {
		return nil, false, nil
	}
	p, err := x.findSortedPage(ctx)
	return p, true, err
}

func (x *execution) tryUnconditioned(ctx context.Context, _ *attempt) (*session.Page, bool, error) {
	if x.q.Total != search.TotalNone || len(x.plan.Drivers) > 0 {
		return nil, false, nil
	}
	p, err := x.walkPage(ctx, 0)
	return p, false, err
}

// tryAlongDriver walks if one condition is the whole search. It has reached its limit, so there are that many matches,
// and the client does not ask for the total.
func (x *execution) tryAlongDriver(ctx context.Context, _ *attempt) (*session.Page, bool, error) {
	if x.q.Total != search.TotalNone || !x.plan.HasOneDriver() {
		return nil, false, nil
	}
	matches := int64(x.plan.Limit)
	ofType, err := x.estimateTypeSize(ctx, matches)
	if err != nil || x.testsOfWalk(matches, ofType) > maxWalkTests {
		return nil, false, err
	}
	p, err := x.walkPage(ctx, matches)
	return p, false, err
}

func (x *execution) tryEstimate(ctx context.Context, a *attempt) (*session.Page, bool, error) {
	if !a.estimate {
		return nil, false, nil
	}
	p, err := x.findPageWithEstimate(ctx, a.known)
	return p, false, err
}

func (x *execution) tryCommon(ctx context.Context, a *attempt) (*session.Page, bool, error) {
	if a.known == nil {
		a.known = x.findRecentTotal()
	}
	p, err := x.findCommonPage(ctx, a.known)
	return p, true, err
}

package strategy

import (
	"context"

	"kiln/server/search"
)

// An attempt is the common knowledge of the ways to answer one search.
type attempt struct {
	known    *knownTotal // the total in the cache, nil for none
	many     bool        // known to have too many matches for candidates
	linked   bool        // the cache has the references that its chains follow
	estimate bool        // the client accepts an estimated total
}

// A way answers a search, or returns no page: then the next way is tried. exact reports whether the
// page has an exact total.
type way struct {
	name   string
	answer func(x *searching, ctx context.Context, a *attempt) (p *pageRows, exact bool, err error)
}

// ways are all ways to answer a search, in the order in which they are tried. The last one answers
// every search.
var ways = []way{
	{"total alone", (*searching).answerTotal},
	{"many matches: estimate", (*searching).answerManyByEstimate},
	{"many matches: links in the cache", (*searching).answerManyByLinks},
	{"many matches", (*searching).answerMany},
	{"candidates of one condition", (*searching).answerByCandidates},
	{"links in the cache", (*searching).answerByLinks},
	{"sort in memory", (*searching).answerSorted},
	{"walk without conditions", (*searching).answerUnconditioned},
	{"walk along one condition", (*searching).answerAlongDriver},
	{"estimate", (*searching).answerByEstimate},
	{"common search", (*searching).answerCommon},
}

// run finds the page, and the total unless the query wants none. exact is false
// if the total is not known.
func (x *searching) run(ctx context.Context) (p *pageRows, exact bool, err error) {
	a, err := x.newAttempt(ctx)
	if err != nil {
		return nil, false, err
	}
	for _, w := range ways {
		if p, exact, err = w.answer(x, ctx, a); p != nil || err != nil {
			break
		}
	}
	return p, exact, err
}

// newAttempt looks the total up in the cache, and decides whether the matches are many.
func (x *searching) newAttempt(ctx context.Context) (*attempt, error) {
	known, err := x.knownTotal()
	if err != nil {
		return nil, err
	}
	a := &attempt{known: known, estimate: x.q.Total == search.TotalEstimate}
	if x.q.Count == 0 {
		return a, nil
	}
	a.many = known != nil && (known.about >= int64(x.plan.Limit) || len(x.plan.Drivers) == 0)
	if !a.many && known != nil && known.about > walkFrom {
		ofType, err := x.totalOfType(ctx, known.about)
		if err != nil {
			return nil, err
		}
		a.many = x.plan.Walkable() && x.probesFor(known.about, ofType)*entriesForProbe < known.about
	}
	a.linked = x.linksRemembered()
	return a, nil
}

func (x *searching) answerTotal(ctx context.Context, a *attempt) (*pageRows, bool, error) {
	if x.q.Count != 0 {
		return nil, false, nil
	}
	if a.estimate {
		if p, err := x.byEstimate(ctx, a.known); p != nil || err != nil {
			return p, false, err
		}
	}
	total, err := x.computeTotal(ctx, a.known)
	return &pageRows{total: total}, true, err
}

func (x *searching) answerManyByEstimate(ctx context.Context, a *attempt) (*pageRows, bool, error) {
	if !a.many {
		return nil, false, nil
	}
	return x.answerByEstimate(ctx, a)
}

func (x *searching) answerManyByLinks(ctx context.Context, a *attempt) (*pageRows, bool, error) {
	if !a.many {
		return nil, false, nil
	}
	return x.answerByLinks(ctx, a)
}

func (x *searching) answerMany(ctx context.Context, a *attempt) (*pageRows, bool, error) {
	if !a.many {
		return nil, false, nil
	}
	x.learnOrder(false)
	p, err := x.common(ctx, a.known)
	return p, true, err
}

// answerByCandidates reads the matches of one condition and tests the others on each, by the
// conditions that have not overflowed before. If the cache can follow the references of the
// search, it tries few candidates only: the cache then answers faster.
func (x *searching) answerByCandidates(ctx context.Context, a *attempt) (*pageRows, bool, error) {
	limit, memory := x.plan.Limit, &x.s.memory
	if a.linked {
		x.plan.Limit = min(limit, linkedLimit)
	}
	x.alone = len(x.q.Includes)+len(x.q.RevIncludes) == 0 && !x.q.Explain
	defer func() { x.alone = false }()
	for i := range x.plan.Drivers {
		driving := x.drivingKey(i)
		if memory.overflows(driving, x.s.now()) {
			continue
		}
		st, err := x.plan.Candidates(i)
		if err != nil {
			return nil, false, err
		}
		p, err := x.readPage(ctx, "candidates by "+x.plan.Drivers[i].Name, st)
		if err != nil {
			return nil, false, err
		}
		if p.seen < int64(x.plan.Limit) {
			if p.seen >= learnFrom {
				x.fillCache(false)
			}
			return p, true, nil
		}
		memory.overflowed(driving, x.s.now())
	}
	x.plan.Limit = limit
	return nil, false, nil
}

func (x *searching) answerByLinks(ctx context.Context, a *attempt) (*pageRows, bool, error) {
	if !a.linked {
		return nil, false, nil
	}
	p, err := x.byLinks(ctx)
	return p, true, err
}

func (x *searching) answerSorted(ctx context.Context, _ *attempt) (*pageRows, bool, error) {
	x.fillCache(true)
	if x.plan.Walkable() {
		return nil, false, nil
	}
	p, err := x.sortedPage(ctx)
	return p, true, err
}

func (x *searching) answerUnconditioned(ctx context.Context, _ *attempt) (*pageRows, bool, error) {
	if x.q.Total != search.TotalNone || len(x.plan.Drivers) > 0 {
		return nil, false, nil
	}
	p, err := x.walkPage(ctx, 0)
	return p, false, err
}

// answerAlongDriver walks if one condition is the whole search. It has reached its limit, so there are
// that many matches, and the client does not ask for the total.
func (x *searching) answerAlongDriver(ctx context.Context, _ *attempt) (*pageRows, bool, error) {
	if x.q.Total != search.TotalNone || !x.plan.OneDriver() {
		return nil, false, nil
	}
	matches := int64(x.plan.Limit)
	ofType, err := x.totalOfType(ctx, matches)
	if err != nil || x.probesFor(matches, ofType) > walkCost {
		return nil, false, err
	}
	p, err := x.walkPage(ctx, matches)
	return p, false, err
}

func (x *searching) answerByEstimate(ctx context.Context, a *attempt) (*pageRows, bool, error) {
	if !a.estimate {
		return nil, false, nil
	}
	p, err := x.byEstimate(ctx, a.known)
	return p, false, err
}

func (x *searching) answerCommon(ctx context.Context, a *attempt) (*pageRows, bool, error) {
	if a.known == nil {
		a.known = x.byTotal()
	}
	p, err := x.common(ctx, a.known)
	return p, true, err
}

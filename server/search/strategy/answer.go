package strategy

import (
	"context"

	"kiln/server/search/match"
	"kiln/server/search/recent"
	"kiln/server/search/session"
)

// answerQuery finds the page of a search:
//
//  1. The plan is made with units and texts that earlier searches have read.
//  2. The cache answers, if it can.
//  3. Else the plan is made again, if the database has other units or texts.
//  4. A search in an order without an index is sorted here.
//  5. One of the ways answers the rest.
//
// exact reports whether the page has an exact total.
func (x *execution) answerQuery(ctx context.Context) (p *session.Page, exact bool, err error) {
	needsUnits := match.NeedUnits(x.q.Clauses)
	units := x.env.units.FindUnits()
	if needsUnits && units == nil {
		units = &recent.Units{IDs: []int64{}}
	}
	// The cache's quantities contain their units. Texts may come from earlier searches: the statement that reads a cached
	// answer verifies them, and no other statement does.
	if err := x.compile(ctx, units, x.session.IsPrivate()); err != nil {
		return nil, false, err
	}
	if !x.plan.Empty {
		if p, err := x.answerFromCache(ctx); p != nil || err != nil {
			return p, true, err
		}
	}
	if len(x.assumed) > 0 {
		if err := x.recompile(ctx, units); err != nil {
			return nil, false, err
		}
	}
	if x.plan.Empty {
		return &session.Page{}, true, nil
	}
	if needsUnits {
		now, err := x.readUnits(ctx, units)
		if err == nil && now != units {
			err = x.recompile(ctx, now)
		}
		if err != nil {
			return nil, false, err
		}
	}
	if (x.plan.SortsInMemory() || x.plan.HasTies()) && x.q.Count > 0 {
		if p, err := x.answerSorted(ctx); p != nil || err != nil {
			return p, true, err
		}
	}
	return x.findPage(ctx)
}

// recompile makes the plan again with the present texts of the database. It also renews the question to the cache, so that
// the search requests the items of the new plan.
func (x *execution) recompile(ctx context.Context, units *recent.Units) error {
	if err := x.compile(ctx, units, true); err != nil {
		return err
	}
	_, err := x.cacheQuestion()
	return err
}

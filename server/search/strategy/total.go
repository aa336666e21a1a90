package strategy

import (
	"context"

	"kiln/server/search/match"
	"kiln/server/search/plan"
	"kiln/server/search/recent"
)

// computeTotal returns the exact number of matches: the cached one if it is still exact, else it counts them.
func (x *execution) computeTotal(ctx context.Context, known *cachedTotal) (n int64, err error) {
	if n, ok, err := x.verifyTotal(ctx, known); ok || err != nil {
		return n, err
	}
	count := x.plan.CountMatches()
	waited, err := x.becomeExpensive(ctx)
	if err != nil {
		return 0, err
	}
	if waited || known == nil { // another search may have counted
		if n, ok, err := x.verifyTotal(ctx, x.findRecentTotal()); ok || err != nil {
			return n, err
		}
	}
	x.requestItems(true)
	return x.countMatches(ctx, count, recent.KeyOf(count))
}

// countMatches counts the matches and stores the number, unless the search may see other data than others.
func (x *execution) countMatches(ctx context.Context, st match.Statement, key recent.Key) (int64, error) {
	t := recent.Total{At: x.env.Now()}
	st.SQL = "SELECT (" + st.SQL + "), " + plan.Now
	if err := x.session.QueryRow(ctx, "count", st, &t.N, &t.Snapshot); err != nil {
		return 0, err
	}
	if x.usesCache() {
		x.env.totals.StoreTotal(key, t)
	}
	return t.N, nil
}

package strategy

import (
	"context"

	"kiln/server/search/cache"
	"kiln/server/search/match"
	"kiln/server/search/plan"
	"kiln/server/search/recent"
	"kiln/server/search/session"
)

// cachedTotal is a number of matches from a cache, with the statement that shows whether it is still exact.
type cachedTotal struct {
	approximate int64
	// statement returns one row. scan returns the destinations of its columns, and a function that returns the exact total
	// in the snapshot of the statement; false if that is unknown.
	statement match.Statement
	scan      func() (into []any, exact func() (int64, bool))
	// since is the state in which approximate was exact; "" if the database cannot list later additions.
	since string
	// store stores the exact total in a state. It is nil if since is "".
	store func(n int64, state string)
}

// findTotalOfMany returns the cached total, unless the search has conditions whose candidates may be few: these are exact.
func (x *execution) findTotalOfMany() (*cachedTotal, error) {
	if !x.usesCache() {
		return nil, nil
	}
	if len(x.plan.Drivers) > 0 && x.q.Count > 0 && !x.env.overflows.HasOverflow(x.driverKey(0), x.env.Now()) {
		return nil, nil
	}
	return x.findTotal()
}

// findTotal returns the total from the cache of matches, else the total of a recent search; nil if there is none.
func (x *execution) findTotal() (*cachedTotal, error) {
	known, err := x.findTotalInCache()
	if known != nil || err != nil {
		return known, err
	}
	return x.findRecentTotal(), nil
}

// findTotalInCache returns the total from the cache of matches, for a page that a statement finds; nil if there is none.
func (x *execution) findTotalInCache() (*cachedTotal, error) {
	q, err := x.cacheQuestion()
	if q == nil || err != nil {
		return nil, err
	}
	total := *q
	total.Page, total.Exactly = cache.Page{}, true
	a, ok := x.env.cache.FindAnswer(&total)
	if !ok {
		return nil, nil
	}
	t := &cachedTotal{approximate: a.Total, statement: plan.SelectChanges(a.Position)}
	t.scan = func() ([]any, func() (int64, bool)) {
		var row plan.ChangesRow
		return row.Columns(), func() (int64, bool) {
			settled, ok := x.env.cache.SettleAnswer(a, row.Changes(a.Position))
			return settled.Total, ok
		}
	}
	return t, nil
}

// findRecentTotal returns the total of a recent search with the same clauses; nil if there is none.
func (x *execution) findRecentTotal() *cachedTotal {
	if !x.usesCache() {
		return nil
	}
	key := x.countKey()
	found, ok := x.env.totals.FindTotal(key, x.env.Now())
	if !ok || !plan.IsLasting(found.Snapshot) {
		return nil
	}
	t := &cachedTotal{approximate: found.N, statement: x.plan.CheckUnchanged(found.Snapshot), since: found.Snapshot}
	t.statement.SQL = "SELECT " + t.statement.SQL
	t.store = func(n int64, state string) {
		x.env.totals.StoreTotal(key, recent.Total{N: n, Snapshot: state, At: x.env.Now()})
	}
	t.scan = func() ([]any, func() (int64, bool)) {
		var unchanged bool
		var state string
		return []any{&unchanged, &state}, func() (int64, bool) {
			if !unchanged || !plan.HasSameIndex(found.Snapshot, state) {
				return 0, false
			}
			t.store(found.N, state)
			return found.N, true
		}
	}
	return t
}

// verifyTotal returns the exact total: the cached one, with later additions. It returns false if something else has changed.
func (x *execution) verifyTotal(ctx context.Context, known *cachedTotal) (n int64, ok bool, err error) {
	if known == nil {
		return 0, false, nil
	}
	into, exact := known.scan()
	if err := x.session.QueryRow(ctx, "total", known.statement, into...); err != nil {
		return 0, false, err
	}
	if n, ok = exact(); ok || known.since == "" {
		return n, ok, nil
	}
	return x.addNewMatches(ctx, known)
}

// addNewMatches returns the total if only a few new resources were added since. Counting again would read every match.
func (x *execution) addNewMatches(ctx context.Context, known *cachedTotal) (n int64, ok bool, err error) {
	st, ok := x.plan.CountAdded(known.since)
	if !ok {
		return 0, false, nil
	}
	var state string
	if err := x.session.QueryRow(ctx, "count of what is new", st, &ok, &n, &state); err != nil || !ok || !plan.HasSameIndex(known.since, state) {
		return 0, false, err
	}
	n += known.approximate
	known.store(n, state)
	return n, true, nil
}

// readPageWithTotal runs a page statement that also verifies a cached total. It returns false if the total is not
// exact.
func (x *execution) readPageWithTotal(ctx context.Context, name string, st match.Statement, known *cachedTotal) (p *session.Page, total int64, ok bool, err error) {
	into, exact := known.scan()
	if p, err = x.session.ReadPage(ctx, name, st.BesideRow(known.statement), into...); err != nil {
		return nil, 0, false, err
	}
	total, ok = exact()
	return p, total, ok, nil
}

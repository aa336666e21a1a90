package strategy

import (
	"context"

	"kiln/server/search/admission"
	"kiln/server/search/cache/fill"
	"kiln/server/search/match"
	"kiln/server/search/plan"
	"kiln/server/search/recent"
)

// manyOfType is the number of resources from which on PostgreSQL's statistics are used. Counting more takes as long as a
// search: a million takes 0.2 s.
const manyOfType = 50_000

// estimateTypeSize returns the approximate number of resources of the types searched, and at least atLeast. It may be a minute
// old.
func (x *execution) estimateTypeSize(ctx context.Context, atLeast int64) (int64, error) {
	st := x.plan.CountType()
	key := recent.KeyOf(st)
	if t, ok := x.env.totals.FindTotal(key, x.env.Now()); ok {
		return max(t.N, atLeast), nil
	}
	end, err := x.session.BeginComputation(ctx, admission.Key(key))
	if err != nil {
		return 0, err
	}
	defer end()
	if t, ok := x.env.totals.FindTotal(key, x.env.Now()); ok {
		return max(t.N, atLeast), nil
	}
	t := recent.Total{At: x.env.Now()}
	if t.N, err = x.readTypeSize(ctx, st); err != nil {
		return 0, err
	}
	if !x.session.IsPrivate() {
		x.env.totals.StoreTotal(key, t)
	}
	return max(t.N, atLeast), nil
}

// readTypeSize returns the approximate result of a statement that counts the resources of the types searched: from the cache,
// from PostgreSQL's statistics for large types, or from the statement.
func (x *execution) readTypeSize(ctx context.Context, count match.Statement) (n int64, err error) {
	if len(x.q.Types) == 1 {
		if n, ok := x.env.cache.CountResources(x.plan.OnlyType()); ok {
			return n, nil
		}
		x.session.NoteStatement("size of the types", plan.SelectTypeSizes())
		sizes, err := fill.ReadTypeSizes(ctx, x.session.Conn())
		if err != nil {
			return 0, err
		}
		if n := sizes[x.plan.OnlyType()]; n >= manyOfType {
			return n, nil
		}
	}
	err = x.session.QueryRow(ctx, "count of the type", count, &n)
	return n, err
}

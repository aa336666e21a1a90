package strategy

import (
	"context"
	"slices"

	"kiln/server/search/plan"
	"kiln/server/search/session"
)

// addIncludes adds the includes of a page to its result, round after round while `:iterate` finds new ones. A resource
// is included once, so a cycle ends by itself. If the limit is reached, an issue says so.
// Spec: https://hl7.org/fhir/R4/search.html#include.
func (x *execution) addIncludes(ctx context.Context, r *Result, rows []session.Row) error {
	rids := make([]int64, len(rows))
	for i := range rows {
		rids[i] = rows[i].RID
	}
	n := &includer{x: x, result: r, seen: slices.Clone(rids)}
	from := r.Matches
	for round := 0; len(rids) > 0; round++ {
		first := len(r.Includes)
		n.found, n.iterate, n.limit = nil, round > 0, plan.IncludeLimit-first+1
		for _, st := range x.plan.SelectIncludes(rids, n.seen, n.iterate, n.limit) {
			found, err := x.session.ReadIncludes(ctx, st)
			if err != nil {
				return err
			}
			if !n.addRows(found, false) {
				return nil
			}
		}
		if more, err := n.addCanonicals(ctx, from); err != nil || !more {
			return err
		}
		n.seen = append(n.seen, n.found...)
		rids, from = n.found, r.Includes[first:]
	}
	return nil
}

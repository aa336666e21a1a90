package strategy

import (
	"context"
	"fmt"

	"kiln/server/search/session"
)

// testsOfWalk returns the approximate number of resources that a walk tests for the page, in tests of the usual cost.
func (x *execution) testsOfWalk(total, ofType int64) int64 {
	far := int64(x.q.Count + 1)
	if x.q.Cursor == nil {
		far += int64(x.q.Offset)
	}
	return min(far, total) * ofType / total * x.plan.ProbeCost()
}

// gatherPage fetches all matches and sorts them.
func (x *execution) gatherPage(ctx context.Context) (*session.Page, error) {
	if p, _, err := x.answerOrBecomeExpensive(ctx); p != nil || err != nil {
		return p, err
	}
	st, err := x.plan.GatherMatches()
	if err != nil {
		return nil, err
	}
	return x.session.ReadPage(ctx, "gather", st)
}

// walkPage walks along the order, phase by phase, until the page is full. total is the smallest possible number of matches, 0
// if that is unknown.
func (x *execution) walkPage(ctx context.Context, total int64) (p *session.Page, err error) {
	return x.walkInSnapshot(ctx, nil, total)
}

// walkPageWithTotal is walkPage with a cached total; nil if the total is no longer exact.
func (x *execution) walkPageWithTotal(ctx context.Context, known *cachedTotal) (*session.Page, error) {
	return x.walkInSnapshot(ctx, known, known.approximate)
}

// walkInSnapshot walks in one snapshot. A walk of one phase is one statement.
func (x *execution) walkInSnapshot(ctx context.Context, known *cachedTotal, total int64) (p *session.Page, err error) {
	if x.plan.CountPhases() == 1 {
		return x.walkPhases(ctx, known, total)
	}
	err = x.session.RunInSnapshot(ctx, func(ctx context.Context) (err error) {
		p, err = x.walkPhases(ctx, known, total)
		return err
	})
	return p, err
}

// walkPhases is walkPage, or with known walkPageWithTotal. If the page is far away, it gathers the matches.
func (x *execution) walkPhases(ctx context.Context, known *cachedTotal, total int64) (*session.Page, error) {
	all := &session.Page{}
	skipped := 0 // by the earlier phases, of an offset
	most := 0    // resources to test; 0 for no limit
	if total > 0 && x.plan.CanStop() {
		most = max(1, x.env.Walk/int(x.plan.ProbeCost()))
	}
	for phase := range x.plan.CountPhases() {
		st, ok, err := x.plan.SelectWalk(phase, len(all.Rows), skipped, most)
		if err != nil {
			return nil, err
		}
		if !ok {
			continue
		}
		var p *session.Page
		name := fmt.Sprintf("walk %d", phase+1)
		if known != nil {
			if p, total, ok, err = x.readPageWithTotal(ctx, name, st, known); err == nil && !ok {
				return nil, nil
			}
			all.Total = total
			known = nil
		} else {
			p, err = x.session.ReadPage(ctx, name, st)
		}
		if err != nil {
			return nil, err
		}
		all.Rows = append(all.Rows, p.Rows...)
		far := false
		if most > 0 && phase == 0 && int64(len(all.Rows)) < min(int64(x.q.Count)+1, total-int64(x.q.Offset)) {
			if far, err = x.isPageFar(ctx, most); err != nil {
				return nil, err
			}
		}
		if far {
			return x.gatherPage(ctx)
		}
		if phase+1 < x.plan.CountPhases() && len(all.Rows) == 0 {
			if skipped, err = x.countSkipped(ctx); err != nil {
				return nil, err
			}
		}
	}
	return all, nil
}

// isPageFar reports whether a walk that has tested as many resources as it may, most, has not reached the end of its page.
func (x *execution) isPageFar(ctx context.Context, most int) (far bool, err error) {
	if x.plan.CountPhases() == 1 {
		return true, nil
	}
	st, err := x.plan.CheckBeyond(most) // else the other matches have no value
	if err != nil {
		return false, err
	}
	err = x.session.QueryRow(ctx, "more to walk along", st, &far)
	return far, err
}

// countSkipped counts the matches with a value if the offset may be among the matches without one.
func (x *execution) countSkipped(ctx context.Context) (int, error) {
	if x.q.Offset == 0 || x.q.Cursor != nil {
		return 0, nil
	}
	var n int64
	err := x.session.QueryRow(ctx, "count of those with a value", x.plan.CountValued(), &n)
	return int(n), err
}

package strategy

import (
	"context"
	"math"

	"kiln/server/search/session"
)

// findPageWithEstimate finds the page of a common search whose total may be an estimate (`_total=estimate`). It counts
// nothing. It returns nil if a count is as cheap, or if the number of matches cannot be estimated.
// Spec: https://hl7.org/fhir/R4/search.html#total.
func (x *execution) findPageWithEstimate(ctx context.Context, known *cachedTotal) (*session.Page, error) {
	n, ok, err := x.estimateTotal(ctx, known)
	if !ok || err != nil {
		return nil, err
	}
	if x.q.Count == 0 {
		return &session.Page{Total: n, Estimated: true}, nil
	}
	if n == 0 || !x.plan.CanWalk() {
		return nil, nil
	}
	ofType, err := x.estimateTypeSize(ctx, n)
	if err != nil || x.testsOfWalk(n, ofType) > maxWalkTests {
		return nil, err
	}
	p, err := x.walkPage(ctx, math.MaxInt64) // if the page is not full, the matches are gathered: n may be too small
	if err != nil {
		return nil, err
	}
	p.Total, p.Estimated = n, true
	if x.q.Cursor == nil { // at least the matches that the client has seen
		p.Total = max(n, int64(x.q.Offset+len(p.Rows)))
	}
	return p, nil
}

// estimateTotal returns the approximate number of matches: the cached number, which may be old, else an extrapolation of a
// sample. It returns false if neither is known.
func (x *execution) estimateTotal(ctx context.Context, known *cachedTotal) (n int64, ok bool, err error) {
	if known == nil {
		known = x.findRecentTotal()
	}
	if known != nil {
		return known.approximate, true, nil
	}
	st, ok := x.plan.SampleMatches()
	if !ok {
		return 0, false, nil
	}
	err = x.session.QueryRow(ctx, "sample", st, &n)
	return n, n > 0 && err == nil, err
}

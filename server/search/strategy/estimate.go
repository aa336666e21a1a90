package strategy

import (
	"context"
	"math"
)

// byEstimate is the page of a common search whose total may be an estimate
// (`_total=estimate`): nothing is counted. nil where a count is as cheap, or where
// nothing tells how many matches there are about.
// Spec: https://hl7.org/fhir/R4/search.html#total.
func (x *searching) byEstimate(ctx context.Context, known *knownTotal) (*pageRows, error) {
	n, ok, err := x.estimate(ctx, known)
	if !ok || err != nil {
		return nil, err
	}
	if x.q.Count == 0 {
		return &pageRows{total: n, estimated: true}, nil
	}
	if n == 0 || !x.plan.Walkable() {
		return nil, nil
	}
	ofType, err := x.totalOfType(ctx, n)
	if err != nil || x.probesFor(n, ofType) > walkCost {
		return nil, err
	}
	p, err := x.walkPage(ctx, math.MaxInt64) // a page that is not full is gathered: n may be too small
	if err != nil {
		return nil, err
	}
	p.total, p.estimated = n, true
	if x.q.Cursor == nil { // no fewer than the client has seen
		p.total = max(n, int64(x.q.Offset+len(p.rows)))
	}
	return p, nil
}

// estimate returns the approximate number of matches: the cached number, which may be old, else an extrapolation of a
// sample. false means that neither is known.
func (x *searching) estimate(ctx context.Context, known *knownTotal) (n int64, ok bool, err error) {
	if known == nil {
		known = x.byTotal()
	}
	if known != nil {
		return known.about, true, nil
	}
	st, ok := x.plan.Sample()
	if !ok {
		return 0, false, nil
	}
	err = x.queryRow(ctx, "sample", st, &n)
	return n, n > 0 && err == nil, err
}

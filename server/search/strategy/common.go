package strategy

import (
	"context"

	"kiln/server/search/session"
)

// findCommonPage finds the page of a search with many matches, and their total. It walks along the order if the matches are
// common enough, else it gathers them. The total is the known one if that is still exact, else it is counted. Page and total are of one
// snapshot.
func (x *execution) findCommonPage(ctx context.Context, known *cachedTotal) (*session.Page, error) {
	if !x.plan.CanWalk() {
		return x.findSortedPage(ctx)
	}
	p, known, err := x.findPageWithTotal(ctx, known)
	if p != nil || err != nil {
		return p, err
	}
	p, waited, err := x.answerOrBecomeExpensive(ctx)
	if p != nil || err != nil {
		return p, err
	}
	if waited || known == nil { // another search may have counted
		if known, err = x.findTotalOfMany(); err != nil {
			return nil, err
		}
		if known != nil && known.approximate > 0 {
			if p, err := x.walkPageWithTotal(ctx, known); p != nil || err != nil {
				return p, err
			}
		}
	}
	err = x.session.RunInSnapshot(ctx, func(ctx context.Context) error {
		p, err = x.countAndFindPage(ctx)
		return err
	})
	return p, err
}

// findPageWithTotal finds the page with a known total. It returns no page if the total is not exact, with the total that
// is known then, nil for none.
func (x *execution) findPageWithTotal(ctx context.Context, known *cachedTotal) (*session.Page, *cachedTotal, error) {
	for range maxAttempts {
		if known == nil {
			return nil, nil, nil
		}
		if known.approximate == 0 { // a walk would test every resource
			if n, ok, err := x.verifyTotal(ctx, known); ok && n == 0 || err != nil {
				return &session.Page{}, known, err
			}
			return nil, known, nil
		}
		ofType, err := x.estimateTypeSize(ctx, known.approximate)
		if err != nil {
			return nil, nil, err
		}
		if !x.isWalkCheap(known.approximate, ofType) {
			p, err := x.gatherPage(ctx)
			return p, known, err
		}
		// The rows and the verification of the total are of one snapshot.
		p, err := x.walkPageWithTotal(ctx, known)
		if p != nil || err != nil {
			return p, known, err
		}
		if known, err = x.findTotalOfMany(); err != nil {
			return nil, nil, err
		}
	}
	return nil, known, nil
}

// isWalkCheap reports whether a walk finds the page sooner than gathering all matches. total must not be 0.
func (x *execution) isWalkCheap(total, ofType int64) bool {
	return total >= ofType || x.testsOfWalk(total, ofType) <= maxWalkTests
}

// countAndFindPage counts the matches and finds the page.
func (x *execution) countAndFindPage(ctx context.Context) (*session.Page, error) {
	total, err := x.computeTotal(ctx, nil)
	if err != nil {
		return nil, err
	}
	ofType, err := x.estimateTypeSize(ctx, total)
	switch {
	case err != nil:
		return nil, err
	case total == 0:
		return &session.Page{}, nil
	case !x.isWalkCheap(total, ofType):
		return x.gatherPage(ctx)
	}
	p, err := x.walkPage(ctx, total)
	if err == nil {
		p.Total = total
	}
	return p, err
}

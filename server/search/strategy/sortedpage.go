package strategy

import (
	"context"

	"kiln/server/search/session"
)

// countToSort returns the number of matches to be sorted. Too many are rejected before they are read.
func (x *execution) countToSort(ctx context.Context) (int64, error) {
	known, err := x.findTotal()
	if err != nil {
		return 0, err
	}
	return x.computeTotal(ctx, known)
}

// answerSorted answers a search whose order no index has, such as by a token: it reads all matches, sorts them here, and reads
// the page. It returns nil if an index has the order, and sorting here does not help or the matches are too many. It rejects
// too many matches if no index has the order.
func (x *execution) answerSorted(ctx context.Context) (*session.Page, error) {
	indexed := !x.plan.SortsInMemory()
	if indexed && !x.usesCache() {
		return nil, nil
	}
	total, err := x.countToSort(ctx)
	if err != nil {
		return nil, err
	}
	tooMany := total > int64(x.plan.MaxOrder())
	if indexed && (tooMany || total <= int64(x.plan.Limit)) {
		return nil, nil
	}
	if tooMany {
		return nil, x.plan.TooManyToSort(total)
	}
	if x.session.IsPrivate() {
		o, err := x.sortMatches(ctx)
		if err != nil {
			return nil, err
		}
		return x.readPageOfOrder(ctx, o)
	}
	if total <= int64(x.plan.Limit)/2 || !x.usesCache() { // sorting takes a few milliseconds: the order is not stored
		p, _, err := x.sortAndReadPage(ctx)
		return p, err
	}
	return x.sortOnce(ctx)
}

// sortOnce sorts the matches and stores the order, or uses the order of a recent search. Reading many resources takes a processor
// for a second. Only a few searches do so at a time, and one that has waited may find the order of another.
func (x *execution) sortOnce(ctx context.Context) (*session.Page, error) {
	key := x.orderKey()
	if p, err := x.readPageOfRecentOrder(ctx, key); p != nil || err != nil {
		return p, err
	}
	x.session.Connection().Release()
	end, err := x.env.admission.AdmitSort(ctx)
	if err != nil {
		return nil, err
	}
	defer end()
	if p, err := x.readPageOfRecentOrder(ctx, key); p != nil || err != nil {
		return p, err
	}
	p, o, err := x.sortAndReadPage(ctx)
	if err != nil {
		return nil, err
	}
	x.env.storeOrder(key, o)
	return p, nil
}

// findSortedPage answers a search for many matches in an order that the database has, but no index. It gathers the
// matches, or from the second page on follows an order that it stores.
func (x *execution) findSortedPage(ctx context.Context) (*session.Page, error) {
	if !x.session.CanWait() {
		return x.gatherPage(ctx)
	}
	key := x.orderKey()
	if p, err := x.readPageOfRecentOrder(ctx, key); p != nil || err != nil {
		return p, err
	}
	if !x.usesCache() {
		return x.gatherPage(ctx)
	}
	if p, _, err := x.answerOrBecomeExpensive(ctx); p != nil || err != nil {
		return p, err
	}
	// Another search may have sorted meanwhile.
	if p, err := x.readPageOfRecentOrder(ctx, key); p != nil || err != nil {
		return p, err
	}
	if !x.env.cache.WantsItem(key, false) {
		return x.gatherPage(ctx)
	}
	total, err := x.countToSort(ctx)
	if err != nil {
		return nil, err
	}
	if total > int64(x.plan.MaxOrder()) {
		return x.gatherPage(ctx)
	}
	p, o, err := x.sortAndReadPage(ctx)
	if err != nil {
		return nil, err
	}
	x.env.storeOrder(key, o)
	return p, nil
}

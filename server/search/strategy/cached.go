package strategy

import (
	"context"
	"strconv"

	"kiln/server/search/cache"
	"kiln/server/search/plan"
	"kiln/server/search/session"
)

// maxAttempts limits how often one search asks the cache, while others write.
const maxAttempts = 4

// answerFromCache answers a search from the cache; nil if it cannot. It must not run in a snapshot, which may be older than
// the cache.
func (x *execution) answerFromCache(ctx context.Context) (*session.Page, error) {
	q, err := x.cacheQuestion()
	if q == nil || err != nil {
		return nil, err
	}
	if len(x.q.Sort) > 0 && q.Page.Order == nil && x.q.Count > 0 {
		return nil, nil
	}
	connection := x.session.Connection()
	for range maxAttempts {
		a, ok := x.env.cache.FindAnswer(q)
		if !ok {
			return nil, nil
		}
		connection.SetBroad(a.Total >= int64(x.plan.Limit))
		if _, err := connection.Acquire(ctx); err != nil {
			return nil, err
		}
		// Other searches have applied changes meanwhile: they need not be read again.
		if a, ok = x.env.cache.RenewAnswer(a); !ok {
			continue
		}
		shown := a.RIDs[:min(len(a.RIDs), pageSize(x.q))] // one more only shows that there is a next page
		st := x.plan.SelectRowsAndChanges(shown, a.Position, x.assumedTexts())
		var changes plan.ChangesRow
		var textsUnchanged bool
		p, err := x.session.ReadPage(ctx, "rows from memory", st, append(changes.Columns(), &textsUnchanged)...)
		if err != nil {
			return nil, err
		}
		settled, ok := x.env.cache.SettleAnswer(a, changes.Changes(a.Position))
		if !textsUnchanged {
			return nil, nil
		}
		if ok && len(p.Rows) == len(shown) {
			return arrangeAnswer(p, a.RIDs, settled), nil
		}
	}
	return nil, nil
}

// arrangeAnswer puts the rows of a page into the order of surrogates, with their places in the order of the search.
func arrangeAnswer(p *session.Page, rids []int64, settled cache.Answer) *session.Page {
	found := make(map[int64]session.Row, len(p.Rows))
	for _, r := range p.Rows {
		found[r.RID] = r
	}
	p.Rows = p.Rows[:0]
	for i, rid := range rids {
		r := found[rid]
		if settled.Places != nil {
			r.Keys = []*string{sortKey(settled.Places[i])}
		}
		p.Rows = append(p.Rows, r)
	}
	p.Total = settled.Total
	return p
}

// sortKey returns the text of a place for a cursor, nil for no value.
func sortKey(p cache.Place) *string {
	if !p.Valued {
		return nil
	}
	return new(strconv.FormatInt(p.Low, 10))
}

// linkedLimit replaces plan.Plan.Limit if the cache has the links of a search.
const linkedLimit = 201

// hasCachedLinks reports whether the search has links, and the cache could answer it with the resources at their other
// ends.
func (x *execution) hasCachedLinks() bool {
	q := x.question
	if q == nil || len(q.Links) == 0 || len(x.q.Sort) > 0 && q.Page.Order == nil {
		return false
	}
	for i := range q.Links {
		if l := &q.Links[i]; !x.env.cache.HasItem(l.References) || !x.env.cache.HasItem(l.Own) {
			return false
		}
	}
	return true
}

// answerByCachedLinks answers a search with links in the cache; nil if it cannot. It reads the few resources at the other
// end, such as the patients of a name, and finds the resources linked to them in the cache. A count in the database would read each
// of those.
func (x *execution) answerByCachedLinks(ctx context.Context) (*session.Page, error) {
	for i := range x.question.Links {
		others := x.question.Links[i].Others
		if _, ok := x.env.cache.FindAnswer(others); ok {
			continue
		}
		if !x.env.filler.CanReadMembers(others) {
			return nil, nil
		}
		x.session.Connection().Release() // ReadMembers takes another
		if err := x.env.filler.ReadMembers(ctx, others); err != nil {
			return nil, err
		}
	}
	return x.answerFromCache(ctx)
}

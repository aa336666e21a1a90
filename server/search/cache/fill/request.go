package fill

import (
	"context"

	"kiln/server/search/cache"
)

// maxEvicted is the number of evicted terms up to which they are read by themselves. More take as long as reading all
// resources of the type.
const maxEvicted = 4

// Request requests the items that would have answered a question. An expensive search has too many matches to test
// each. It requests columns at once, all common terms of the type for conditions on terms, and the set of all resources
// for a search without conditions.
func (f *Filler) Request(q *cache.Question, expensive bool) {
	if len(q.Links) > 0 {
		f.requestLinked(q, expensive)
		return
	}
	if f.Cache.HasItem(q.Whole) {
		return
	}
	whole := len(q.Columns) == 0
	for _, c := range q.Columns {
		whole = whole || f.Cache.IsRefused(c.Column) // the cache can still store the set of the matches
	}
	i, ok := f.missingTerms(q, expensive)
	switch {
	case ok:
	case whole:
		i, ok = item{set: q.Whole, clauses: q.Clauses}, true
	case len(q.Others) > 0:
		i, ok = item{set: q.Rest, clauses: q.Others}, true
	}
	if ok {
		i.typ, i.typeName = q.Type, q.Name
		f.addItem(i)
	}
	for _, c := range q.Columns {
		if !whole || i.allTerms {
			f.addItem(item{typ: q.Type, typeName: q.Name, column: &c.Column, expensive: expensive})
		}
	}
}

// missingTerms returns the item of the terms that an expensive search needs; false if it needs none.
func (f *Filler) missingTerms(q *cache.Question, expensive bool) (item, bool) {
	if !expensive || q.Terms == nil {
		return item{}, false
	}
	evicted := f.Cache.FindEvictedTerms(q.Type, q.Terms)
	known := f.Cache.HasItem(cache.TypeKey(q.Type))
	switch {
	case !known && !q.Terms.MatchesAll():
		return item{allTerms: true, expensive: true}, true
	case known && len(evicted) > maxEvicted:
		return item{allTerms: true, evicted: true, expensive: true}, true
	case len(evicted) > 0:
		return item{someTerms: evicted, evicted: true, expensive: true}, true
	case !known:
		return item{}, false
	}
	unknown := f.Cache.FindUnknownTerms(q.Type, q.Terms)
	return item{someTerms: unknown, expensive: true}, len(unknown) > 0
}

// requestLinked is Request for a question with links: it requests the references, and the items of both ends.
func (f *Filler) requestLinked(q *cache.Question, expensive bool) {
	if q.Beside != nil {
		f.Request(q.Beside, expensive)
	}
	for i := range q.Links {
		l := &q.Links[i]
		f.Request(l.Others, expensive)
		from, to := q, l.Others
		if l.Back {
			from, to = to, from
		}
		f.addItem(item{typ: from.Type, typeName: from.Name, column: &l.References, expensive: expensive})
		f.addItem(item{typ: to.Type, typeName: to.Name, column: &l.Own, expensive: expensive})
	}
}

// RequestOrder requests the column of the order of a question, which must have one.
func (f *Filler) RequestOrder(q *cache.Question, expensive bool) {
	f.addItem(item{typ: q.Type, typeName: q.Name, column: &q.Page.Order.Column, expensive: expensive})
}

// fewMembers returns the item of the set that a question lacks; false if the cache lacks something else, or the set has
// more than maxFew members.
func (f *Filler) fewMembers(q *cache.Question) (item, bool) {
	i := item{typ: q.Type, typeName: q.Name, set: q.Whole, clauses: q.Clauses, few: true}
	if len(q.Columns) > 0 {
		i.set, i.clauses = q.Rest, q.Others
	}
	return i, len(i.clauses) > 0 && !f.Cache.HasItem(i.set) && !f.Cache.IsRefused(i.set)
}

// CanReadMembers reports whether ReadMembers may help to answer a question.
func (f *Filler) CanReadMembers(q *cache.Question) bool {
	_, ok := f.fewMembers(q)
	return ok
}

// ReadMembers reads the set that a question lacks, while the search waits. It takes a connection of its own. It adds nothing to the
// cache if the set has more than maxFew members.
func (f *Filler) ReadMembers(ctx context.Context, q *cache.Question) error {
	i, ok := f.fewMembers(q)
	if !ok {
		return nil
	}
	return f.reader.readItem(ctx, i)
}

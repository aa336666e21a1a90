package strategy

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"slices"
	"strconv"

	"kiln/server/search/cache"
	"kiln/server/search/match"
	"kiln/server/search/plan"
)

// cacheQuestion is the search as package remembered reads it; nil for one that it does not
// answer.
func (x *searching) cacheQuestion() (*cache.Question, error) {
	if x.asksKnown || !x.usesCache() {
		return x.asks, nil
	}
	x.asksKnown = true
	q, err := questionOf(x.plan)
	if q == nil || err != nil {
		return nil, err
	}
	page, ok, err := x.plan.RememberedPage()
	if !ok || err != nil {
		return nil, err
	}
	q.Page = page
	x.asks = q
	return q, nil
}

// questionOf returns the matches of a plan, without a page, as a question to package remembered; nil if that package
// cannot answer it.
func questionOf(p *plan.Plan) (*cache.Question, error) {
	typ, ok := p.OneType()
	if !ok || !cache.FollowsType(typ) {
		return nil, nil
	}
	if links, beside := p.Links(); len(links) > 0 {
		return linkedQuestion(p, links, beside)
	}
	compared, others, ok := p.Columns()
	if !ok {
		return nil, nil
	}
	q := &cache.Question{Type: p.OnlyType(), Name: typ, Clauses: p.Clauses(), Columns: cache.Together(compared), Others: others, Terms: p.Terms(len(compared))}
	var err error
	if q.Whole, err = clausesKey(q.Type, q.Clauses); err != nil {
		return nil, err
	}
	if len(others) > 0 {
		q.Rest, err = clausesKey(q.Type, others)
	}
	return q, err
}

// linkedQuestion is questionOf a plan with links.
func linkedQuestion(p *plan.Plan, links []plan.Link, beside *plan.Plan) (*cache.Question, error) {
	typ, _ := p.OneType()
	q := &cache.Question{Type: p.OnlyType(), Name: typ}
	var err error
	if beside != nil {
		if q.Beside, err = questionOf(beside); q.Beside == nil || err != nil {
			return nil, err
		}
	}
	for _, l := range links {
		others, err := questionOf(l.Others)
		if others == nil || err != nil {
			return nil, err
		}
		q.Links = append(q.Links, cache.Link{References: l.References, Own: l.Own, Back: l.Back, Others: others})
	}
	return q, nil
}

// clausesKey names clauses that match.ByRows: they are told apart by their fields.
func clausesKey(typ int16, clauses []match.Clause) (k cache.Key, err error) {
	type clause struct {
		Any []match.Match
		Not bool
	}
	named := struct {
		Type    int16
		Clauses []clause
	}{Type: typ}
	for _, c := range clauses {
		named.Clauses = append(named.Clauses, clause{c.Any, c.Not})
	}
	b, err := json.Marshal(named)
	if err != nil {
		return k, err
	}
	sum := sha256.Sum256(b)
	copy(k[:], sum[:])
	return k, nil
}

// maxAsked is how often memory is asked for one search, while others write.
const maxAsked = 4

// byMemory answers a search from the cache; nil if it cannot. It is not called in a snapshot, which may be older than
// the cache.
func (x *searching) byMemory(ctx context.Context) (*pageRows, error) {
	q, err := x.cacheQuestion()
	if q == nil || err != nil {
		return nil, err
	}
	if len(x.q.Sort) > 0 && q.Page.Order == nil && x.q.Count > 0 {
		return nil, nil
	}
	memory := x.s.cache
	for range maxAsked {
		a, ok := memory.Ask(q)
		if !ok {
			return nil, nil
		}
		x.connection.broad = a.Total >= int64(x.plan.Limit)
		if _, err := x.connection.getConnection(ctx); err != nil {
			return nil, err
		}
		// Other searches have applied the changes meanwhile: they need not be read again.
		if a, ok = memory.Renew(a); !ok {
			continue
		}
		shown := a.RIDs[:min(len(a.RIDs), x.pageSize())] // the one behind the page is only there
		st := x.plan.RowsChanged(shown, a.Position, x.assumedTexts())
		x.noteStatement("rows from memory", st)
		var changes plan.ChangesRow
		var held bool
		p, err := x.readRows(ctx, st, append(changes.Columns(), &held)...)
		if err != nil {
			return nil, err
		}
		b, ok := memory.Settle(a, changes.Changes(a.Position))
		if !held {
			return nil, nil
		}
		if !ok || len(p.rows) != len(shown) {
			continue
		}
		at := make(map[int64]row, len(p.rows))
		for _, m := range p.rows {
			at[m.rid] = m
		}
		p.rows = p.rows[:0]
		for i, rid := range a.RIDs {
			m := at[rid]
			if b.Places != nil {
				m.keys = []*string{sortKey(b.Places[i])}
			}
			p.rows = append(p.rows, m)
		}
		p.total = b.Total
		return p, nil
	}
	return nil, nil
}

// linkedLimit is Plan.Limit where links are remembered.
const linkedLimit = 201

// linksRemembered reports whether memory could answer the search, which has links, if it had the resources
// at their other ends.
func (x *searching) linksRemembered() bool {
	q := x.asks
	if q == nil || len(q.Links) == 0 || len(x.q.Sort) > 0 && q.Page.Order == nil {
		return false
	}
	for i := range q.Links {
		if l := &q.Links[i]; !x.s.cache.Has(l.References) || !x.s.cache.Has(l.Own) {
			return false
		}
	}
	return true
}

// byLinks is byMemory for cached links. The few resources at the other end, such as the patients of a name, are found
// at once, and the cache has the resources linked to them. A count in the database would read each of those.
func (x *searching) byLinks(ctx context.Context) (*pageRows, error) {
	q, memory := x.asks, x.s.cache
	for i := range q.Links {
		others := q.Links[i].Others
		if _, ok := memory.Ask(others); ok {
			continue
		}
		if !x.s.filler.CanReadMembers(others) {
			return nil, nil
		}
		x.connection.release() // it takes one of its own
		if err := x.s.filler.ReadMembers(ctx, others); err != nil {
			return nil, err
		}
	}
	return x.byMemory(ctx)
}

// sortKey is the text of a place for a cursor, nil for no value.
func sortKey(p cache.Place) *string {
	if !p.Valued {
		return nil
	}
	return new(strconv.FormatInt(p.Low, 10))
}

// fillCache requests items that would have answered the search, after a second miss. A search that turned out
// expensive has too many matches to test each: it requests columns at once, all common terms of the type for
// conditions on terms, and the set of surrogates for a search without conditions.
func (x *searching) fillCache(dear bool) {
	if x.asks == nil || x.learned {
		return
	}
	x.learned = true
	x.learnOrder(dear)
	x.s.filler.Request(x.asks, dear)
}

// learnOrder is learn for the column of the order alone. The order of last updates has an index of the resources
// themselves.
func (x *searching) learnOrder(dear bool) {
	if q := x.asks; q != nil && q.Page.Order != nil && x.q.Sort[0].Code != "_lastUpdated" {
		x.s.filler.RequestOrder(q, dear)
	}
}

// usesCache reports whether the cache may answer the search and store its result.
func (x *searching) usesCache() bool {
	return !x.isPrivate() && len(x.q.Types) > 0 && !slices.ContainsFunc(x.q.Types, func(t string) bool { return !cache.FollowsType(t) })
}

// Writing begins the record of a transaction's writes by this server: the cache follows them without reading them.
func (s *Searcher) Writing() *cache.Writing { return s.cache.Writing() }

// Remembered returns the state of the cache of matches and values.
func (s *Searcher) Remembered() cache.Stat { return s.cache.Stat() }

// ReadAhead starts to read the items into the cache that broad searches need, for the types with at least so many
// resources.
func (s *Searcher) ReadAhead(from int64) { s.filler.ReadAhead(from) }

// AwaitCache waits until every item that was requested, or is to be read ahead, has been read, and the cache does not lag.
func (s *Searcher) AwaitCache() { s.filler.AwaitIdle() }

// Close ends the background work.
func (s *Searcher) Close() { s.filler.Close() }

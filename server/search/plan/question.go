package plan

import (
	"slices"
	"time"

	"kiln/server/fhir"
	"kiln/server/search"
	"kiln/server/search/cache"
	"kiln/server/search/match"
)

// SelectMembers returns the statement that finds the rid of every match, each once.
func (p *Plan) SelectMembers() match.Statement {
	w := newWriter(p.env)
	if p.where.Empty() {
		w.Write("SELECT r.rid FROM resource r WHERE ")
		w.Typed("r", p.types)
		return w.Statement()
	}
	w.Set(&p.where, p.types)
	return w.Statement()
}

// SplitByColumns splits the clauses into comparisons with columns, and the rest. A resource has at most one entry in a column. ok is
// false for a query that the cache cannot answer: of several types, or by more than the rows of the resource itself.
func (p *Plan) SplitByColumns() (compared []cache.Comparison, rest []match.Clause, ok bool) {
	if len(p.types) != 1 || p.Empty || !match.ByRows(p.clauses) {
		return nil, nil, false
	}
	for _, pr := range p.where.Preds {
		if key, ok := columnOf(p.types[0], pr.Only()); ok {
			compared = append(compared, cache.Comparison{Column: key, Match: pr.Only()})
		}
	}
	if len(compared) == 0 {
		return nil, p.clauses, true
	}
	for _, c := range p.clauses {
		if len(c.Any) != 1 || c.Not {
			rest = append(rest, c)
			continue
		}
		if _, ok := columnOf(p.types[0], c.Any[0]); !ok {
			rest = append(rest, c)
		}
	}
	return compared, rest, true
}

// A Link is a clause about resources of one type that one reference leads to.
type Link struct {
	References, Own cache.ColumnKey // as in cache.Link
	Back            bool
	Others          *Plan // of those resources
}

// SplitByLinks splits the clauses into links and the plan of the other clauses, nil for none. It returns no links if a clause
// depends on other resources in another way.
func (p *Plan) SplitByLinks() (links []Link, beside *Plan) {
	reachesOut := func(c match.Clause) bool { return match.ReachesOut(c.Any) }
	if len(p.types) != 1 || p.Empty || !slices.ContainsFunc(p.clauses, reachesOut) {
		return nil, nil
	}
	var others []match.Clause
	for _, c := range p.clauses {
		if !reachesOut(c) {
			others = append(others, c)
			continue
		}
		l, ok := p.link(&c)
		if !ok {
			return nil, nil
		}
		links = append(links, l)
	}
	if len(others) > 0 {
		beside = Compile(&search.Query{Types: p.q.Types, Clauses: others}, p.env)
	}
	return links, beside
}

func (p *Plan) link(c *match.Clause) (l Link, ok bool) {
	if c.Not || len(c.Any) != 1 {
		return l, false
	}
	m, ok := match.LinkOf(c.Any[0])
	if !ok {
		return l, false
	}
	stored := slices.DeleteFunc(slices.Clone(m.Types), func(t string) bool { _, ok := p.env.Type(t); return !ok })
	if len(stored) != 1 {
		return l, false
	}
	l = Link{Back: m.Back, Others: Compile(&search.Query{Types: stored, Clauses: m.Clauses}, p.env)}
	from, to := p.OnlyType(), l.Others.types[0]
	if l.Back {
		from, to = to, from
	}
	l.References, l.Own = referencesColumn(from, m.Keys), cache.OwnRefsColumn(to)
	return l, !l.Others.Empty
}

// FindTerms returns the clauses on terms beside so many comparisons. It returns nil if the clauses contain something
// else, or nothing but comparisons.
func (p *Plan) FindTerms(comparisons int) *cache.Terms {
	c := &p.where
	switch {
	case c.ByID, len(c.Preds) != comparisons:
		return nil
	case len(c.All)+len(c.Any) > 0:
		return &cache.Terms{All: c.All, Any: c.Any, None: c.None}
	case len(c.None) > 0, comparisons == 0:
		return &cache.Terms{All: []int64{cache.Every}, None: c.None}
	}
	return nil
}

// columnOf is the column that a match is a comparison of.
func columnOf(typ int16, m match.Match) (key cache.ColumnKey, ok bool) {
	c, ok := match.ComparisonOf(m)
	if !ok || !c.Single || len(c.Keys) == 0 {
		return cache.ColumnKey{Type: typ}, false
	}
	return cache.ColumnKey{Type: typ, Kind: c.Table, Keys: cache.KeysOf(c.Keys)}, true
}

// OnlyType returns the number of the one type searched.
func (p *Plan) OnlyType() int16 { return p.types[0] }

// OneType returns the name of the one type searched; false if there are more, or nothing can match.
func (p *Plan) OneType() (name string, ok bool) {
	if len(p.q.Types) != 1 || p.Empty {
		return "", false
	}
	return p.q.Types[0], true
}

// Clauses returns the clauses of the query after the database has resolved the parts that depend on it.
func (p *Plan) Clauses() []match.Clause { return p.clauses }

// CachePage returns the page as the cache reads it, in the order of surrogates or of a column; ok is false for a cursor of another
// type. The page is empty if the search has another order, or asks for the total alone.
func (p *Plan) CachePage() (page cache.Page, ok bool, err error) {
	order := p.cacheOrder()
	if p.q.Count == 0 || len(p.q.Sort) > 0 && order == nil {
		return cache.Page{}, true, nil
	}
	g, err := p.page()
	if err != nil {
		return page, false, err
	}
	page = cache.Page{Order: order, Backwards: g.reverse, Offset: g.offset, Limit: g.limit}
	if g.cursor != nil {
		n := g.cursor.RID & (1<<48 - 1)
		if n>>32 != 0 || g.cursor.RID>>48 != int64(p.types[0]) {
			return page, false, nil
		}
		page.Bounded, page.Beyond.N = true, uint32(n)
		if order != nil {
			page.Beyond.Low, page.Beyond.Valued = lowOf(g.args[0])
		}
	}
	return page, true, nil
}

// cacheOrder returns the order of the search if a column has it: the order of a date that a resource has at most once, or of the last
// update. It returns nil for others.
func (p *Plan) cacheOrder() *cache.ColumnOrder {
	if len(p.q.Sort) != 1 || len(p.types) != 1 {
		return nil
	}
	k := &p.q.Sort[0]
	var m match.Match
	switch {
	case k.Code == "_lastUpdated":
		m = match.Updated{}
	case k.Type == fhir.SearchDate && k.Single:
		m = match.Dates{Keys: k.Keys, Single: true}
	default:
		return nil
	}
	column, ok := columnOf(p.types[0], m)
	if !ok {
		return nil
	}
	return &cache.ColumnOrder{Column: column, Descending: k.Descending}
}

// lowOf is the argument of a cursor's date; false for none.
func lowOf(arg any) (low int64, ok bool) {
	switch v := arg.(type) {
	case int64:
		return v, true
	case time.Time:
		return v.UnixMicro(), true
	}
	return 0, false
}

package plan

import (
	"slices"
	"strconv"

	"kiln/server/search/match"
)

// SelectCandidates returns the statement that finds the matches through driver i. Total and page are exact if the driver finds
// fewer rows than Plan.Limit.
func (p *Plan) SelectCandidates(i int) (match.Statement, error) {
	g, err := p.page()
	if err != nil {
		return match.Statement{}, err
	}
	w := newWriter(p.env)
	d := p.Drivers[i]
	plain := p.plain(d, &g)
	if !p.chain(d) && len(g.cols) == 0 && g.cursor == nil && !g.reverse && g.offset == 0 && (plain || p.onlyEntries(d)) {
		p.firstPage(w, d, &g, plain)
		return w.Statement(), nil
	}
	w.Write("WITH ")
	bounded := ""
	if p.chain(d) {
		bounded = p.chainDriver(w, d)
	} else {
		w.Write("d AS MATERIALIZED (")
		p.driverRows(w, d)
		w.Write(")")
	}
	if plain {
		w.Write(", m AS NOT MATERIALIZED (SELECT ") // a second list would be the first again
	} else {
		w.Write(", m AS MATERIALIZED (SELECT ")
	}
	p.candidates(w, d, &g)
	w.Write(") ")
	w.Write("SELECT t.seen, t.total, p.rid, ")
	p.tail(w, &g, func() {
		if bounded == "" {
			w.Write("SELECT (SELECT count(*) FROM d)")
		} else {
			w.Write("SELECT greatest((SELECT count(*) FROM d), (SELECT count(*) FROM ", bounded, "))")
		}
		w.Write(" AS seen, (SELECT count(*) FROM m) AS total")
	})
	return w.Statement(), nil
}

// firstPage is SelectCandidates for a first page whose driver needs no test. It is short, because the fixed part of a
// statement is half of the cost of a few rows. Without matches it returns no row. Unless plain, an entry may
// occur more than once.
func (p *Plan) firstPage(w *writer, d Driver, g *page, plain bool) {
	seen, total, group := "count(*) OVER ()", "p.seen", ""
	if !plain {
		seen, total, group = "sum(count(*)) OVER ()::bigint", "p.total", " GROUP BY o.rid"
	}
	w.Write("SELECT p.seen, ", total, ", p.rid, ", rowColumns, " FROM (SELECT o.rid, ", seen, " AS seen")
	if !plain {
		w.Write(", count(*) OVER () AS total")
	}
	w.Write(" FROM (")
	p.driverRows(w, d)
	w.Write(") o", group, " ORDER BY o.rid")
	w.limit(g)
	w.Write(") p CROSS JOIN LATERAL (SELECT * FROM resource r WHERE r.rid = p.rid OFFSET 0) r ORDER BY p.rid")
}

// onlyEntries reports whether the driver is the only clause, an ordered one, so that
// its entries are matches, though some more than once.
func (p *Plan) onlyEntries(d Driver) bool {
	return d.pred == 0 && len(p.where.Preds) == 1 && p.FindsBySurrogates()
}

// plain reports whether the rows of a driver need neither a test nor a sort value.
func (p *Plan) plain(d Driver, g *page) bool {
	switch {
	case len(g.cols) > 0 || len(p.where.Preds) > 1:
		return false
	case len(p.where.Preds) == 0:
		return true
	}
	return d.pred == 0 && p.FindsBySurrogates() && p.where.Preds[0].Single()
}

// SelectDriver returns the part of SelectCandidates that finds rows, as a statement of its own. It is never run: it identifies the
// driver, so that every search with the same driver profits from an earlier one.
func (p *Plan) SelectDriver(i int) match.Statement {
	w := newWriter(p.env)
	d := p.Drivers[i]
	if p.chain(d) {
		p.chainDriver(w, d)
	} else {
		p.driverRows(w, d)
	}
	return w.Statement()
}

// chain reports whether the driver is a chain or `_has`.
func (p *Plan) chain(d Driver) bool { return d.pred >= 0 && !p.where.Preds[d.pred].BySurrogates() }

// driverRows writes what finds rows by an ordered table, or by resource_terms or
// resource_ref.
func (p *Plan) driverRows(w *writer, d Driver) {
	switch {
	case d.pred < 0:
		w.Write("SELECT ", p.driverColumns(-1), " FROM resource r")
		w.Found("r", &p.where, p.types, &match.Conditions{W: w.Writer, Lead: " WHERE "})
	case p.where.Preds[d.pred].HasUpdated():
		w.Write("SELECT r.rid FROM resource r WHERE ")
		w.EveryType("r", p.types)
		w.Write(" AND ")
		w.Test("r", p.where.Preds[d.pred].Any)
	default:
		w.Write("SELECT o.rid FROM (")
		w.Find(p.where.Preds[d.pred].Any, p.types)
		w.Write(") o")
	}
	w.Write(" LIMIT ", strconv.Itoa(p.Limit))
}

// driverColumns are the columns that the other clauses and the sort values need of a resource found by clause
// driving (-1: terms and ids).
func (p *Plan) driverColumns(driving int) string {
	for _, k := range p.q.Sort {
		if len(k.Keys) == 0 {
			driving = len(p.where.Preds) // a column of resource
		}
	}
	rest := match.Conjunction{}
	for i := range p.where.Preds {
		if i != driving {
			rest.Preds = append(rest.Preds, p.where.Preds[i])
		}
	}
	if rest.OnlyRanged() && driving < len(p.where.Preds) {
		return "r.rid"
	}
	const columns = "r.rid, r.ref, r.typ, r.last_updated, r.id, r.terms, r.targets"
	if slices.ContainsFunc(p.clauses, func(c match.Clause) bool { return c.ReadsContent() }) {
		return columns + ", r.body"
	}
	return columns
}

// chainDriver writes h, the terms or refs that a chain gives, and d, the rows that
// they find; both are bounded. d may have a row more than once.
func (p *Plan) chainDriver(w *writer, d Driver) (bounded string) {
	pr := &p.where.Preds[d.pred]
	and := &match.Conditions{W: w.Writer, Any: true}
	columns := p.driverColumns(d.pred)
	w.Write("h AS MATERIALIZED (")
	if has, ok := pr.Only().(match.Has); ok {
		has.FindRefs(w.Writer, p.Limit)
		w.Write("), d AS MATERIALIZED (SELECT ", columns, " FROM h CROSS JOIN LATERAL (SELECT * FROM resource r WHERE r.ref = h.ref")
		w.OfType("r", p.types, and)
		w.Tests("r", p.withoutPreds(), and, -1)
	} else {
		w.Write("SELECT DISTINCT term FROM (")
		w.FindTerms(pr.Any, p.Limit)
		w.Write(") u), d AS MATERIALIZED (SELECT ", columns, " FROM h CROSS JOIN LATERAL (SELECT * FROM resource r WHERE r.terms @> ")
		w.TermAnd("h.term", p.where.All)
		rest := p.withoutPreds()
		rest.All = nil
		w.Tests("r", rest, and, -1)
	}
	w.Write(" OFFSET 0) r WHERE (SELECT count(*) FROM h) < ", strconv.Itoa(p.Limit), " LIMIT ", strconv.Itoa(p.Limit), ")")
	return "h"
}

// withoutPreds is the conjunction of terms and ids alone.
func (p *Plan) withoutPreds() *match.Conjunction {
	c := p.where
	c.Preds = nil
	return &c
}

// candidates writes the body of m: the rows of d that pass the clauses not tested by the driver, with
// their sort values.
func (p *Plan) candidates(w *writer, d Driver, g *page) {
	c := &p.where
	fromResource := d.pred < 0 || !c.Preds[d.pred].BySurrogates()
	distinct := d.pred >= 0 && !c.Preds[d.pred].Single()
	r := "r"
	if fromResource || c.OnlyRanged() && !g.needsResource() {
		r = "d" // has all that is asked for
	}
	w.Write(r, ".rid")
	for i := range g.cols {
		w.Write(", ")
		w.value(&g.cols[i], r)
		w.Write(" AS k", strconv.Itoa(i+1))
	}
	and := &match.Conditions{W: w.Writer, Lead: " WHERE "}
	switch {
	case !fromResource:
		w.Write(" FROM (SELECT ")
		if distinct {
			w.Write("DISTINCT ")
		}
		w.Write("d.rid FROM d WHERE (SELECT count(*) FROM d) < ", strconv.Itoa(p.Limit), ") d")
		if r == "r" {
			w.Write(" CROSS JOIN LATERAL (SELECT * FROM resource r WHERE r.rid = d.rid OFFSET 0) r")
		}
		w.Tests(r, c, and, d.pred)
		return
	case distinct:
		w.Write(" FROM (SELECT DISTINCT ON (d.rid) d.* FROM d) d")
	default:
		w.Write(" FROM d")
	}
	and.Next()
	w.Write("(SELECT count(*) FROM d) < ", strconv.Itoa(p.Limit))
	w.Tests(r, &match.Conjunction{Preds: c.Preds}, and, d.pred)
}

package plan

import (
	"strconv"

	"kiln/server/fhir"
	"kiln/server/search/match"
)

// CountMatches returns the statement that counts the matches: one row, one bigint.
func (p *Plan) CountMatches() match.Statement {
	w := newWriter(p.env)
	c := &p.where
	onlyTerms := len(c.Preds) == 0 && !c.ByID
	switch {
	case onlyTerms && len(c.All)+len(c.Any) == 0 && len(c.None) > 0 && len(p.types) > 0:
		// The complement: all of the type, by its surrogates, without those that
		// have a term.
		w.Write("SELECT (SELECT count(*) FROM resource r WHERE ")
		w.Typed("r", p.types)
		w.Write(") - (SELECT count(*) FROM resource r WHERE r.terms && ")
		w.Terms(c.None)
		w.Write(")")
		return w.Statement()
	case onlyTerms:
		w.Write("SELECT count(*) FROM resource r")
		w.Found("r", c, p.types, &match.Conditions{W: w.Writer, Lead: " WHERE "})
		return w.Statement()
	}
	w.Write("SELECT count(*) FROM (")
	w.Set(c, p.types)
	w.Write(") s")
	return w.Statement()
}

// CountType counts the resources of the types searched, against which a total is
// common or rare.
func (p *Plan) CountType() match.Statement {
	w := newWriter(p.env)
	w.Write("SELECT count(*) FROM resource r")
	if len(p.types) > 0 {
		w.Write(" WHERE ")
		w.Typed("r", p.types)
	}
	return w.Statement()
}

// sampled is the number of places that Sample looks at.
const sampled = 500

// SampleMatches returns the statement that estimates the number of matches: one row, one bigint. It reads places of the type at
// random, each in an equal part of its surrogates. An estimate of 0 is unreliable. ok is false for a query that depends on other resources.
func (p *Plan) SampleMatches() (st match.Statement, ok bool) {
	from, to, ok := p.scope()
	if !ok {
		return st, false
	}
	w := newWriter(p.env)
	bounds := func(which string) {
		w.Write("(SELECT ", which, "(r.rid) FROM resource r WHERE r.rid >= ")
		w.Bind(from)
		w.Write("::bigint AND r.rid < ")
		w.Bind(to)
		w.Write("::bigint)")
	}
	w.Write("WITH b AS MATERIALIZED (SELECT ")
	bounds("min")
	w.Write(" AS first, 1 + ")
	bounds("max")
	w.Write(" AS last), n AS MATERIALIZED (SELECT b.first + floor((i + random()) * (b.last - b.first) / ", strconv.Itoa(sampled), ")::bigint AS rid FROM b, generate_series(0, ", strconv.Itoa(sampled-1), ") AS i)",
		" SELECT coalesce((SELECT count(*) FROM n CROSS JOIN LATERAL (SELECT * FROM resource r WHERE r.rid = n.rid OFFSET 0) r")
	w.Tests("r", &p.where, &match.Conditions{W: w.Writer, Lead: " WHERE "}, -1)
	w.Write(") * (b.last - b.first) / ", strconv.Itoa(sampled), ", 0) FROM b")
	return w.Statement(), true
}

// CountValued counts the matches that have a value for the first sort key.
func (p *Plan) CountValued() match.Statement {
	valued := *p
	if len(p.q.Sort) > 0 && len(p.q.Sort[0].Keys) > 0 {
		present := match.Clause{Any: []match.Match{match.TermsOf(p.q.Sort[0].Keys, fhir.ValuePresent())}}
		valued.where = match.Conjoin(append(p.clauses[:len(p.clauses):len(p.clauses)], present))
	}
	return valued.CountMatches()
}

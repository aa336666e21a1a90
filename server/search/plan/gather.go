package plan

import (
	"strconv"

	"kiln/server/search/match"
)

// GatherMatches returns the statement that fetches all matches, sorts them and returns the page. It is for an order that no index
// has, and for matches that are many but rare.
func (p *Plan) GatherMatches() (match.Statement, error) {
	g, err := p.page()
	if err != nil {
		return match.Statement{}, err
	}
	w := newWriter(p.env)
	w.Write("WITH m AS MATERIALIZED (SELECT r.rid")
	for i := range g.cols {
		w.Write(", ")
		w.value(&g.cols[i], "r")
		w.Write(" AS k", strconv.Itoa(i+1))
	}
	w.Write(" FROM ")
	if p.FindsBySurrogates() {
		w.Write("(")
		w.Set(&p.where, p.types)
		w.Write(") r")
	} else {
		w.Matching("r", &p.where, p.types)
	}
	w.Write(") SELECT 0::bigint, t.total, p.rid, ")
	p.tail(w, &g, func() { w.Write("SELECT count(*) AS total FROM m") })
	return w.Statement(), nil
}

package plan

import (
	"slices"

	"kiln/server/fhir"
	"kiln/server/search/match"
)

// Comparison is a search for terms and one comparison, each of which matches many
// resources: `code=X&date=ge2010`. Intersecting the two lists in the database
// fetches every resource with the terms, and the next search for the same terms
// with another value does it again. A Values holds the values of the resources with
// the terms, and answers all of them. A comparison without terms, of dates or of
// numbers in a unit or with a code, is such a search too: of a few thousand matches
// the database reads every one for a page of twenty.
type Comparison struct {
	plan    *Plan
	table   string
	keys    []fhir.Key
	m       match.Match
	byUnit  bool
	isDates bool
	alone   bool // without terms
}

// Alone reports whether the search is a comparison without terms: then a column is
// better than looking for candidates, and small enough to try first.
func (j *Comparison) Alone() bool { return j.alone }

// Comparison returns the query as a Comparison, or nil.
func (p *Plan) Comparison() *Comparison {
	c := &p.where
	if len(c.Preds) != 1 || c.ByID || len(p.q.Sort) > 0 {
		return nil
	}
	if len(c.All)+len(c.Any) == 0 {
		return p.alone()
	}
	switch m := c.Preds[0].Only().(type) {
	case match.Dates:
		if m.Single {
			return &Comparison{plan: p, table: "index_date", keys: m.Keys, m: m, isDates: true}
		}
	case match.DateRange:
		return &Comparison{plan: p, table: "index_date", keys: m.Keys, m: m, isDates: true}
	case match.Numbers:
		if m.Single {
			return &Comparison{plan: p, table: "index_number", keys: m.Keys, m: m}
		}
	case match.Quantities:
		if m.Single {
			return &Comparison{plan: p, table: "index_quantity", keys: m.Keys, m: m, byUnit: !m.AnyUnit()}
		}
	}
	return nil
}

// alone is Comparison for one comparison and nothing else.
func (p *Plan) alone() *Comparison {
	if len(p.where.None) > 0 {
		return nil
	}
	switch m := p.where.Preds[0].Only().(type) {
	case match.Dates:
		if m.Single {
			return &Comparison{plan: p, table: "index_date", keys: m.Keys, m: m, isDates: true, alone: true}
		}
	case match.DateRange:
		return &Comparison{plan: p, table: "index_date", keys: m.Keys, m: m, isDates: true, alone: true}
	case match.Numbers:
		if m.Single {
			return &Comparison{plan: p, table: "index_number", keys: m.Keys, m: m, alone: true}
		}
	case match.Quantities:
		if m.Single {
			return &Comparison{plan: p, table: "index_quantity", keys: m.Keys, m: m, byUnit: !m.AnyUnit(), alone: true}
		}
	}
	return nil
}

// MaxValues is the number of entries that a Values may have.
const MaxValues = 100_000

// Build is the statement that makes the column, a row for each unit: the unit, low
// ends, high ends (null unless they are dates) and surrogates in the same order,
// whether some number is a range, and the snapshot that they hold in. Ends are texts
// with commas between. More than MaxValues entries are too many.
func (j *Comparison) Build() match.Statement {
	w := newWriter(j.plan.env)
	unit := "0::bigint"
	if j.byUnit {
		unit = "x.unit"
	}
	w.Write("SELECT s.unit, string_agg(s.low::text, ','), ")
	switch {
	case j.isDates:
		w.Write("string_agg(s.high::text, ','), false")
	case j.alone:
		// What the index has; where one entry is a range, all are said to be.
		w.Write("NULL::text, (SELECT EXISTS (SELECT 1 FROM ", j.table, " h WHERE ")
		w.Keys("h", j.keys)
		w.Write(" AND h.high IS NOT NULL))")
	default:
		w.Write("NULL::text, bool_or(s.high <> s.low)")
	}
	w.Write(", array_agg(s.rid), ", Now, " FROM (SELECT ", unit, " AS unit, x.low, x.rid")
	if !j.alone || j.isDates {
		w.Write(", x.high")
	}
	w.Write(" FROM ")
	if j.alone {
		w.Write(j.table, " x WHERE ")
		w.Keys("x", j.keys)
		if j.byUnit {
			m := j.m.(match.Quantities)
			units := slices.Clone(w.UnitRanges(&m).Units)
			slices.Sort(units)
			w.Write(" AND x.unit = ANY (")
			w.Terms(units)
			w.Write(")")
		}
	} else {
		w.Write("(SELECT r.rid FROM resource r")
		c := j.plan.where
		c.Preds = nil
		w.Found("r", &c, j.plan.types, &match.Conditions{W: w.Writer, Lead: " WHERE "})
		w.Write(") r CROSS JOIN LATERAL (SELECT * FROM ", j.table, " x WHERE x.rid = r.rid AND ")
		w.TestKeys("x", j.keys)
		w.Write(" OFFSET 0) x")
	}
	w.Write(" LIMIT ")
	w.Bind(int64(MaxValues + 1))
	w.Write("::bigint) s GROUP BY s.unit")
	return w.Statement()
}

// Page returns the number of resources for which the comparison holds, and those of
// them that the page has, with one more when there is one; backwards the last comes
// first, as from Walk.
func (j *Comparison) Page(c *Values) (total int, rids []int64, err error) {
	g, err := j.plan.page()
	if err != nil {
		return 0, nil, err
	}
	o := &outermost{backwards: g.reverse, size: g.offset + g.limit}
	if g.cursor != nil {
		o.beyond, o.bounded = g.cursor.RID, true
	}
	switch m := j.m.(type) {
	case match.Dates:
		c.matchDates(o, []match.Dates{m})
	case match.DateRange:
		c.matchDates(o, m.Bounds)
	case match.Numbers:
		c.units[0].match(o, &m)
	case match.Quantities:
		if !j.byUnit {
			c.units[0].match(o, &m.Numbers)
			break
		}
		w := newWriter(j.plan.env)
		r := w.UnitRanges(&m)
		for i, unit := range r.Units {
			c.units[unit].match(o, r.Each[i])
		}
	}
	o.finish()
	return o.n, o.rids[min(g.offset, len(o.rids)):], nil
}

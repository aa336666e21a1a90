package search

import (
	"cmp"
	"math"
	"slices"
	"strconv"
	"strings"

	"kiln/server/fhir"
)

// Joint is a search for terms and one comparison, each of which matches many
// resources: `code=X&date=ge2010`. Intersecting the two lists in the database
// fetches every resource with the terms, and the next search for the same terms
// with another value does it again. A Column holds the values of the resources with
// the terms, and answers all of them. A comparison without terms, of dates or of
// numbers in a unit or with a code, is such a search too: of a few thousand matches
// the database reads every one for a page of twenty.
type Joint struct {
	plan    *Plan
	table   string
	keys    []fhir.Key
	m       Match
	byUnit  bool
	isDates bool
	alone   bool // without terms
}

// Alone reports whether the search is a comparison without terms: then a column is
// better than looking for candidates, and small enough to try first.
func (j *Joint) Alone() bool { return j.alone }

// Joint returns the query as a Joint, or nil.
func (p *Plan) Joint() *Joint {
	c := &p.where
	if len(c.preds) != 1 || c.byID || len(p.q.Sort) > 0 {
		return nil
	}
	if len(c.all)+len(c.any) == 0 {
		return p.alone()
	}
	switch m := c.preds[0].only().(type) {
	case Dates:
		if m.Single {
			return &Joint{plan: p, table: "index_date", keys: m.Keys, m: m, isDates: true}
		}
	case dateRange:
		return &Joint{plan: p, table: "index_date", keys: m.Keys, m: m, isDates: true}
	case Numbers:
		if m.Single {
			return &Joint{plan: p, table: "index_number", keys: m.Keys, m: m}
		}
	case Quantities:
		if m.Single {
			return &Joint{plan: p, table: "index_quantity", keys: m.Keys, m: m, byUnit: !m.anyUnit()}
		}
	}
	return nil
}

// alone is Joint for one comparison and nothing else.
func (p *Plan) alone() *Joint {
	if len(p.where.none) > 0 {
		return nil
	}
	switch m := p.where.preds[0].only().(type) {
	case Dates:
		if m.Single {
			return &Joint{plan: p, table: "index_date", keys: m.Keys, m: m, isDates: true, alone: true}
		}
	case dateRange:
		return &Joint{plan: p, table: "index_date", keys: m.Keys, m: m, isDates: true, alone: true}
	case Numbers:
		if m.Single {
			return &Joint{plan: p, table: "index_number", keys: m.Keys, m: m, alone: true}
		}
	case Quantities:
		if m.Single {
			return &Joint{plan: p, table: "index_quantity", keys: m.Keys, m: m, byUnit: !m.anyUnit(), alone: true}
		}
	}
	return nil
}

// MaxColumn is the number of entries that a Column may have.
const MaxColumn = 100_000

// Build is the statement that makes the column, a row for each unit: the unit, low
// ends, high ends (null unless they are dates) and surrogates in the same order,
// whether some number is a range, and the snapshot that they hold in. Ends are texts
// with commas between. More than MaxColumn entries are too many.
func (j *Joint) Build() Statement {
	w := &writer{env: j.plan.env}
	unit := "0::bigint"
	if j.byUnit {
		unit = "x.unit"
	}
	w.s("SELECT s.unit, string_agg(s.low::text, ','), ")
	switch {
	case j.isDates:
		w.s("string_agg(s.high::text, ','), false")
	case j.alone:
		// What the index has; where one entry is a range, all are said to be.
		w.s("NULL::text, (SELECT EXISTS (SELECT 1 FROM ", j.table, " h WHERE ")
		w.keys("h", j.keys)
		w.s(" AND h.high IS NOT NULL))")
	default:
		w.s("NULL::text, bool_or(s.high <> s.low)")
	}
	w.s(", array_agg(s.rid), ", Now, " FROM (SELECT ", unit, " AS unit, x.low, x.rid")
	if !j.alone || j.isDates {
		w.s(", x.high")
	}
	w.s(" FROM ")
	if j.alone {
		w.s(j.table, " x WHERE ")
		w.keys("x", j.keys)
		if j.byUnit {
			m := j.m.(Quantities)
			units := slices.Clone(w.unitRanges(&m).units)
			slices.Sort(units)
			w.s(" AND x.unit = ANY (")
			w.terms(units)
			w.s(")")
		}
	} else {
		w.s("(SELECT r.rid FROM resource r")
		c := j.plan.where
		c.preds = nil
		w.found("r", &c, j.plan.types, &conditions{w: w, lead: " WHERE "})
		w.s(") r CROSS JOIN LATERAL (SELECT * FROM ", j.table, " x WHERE x.rid = r.rid AND ")
		w.probeKeys("x", j.keys)
		w.s(" OFFSET 0) x")
	}
	w.s(" LIMIT ")
	w.p(int64(MaxColumn + 1))
	w.s("::bigint) s GROUP BY s.unit")
	return w.statement()
}

// A Column is the values of one ordered parameter among the resources with some
// terms. It is not changed once it is made.
type Column struct {
	dates  []dateCell // ascending by low
	widest int64      // of the dates, from low to high
	units  map[int64]*numberCells
	n      int
}

type dateCell struct{ low, high, rid int64 }

// Add takes one row of Build; it reports false for what a Column does not hold:
// ranges, and numbers of more than 37 digits.
func (c *Column) Add(unit int64, lows string, highs *string, ranges bool, rids []int64) bool {
	c.n += len(rids)
	if ranges {
		return false
	}
	if highs == nil {
		d, ok := newNumberCells(lows, rids)
		if c.units == nil {
			c.units = make(map[int64]*numberCells)
		}
		c.units[unit] = d
		return ok
	}
	c.dates = make([]dateCell, len(rids))
	for i, rid := range rids {
		var low, high string
		low, lows, _ = strings.Cut(lows, ",")
		high, *highs, _ = strings.Cut(*highs, ",")
		l, err1 := strconv.ParseInt(low, 10, 64)
		h, err2 := strconv.ParseInt(high, 10, 64)
		if err1 != nil || err2 != nil {
			return false
		}
		c.dates[i] = dateCell{l, h, rid}
		c.widest = max(c.widest, h-l)
	}
	byLow := func(a, b dateCell) int { return cmp.Compare(a.low, b.low) }
	if !slices.IsSortedFunc(c.dates, byLow) {
		slices.SortFunc(c.dates, byLow)
	}
	return true
}

// Len is the number of entries.
func (c *Column) Len() int { return c.n }

// Page returns the number of resources for which the comparison holds, and those of
// them that the page has, with one more when there is one; backwards the last comes
// first, as from Walk.
func (j *Joint) Page(c *Column) (total int, rids []int64, err error) {
	g, err := j.plan.page()
	if err != nil {
		return 0, nil, err
	}
	o := &outermost{backwards: g.reverse, size: g.offset + g.limit}
	if g.cursor != nil {
		o.beyond, o.bounded = g.cursor.RID, true
	}
	switch m := j.m.(type) {
	case Dates:
		c.matchDates(o, []Dates{m})
	case dateRange:
		c.matchDates(o, m.bounds)
	case Numbers:
		c.units[0].match(o, &m)
	case Quantities:
		if !j.byUnit {
			c.units[0].match(o, &m.Numbers)
			break
		}
		w := &writer{env: j.plan.env}
		r := w.unitRanges(&m)
		for i, unit := range r.units {
			c.units[unit].match(o, r.each[i])
		}
	}
	o.finish()
	return o.n, o.rids[min(g.offset, len(o.rids)):], nil
}

// outermost keeps the first rids beyond a bound, or the last before it, in the order
// of the page, and counts all.
type outermost struct {
	backwards bool
	size      int
	beyond    int64
	bounded   bool
	n         int
	rids      []int64
}

// sorted is the size up to which a list is kept sorted; a page far behind is sorted
// when all are there.
const sorted = 512

func (o *outermost) add(rid int64) {
	o.n++
	if o.bounded && o.compare(rid, o.beyond) <= 0 {
		return
	}
	if o.size > sorted {
		o.rids = append(o.rids, rid)
		return
	}
	if len(o.rids) == o.size {
		if o.compare(rid, o.rids[o.size-1]) > 0 {
			return
		}
		o.rids = o.rids[:o.size-1]
	}
	at, _ := slices.BinarySearchFunc(o.rids, rid, o.compare)
	o.rids = slices.Insert(o.rids, at, rid)
}

// compare is negative where a comes before b.
func (o *outermost) compare(a, b int64) int {
	if o.backwards {
		return cmp.Compare(b, a)
	}
	return cmp.Compare(a, b)
}

func (o *outermost) finish() {
	if o.size > sorted {
		slices.SortFunc(o.rids, o.compare)
		o.rids = o.rids[:min(o.size, len(o.rids))]
	}
}

func (c *Column) matchDates(o *outermost, bounds []Dates) {
	from, to := 0, len(c.dates)
	for i := range bounds {
		f, t := c.around(&bounds[i])
		from, to = max(from, f), min(to, t)
	}
	for _, d := range c.dates[min(from, to):to] {
		if !slices.ContainsFunc(bounds, func(b Dates) bool { return !b.holds(d.low, d.high) }) {
			o.add(d.rid)
		}
	}
}

// around is the part of the dates outside of which the comparison holds for none.
func (c *Column) around(m *Dates) (from, to int) {
	// below is the number of dates with a low end before at.
	below := func(at int64) int {
		i, _ := slices.BinarySearchFunc(c.dates, at, func(d dateCell, at int64) int { return cmp.Compare(d.low, at) })
		return i
	}
	// What ends after an instant begins less than widest before it.
	reaching := func(at int64) int {
		if at < math.MinInt64+c.widest {
			return 0
		}
		return below(at - c.widest)
	}
	from, to = 0, len(c.dates)
	switch m.Op {
	case EQ:
		from, to = below(m.Low), below(m.High)
	case LT:
		to = below(m.Low)
	case LE:
		to = below(m.High)
	case EB:
		to = below(m.Low + 1)
	case SA:
		from = below(m.High)
	case GT:
		from = reaching(m.High)
	case GE:
		from = min(reaching(m.High), below(m.Low))
	case AP:
		from, to = reaching(m.Low), below(m.High)
	}
	return from, to
}

// holds is dateBounds for one entry.
func (m *Dates) holds(low, high int64) bool {
	contained := low >= m.Low && high <= m.High
	switch m.Op {
	case NE:
		return !contained
	case LT:
		return low < m.Low
	case LE:
		return low < m.Low || contained
	case GT:
		return high > m.High
	case GE:
		return high > m.High || low >= m.Low
	case SA:
		return low >= m.High
	case EB:
		return high <= m.Low
	case AP:
		return low < m.High && high > m.Low
	}
	return contained
}

// MaxList is the number of matches that are remembered one by one.
const MaxList = 20_000

// List is the statement that finds the rid of every match of a search without
// `_sort`, up to one more than MaxList, and the snapshot that they hold in: one row
// with an array, null without matches. ok is false where an order is asked for.
func (p *Plan) List() (st Statement, ok bool) {
	if len(p.q.Sort) > 0 {
		return st, false
	}
	w := &writer{env: p.env}
	w.s("SELECT array_agg(l.rid), ", Now, " FROM (SELECT s.rid FROM (")
	w.set(&p.where, p.types)
	w.s(") s LIMIT ")
	w.p(int64(MaxList + 1))
	w.s("::bigint) l")
	return w.statement(), true
}

// PageOf is the part of a list, ascending, that the page has, as Joint.Page.
func (p *Plan) PageOf(rids []int64) ([]int64, error) {
	g, err := p.page()
	if err != nil {
		return nil, err
	}
	if g.reverse {
		end := len(rids)
		if g.cursor != nil {
			end, _ = slices.BinarySearch(rids, g.cursor.RID)
		}
		out := slices.Clone(rids[max(0, end-g.limit):end])
		slices.Reverse(out)
		return out, nil
	}
	from := g.offset
	if g.cursor != nil {
		i, found := slices.BinarySearch(rids, g.cursor.RID)
		if from = i; found {
			from++
		}
	}
	from = min(from, len(rids))
	return rids[from:min(len(rids), from+g.limit)], nil
}

// Rows is the statement that fetches the resources of a page: the columns of a
// page statement, in no order.
func (p *Plan) Rows(rids []int64) Statement {
	w := &writer{env: p.env}
	w.s("SELECT ")
	p.rowsOf(w, rids)
	return w.statement()
}

// RowsUnchanged is Rows with Unchanged before the columns of each row.
func (p *Plan) RowsUnchanged(rids []int64, since string) Statement {
	if len(rids) == 0 {
		return p.Rows(rids).Beside(p.Unchanged(since))
	}
	w := &writer{env: p.env}
	w.s("SELECT ")
	p.unchanged(w, since)
	w.s(", ")
	p.rowsOf(w, rids)
	return w.statement()
}

func (p *Plan) rowsOf(w *writer, rids []int64) {
	w.s("NULL::bigint, NULL::bigint, r.rid, ", strings.Repeat("NULL::text, ", len(p.q.Sort)), rowColumns, " FROM resource r WHERE r.rid = ANY (")
	w.terms(rids)
	w.s(")")
}

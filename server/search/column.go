package search

import (
	"slices"
	"sort"
	"strings"

	"kiln/server/fhir"

	"github.com/cockroachdb/apd/v3"
)

// Joint is a search for terms and one comparison, each of which matches many
// resources: `code=X&date=ge2010`, `code-value-quantity=X$gt5`; or for a
// comparison in a unit. Intersecting the
// two lists in the database fetches every resource with the terms, and the next
// search for the same terms with another value does it again. A Column holds the
// values of the resources with the terms, and answers all of them.
type Joint struct {
	plan    *Plan
	table   string
	keys    []fhir.Key
	m       Match
	byUnit  bool
	isDates bool
	alone   bool // without terms
}

// Alone reports whether the search is a comparison in a unit, without terms: then
// a column is better than looking for candidates.
func (j *Joint) Alone() bool { return j.alone }

// Joint returns the query as a Joint, or nil.
func (p *Plan) Joint() *Joint {
	c := &p.where
	if len(c.preds) != 1 || c.byID || len(p.q.Sort) > 0 {
		return nil
	}
	if len(c.all)+len(c.any) == 0 {
		// The index of quantities has the unit after the value, so a comparison in
		// one unit reads the values in all of them.
		if m, ok := c.preds[0].only().(Quantities); ok && m.Single && (m.System != "" || m.Code != "") && len(c.none) == 0 {
			return &Joint{plan: p, table: "index_quantity", keys: m.Keys, m: m, byUnit: true, alone: true}
		}
		return nil
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
			return &Joint{plan: p, table: "index_quantity", keys: m.Keys, m: m, byUnit: m.System != "" || m.Code != ""}
		}
	}
	return nil
}

// MaxColumn is the number of entries that a Column may have.
const MaxColumn = 20_000

// Build is the statement that makes the column: unit, low end, high end (null for
// a point) as text, rid, and the snapshot that they hold in. More than MaxColumn
// rows are too many.
func (j *Joint) Build() Statement {
	w := &writer{env: j.plan.env}
	unit, high := "0::bigint", "x.high"
	if j.byUnit {
		unit = "x.unit"
	}
	if !j.isDates {
		high = "nullif(x.high, x.low)"
	}
	if j.alone {
		m := j.m.(Quantities)
		units := slices.Clone(w.unitRanges(&m).units)
		slices.Sort(units)
		w.s("SELECT x.unit, x.low::text, ", high, "::text, x.rid, ", Now, " FROM index_quantity x WHERE ")
		w.keys("x", j.keys)
		w.s(" AND x.unit = ANY (")
		w.terms(units)
		w.s(") LIMIT ")
		w.p(int64(MaxColumn + 1))
		w.s("::bigint")
		return w.statement()
	}
	w.s("SELECT ", unit, ", x.low::text, ", high, "::text, x.rid, ", Now, " FROM (SELECT r.rid FROM resource r")
	c := j.plan.where
	c.preds = nil
	w.found("r", &c, j.plan.types, &conditions{w: w, lead: " WHERE "})
	w.s(") r CROSS JOIN LATERAL (SELECT * FROM ", j.table, " x WHERE x.rid = r.rid AND ")
	w.probeKeys("x", j.keys)
	w.s(" OFFSET 0) x LIMIT ")
	w.p(int64(MaxColumn + 1))
	w.s("::bigint")
	return w.statement()
}

// A Column is the values of one ordered parameter among the resources with some
// terms. It is not changed once it is finished.
type Column struct {
	dates []dateCell
	units map[int64][]numberCell // ascending, once finished
	// Ranges says that some number is a range, which a Column does not answer.
	Ranges bool
}

type dateCell struct{ low, high, rid int64 }

type numberCell struct {
	value apd.Decimal
	rid   int64
}

// Add takes one row of Build; it reports false for a value that cannot be read.
func (c *Column) Add(j *Joint, unit int64, low string, high *string, rid int64) bool {
	if j.isDates {
		l, _, err := apd.NewFromString(low)
		if err != nil || high == nil {
			return false
		}
		h, _, err := apd.NewFromString(*high)
		if err != nil {
			return false
		}
		lo, err1 := l.Int64()
		hi, err2 := h.Int64()
		c.dates = append(c.dates, dateCell{lo, hi, rid})
		return err1 == nil && err2 == nil
	}
	if high != nil {
		c.Ranges = true
	}
	cell := numberCell{rid: rid}
	if _, _, err := cell.value.SetString(low); err != nil {
		return false
	}
	if c.units == nil {
		c.units = make(map[int64][]numberCell)
	}
	c.units[unit] = append(c.units[unit], cell)
	return true
}

// Finish orders the values.
func (c *Column) Finish() {
	for _, cells := range c.units {
		slices.SortFunc(cells, func(a, b numberCell) int { return a.value.Cmp(&b.value) })
	}
}

// Len is the number of entries.
func (c *Column) Len() int {
	n := len(c.dates)
	for _, cells := range c.units {
		n += len(cells)
	}
	return n
}

// Matches returns the rids of the resources for which the comparison holds,
// ascending.
func (j *Joint) Matches(c *Column) []int64 {
	var rids []int64
	switch m := j.m.(type) {
	case Dates:
		rids = c.matchDates([]Dates{m})
	case dateRange:
		rids = c.matchDates(m.bounds)
	case Numbers:
		rids = matchNumbers(nil, c.units[0], &m)
	case Quantities:
		if !j.byUnit {
			rids = matchNumbers(nil, c.units[0], &m.Numbers)
			break
		}
		w := &writer{env: j.plan.env}
		r := w.unitRanges(&m)
		for i, unit := range r.units {
			rids = matchNumbers(rids, c.units[unit], r.each[i])
		}
	}
	slices.Sort(rids)
	return rids
}

func (c *Column) matchDates(bounds []Dates) []int64 {
	var rids []int64
	for _, d := range c.dates {
		if !slices.ContainsFunc(bounds, func(b Dates) bool { return !b.holds(d.low, d.high) }) {
			rids = append(rids, d.rid)
		}
	}
	return rids
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

// matchNumbers appends the rids of the cells for which the comparison holds: they
// lie together, or, with ne, around those that do not.
func matchNumbers(rids []int64, cells []numberCell, m *Numbers) []int64 {
	// at is the first cell that is not below v, or, after, above v.
	at := func(v *apd.Decimal, after bool) int {
		return sort.Search(len(cells), func(i int) bool {
			c := cells[i].value.Cmp(v)
			return c > 0 || c == 0 && !after
		})
	}
	from, to := 0, len(cells)
	switch m.Op {
	case EQ, NE:
		from, to = at(m.Low, false), at(m.High, false)
	case AP:
		from, to = at(m.Low, false), at(m.High, true)
	case LT, EB:
		to = at(m.Value, false)
	case LE:
		to = at(m.Value, true)
	case GT, SA:
		from = at(m.Value, true)
	case GE:
		from = at(m.Value, false)
	}
	for i := range cells {
		if (i >= from && i < to) != (m.Op == NE) {
			rids = append(rids, cells[i].rid)
		}
	}
	return rids
}

// PageOf is the part of all matches, ascending, that the page has, with one more
// when there is one; backwards the last comes first, as from Walk.
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
	w.s("SELECT NULL::bigint, NULL::bigint, r.rid, ", strings.Repeat("NULL::text, ", len(p.q.Sort)), rowColumns, " FROM resource r WHERE r.rid = ANY (")
	w.terms(rids)
	w.s(")")
	return w.statement()
}

package search

import (
	"maps"
	"slices"
	"sort"
	"strconv"
	"strings"

	"kiln/server/fhir"

	"github.com/cockroachdb/apd/v3"
)

// A Histogram knows, for the entries of an ordered parameter, how many lie below
// each of some bounds. With it the count of one half of the axis is a subtraction
// and a look at the few entries between the value and the next bound, where
// counting the half itself reads every entry of it.
//
// It serves searches that are nothing but one comparison of a parameter with at
// most one entry for each resource, so that entries are matches.
type Histogram struct {
	parts map[int64]*histogramPart // by unit; 0 where there are none
}

type histogramPart struct {
	n      int64
	bounds []*apd.Decimal // ascending
	below  []int64        // entries with a low end below the bound
}

// histogramStep is the number of entries between two bounds.
const histogramStep = 256

// registryState changes when search parameters do, and when stored resources have
// been brought up to them.
const registryState = "(SELECT g.version || '.' || g.progress FROM search_registry g WHERE g.one)"

// Now is the expression, a text, for the state that a statement sees: what was
// counted in it holds as long as Unchanged says so.
const Now = "pg_current_snapshot()::text || ' ' || " + registryState

// Unchanged is two expressions: whether no resource that the query depends on has
// changed since a state, and the present state, which SameIndex is to be asked of as
// well. Changes of resources are in the change log, where a row without any says that
// the index has changed.
func (p *Plan) Unchanged(since string) Statement {
	w := &writer{env: p.env}
	p.unchanged(w, since)
	return w.statement()
}

// SameIndex reports whether search parameters, which concern every search, are the
// same in two states.
func SameIndex(a, b string) bool {
	_, x, _ := strings.Cut(a, " ")
	_, y, _ := strings.Cut(b, " ")
	return x == y
}

func (p *Plan) unchanged(w *writer, since string) {
	snapshot, _, _ := strings.Cut(since, " ")
	at := w.param(snapshot) + "::text::pg_snapshot"
	w.s("NOT EXISTS (SELECT 1 FROM change c WHERE c.xid >= pg_snapshot_xmin(", at, ") AND NOT pg_visible_in_snapshot(c.xid, ", at, ")")
	if from, to, ok := p.scope(); ok {
		w.s(" AND (c.rids = '{}' OR EXISTS (SELECT FROM unnest(c.rids) AS r(rid) WHERE r.rid >= ")
		w.p(from)
		w.s("::bigint AND r.rid < ")
		w.p(to)
		w.s("::bigint))")
	}
	w.s("), ", Now)
}

// maxAdded is the number of new resources that are looked at one by one.
const maxAdded = 1000

// Added is the statement that brings a total, counted in the state since, up to the
// present: whether all that has changed are a few new resources, how many of them
// match, and the present state, as from Unchanged. ok is false for a query that depends on other
// resources.
func (p *Plan) Added(since string) (st Statement, ok bool) {
	from, to, ok := p.scope()
	if !ok {
		return st, false
	}
	w := &writer{env: p.env}
	snapshot, _, _ := strings.Cut(since, " ")
	at := w.param(snapshot) + "::text::pg_snapshot"
	w.s("WITH n AS MATERIALIZED (SELECT v.rid, v.method FROM change c LEFT JOIN LATERAL unnest(c.rids, string_to_array(c.methods, NULL)) AS v(rid, method) ON true",
		" WHERE c.xid >= pg_snapshot_xmin(", at, ") AND NOT pg_visible_in_snapshot(c.xid, ", at, ") AND (v.rid IS NULL OR v.rid >= ")
	w.p(from)
	w.s("::bigint AND v.rid < ")
	w.p(to)
	w.s("::bigint) LIMIT ", strconv.Itoa(maxAdded+1), ") SELECT NOT EXISTS (SELECT 1 FROM n WHERE n.method IS DISTINCT FROM 'C') AND (SELECT count(*) FROM n) <= ", strconv.Itoa(maxAdded),
		", (SELECT count(*) FROM n CROSS JOIN LATERAL (SELECT * FROM resource r WHERE r.rid = n.rid OFFSET 0) r")
	w.probing("r", &p.where, &conditions{w: w, lead: " WHERE "}, -1)
	w.s("), ", Now)
	return w.statement(), true
}

// HalfAxis is a comparison that a Histogram can count.
type HalfAxis struct {
	table  string
	keys   []fhir.Key
	byUnit bool
	m      Match
}

// HalfAxis returns the comparison that the whole query is, or nil.
func (p *Plan) HalfAxis() *HalfAxis {
	c := &p.where
	if len(c.preds) != 1 || len(c.all)+len(c.any)+len(c.none) > 0 || c.byID || c.preds[0].not {
		return nil
	}
	switch m := c.preds[0].only().(type) {
	case Dates:
		if m.Single && m.Op != EQ {
			return &HalfAxis{table: "index_date", keys: m.Keys, m: m}
		}
	case Numbers:
		if m.Single && m.Op != EQ && m.Op != AP {
			return &HalfAxis{table: "index_number", keys: m.Keys, m: m}
		}
	case Quantities:
		if m.Single && m.Op != EQ && m.Op != AP {
			return &HalfAxis{table: "index_quantity", keys: m.Keys, byUnit: true, m: m}
		}
	}
	return nil
}

// Name tells histograms apart.
func (h *HalfAxis) Name() string {
	var b strings.Builder
	b.WriteString(h.table)
	for _, k := range h.keys {
		b.WriteByte(' ')
		b.WriteString(strconv.FormatUint(uint64(k), 16))
	}
	return b.String()
}

// Build is the statement that makes the histogram: rows of unit, bound as text,
// entries below it, entries of the unit, and the snapshot that they hold in.
func (h *HalfAxis) Build(env *Env) Statement {
	w := &writer{env: env}
	unit, partition := "0::bigint", ""
	if h.byUnit {
		unit, partition = "x.unit", "PARTITION BY g.unit "
	}
	step := strconv.Itoa(histogramStep)
	w.s("SELECT unit, low::text, below, n, ", Now, " FROM (SELECT g.unit, g.low, g.c, (sum(g.c) OVER (", partition, "ORDER BY g.low) - g.c)::bigint AS below, (sum(g.c) OVER (", partition, "))::bigint AS n",
		" FROM (SELECT ", unit, " AS unit, x.low, count(*) AS c FROM ", h.table, " x WHERE ")
	w.keys("x", h.keys)
	w.s(" GROUP BY 1, 2) g) s WHERE below = 0 OR below / ", step, " < (below + c) / ", step, " ORDER BY 1, below")
	return w.statement()
}

// Add takes one row of Build.
func (g *Histogram) Add(unit int64, low string, below, n int64) {
	if g.parts == nil {
		g.parts = make(map[int64]*histogramPart)
	}
	part := g.parts[unit]
	if part == nil {
		part = &histogramPart{}
		g.parts[unit] = part
	}
	part.n = n
	d, _, err := apd.NewFromString(low)
	if err != nil || d.Form != apd.Finite {
		return // an open end, which is below everything
	}
	if k := len(part.bounds); k > 0 && part.bounds[k-1].Cmp(d) == 0 {
		return
	}
	part.bounds = append(part.bounds, d)
	part.below = append(part.below, below)
}

// from is the number of entries whose low end is at or above the first bound that
// is at or above v (above v, when strict), and that bound, nil for none.
func (p *histogramPart) from(v *apd.Decimal, strict bool) (int64, *apd.Decimal) {
	if p == nil {
		return 0, nil
	}
	i := sort.Search(len(p.bounds), func(i int) bool {
		c := p.bounds[i].Cmp(v)
		return c > 0 || c == 0 && !strict
	})
	if i == len(p.bounds) {
		return 0, nil
	}
	return p.n - p.below[i], p.bounds[i]
}

// fromDate is from for a date, OpenHigh + 1 where there is no bound.
func (p *histogramPart) fromDate(v int64) (n, bound int64) {
	n, b := p.from(apd.New(v, 0), false)
	if b == nil {
		return n, fhir.OpenHigh + 1
	}
	bound, _ = b.Int64()
	return n, bound
}

// Count is the statement that counts the comparison with the help of a histogram:
// one bigint, to which base has to be added. base alone is about the count.
func (h *HalfAxis) Count(env *Env, g *Histogram) (st Statement, base int64) {
	w := &writer{env: env}
	switch m := h.m.(type) {
	case Dates:
		base = h.countDates(w, g.parts[0], &m)
	case Numbers:
		base = h.countNumbers(w, g, &m, nil, []*Numbers{&m})
	case Quantities:
		if !m.anyUnit() {
			r := w.unitRanges(&m)
			base = h.countNumbers(w, g, &m.Numbers, r.units, r.each)
			break
		}
		units := slices.Sorted(maps.Keys(g.parts))
		base = h.countNumbers(w, g, &m.Numbers, units, slices.Repeat([]*Numbers{&m.Numbers}, len(units)))
	}
	return w.statement(), base
}

// countDates follows dateBounds: each comparison is the entries whose low end is
// at or above a point, or the rest, and what overlaps the point.
func (h *HalfAxis) countDates(w *writer, part *histogramPart, m *Dates) (base int64) {
	low, high := m.Low, m.High
	point, above := high, true
	switch m.Op {
	case LT, LE, EB:
		point, above = low, false
	}
	w.s("SELECT 0::bigint")
	if m.Op == NE {
		if part != nil {
			base = part.n
		}
		w.s(" - (")
		w.dates(h.keys, low, high, func(x, lo, hi string) { w.s(x, ".high <= ", hi) })
		w.s(")")
		return base
	}
	from, end := part.fromDate(point)
	if m.Op == AP {
		// What begins within, and what begins before and goes on.
		first, next := part.fromDate(low)
		if next < high {
			base = first - from
			w.s(" + (")
			w.dates(h.keys, low, next, nil)
			w.s(") - (")
			w.dates(h.keys, high, end, nil)
			w.s(")")
		} else {
			w.s(" + (")
			w.dates(h.keys, low, high, nil)
			w.s(")")
		}
		w.s(" + (")
		w.across(h.keys, low-day, low, low)
		w.s(")")
		return base
	}
	base, sign := from, " + "
	if !above {
		base, sign = 0, " - "
		if part != nil {
			base = part.n - from
		}
	}
	if end > point {
		w.s(sign, "(")
		w.dates(h.keys, point, end, nil)
		w.s(")")
	}
	switch m.Op {
	case GT:
		w.s(" + (")
		w.across(h.keys, high-day, high, high)
		w.s(")")
	case GE:
		w.s(" + (")
		w.dates(h.keys, low, high, nil) // contained, or over the end
		w.s(") + (")
		w.across(h.keys, min(low, high-day), low, high)
		w.s(")")
	case LE:
		w.s(" + (")
		w.dates(h.keys, low, high, func(x, lo, hi string) { w.s(x, ".high <= ", hi) })
		w.s(")")
	case EB:
		w.s(" - (")
		w.across(h.keys, low-day, low, low)
		w.s(")")
	}
	return base
}

// dates counts the entries with a low end in [from, to) that pass the condition.
func (w *writer) dates(keys []fhir.Key, from, to int64, condition func(x, from, to string)) {
	x := "x" + w.next()
	w.s("SELECT count(*) FROM index_date ", x, " WHERE ")
	w.keys(x, keys)
	lo, hi := w.param(from)+"::bigint", w.param(to)+"::bigint"
	w.s(" AND ", x, ".low >= ", lo, " AND ", x, ".low < ", hi)
	if condition != nil {
		w.s(" AND ")
		condition(x, lo, hi)
	}
}

// across writes the sum that counts the entries that begin before a point and end after another one:
// short ones begin in [from, before), long ones come from their own index.
func (w *writer) across(keys []fhir.Key, from, before, end int64) {
	x := "x" + w.next()
	e := w.param(end) + "::bigint"
	w.s("(SELECT count(*) FROM index_date ", x, " WHERE ")
	w.keys(x, keys)
	w.s(" AND ", x, ".high - ", x, ".low <= 86400000000 AND ", x, ".low >= ")
	w.p(from)
	w.s("::bigint AND ", x, ".low < ")
	w.p(before)
	w.s("::bigint AND ")
	w.s(x, ".high > ", e, ") + (SELECT count(*) FROM index_date ", x, " WHERE ")
	w.keys(x, keys)
	w.s(" AND ", x, ".high - ", x, ".low > 86400000000 AND ", x, ".low < ")
	w.p(before)
	w.s("::bigint AND ")
	w.s(x, ".high > ", e)
	w.s(")")
}

// countNumbers follows numberCondition. units is nil where there are none.
func (h *HalfAxis) countNumbers(w *writer, g *Histogram, m *Numbers, units []int64, each []*Numbers) (base int64) {
	strict := m.Op == GT || m.Op == SA || m.Op == LE
	above := m.Op == GT || m.Op == GE || m.Op == SA
	var values, ends []string // the entries between are counted
	for i, n := range each {
		unit := int64(0)
		if units != nil {
			unit = units[i]
		}
		part := g.parts[unit]
		from, bound := part.from(n.Value, strict)
		end := "Infinity"
		if bound != nil {
			end = bound.Text('f')
		}
		values, ends = append(values, n.Value.Text('f')), append(ends, end)
		switch {
		case m.Op == NE && part != nil:
			base += part.n
		case above:
			base += from
		case part != nil:
			base += part.n - from
		}
	}
	x := "x" + w.next()
	body := func(sign, condition string) {
		w.s(sign, "(SELECT count(*) FROM unnest(")
		if units == nil {
			w.p([]int64{0})
		} else {
			w.p(units)
		}
		w.s("::bigint[], ")
		w.p(values)
		w.s("::text[]::numeric[], ")
		w.p(ends)
		w.s("::text[]::numeric[]) AS n(unit, value, bound) JOIN ", h.table, " ", x, " ON ")
		w.keys(x, h.keys)
		if units != nil {
			w.s(" AND ", x, ".unit = n.unit")
		}
		w.s(" AND ", condition, ")")
	}
	w.s("SELECT 0::bigint")
	if m.Op == NE {
		lows, highs := make([]string, len(each)), make([]string, len(each))
		for i, n := range each {
			lows[i], highs[i] = n.Low.Text('f'), n.High.Text('f')
		}
		values, ends = lows, highs
		body(" - ", x+".low >= n.value AND "+x+".low < n.bound AND coalesce("+x+".high, "+x+".low) < n.bound")
		return base
	}
	least := " >= "
	if strict {
		least = " > "
	}
	sign := " - "
	if above {
		sign = " + "
	}
	body(sign, x+".low"+least+"n.value AND "+x+".low < n.bound")
	switch m.Op {
	case GT:
		body(" + ", x+".high > n.value AND NOT ("+x+".low > n.value)")
	case GE:
		body(" + ", x+".high >= n.value AND NOT ("+x+".low >= n.value)")
	case EB:
		body(" - ", x+".high >= n.value AND "+x+".low < n.value")
	}
	return base
}

// scope is the range of surrogates that a change must lie in to concern the
// query; false where any change may.
func (p *Plan) scope() (from, to int64, ok bool) {
	if len(p.types) != 1 || slices.ContainsFunc(p.where.preds, func(p pred) bool { return reachesOut(p.any) }) {
		return 0, 0, false
	}
	return int64(p.types[0]) << 48, (int64(p.types[0]) + 1) << 48, true
}

// reachesOut reports whether matches depend on other resources.
func reachesOut(any []Match) bool {
	return slices.ContainsFunc(any, func(m Match) bool {
		switch m := m.(type) {
		case Chain, Has:
			return true
		case All:
			return slices.ContainsFunc(m.Clauses, func(c Clause) bool { return reachesOut(c.Any) })
		}
		return false
	})
}

package plan

import (
	"maps"
	"slices"
	"strconv"
	"strings"

	"kiln/server/fhir"
	"kiln/server/search/match"
)

// OpenRange is a comparison that a Histogram can count.
type OpenRange struct {
	table  string
	keys   []fhir.Key
	byUnit bool
	m      match.Match
}

// OpenRange returns the comparison that the whole query is, or nil.
func (p *Plan) OpenRange() *OpenRange {
	c := &p.where
	if len(c.Preds) != 1 || len(c.All)+len(c.Any)+len(c.None) > 0 || c.ByID || c.Preds[0].Not {
		return nil
	}
	switch m := c.Preds[0].Only().(type) {
	case match.Dates:
		if m.Single && m.Op != match.EQ {
			return &OpenRange{table: "index_date", keys: m.Keys, m: m}
		}
	case match.Numbers:
		if m.Single && m.Op != match.EQ && m.Op != match.AP {
			return &OpenRange{table: "index_number", keys: m.Keys, m: m}
		}
	case match.Quantities:
		if m.Single && m.Op != match.EQ && m.Op != match.AP {
			return &OpenRange{table: "index_quantity", keys: m.Keys, byUnit: true, m: m}
		}
	}
	return nil
}

// Name tells histograms apart.
func (h *OpenRange) Name() string {
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
func (h *OpenRange) Build(env *match.Env) match.Statement {
	w := newWriter(env)
	unit, partition := "0::bigint", ""
	if h.byUnit {
		unit, partition = "x.unit", "PARTITION BY g.unit "
	}
	step := strconv.Itoa(histogramStep)
	w.Write("SELECT unit, low::text, below, n, ", Now, " FROM (SELECT g.unit, g.low, g.c, (sum(g.c) OVER (", partition, "ORDER BY g.low) - g.c)::bigint AS below, (sum(g.c) OVER (", partition, "))::bigint AS n",
		" FROM (SELECT ", unit, " AS unit, x.low, count(*) AS c FROM ", h.table, " x WHERE ")
	w.Keys("x", h.keys)
	w.Write(" GROUP BY 1, 2) g) s WHERE below = 0 OR below / ", step, " < (below + c) / ", step, " ORDER BY 1, below")
	return w.Statement()
}

// Count is the statement that counts the comparison with the help of a histogram:
// one bigint, to which base has to be added. base alone is about the count.
func (h *OpenRange) Count(env *match.Env, g *Histogram) (st match.Statement, base int64) {
	w := newWriter(env)
	switch m := h.m.(type) {
	case match.Dates:
		base = h.countDates(w, g.parts[0], &m)
	case match.Numbers:
		base = h.countNumbers(w, g, &m, nil, []*match.Numbers{&m})
	case match.Quantities:
		if !m.AnyUnit() {
			r := w.UnitRanges(&m)
			base = h.countNumbers(w, g, &m.Numbers, r.Units, r.Each)
			break
		}
		units := slices.Sorted(maps.Keys(g.parts))
		base = h.countNumbers(w, g, &m.Numbers, units, slices.Repeat([]*match.Numbers{&m.Numbers}, len(units)))
	}
	return w.Statement(), base
}

// countDates follows dateBounds: each comparison is the entries whose low end is
// at or above a point, or the rest, and what overlaps the point.
func (h *OpenRange) countDates(w *writer, part *histogramPart, m *match.Dates) (base int64) {
	low, high := m.Low, m.High
	point, above := high, true
	switch m.Op {
	case match.LT, match.LE, match.EB:
		point, above = low, false
	}
	w.Write("SELECT 0::bigint")
	if m.Op == match.NE {
		if part != nil {
			base = part.n
		}
		w.Write(" - (")
		w.dates(h.keys, low, high, func(x, lo, hi string) { w.Write(x, ".high <= ", hi) })
		w.Write(")")
		return base
	}
	from, end := part.fromDate(point)
	if m.Op == match.AP {
		// What begins within, and what begins before and goes on.
		first, next := part.fromDate(low)
		if next < high {
			base = first - from
			w.Write(" + (")
			w.dates(h.keys, low, next, nil)
			w.Write(") - (")
			w.dates(h.keys, high, end, nil)
			w.Write(")")
		} else {
			w.Write(" + (")
			w.dates(h.keys, low, high, nil)
			w.Write(")")
		}
		w.Write(" + (")
		w.across(h.keys, low-match.Day, low, low)
		w.Write(")")
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
		w.Write(sign, "(")
		w.dates(h.keys, point, end, nil)
		w.Write(")")
	}
	switch m.Op {
	case match.GT:
		w.Write(" + (")
		w.across(h.keys, high-match.Day, high, high)
		w.Write(")")
	case match.GE:
		w.Write(" + (")
		w.dates(h.keys, low, high, nil) // contained, or over the end
		w.Write(") + (")
		w.across(h.keys, min(low, high-match.Day), low, high)
		w.Write(")")
	case match.LE:
		w.Write(" + (")
		w.dates(h.keys, low, high, func(x, lo, hi string) { w.Write(x, ".high <= ", hi) })
		w.Write(")")
	case match.EB:
		w.Write(" - (")
		w.across(h.keys, low-match.Day, low, low)
		w.Write(")")
	}
	return base
}

// dates counts the entries with a low end in [from, to) that pass the condition.
func (w *writer) dates(keys []fhir.Key, from, to int64, condition func(x, from, to string)) {
	x := "x" + w.Next()
	w.Write("SELECT count(*) FROM index_date ", x, " WHERE ")
	w.Keys(x, keys)
	lo, hi := w.Param(from)+"::bigint", w.Param(to)+"::bigint"
	w.Write(" AND ", x, ".low >= ", lo, " AND ", x, ".low < ", hi)
	if condition != nil {
		w.Write(" AND ")
		condition(x, lo, hi)
	}
}

// across writes the sum that counts the entries that begin before a point and end after another one:
// short ones begin in [from, before), long ones come from their own index.
func (w *writer) across(keys []fhir.Key, from, before, end int64) {
	x := "x" + w.Next()
	e := w.Param(end) + "::bigint"
	w.Write("(SELECT count(*) FROM index_date ", x, " WHERE ")
	w.Keys(x, keys)
	w.Write(" AND ", x, ".high - ", x, ".low <= 86400000000 AND ", x, ".low >= ")
	w.Bind(from)
	w.Write("::bigint AND ", x, ".low < ")
	w.Bind(before)
	w.Write("::bigint AND ")
	w.Write(x, ".high > ", e, ") + (SELECT count(*) FROM index_date ", x, " WHERE ")
	w.Keys(x, keys)
	w.Write(" AND ", x, ".high - ", x, ".low > 86400000000 AND ", x, ".low < ")
	w.Bind(before)
	w.Write("::bigint AND ")
	w.Write(x, ".high > ", e)
	w.Write(")")
}

// countNumbers follows numberCondition. units is nil where there are none.
func (h *OpenRange) countNumbers(w *writer, g *Histogram, m *match.Numbers, units []int64, each []*match.Numbers) (base int64) {
	strict := m.Op == match.GT || m.Op == match.SA || m.Op == match.LE
	above := m.Op == match.GT || m.Op == match.GE || m.Op == match.SA
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
		case m.Op == match.NE && part != nil:
			base += part.n
		case above:
			base += from
		case part != nil:
			base += part.n - from
		}
	}
	x := "x" + w.Next()
	body := func(sign, condition string) {
		w.Write(sign, "(SELECT count(*) FROM unnest(")
		if units == nil {
			w.Bind([]int64{0})
		} else {
			w.Bind(units)
		}
		w.Write("::bigint[], ")
		w.Bind(values)
		w.Write("::text[]::numeric[], ")
		w.Bind(ends)
		w.Write("::text[]::numeric[]) AS n(unit, value, bound) JOIN ", h.table, " ", x, " ON ")
		w.Keys(x, h.keys)
		if units != nil {
			w.Write(" AND ", x, ".unit = n.unit")
		}
		w.Write(" AND ", condition, ")")
	}
	w.Write("SELECT 0::bigint")
	if m.Op == match.NE {
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
	case match.GT:
		body(" + ", x+".high > n.value AND NOT ("+x+".low > n.value)")
	case match.GE:
		body(" + ", x+".high >= n.value AND NOT ("+x+".low >= n.value)")
	case match.EB:
		body(" - ", x+".high >= n.value AND "+x+".low < n.value")
	}
	return base
}

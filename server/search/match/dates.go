package match

import (
	"fmt"
	"slices"
	"time"

	"kiln/server/fhir"
)

// Dates holds for a resource with a date entry that stands to [Low, High) as Op
// says.
type Dates struct {
	Keys      []fhir.Key
	Single    bool // at most one entry for each resource
	Op        Prefix
	Low, High int64 // UTC microseconds
}

// DateRange is several Dates about the one entry of an element.
type DateRange struct {
	Keys   []fhir.Key
	Bounds []Dates
}

// Day is a day in microseconds: ranges up to it are short (dateRIDs).
const Day = 86400 * 1_000_000

// dateRIDs writes the SELECT of the rows of index_date that meet every bound.
// Ranges up to a day long are found by their low end; where a bound asks for the
// high end, longer ones come from an index of their own.
func (w *Writer) dateRIDs(keys []fhir.Key, bounds []Dates, types []int16) {
	// from and to bound the low end of short ranges, far the high end of long
	// ones, as far as all bounds agree.
	from, to, far := fhir.OpenLow-1, fhir.OpenHigh+1, fhir.OpenLow-1
	long := false
	for _, b := range bounds {
		switch b.Op {
		case EQ:
			from, to = max(from, b.Low), min(to, b.High)
			far = max(far, b.Low)
		case NE:
			long = true
		case LT:
			to = min(to, b.Low)
		case LE:
			to = min(to, b.High)
		case GT:
			from, far, long = max(from, b.High-Day), max(far, b.High), true
		case GE:
			from, far, long = max(from, min(b.Low, b.High-Day)), max(far, b.Low), true
		case SA:
			from = max(from, b.High)
			far = max(far, b.High)
		case EB:
			to = min(to, b.Low)
		case AP:
			from, to = max(from, b.Low-Day), min(to, b.High)
			far, long = max(far, b.Low), true
		}
	}
	x := "x" + w.Next()
	w.Write("SELECT ", x, ".rid FROM index_date ", x, " WHERE ")
	w.PartedKeys(x, keys, types)
	if long {
		w.Write(" AND ", x, ".high - ", x, ".low <= 86400000000")
	}
	w.Write(" AND ", x, ".low >= ")
	w.Bind(from)
	w.Write("::bigint AND ", x, ".low < ")
	w.Bind(to)
	w.Write("::bigint")
	w.DateBounds(x, bounds)
	if !long {
		return
	}
	w.Write(" UNION ALL SELECT ", x, ".rid FROM index_date ", x, " WHERE ")
	w.PartedKeys(x, keys, types)
	w.Write(" AND ", x, ".high - ", x, ".low > 86400000000 AND ", x, ".high >= ")
	w.Bind(far)
	w.Write("::bigint AND ", x, ".low < ")
	w.Bind(to)
	w.Write("::bigint")
	w.DateBounds(x, bounds)
}

// DateBounds writes the comparison of a row's range with each of bounds.
// Spec: https://hl7.org/fhir/R4/search.html#prefix.
func (w *Writer) DateBounds(x string, bounds []Dates) {
	for _, b := range bounds {
		var low, high string
		if b.Op != GT && b.Op != SA {
			low = w.Param(b.Low) + "::bigint"
		}
		if b.Op != LT && b.Op != EB {
			high = w.Param(b.High) + "::bigint"
		}
		w.Write(" AND ")
		switch b.Op {
		case EQ:
			w.Write("(", x, ".low >= ", low, " AND ", x, ".high <= ", high, ")")
		case NE:
			w.Write("NOT (", x, ".low >= ", low, " AND ", x, ".high <= ", high, ")")
		case LT:
			w.Write(x, ".low < ", low)
		case LE:
			w.Write("(", x, ".low < ", low, " OR ", x, ".low < ", high, " AND ", x, ".high <= ", high, ")")
		case GT:
			w.Write(x, ".high > ", high)
		case GE:
			w.Write("(", x, ".high > ", high, " OR ", x, ".low >= ", low, ")")
		case SA:
			w.Write(x, ".low >= ", high)
		case EB:
			w.Write(x, ".high <= ", low)
		case AP:
			w.Write("(", x, ".low < ", high, " AND ", x, ".high > ", low, ")")
		}
	}
}

func (w *Writer) testDates(r string, keys []fhir.Key, bounds []Dates) {
	x := "x" + w.Next()
	w.Write("EXISTS (SELECT 1 FROM index_date ", x, " WHERE ", x, ".rid = ", r, ".rid AND ")
	w.TestPartedKeys(x, keys)
	w.DateBounds(x, bounds)
	w.Write(" OFFSET 0)")
}

// Includes reports whether the comparison holds for one entry.
func (m *Dates) Includes(low, high int64) bool {
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

// join joins a lower and an upper bound on the same element, which has at most one
// entry: `date=ge2020&date=lt2021` is one range of the index.
func (m Dates) join(c *Conjunction, not bool) bool {
	if not || !m.Single || len(m.Keys) != 1 {
		return false
	}
	for i := range c.Preds {
		if o, ok := c.Preds[i].Only().(Dates); ok && o.Single && len(o.Keys) == 1 && o.Keys[0] == m.Keys[0] {
			c.Preds[i].Any = []Match{DateRange{Keys: m.Keys, Bounds: []Dates{o, m}}}
			return true
		}
		if o, ok := c.Preds[i].Only().(DateRange); ok && o.Keys[0] == m.Keys[0] {
			o.Bounds = append(slices.Clone(o.Bounds), m)
			c.Preds[i].Any = []Match{o}
			return true
		}
	}
	return false
}

func (m Dates) comparison() Comparison { return Comparison{DateTable, m.Keys, m.Single} }

func (m Dates) bounds() []Dates { return []Dates{m} }

func (m Dates) ranged() {}

func (m Dates) single() bool { return m.Single }

func (m Dates) wide() bool { return m.Op.wide() }

func (m Dates) find(w *Writer, types []int16) { w.dateRIDs(m.Keys, []Dates{m}, types) }

func (m Dates) test(w *Writer, r string) { w.testDates(r, m.Keys, []Dates{m}) }

func (m Dates) byRows() bool { return true }

func (m Dates) holds(r *Resource) Answer {
	return of(slices.ContainsFunc(r.Index.Dates, func(e fhir.DateEntry) bool {
		return slices.Contains(m.Keys, e.Key) && m.Includes(e.Low, e.High)
	}))
}

func (m Dates) describe() string {
	return fmt.Sprintf("%s [%s, %s)", m.Op, instant(m.Low), instant(m.High))
}

// instant writes microseconds for people.
func instant(micros int64) string {
	switch {
	case micros <= fhir.OpenLow:
		return "-∞"
	case micros >= fhir.OpenHigh:
		return "∞"
	}
	return time.UnixMicro(micros).UTC().Format(time.RFC3339Nano)
}

func (m DateRange) comparison() Comparison { return Comparison{DateTable, m.Keys, true} }

func (m DateRange) bounds() []Dates { return m.Bounds }

func (m DateRange) ranged() {}

func (m DateRange) single() bool { return true }

func (m DateRange) wide() bool { return len(m.Bounds) < 2 }

func (m DateRange) find(w *Writer, types []int16) { w.dateRIDs(m.Keys, m.Bounds, types) }

func (m DateRange) test(w *Writer, r string) { w.testDates(r, m.Keys, m.Bounds) }

func (m DateRange) byRows() bool { return true }

func (m DateRange) holds(r *Resource) Answer {
	return of(slices.ContainsFunc(r.Index.Dates, func(e fhir.DateEntry) bool {
		return slices.Contains(m.Keys, e.Key) && !slices.ContainsFunc(m.Bounds, func(b Dates) bool { return !b.Includes(e.Low, e.High) })
	}))
}

func (m DateRange) describe() string { return "" }

func (m Dates) within(way []fhir.Key) Match {
	m.Keys, m.Single = withinKeys(m.Keys, way), false
	return m
}

func (m DateRange) within(way []fhir.Key) Match {
	m.Keys, m.Bounds = withinKeys(m.Keys, way), slices.Clone(m.Bounds)
	for i := range m.Bounds {
		m.Bounds[i] = m.Bounds[i].within(way).(Dates)
	}
	return m
}

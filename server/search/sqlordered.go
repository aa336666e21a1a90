package search

import (
	"strings"
	"time"

	"kiln/server/fhir"
	"kiln/server/ucum"

	"github.com/cockroachdb/apd/v3"
)

const day = 86400 * 1_000_000 // microseconds

// dateRIDs writes the SELECT of the rows of index_date that meet every bound.
// Ranges up to a day long are found by their low end; where a bound asks for the
// high end, longer ones come from an index of their own.
func (w *writer) dateRIDs(keys []fhir.Key, bounds []Dates) {
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
			from, far, long = max(from, b.High-day), max(far, b.High), true
		case GE:
			from, far, long = max(from, min(b.Low, b.High-day)), max(far, b.Low), true
		case SA:
			from = max(from, b.High)
			far = max(far, b.High)
		case EB:
			to = min(to, b.Low)
		case AP:
			from, to = max(from, b.Low-day), min(to, b.High)
			far, long = max(far, b.Low), true
		}
	}
	x := "x" + w.next()
	w.s("SELECT ", x, ".rid FROM index_date ", x, " WHERE ")
	w.keys(x, keys)
	if long {
		w.s(" AND ", x, ".high - ", x, ".low <= 86400000000")
	}
	w.s(" AND ", x, ".low >= ")
	w.p(from)
	w.s("::bigint AND ", x, ".low < ")
	w.p(to)
	w.s("::bigint")
	w.dateBounds(x, bounds)
	if !long {
		return
	}
	w.s(" UNION ALL SELECT ", x, ".rid FROM index_date ", x, " WHERE ")
	w.keys(x, keys)
	w.s(" AND ", x, ".high - ", x, ".low > 86400000000 AND ", x, ".high >= ")
	w.p(far)
	w.s("::bigint AND ", x, ".low < ")
	w.p(to)
	w.s("::bigint")
	w.dateBounds(x, bounds)
}

// dateBounds writes what the range of a row must be to each of bounds.
// Spec: https://hl7.org/fhir/R4/search.html#prefix.
func (w *writer) dateBounds(x string, bounds []Dates) {
	for _, b := range bounds {
		var low, high string
		if b.Op != GT && b.Op != SA {
			low = w.param(b.Low) + "::bigint"
		}
		if b.Op != LT && b.Op != EB {
			high = w.param(b.High) + "::bigint"
		}
		w.s(" AND ")
		switch b.Op {
		case EQ:
			w.s("(", x, ".low >= ", low, " AND ", x, ".high <= ", high, ")")
		case NE:
			w.s("NOT (", x, ".low >= ", low, " AND ", x, ".high <= ", high, ")")
		case LT:
			w.s(x, ".low < ", low)
		case LE:
			w.s("(", x, ".low < ", low, " OR ", x, ".low < ", high, " AND ", x, ".high <= ", high, ")")
		case GT:
			w.s(x, ".high > ", high)
		case GE:
			w.s("(", x, ".high > ", high, " OR ", x, ".low >= ", low, ")")
		case SA:
			w.s(x, ".low >= ", high)
		case EB:
			w.s(x, ".high <= ", low)
		case AP:
			w.s("(", x, ".low < ", high, " AND ", x, ".high > ", low, ")")
		}
	}
}

// probeKeys is keys for a row that is found by its rid: an index that begins with
// the key must not tempt the planner to look for the rid within a range.
func (w *writer) probeKeys(x string, keys []fhir.Key) {
	w.s(x, ".key + 0 = ")
	w.anyKey(keys)
}

func (w *writer) probeDates(r string, keys []fhir.Key, bounds []Dates) {
	x := "x" + w.next()
	w.s("EXISTS (SELECT 1 FROM index_date ", x, " WHERE ", x, ".rid = ", r, ".rid AND ")
	w.probeKeys(x, keys)
	w.dateBounds(x, bounds)
	w.s(" OFFSET 0)")
}

// updated writes the test of `_lastUpdated`, an instant.
func (w *writer) updated(r string, m *Updated) {
	at := func(micros int64) {
		w.p(time.UnixMicro(micros).UTC())
		w.s("::timestamptz")
	}
	col := r + ".last_updated"
	switch m.Op {
	case EQ, AP:
		w.s("(", col, " >= ")
		at(m.Low)
		w.s(" AND ", col, " < ")
		at(m.High)
		w.s(")")
	case NE:
		w.s("(", col, " < ")
		at(m.Low)
		w.s(" OR ", col, " >= ")
		at(m.High)
		w.s(")")
	case LT, EB:
		w.s(col, " < ")
		at(m.Low)
	case LE:
		w.s(col, " < ")
		at(m.High)
	case GT, SA:
		w.s(col, " >= ")
		at(m.High)
	case GE:
		w.s(col, " >= ")
		at(m.Low)
	}
}

// decimal writes nothing and returns a numeric parameter.
func (w *writer) decimal(d *apd.Decimal) string { return w.param(d.Text('f')) + "::numeric" }

// numbers are the operands of one comparison: parameters, or columns of a list
// of units.
type numbers struct{ value, low, high string }

func (w *writer) operands(m *Numbers) numbers {
	switch m.Op {
	case EQ, NE, AP:
		return numbers{low: w.decimal(m.Low), high: w.decimal(m.High)}
	}
	return numbers{value: w.decimal(m.Value)}
}

// numberCondition writes what the range of row x must be to n. A number has low
// and no high; high is set for a range.
// Spec: https://hl7.org/fhir/R4/search.html#number.
func (w *writer) numberCondition(x string, op Prefix, n numbers) {
	low, high := x+".low", "coalesce("+x+".high, "+x+".low)"
	switch op {
	case EQ:
		w.s("(", low, " >= ", n.low, " AND ", low, " < ", n.high, " AND (", x, ".high IS NULL OR ", x, ".high < ", n.high, "))")
	case NE:
		w.s("NOT (", low, " >= ", n.low, " AND ", high, " < ", n.high, ")")
	case LT:
		w.s(low, " < ", n.value)
	case LE:
		w.s(low, " <= ", n.value)
	case GT:
		w.s(high, " > ", n.value)
	case GE:
		w.s(high, " >= ", n.value)
	case SA:
		w.s(low, " > ", n.value)
	case EB:
		w.s("(", low, " < ", n.value, " AND ", high, " < ", n.value, ")")
	case AP:
		w.s("(", low, " <= ", n.high, " AND ", high, " >= ", n.low, ")")
	}
}

// numberBranches writes body once, or twice where the comparison is about the
// high end: then the points come by low and the ranges by high, each from its
// index.
func (w *writer) numberBranches(op Prefix, n numbers, x string, body func(condition func())) {
	switch op {
	case GT, GE:
		sign := " > "
		if op == GE {
			sign = " >= "
		}
		body(func() { w.s(x, ".low", sign, n.value) })
		w.s(" UNION ALL ")
		body(func() { w.s(x, ".high", sign, n.value, " AND NOT (", x, ".low", sign, n.value, ")") })
	case AP:
		body(func() { w.s(x, ".low >= ", n.low, " AND ", x, ".low <= ", n.high) })
		w.s(" UNION ALL ")
		body(func() { w.s(x, ".high >= ", n.low, " AND ", x, ".low < ", n.low) })
	default:
		body(func() { w.numberCondition(x, op, n) })
	}
}

func (w *writer) numberRIDs(m *Numbers) {
	x := "x" + w.next()
	n := w.operands(m)
	w.numberBranches(m.Op, n, x, func(condition func()) {
		w.s("SELECT ", x, ".rid FROM index_number ", x, " WHERE ")
		w.keys(x, m.Keys)
		w.s(" AND ")
		condition()
	})
}

func (w *writer) probeNumbers(r string, m *Numbers) {
	x := "x" + w.next()
	w.s("EXISTS (SELECT 1 FROM index_number ", x, " WHERE ", x, ".rid = ", r, ".rid AND ")
	w.probeKeys(x, m.Keys)
	w.s(" AND ")
	w.numberCondition(x, m.Op, w.operands(m))
	w.s(" OFFSET 0)")
}

// unitRanges is a comparison in each of the units in use that it can be asked in:
// the ids of the units and the comparison itself, and its numbers as text.
type unitRanges struct {
	units            []int64
	each             []*Numbers
	value, low, high []string
}

// unitRanges converts a comparison, once for each search.
func (w *writer) unitRanges(m *Quantities) unitRanges {
	if r, ok := w.env.converted[m.Value]; ok {
		return r
	}
	var r unitRanges
	var from *ucum.Unit
	if m.System == ucumSystem {
		from = measure(m.Code)
	}
	for i := range w.env.Units {
		u := &w.env.Units[i]
		n := m.Numbers
		switch {
		case m.System == "" && (u.Code == m.Code || u.Unit == m.Code):
		case m.System != "" && u.System == m.System && u.Code == m.Code:
		case m.System == ucumSystem && u.System == ucumSystem:
			var ok bool
			if from == nil || u.measure == nil {
				continue
			}
			if n, ok = convert(n, from, u.measure); !ok {
				continue
			}
		default:
			continue
		}
		r.units, r.each = append(r.units, u.ID), append(r.each, &n)
		r.value = append(r.value, n.Value.Text('f'))
		r.low = append(r.low, n.Low.Text('f'))
		r.high = append(r.high, n.High.Text('f'))
	}
	if w.env.converted == nil {
		w.env.converted = make(map[*apd.Decimal]unitRanges)
	}
	w.env.converted[m.Value] = r
	return r
}

// unitTable writes the units with their ranges as a table n.
func (w *writer) unitTable(n string, m *Quantities) {
	r := w.unitRanges(m)
	w.s("unnest(")
	w.p(r.units)
	w.s("::bigint[], ")
	for i, list := range [][]string{r.value, r.low, r.high} {
		if i > 0 {
			w.s(", ")
		}
		w.p(list)
		w.s("::text[]::numeric[]")
	}
	w.s(") AS ", n, "(unit, value, low, high)")
}

func (w *writer) quantityRIDs(m *Quantities) {
	x := "x" + w.next()
	u := "n" + w.next()
	if m.anyUnit() {
		// The index has the entries of each unit together.
		w.numberBranches(m.Op, w.operands(&m.Numbers), x, func(condition func()) {
			w.s("SELECT ", x, ".rid FROM quantity_unit ", u, " JOIN index_quantity ", x, " ON ", x, ".unit = ", u, ".id WHERE ")
			w.keys(x, m.Keys)
			w.s(" AND ")
			condition()
		})
		return
	}
	w.numberBranches(m.Op, numbers{u + ".value", u + ".low", u + ".high"}, x, func(condition func()) {
		w.s("SELECT ", x, ".rid FROM ")
		w.unitTable(u, m)
		w.s(" JOIN index_quantity ", x, " ON ", x, ".unit = ", u, ".unit WHERE ")
		w.keys(x, m.Keys)
		w.s(" AND ")
		condition()
	})
}

func (w *writer) probeQuantities(r string, m *Quantities) {
	x := "x" + w.next()
	w.s("EXISTS (SELECT 1 FROM ")
	if m.anyUnit() {
		w.s("index_quantity ", x, " WHERE ")
	} else {
		u := "n" + w.next()
		w.s("index_quantity ", x, " JOIN ")
		w.unitTable(u, m)
		w.s(" ON ", x, ".unit = ", u, ".unit WHERE ")
		w.numberCondition(x, m.Op, numbers{u + ".value", u + ".low", u + ".high"})
		w.s(" AND ")
	}
	w.s(x, ".rid = ", r, ".rid AND ")
	w.probeKeys(x, m.Keys)
	if m.anyUnit() {
		w.s(" AND ")
		w.numberCondition(x, m.Op, w.operands(&m.Numbers))
	}
	w.s(" OFFSET 0)")
}

// prefixLength is how much of a string its index keeps.
const prefixLength = 128

// highest sorts after every character that can follow a prefix.
const highest = "\U0010FFFF"

func (w *writer) stringRIDs(m *Strings) {
	x := "x" + w.next()
	w.s("SELECT ", x, ".rid FROM index_string ", x, " WHERE ")
	w.keys(x, m.Keys)
	w.s(" AND ")
	if m.Op != StartsWith && m.Op != Contains {
		w.textCondition(x, m)
		return
	}
	if m.Op == Contains {
		// Trigrams find parts of three characters and more; a shorter part reads
		// the strings of the key.
		if len([]rune(m.Text)) >= 3 {
			w.s(x, ".text LIKE ")
			w.p("%" + likeEscaper.Replace(m.Text) + "%")
			w.s("::text")
			return
		}
		w.s("strpos(", x, ".text, ")
		w.p(m.Text)
		w.s("::text) > 0")
		return
	}
	prefix := firstRunes(m.Text, prefixLength)
	w.s("left(", x, ".text, 128) >= ")
	w.p(prefix)
	w.s("::text AND left(", x, ".text, 128) < ")
	w.p(prefix + highest)
	w.s("::text")
	if len(prefix) < len(m.Text) {
		w.s(" AND starts_with(", x, ".text, ")
		w.p(m.Text)
		w.s("::text)")
	}
}

func (w *writer) probeStrings(r string, m *Strings) {
	x := "x" + w.next()
	w.s("EXISTS (SELECT 1 FROM index_string ", x, " WHERE ", x, ".rid = ", r, ".rid AND ")
	w.probeKeys(x, m.Keys)
	if m.Op != StartsWith && m.Op != Contains {
		w.s(" AND ")
		w.textCondition(x, m)
	} else if m.Op == Contains {
		w.s(" AND strpos(", x, ".text, ")
		w.p(m.Text)
		w.s("::text) > 0")
	} else {
		w.s(" AND starts_with(", x, ".text, ")
		w.p(m.Text)
		w.s("::text)")
	}
	w.s(" OFFSET 0)")
}

var likeEscaper = strings.NewReplacer(`\`, `\\`, `%`, `\%`, `_`, `\_`)

// firstRunes returns the first n characters of s.
func firstRunes(s string, n int) string {
	if len(s) <= n {
		return s
	}
	runes := 0
	for i := range s {
		if runes == n {
			return s[:i]
		}
		runes++
	}
	return s
}

// single reports whether no rid comes twice from the driving form of any.
func single(any []Match) bool {
	if len(any) != 1 {
		return false
	}
	switch m := any[0].(type) {
	case Dates:
		return m.Single
	case dateRange, Updated:
		return true
	case Numbers:
		return m.Single
	case Quantities:
		return m.Single
	case Strings:
		return m.Single
	}
	return false
}

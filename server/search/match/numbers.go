package match

import (
	"fmt"
	"slices"

	"github.com/cockroachdb/apd/v3"

	"kiln/server/fhir"
)

// Numbers holds for a resource with a number entry that stands as Op says to
// Value, or, where Op takes the significant figures into account, to [Low, High).
type Numbers struct {
	Keys             []fhir.Key
	Single           bool
	Op               Prefix
	Value, Low, High *apd.Decimal
}

func (m Numbers) describe() string {
	switch m.Op {
	case EQ, NE, AP:
		return fmt.Sprintf("%s [%s, %s)", m.Op, m.Low, m.High)
	}
	return fmt.Sprintf("%s %s", m.Op, m.Value)
}

// decimal writes nothing and returns a numeric parameter.
func (w *Writer) decimal(d *apd.Decimal) string { return w.Param(d.Text('f')) + "::numeric" }

// numbers are the operands of one comparison: parameters, or columns of a list
// of units.
type numbers struct{ value, low, high string }

func (w *Writer) operands(m *Numbers) numbers {
	switch m.Op {
	case EQ, NE, AP:
		return numbers{low: w.decimal(m.Low), high: w.decimal(m.High)}
	}
	return numbers{value: w.decimal(m.Value)}
}

// numberCondition writes the comparison of row x with n. A number has low and no high; a range has both.
// Spec: https://hl7.org/fhir/R4/search.html#number.
func (w *Writer) numberCondition(x string, op Prefix, n numbers) {
	low, high := x+".low", "coalesce("+x+".high, "+x+".low)"
	switch op {
	case EQ:
		w.Write("(", low, " >= ", n.low, " AND ", low, " < ", n.high, " AND (", x, ".high IS NULL OR ", x, ".high < ", n.high, "))")
	case NE:
		w.Write("NOT (", low, " >= ", n.low, " AND ", high, " < ", n.high, ")")
	case LT:
		w.Write(low, " < ", n.value)
	case LE:
		w.Write(low, " <= ", n.value)
	case GT:
		w.Write(high, " > ", n.value)
	case GE:
		w.Write(high, " >= ", n.value)
	case SA:
		w.Write(low, " > ", n.value)
	case EB:
		w.Write("(", low, " < ", n.value, " AND ", high, " < ", n.value, ")")
	case AP:
		w.Write("(", low, " <= ", n.high, " AND ", high, " >= ", n.low, ")")
	}
}

// numberBranches writes body once, or twice where the comparison is about the
// high end: then the points come by low and the ranges by high, each from its
// index.
func (w *Writer) numberBranches(op Prefix, n numbers, x string, body func(condition func())) {
	switch op {
	case GT, GE:
		sign := " > "
		if op == GE {
			sign = " >= "
		}
		body(func() { w.Write(x, ".low", sign, n.value) })
		w.Write(" UNION ALL ")
		body(func() { w.Write(x, ".high", sign, n.value, " AND NOT (", x, ".low", sign, n.value, ")") })
	case AP:
		body(func() { w.Write(x, ".low >= ", n.low, " AND ", x, ".low <= ", n.high) })
		w.Write(" UNION ALL ")
		body(func() { w.Write(x, ".high >= ", n.low, " AND ", x, ".low < ", n.low) })
	default:
		body(func() { w.numberCondition(x, op, n) })
	}
}

func (w *Writer) numberRIDs(m *Numbers) {
	x := "x" + w.Next()
	n := w.operands(m)
	w.numberBranches(m.Op, n, x, func(condition func()) {
		w.Write("SELECT ", x, ".rid FROM index_number ", x, " WHERE ")
		w.Keys(x, m.Keys)
		w.Write(" AND ")
		condition()
	})
}

func (w *Writer) testNumbers(r string, m *Numbers) {
	x := "x" + w.Next()
	w.Write("EXISTS (SELECT 1 FROM index_number ", x, " WHERE ", x, ".rid = ", r, ".rid AND ")
	w.TestKeys(x, m.Keys)
	w.Write(" AND ")
	w.numberCondition(x, m.Op, w.operands(m))
	w.Write(" OFFSET 0)")
}

func (m Numbers) comparison() Comparison { return Comparison{NumberTable, m.Keys, m.Single} }

func (m Numbers) numbersIn(*Unit) (Numbers, bool) { return m, true }

func (m Numbers) ranged() {}

func (m Numbers) single() bool { return m.Single }

func (m Numbers) wide() bool { return m.Op.wide() }

func (m Numbers) find(w *Writer, _ []int16) { w.numberRIDs(&m) }

func (m Numbers) test(w *Writer, r string) { w.testNumbers(r, &m) }

func (m Numbers) byRows() bool { return true }

func (m Numbers) holds(r *Resource) Answer {
	return of(slices.ContainsFunc(r.Index.Numbers, func(e fhir.NumberEntry) bool {
		return slices.Contains(m.Keys, e.Key) && m.includes(e.Low, e.High)
	}))
}

// includes is numberCondition for one entry, whose ends are texts, "" for an open
// one.
func (m *Numbers) includes(from, to string) bool {
	low, high := stored(from, true), stored(to, false)
	switch m.Op {
	case NE:
		return !(low.Cmp(m.Low) >= 0 && high.Cmp(m.High) < 0)
	case LT:
		return low.Cmp(m.Value) < 0
	case LE:
		return low.Cmp(m.Value) <= 0
	case GT:
		return high.Cmp(m.Value) > 0
	case GE:
		return high.Cmp(m.Value) >= 0
	case SA:
		return low.Cmp(m.Value) > 0
	case EB:
		return low.Cmp(m.Value) < 0 && high.Cmp(m.Value) < 0
	case AP:
		return low.Cmp(m.High) <= 0 && high.Cmp(m.Low) >= 0
	}
	return low.Cmp(m.Low) >= 0 && low.Cmp(m.High) < 0 && high.Cmp(m.High) < 0
}

// stored reads one end of a range as the database stores it: infinite or 0 beyond the limits of numeric.
func stored(text string, low bool) *apd.Decimal {
	d, _, err := apd.NewFromString(text)
	switch {
	case err != nil || text == "":
		return &apd.Decimal{Form: apd.Infinite, Negative: low}
	case d.IsZero():
		return d
	}
	switch point := d.NumDigits() + int64(d.Exponent); {
	case point > 130000:
		return &apd.Decimal{Form: apd.Infinite, Negative: d.Negative}
	case point < -16000:
		return new(apd.Decimal)
	}
	return d
}

func (m Numbers) within(way []fhir.Key) Match {
	m.Keys, m.Single = withinKeys(m.Keys, way), false
	return m
}

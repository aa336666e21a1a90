package match

import (
	"slices"

	"github.com/cockroachdb/apd/v3"

	"kiln/server/fhir"
)

// NumberPair holds for a resource with an entry of two numbers, such as the start
// and the end of a variant, of which each stands as its comparison says.
type NumberPair struct {
	Keys          []fhir.Key
	First, Second Numbers
}

func (w *Writer) pairRIDs(m *NumberPair) {
	x := "x" + w.Next()
	w.Write("SELECT ", x, ".rid FROM index_number ", x, " WHERE ")
	w.Keys(x, m.Keys)
	w.pairCondition(x, m)
}

func (w *Writer) testPair(r string, m *NumberPair) {
	x := "x" + w.Next()
	w.Write("EXISTS (SELECT 1 FROM index_number ", x, " WHERE ", x, ".rid = ", r, ".rid AND ")
	w.TestKeys(x, m.Keys)
	w.pairCondition(x, m)
	w.Write(" OFFSET 0)")
}

// pairCondition writes both comparisons: the first number is the low end of the
// row, the second the high end, which is null where it is the same.
func (w *Writer) pairCondition(x string, m *NumberPair) {
	w.Write(" AND ")
	w.pointCondition(x+".low", &m.First)
	w.Write(" AND ")
	w.pointCondition("coalesce("+x+".high, "+x+".low)", &m.Second)
}

// pointCondition is numberCondition for a single number.
func (w *Writer) pointCondition(col string, m *Numbers) {
	n := w.operands(m)
	switch m.Op {
	case EQ:
		w.Write("(", col, " >= ", n.low, " AND ", col, " < ", n.high, ")")
	case NE:
		w.Write("NOT (", col, " >= ", n.low, " AND ", col, " < ", n.high, ")")
	case LT, EB:
		w.Write(col, " < ", n.value)
	case LE:
		w.Write(col, " <= ", n.value)
	case GT, SA:
		w.Write(col, " > ", n.value)
	case GE:
		w.Write(col, " >= ", n.value)
	case AP:
		w.Write("(", col, " >= ", n.low, " AND ", col, " <= ", n.high, ")")
	}
}

func (m NumberPair) ranged() {}

func (m NumberPair) single() bool { return false }

func (m NumberPair) wide() bool { return false }

func (m NumberPair) find(w *Writer, _ []int16) { w.pairRIDs(&m) }

func (m NumberPair) test(w *Writer, r string) { w.testPair(r, &m) }

func (m NumberPair) holds(r *Resource) Answer {
	return of(slices.ContainsFunc(r.Index.Numbers, func(e fhir.NumberEntry) bool {
		return slices.Contains(m.Keys, e.Key) && m.First.includesPoint(stored(e.Low, true)) && m.Second.includesPoint(stored(e.High, false))
	}))
}

// includesPoint is pointCondition for one number.
func (m *Numbers) includesPoint(n *apd.Decimal) bool {
	within := n.Cmp(m.Low) >= 0 && n.Cmp(m.High) < 0
	switch m.Op {
	case NE:
		return !within
	case LT, EB:
		return n.Cmp(m.Value) < 0
	case LE:
		return n.Cmp(m.Value) <= 0
	case GT, SA:
		return n.Cmp(m.Value) > 0
	case GE:
		return n.Cmp(m.Value) >= 0
	case AP:
		return n.Cmp(m.Low) >= 0 && n.Cmp(m.High) <= 0
	}
	return within
}

func (m NumberPair) describe() string { return m.First.describe() + " and " + m.Second.describe() }

func (m NumberPair) within(way []fhir.Key) Match {
	m.Keys = withinKeys(m.Keys, way)
	return m
}

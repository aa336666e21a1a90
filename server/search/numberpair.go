package search

import "kiln/server/fhir"

// NumberPair holds for a resource with an entry of two numbers, such as the start
// and the end of a variant, of which each stands as its comparison says.
type NumberPair struct {
	Keys          []fhir.Key
	First, Second Numbers
}

func (NumberPair) match() {}

// pairOfNumbers reads the two numbers of a composite. They are compared with what
// the resource says: a position counts from 0 or from 1 as its coordinateSystem
// has it. Spec: https://hl7.org/fhir/R4/molecularsequence.html#search.
func (p *parser) pairOfNumbers(keys []fhir.Key, name, first, second string) ([]Match, error) {
	a, err := numberRange(name, unescape(first))
	if err != nil {
		return nil, err
	}
	b, err := numberRange(name, unescape(second))
	if err != nil {
		return nil, err
	}
	return []Match{NumberPair{Keys: keys, First: a, Second: b}}, nil
}

func (w *writer) pairRIDs(m *NumberPair) {
	x := "x" + w.next()
	w.s("SELECT ", x, ".rid FROM index_number ", x, " WHERE ")
	w.keys(x, m.Keys)
	w.pairCondition(x, m)
}

func (w *writer) probePair(r string, m *NumberPair) {
	x := "x" + w.next()
	w.s("EXISTS (SELECT 1 FROM index_number ", x, " WHERE ", x, ".rid = ", r, ".rid AND ")
	w.probeKeys(x, m.Keys)
	w.pairCondition(x, m)
	w.s(" OFFSET 0)")
}

// pairCondition writes both comparisons: the first number is the low end of the
// row, the second the high end, which is null where it is the same.
func (w *writer) pairCondition(x string, m *NumberPair) {
	w.s(" AND ")
	w.pointCondition(x+".low", &m.First)
	w.s(" AND ")
	w.pointCondition("coalesce("+x+".high, "+x+".low)", &m.Second)
}

// pointCondition is numberCondition for a single number.
func (w *writer) pointCondition(col string, m *Numbers) {
	n := w.operands(m)
	switch m.Op {
	case EQ:
		w.s("(", col, " >= ", n.low, " AND ", col, " < ", n.high, ")")
	case NE:
		w.s("NOT (", col, " >= ", n.low, " AND ", col, " < ", n.high, ")")
	case LT, EB:
		w.s(col, " < ", n.value)
	case LE:
		w.s(col, " <= ", n.value)
	case GT, SA:
		w.s(col, " > ", n.value)
	case GE:
		w.s(col, " >= ", n.value)
	case AP:
		w.s("(", col, " >= ", n.low, " AND ", col, " <= ", n.high, ")")
	}
}

package match

import (
	"slices"

	"github.com/cockroachdb/apd/v3"

	"kiln/server/fhir"
	"kiln/server/ucum"
)

// Quantities is Numbers for a quantity of a given unit. System "" with a Code
// accepts any system and the human unit; both "" accept any unit.
type Quantities struct {
	Numbers
	System, Code string
}

// AnyUnit reports whether the comparison is of numbers in whatever unit.
func (m *Quantities) AnyUnit() bool { return m.System == "" && m.Code == "" }

// UnitRanges is a comparison in each of the units in use that it can be asked in:
// the ids of the units and the comparison itself, and its numbers as text.
type UnitRanges struct {
	Units            []int64
	Each             []*Numbers
	value, low, high []string
}

// UnitRanges converts a comparison, once for each search.
func (w *Writer) UnitRanges(m *Quantities) UnitRanges {
	if r, ok := w.env.converted[m.Value]; ok {
		return r
	}
	var r UnitRanges
	from := m.measure()
	for i := range w.env.Units {
		n, ok := m.in(&w.env.Units[i], from)
		if !ok {
			continue
		}
		r.Units, r.Each = append(r.Units, w.env.Units[i].ID), append(r.Each, &n)
		r.value = append(r.value, n.Value.Text('f'))
		r.low = append(r.low, n.Low.Text('f'))
		r.high = append(r.high, n.High.Text('f'))
	}
	if w.env.converted == nil {
		w.env.converted = make(map[*apd.Decimal]UnitRanges)
	}
	w.env.converted[m.Value] = r
	return r
}

// unitTable writes the units with their ranges as a table n.
func (w *Writer) unitTable(n string, m *Quantities) {
	r := w.UnitRanges(m)
	w.Write("unnest(")
	w.Bind(r.Units)
	w.Write("::bigint[], ")
	for i, list := range [][]string{r.value, r.low, r.high} {
		if i > 0 {
			w.Write(", ")
		}
		w.Bind(list)
		w.Write("::text[]::numeric[]")
	}
	w.Write(") AS ", n, "(unit, value, low, high)")
}

func (w *Writer) quantityRIDs(m *Quantities, types []int16) {
	x := "x" + w.Next()
	u := "n" + w.Next()
	if m.AnyUnit() {
		// The index has the entries of each unit together.
		w.numberBranches(m.Op, w.operands(&m.Numbers), x, func(condition func()) {
			w.Write("SELECT ", x, ".rid FROM quantity_unit ", u, " JOIN index_quantity ", x, " ON ", x, ".unit = ", u, ".id WHERE ")
			w.PartedKeys(x, m.Keys, types)
			w.Write(" AND ")
			condition()
		})
		return
	}
	w.numberBranches(m.Op, numbers{u + ".value", u + ".low", u + ".high"}, x, func(condition func()) {
		w.Write("SELECT ", x, ".rid FROM ")
		w.unitTable(u, m)
		w.Write(" JOIN index_quantity ", x, " ON ", x, ".unit = ", u, ".unit WHERE ")
		w.PartedKeys(x, m.Keys, types)
		w.Write(" AND ")
		condition()
	})
}

func (w *Writer) testQuantities(r string, m *Quantities) {
	x := "x" + w.Next()
	w.Write("EXISTS (SELECT 1 FROM ")
	if m.AnyUnit() {
		w.Write("index_quantity ", x, " WHERE ")
	} else {
		u := "n" + w.Next()
		w.Write("index_quantity ", x, " JOIN ")
		w.unitTable(u, m)
		w.Write(" ON ", x, ".unit = ", u, ".unit WHERE ")
		w.numberCondition(x, m.Op, numbers{u + ".value", u + ".low", u + ".high"})
		w.Write(" AND ")
	}
	w.Write(x, ".rid = ", r, ".rid AND ")
	w.TestPartedKeys(x, m.Keys)
	if m.AnyUnit() {
		w.Write(" AND ")
		w.numberCondition(x, m.Op, w.operands(&m.Numbers))
	}
	w.Write(" OFFSET 0)")
}

func orAny(unit string) string {
	if unit == "" {
		return "any unit"
	}
	return unit
}

func (m Quantities) comparison() Comparison {
	return Comparison{QuantityTable, m.Keys, m.Single}
}

func (m Quantities) numbersIn(u *Unit) (Numbers, bool) {
	if m.AnyUnit() || m.names(u) {
		return m.Numbers, true
	}
	return m.in(u, m.measure())
}

func (m Quantities) find(w *Writer, types []int16) { w.quantityRIDs(&m, types) }

func (m Quantities) test(w *Writer, r string) { w.testQuantities(r, &m) }

func (m Quantities) holds(r *Resource) Answer {
	return of(slices.ContainsFunc(r.Index.Quantities, func(e fhir.QuantityEntry) bool {
		if !slices.Contains(m.Keys, e.Key) {
			return false
		}
		if m.AnyUnit() || m.names(&Unit{System: e.System, Code: e.Code, Unit: e.Unit}) {
			return m.includes(e.Low, e.High)
		}
		unit := NewUnit(0, e.System, e.Code, e.Unit)
		n, ok := m.in(&unit, m.measure())
		return ok && n.includes(e.Low, e.High)
	}))
}

func (m Quantities) describe() string { return m.Numbers.describe() + " in " + orAny(m.Code) }

// names reports whether a stored unit is the one asked for.
func (m *Quantities) names(u *Unit) bool {
	if m.System == "" {
		return u.Code == m.Code || u.Unit == m.Code
	}
	return u.System == m.System && u.Code == m.Code
}

// measure is the unit asked for, nil where it is not UCUM's.
func (m *Quantities) measure() *ucum.Unit {
	if m.System != ucumSystem {
		return nil
	}
	return measure(m.Code)
}

// in is the comparison in a stored unit; false where it cannot be asked in it.
func (m *Quantities) in(u *Unit, from *ucum.Unit) (Numbers, bool) {
	if m.names(u) {
		return m.Numbers, true
	}
	if m.System == ucumSystem && u.System == ucumSystem && from != nil && u.measure != nil {
		return convert(m.Numbers, from, u.measure)
	}
	return Numbers{}, false
}

func (m Quantities) within(way []fhir.Key) Match {
	m.Numbers = m.Numbers.within(way).(Numbers)
	return m
}

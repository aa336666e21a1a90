package match

import "kiln/server/fhir"

// All holds when each of its clauses does.
type All struct{ Clauses []Clause }

func (m All) nested() ([]Clause, bool) { return m.Clauses, false }

func (m All) restrict(readable func(types []string) []Clause) Match {
	return All{Restrict(m.Clauses, readable)}
}

func (m All) termTest(ref int64) (terms []int64, holds, ok bool) {
	if len(m.Clauses) != 1 || m.Clauses[0].Not {
		return nil, false, false
	}
	return termsOf(m.Clauses[0].Any, ref)
}

func (m All) resolve(e *Env) Match { return All{e.Resolve(m.Clauses)} }

func (m All) join(c *Conjunction, not bool) bool {
	if not {
		return false
	}
	c.add(m.Clauses)
	return true
}

func (m All) find(w *Writer, types []int16) { w.findAlone(m, types) }

func (m All) test(w *Writer, r string) {
	c := Conjoin(m.Clauses)
	w.Write("(")
	and := &Conditions{W: w}
	if c.Never {
		and.Next()
		w.Write("false")
	}
	w.Tests(r, &c, and, -1)
	if !and.Any {
		w.Write("true")
	}
	w.Write(")")
}

func (m All) byRows() bool { return ByRows(m.Clauses) }

func (m All) holds(r *Resource) Answer {
	out := Yes
	for i := range m.Clauses {
		out = min(out, m.Clauses[i].Holds(r))
	}
	return out
}

func (m All) describe() string { return Describe(m.Clauses) }

func (m All) within(way []fhir.Key) Match {
	clauses, ok := withinClauses(m.Clauses, way)
	if !ok {
		return nil
	}
	return All{clauses}
}

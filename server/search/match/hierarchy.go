package match

import (
	"slices"

	"kiln/server/fhir"
)

// Hierarchy holds for a resource that refers, under one of Keys, to the resource Ref
// or to one below it, or above it: along the references of Parents, such as
// Location.partOf. Spec: https://hl7.org/fhir/R4/search.html#recursive.
type Hierarchy struct {
	Keys    []fhir.Key
	Target  string     // resource type of the hierarchy
	Ref     int64      // where it begins, fhir.ValueReference
	Parents []fhir.Key // of the reference from a resource to the one above it
	Above   bool       // else below
	// Clauses must hold of every resource that is passed on the way.
	Clauses []Clause
}

func (m Hierarchy) nested() ([]Clause, bool) { return m.Clauses, true }

func (m Hierarchy) restrict(readable func(types []string) []Clause) Match {
	m.Clauses = readable([]string{m.Target})
	return m
}

func (m Hierarchy) resolve(e *Env) Match {
	m.Clauses = e.Resolve(m.Clauses)
	return m
}

func (m Hierarchy) find(w *Writer, types []int16) { w.findAlone(m, types) }

// findTerms writes a recursive SELECT, which a circle ends: no resource comes twice.
func (m Hierarchy) findTerms(w *Writer) {
	n := w.Next()
	h, k, r := "h"+n, "k"+n, "r"+n
	c := Conjoin(m.Clauses)
	w.Write("SELECT f.ref # k.k AS term FROM (WITH RECURSIVE ", h, "(ref) AS (SELECT ")
	w.Bind(m.Ref)
	w.Write("::bigint UNION SELECT ")
	if m.Above {
		w.Write("u.ref FROM ", h, " CROSS JOIN LATERAL (SELECT ", r, ".targets, ", r, ".terms FROM resource ", r, " WHERE ", r, ".ref = ", h, ".ref")
		w.Tests(r, &c, &Conditions{W: w, Any: true}, -1)
		w.Write(" OFFSET 0) ", r, " CROSS JOIN LATERAL unnest(", r, ".targets) AS u(ref) WHERE EXISTS (SELECT 1 FROM unnest(")
		w.Terms(int64s(m.Parents))
		w.Write(") AS ", k, "(k) WHERE u.ref # ", k, ".k = ANY (", r, ".terms) OFFSET 0)")
	} else {
		w.Write(r, ".ref FROM ", h, " CROSS JOIN unnest(")
		w.Terms(int64s(m.Parents))
		w.Write(") AS ", k, "(k) CROSS JOIN LATERAL (SELECT ", r, ".ref FROM resource ", r, " WHERE ", r, ".terms @> ARRAY[", h, ".ref # ", k, ".k]")
		w.Tests(r, &c, &Conditions{W: w, Any: true}, -1)
		w.Write(" OFFSET 0) ", r)
	}
	w.Write(") SELECT ref FROM ", h, ") f CROSS JOIN unnest(")
	w.Terms(int64s(m.Keys))
	w.Write(") AS k(k)")
}

func (m Hierarchy) test(w *Writer, r string) {
	w.Write("(", r, ".terms && ARRAY(")
	m.findTerms(w)
	w.Write(")) IS TRUE")
}

func (Hierarchy) open() {}

// holds depends on the hierarchy, unless the resource refers to nothing.
func (m Hierarchy) holds(r *Resource) Answer {
	if !slices.ContainsFunc(m.Keys, func(k fhir.Key) bool { return r.HasTerm(k.Term(fhir.ValuePresent())) }) {
		return No
	}
	return Unknown
}

func (m Hierarchy) describe() string {
	where := "below"
	if m.Above {
		where = "above"
	}
	return "refers to it or to a " + m.Target + " " + where + " it"
}

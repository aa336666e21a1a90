package match

import (
	"slices"
	"strings"

	"kiln/server/fhir"
)

// Named holds for a resource with a canonical under one of Keys that names a resource of type Target for which
// Clauses hold. With Back it holds for a resource that a canonical of such a resource names. A canonical names
// the resources with its url; with a version it names that version.
// Spec: https://hl7.org/fhir/R4/references.html#canonical.
type Named struct {
	Keys    []fhir.Key
	Target  string
	Clauses []Clause
	Back    bool
}

// findTerms writes a SELECT of the terms of the names that the targets have. One side's term of a name is the
// other's under another key, so mixing both keys in turns one into the other.
func (m Named) findTerms(w *Writer) {
	u := "t" + w.Next()
	c := Conjoin(m.Clauses)
	types, never := w.targetTypes(m.Target)
	c.Never = c.Never || never
	w.Write("SELECT v.v # k.k AS term FROM unnest(")
	w.Terms(m.masks())
	w.Write(") AS k(k), (SELECT ", u, ".terms FROM ")
	w.Matching(u, &c, types)
	w.Write(") f, unnest(f.terms) AS v(v) WHERE ", m.isName("v", !m.Back))
}

// masks return the numbers that turn the term of a resource's own name into the term of a canonical under a
// key, and back.
func (m *Named) masks() []int64 {
	masks := make([]int64, len(m.Keys))
	for i, k := range m.Keys {
		masks[i] = int64(fhir.NamingKey(k) ^ fhir.NameKey)
	}
	return masks
}

// isName writes the test that the term of v is a name: the resource's own, or one in a canonical. A few other
// terms pass, but no entry has them under the other key.
func (m *Named) isName(v string, itself bool) string {
	if itself {
		return v + ".v & 255 = 1"
	}
	return v + ".v & 255 = 0"
}

// test writes the test that r has a name of a target: along those that it has.
func (m Named) test(w *Writer, r string) {
	n := w.Next()
	t, v := "t"+n, "v"+n
	c := Conjoin(m.Clauses)
	types, never := w.targetTypes(m.Target)
	if never || c.Never {
		w.Write("false")
		return
	}
	w.Write("EXISTS (SELECT 1 FROM unnest(", r, ".terms) AS ", v, "(v) CROSS JOIN unnest(")
	w.Terms(m.masks())
	w.Write(") AS k(k) JOIN resource ", t, " ON ", t, ".terms @> ARRAY[", v, ".v # k.k] WHERE ", m.isName(v, m.Back), " AND ", t, ".typ = ANY (")
	w.Bind(types)
	w.Write("::smallint[])")
	w.Tests(t, &c, &Conditions{W: w, Any: true}, -1)
	w.Write(" OFFSET 0)")
}

func (m Named) nested() ([]Clause, bool) { return m.Clauses, true }

func (m Named) restrict(readable func(types []string) []Clause) Match {
	m.Clauses = append(Restrict(m.Clauses, readable), readable(strings.Split(m.Target, "|"))...)
	return m
}

func (m Named) resolve(e *Env) Match {
	m.Clauses = e.Resolve(m.Clauses)
	return m
}

func (m Named) find(w *Writer, types []int16) { w.findAlone(m, types) }

func (Named) open() {}

// holds depends on other resources, unless the resource has no reference.
func (m Named) holds(r *Resource) Answer {
	if !m.Back && !slices.ContainsFunc(m.Keys, func(k fhir.Key) bool { return r.HasTerm(k.Term(fhir.ValuePresent())) }) {
		return No
	}
	return Unknown
}

func (m Named) describe() string {
	how := "names"
	if m.Back {
		how = "is named by"
	}
	return how + " a " + strings.ReplaceAll(m.Target, "|", " or ") + " where " + Describe(m.Clauses)
}

func (m Named) within(way []fhir.Key) Match {
	if m.Back {
		return nil // a contained resource is never named by its url
	}
	m.Keys = withinKeys(m.Keys, way)
	return m
}

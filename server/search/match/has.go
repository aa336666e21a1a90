package match

import (
	"strconv"

	"kiln/server/fhir"
)

// Has holds for a resource that a resource of type Source, for which Clauses
// hold, refers to under one of Keys.
// Spec: https://hl7.org/fhir/R4/search.html#has.
type Has struct {
	Source  string
	Keys    []fhir.Key
	Clauses []Clause
}

// FindRefs writes a SELECT of the ref of every resource that a matching source
// refers to.
func (m Has) FindRefs(w *Writer, limit int) {
	n := w.Next()
	s, u := "s"+n, "u"+n
	c := Conjoin(m.Clauses)
	n1, ok := w.env.Type(m.Source)
	c.Never = c.Never || !ok
	w.Write("SELECT ")
	if limit > 0 {
		w.Write("DISTINCT ")
	}
	w.Write(u, ".ref FROM (SELECT ", s, ".targets, ", s, ".terms FROM ")
	w.Matching(s, &c, []int16{n1})
	w.Write(") ", s, ", unnest(", s, ".targets) AS ", u, "(ref) WHERE ")
	w.Under(u+".ref", m.Keys, s+".terms")
	if limit > 0 {
		w.Write(" LIMIT ", strconv.Itoa(limit))
	}
}

// test writes the test that a matching source refers to r.
func (m Has) test(w *Writer, r string) {
	s := "s" + w.Next()
	c := Conjoin(m.Clauses)
	if _, ok := w.env.Type(m.Source); !ok || c.Never {
		w.Write("false")
		return
	}
	w.Write("EXISTS (SELECT 1 FROM resource ", s, " WHERE ", s, ".terms ")
	if len(m.Keys) == 1 {
		w.Write("@> (ARRAY[", r, ".ref # ")
		w.Bind(int64(m.Keys[0]))
		w.Write("::bigint] || ")
		w.Terms(c.All)
		w.Write(")")
		c.All = nil
	} else {
		w.Write("&& ARRAY(SELECT ", r, ".ref # k.k FROM unnest(")
		w.Terms(int64s(m.Keys))
		w.Write(") AS k(k))")
	}
	and := &Conditions{W: w, Any: true}
	w.Tests(s, &c, and, -1)
	w.Write(" OFFSET 0)")
}

func (m Has) nested() ([]Clause, bool) { return m.Clauses, true }

func (m Has) related(*Resource) Related {
	return Related{Types: []string{m.Source}, Clauses: m.Clauses, By: m.Keys}
}

func (m Has) link() (Link, bool) {
	return Link{Types: []string{m.Source}, Keys: m.Keys, Back: true, Clauses: m.Clauses}, true
}

func (m Has) restrict(readable func(types []string) []Clause) Match {
	m.Clauses = append(Restrict(m.Clauses, readable), readable([]string{m.Source})...)
	return m
}

func (m Has) resolve(e *Env) Match {
	m.Clauses = e.Resolve(m.Clauses)
	return m
}

func (m Has) find(w *Writer, types []int16) { w.findAlone(m, types) }

func (Has) open() {}

// holds depends on what refers to the resource.
func (m Has) holds(*Resource) Answer { return Unknown }

func (m Has) describe() string {
	return "a " + m.Source + " refers to it where " + Describe(m.Clauses)
}

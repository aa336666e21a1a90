package match

import (
	"slices"
	"strings"

	"kiln/server/fhir"
)

// Chain holds for a resource that refers, under one of Keys, to a resource of
// type Target for which Clauses hold.
// Spec: https://hl7.org/fhir/R4/search.html#chaining.
type Chain struct {
	Keys    []fhir.Key
	Target  string
	Clauses []Clause
}

// findTerms writes a SELECT of the terms that a resource has which refers to a
// target of the chain: the target's ref, mixed with the key of the reference.
func (m Chain) findTerms(w *Writer) {
	t := "t" + w.Next()
	c := Conjoin(m.Clauses)
	types, never := w.targetTypes(m.Target)
	c.Never = c.Never || never
	if len(m.Keys) == 1 {
		w.Write("SELECT ", t, ".ref # ")
		w.Bind(int64(m.Keys[0]))
		w.Write("::bigint AS term FROM ")
	} else {
		w.Write("SELECT ", t, ".ref # k.k AS term FROM unnest(")
		w.Terms(int64s(m.Keys))
		w.Write(") AS k(k), ")
	}
	w.Matching(t, &c, types)
}

// targetTypes are the numbers of the types of a chain's target; several are
// joined by "|".
func (w *Writer) targetTypes(target string) (types []int16, never bool) {
	for t := range strings.SplitSeq(target, "|") {
		if n, ok := w.env.Type(t); ok {
			types = append(types, n)
		}
	}
	return types, len(types) == 0
}

// test writes the test that r refers to a target of the chain: along the
// references that it has.
func (m Chain) test(w *Writer, r string) {
	t, u := "t"+w.Next(), "u"+w.Next()
	c := Conjoin(m.Clauses)
	types, never := w.targetTypes(m.Target)
	if never || c.Never {
		w.Write("false")
		return
	}
	w.Write("EXISTS (SELECT 1 FROM unnest(", r, ".targets) AS ", u, "(ref) JOIN resource ", t, " ON ", t, ".ref = ", u, ".ref WHERE ")
	w.Under(u+".ref", m.Keys, r+".terms")
	w.Write(" AND ", t, ".typ = ANY (")
	w.Bind(types)
	w.Write("::smallint[])")
	and := &Conditions{W: w, Any: true}
	w.Tests(t, &c, and, -1)
	w.Write(" OFFSET 0)")
}

func (m Chain) nested() ([]Clause, bool) { return m.Clauses, true }

func (m Chain) related(r *Resource) Related {
	out := Related{Types: strings.Split(m.Target, "|"), Clauses: m.Clauses}
	for _, target := range r.Index.Targets {
		if slices.ContainsFunc(m.Keys, func(k fhir.Key) bool { return r.HasTerm(k.Term(fhir.Value(target))) }) {
			out.Targets = append(out.Targets, target)
		}
	}
	return out
}

func (m Chain) link() (Link, bool) {
	return Link{Types: strings.Split(m.Target, "|"), Keys: m.Keys, Clauses: m.Clauses}, true
}

func (m Chain) restrict(readable func(types []string) []Clause) Match {
	m.Clauses = append(Restrict(m.Clauses, readable), readable(strings.Split(m.Target, "|"))...)
	return m
}

func (m Chain) resolve(e *Env) Match {
	m.Clauses = e.Resolve(m.Clauses)
	return m
}

func (m Chain) find(w *Writer, types []int16) { w.findAlone(m, types) }

func (Chain) open() {}

// holds returns Unknown unless the resource has no reference: the answer depends on the target.
func (m Chain) holds(r *Resource) Answer {
	if !slices.ContainsFunc(m.Keys, func(k fhir.Key) bool { return r.HasTerm(k.Term(fhir.ValuePresent())) }) {
		return No
	}
	return Unknown
}

func (m Chain) describe() string {
	return "refers to a " + strings.ReplaceAll(m.Target, "|", " or ") + " where " + Describe(m.Clauses)
}

func (m Chain) within(way []fhir.Key) Match {
	m.Keys = withinKeys(m.Keys, way)
	return m
}

package search

import (
	"slices"
	"strings"

	"kiln/server/fhir"
)

// OfTypes holds for a resource of one of these types.
type OfTypes struct{ Types []string }

func (OfTypes) match() {}

// isTypes reports whether the clause asks for nothing but types: it is tested, and
// finds no candidates.
func (p *pred) isTypes() bool {
	for _, m := range p.any {
		if _, ok := m.(OfTypes); !ok {
			return false
		}
	}
	return len(p.any) > 0
}

// probeTypes writes the test that r is of one of the types.
func (w *writer) probeTypes(r string, m *OfTypes) {
	numbers := []int16{}
	for _, t := range m.Types {
		if n, ok := w.env.Type(t); ok {
			numbers = append(numbers, n)
		}
	}
	w.s(r, ".typ = ANY (")
	w.p(numbers)
	w.s("::smallint[])")
}

// Restrict makes the query blind to what readable hides: chains and `_has` follow
// only resources that are readable, and includes add no others. readable returns
// what must hold of a resource of any of types, nil for every type. It leaves the
// matches themselves to And.
func (q *Query) Restrict(readable func(types []string) []Clause) {
	q.Clauses = restricted(q.Clauses, readable)
	if len(q.Includes)+len(q.RevIncludes) > 0 {
		q.Readable = readable(nil)
	}
}

func restricted(clauses []Clause, readable func(types []string) []Clause) []Clause {
	out := slices.Clone(clauses)
	for i := range out {
		out[i].Any = slices.Clone(out[i].Any)
		for j, m := range out[i].Any {
			switch m := m.(type) {
			case Chain:
				m.Clauses = append(restricted(m.Clauses, readable), readable(strings.Split(m.Target, "|"))...)
				out[i].Any[j] = m
			case Has:
				m.Clauses = append(restricted(m.Clauses, readable), readable([]string{m.Source})...)
				out[i].Any[j] = m
			case All:
				m.Clauses = restricted(m.Clauses, readable)
				out[i].Any[j] = m
			}
		}
	}
	return out
}

// readable writes the test that an include may add r, after other conditions.
func (p *Plan) readable(w *writer, r string) {
	if len(p.q.Readable) == 0 {
		return
	}
	c := conjoin(p.env.resolve(p.q.Readable))
	and := &conditions{w: w, any: true}
	if c.never {
		and.next()
		w.s("false")
	}
	w.probing(r, &c, and, -1)
}

// CompartmentMatches are the matches of which one holds for every resource of typ in
// one of the compartments code/id: by R4's definition of the compartment, and for a
// type that it forgets (Device, Task, …) by a search parameter named like the
// compartment. nil says that the type has no part in it. Search parameters that
// arrived at run time make no difference.
// Spec: https://hl7.org/fhir/R4/compartmentdefinition.html.
func (r *Registry) CompartmentMatches(typ, code string, ids ...string) []Match {
	def := r.compartments[code]
	if def == nil {
		return nil
	}
	by := def.By[typ]
	if len(by) == 0 {
		if p, ok := r.compiled[typ][strings.ToLower(code)]; !ok || p.Type != fhir.SearchReference {
			return nil
		}
		by = []string{strings.ToLower(code)}
	}
	values := make([]fhir.Value, len(ids))
	refs := make([]int64, len(ids))
	for i, id := range ids {
		values[i] = fhir.ValueReference(code, id)
		refs[i] = int64(values[i])
	}
	var keys []fhir.Key
	var out []Match
	for _, name := range by {
		if name == "{def}" {
			out = append(out, IDs{refs})
		} else if p, ok := r.compiled[typ][name]; ok {
			keys = append(keys, p.Keys...)
		}
	}
	slices.Sort(keys)
	if keys = slices.Compact(keys); len(keys) > 0 {
		out = append(out, termsOf(keys, values...))
	}
	return out
}

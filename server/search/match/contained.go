package match

import (
	"slices"

	"kiln/server/fhir"
)

// Contained holds for a resource that contains one of a type, to which it refers by one reference, and for which
// Clauses hold. Where it contains several that it refers to so, they are asked as if they were one: with a
// Clause that is not to hold, none of them may have what is asked for.
// Spec: https://hl7.org/fhir/R4/search.html#contained, "chained parameters will be evaluated inside contained
// resources".
type Contained struct {
	Type    string
	Clauses []Clause // by the keys that the containing resource has the entries under
	Refers  int64    // the term of a resource that refers so to one of Type
	Types   fhir.Key // of the texts that are the types contained anywhere and referred to so
}

// ContainedOf is the match that c is for contained resources of a type to which ref refers; false where c asks
// what no contained resource has: an id, an update of its own, what refers to it.
func ContainedOf(ref fhir.Key, typ string, c Clause) (Contained, bool) {
	mask := fhir.ContainedMask(ref)
	clauses, ok := withinClauses([]Clause{c}, mask)
	return Contained{Type: typ, Clauses: clauses, Refers: ref.Term(fhir.ValueContained(typ)), Types: mask}, ok
}

// withinClauses are the clauses about the resource that contains those that clauses are about.
func withinClauses(clauses []Clause, mask fhir.Key) ([]Clause, bool) {
	out := slices.Clone(clauses)
	for i := range out {
		out[i].Any = nil
		for _, m := range clauses[i].Any {
			if k, ok := m.(containable); ok {
				if m = k.within(mask); m != nil {
					out[i].Any = append(out[i].Any, m)
				}
			}
		}
		if len(out[i].Any) == 0 {
			return nil, false
		}
	}
	return out, true
}

func withinKeys(keys []fhir.Key, mask fhir.Key) []fhir.Key {
	out := slices.Clone(keys)
	for i := range out {
		out[i] ^= mask
	}
	return out
}

func (m Contained) within(mask fhir.Key) Match {
	var ok bool
	if m.Clauses, ok = withinClauses(m.Clauses, mask); !ok {
		return nil
	}
	m.Refers ^= int64(mask)
	m.Types ^= mask
	return m
}

// all is what is asked of the resource itself.
func (m Contained) all() All {
	return All{append([]Clause{{Any: []Match{Terms{[]int64{m.Refers}}}}}, m.Clauses...)}
}

// resolve is nothing where no resource contains such a one.
func (m Contained) resolve(e *Env) Match {
	if !slices.Contains(e.Texts(m.Types), m.Type) {
		return nil
	}
	return m.all().resolve(e)
}

func (m Contained) nested() ([]Clause, bool) { return m.all().Clauses, false }

func (m Contained) restrict(readable func(types []string) []Clause) Match {
	m.Clauses = Restrict(m.Clauses, readable)
	return m
}

// find and test have nothing to write: Env.Resolve puts what is asked in its place.
func (m Contained) find(w *Writer, types []int16) { m.all().find(w, types) }

func (m Contained) test(w *Writer, r string) { m.all().test(w, r) }

func (m Contained) holds(r *Resource) Answer { return m.all().holds(r) }

func (m Contained) describe() string {
	return "contains a " + m.Type + " where " + Describe(m.Clauses)
}

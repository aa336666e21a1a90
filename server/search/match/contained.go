package match

import (
	"slices"

	"kiln/server/fhir"
)

// Contained holds for a resource that contains a resource of a type, reachable by a path of references (see
// fhir.ContainedMask), for which Clause holds. Several contained resources at the end of the path count as
// one: with a negated Clause none of them may match.
// Spec: https://hl7.org/fhir/R4/search.html#contained, "chained parameters will be evaluated inside contained
// resources".
type Contained struct {
	Type   string
	Way    []fhir.Key
	Clause Clause // as of a stored resource of Type

	whole All // the conditions on the containing resource
}

// ContainedOf is the match that c is for contained resources of a type to which ref refers; false where c asks
// what no contained resource has: an id, an update of its own, what refers to it.
func ContainedOf(ref fhir.Key, typ string, c Clause) (Contained, bool) {
	return Contained{Type: typ, Way: []fhir.Key{ref}, Clause: c}.made()
}

// made fills in m.whole.
func (m Contained) made() (Contained, bool) {
	clauses, ok := withinClauses([]Clause{m.Clause}, m.Way)
	last := len(m.Way) - 1
	refers := (m.Way[last] ^ fhir.ContainedMask(m.Way[:last]...)).Term(fhir.ValueContained(m.Type))
	m.whole = All{append([]Clause{{Any: []Match{Terms{[]int64{refers}}}}}, clauses...)}
	return m, ok
}

// withinClauses are the clauses about the resource that contains those that clauses are about.
func withinClauses(clauses []Clause, way []fhir.Key) ([]Clause, bool) {
	out := slices.Clone(clauses)
	for i := range out {
		out[i].Any = nil
		for _, m := range clauses[i].Any {
			if k, ok := m.(containable); ok {
				if m = k.within(way); m != nil {
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

func withinKeys(keys []fhir.Key, way []fhir.Key) []fhir.Key {
	out, mask := slices.Clone(keys), fhir.ContainedMask(way...)
	for i := range out {
		out[i] ^= mask
	}
	return out
}

func (m Contained) within(way []fhir.Key) Match {
	m.Way = slices.Concat(way, m.Way)
	if made, ok := m.made(); ok {
		return made
	}
	return nil
}

// resolve is nothing where no resource contains such a one.
func (m Contained) resolve(e *Env) Match {
	if !slices.Contains(e.Texts(fhir.ContainedMask(m.Way...)), m.Type) {
		return nil
	}
	return m.whole.resolve(e)
}

func (m Contained) nested() ([]Clause, bool) { return m.whole.Clauses, false }

func (m Contained) restrict(readable func(types []string) []Clause) Match {
	m.Clause = Restrict([]Clause{m.Clause}, readable)[0]
	m, _ = m.made()
	return m
}

// find and test are not asked: Env.Resolve puts m.whole in its place.
func (m Contained) find(w *Writer, types []int16) { m.whole.find(w, types) }

func (m Contained) test(w *Writer, r string) { m.whole.test(w, r) }

func (m Contained) holds(r *Resource) Answer { return m.whole.holds(r) }

func (m Contained) describe() string {
	return "contains a " + m.Type + " where " + Describe([]Clause{m.Clause})
}

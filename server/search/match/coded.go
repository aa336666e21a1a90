package match

import "kiln/server/fhir"

// Coded holds for a resource with a coded row of a composite: a code, in whatever
// system, and what Any, one of Dates, Numbers and Quantities, says of the value.
// Compile puts Any in its place, with the keys of the code in each system.
type Coded struct {
	Key  fhir.Key // fhir.Composite.Coded
	Code string
	Any  Match
	Mask fhir.Key // of keys; 0 for the resource itself
}

func (m Coded) nested() ([]Clause, bool) { return []Clause{{Any: []Match{m.Any}}}, false }

// resolve is what m.Any says of the rows of the code in each of its systems.
func (m Coded) resolve(e *Env) Match {
	return m.in(e.Texts(m.systems()))
}

// systems is the key of the texts that are the systems of the code.
func (m Coded) systems() fhir.Key {
	return fhir.CompositeKey(m.Key, fhir.ValueCode(m.Code)) ^ m.Mask
}

func (m Coded) in(systems []string) Match {
	keys := []fhir.Key{}
	for _, system := range systems {
		keys = append(keys, fhir.CompositeKey(m.Key, fhir.ValueCoding(system, m.Code))^m.Mask)
	}
	if any, ok := m.Any.(keyed); ok {
		return any.under(keys)
	}
	return m.Any
}

// keyed has keys that can be others.
type keyed interface{ under(keys []fhir.Key) Match }

func (m Dates) under(keys []fhir.Key) Match {
	m.Keys, m.Single = keys, m.Single && len(keys) == 1
	return m
}

func (m Numbers) under(keys []fhir.Key) Match {
	m.Keys, m.Single = keys, m.Single && len(keys) == 1
	return m
}

func (m Quantities) under(keys []fhir.Key) Match {
	m.Keys, m.Single = keys, m.Single && len(keys) == 1
	return m
}

// find and test write nothing: Env.Resolve has replaced the match.
func (m Coded) find(w *Writer, types []int16) { All{}.find(w, types) }

func (m Coded) test(w *Writer, _ string) { w.Write("false") }

// holds reads the systems of the code from the entries of the resource itself.
func (m Coded) holds(r *Resource) Answer {
	key := m.systems()
	var systems []string
	for _, e := range r.Index.Texts {
		if e.Key == key {
			systems = append(systems, e.Text)
		}
	}
	return m.in(systems).holds(r)
}

func (m Coded) describe() string { return m.Any.describe() }

func (m Coded) within(way []fhir.Key) Match {
	m.Mask = fhir.ContainedMask(way...)
	return m
}

package match

import "kiln/server/fhir"

// Expanded holds for a resource that has, under one of Keys, a value of a set.
type Expanded struct {
	Keys []fhir.Key
	Set  int64
}

// findTerms writes a SELECT of the terms that the set makes under the keys.
func (m Expanded) findTerms(w *Writer) {
	v := "v" + w.Next()
	for i, k := range m.Keys {
		if i > 0 {
			w.Write(" UNION ALL ")
		}
		w.Write("SELECT ", v, ".value # ")
		w.Bind(int64(k))
		w.Write("::bigint AS term FROM terminology_set_value ", v, " WHERE ", v, ".set_id = ")
		w.Bind(m.Set)
		w.Write("::bigint")
	}
}

// test tests the terms of a row against the set.
func (m Expanded) test(w *Writer, r string) {
	v, t := "v"+w.Next(), "t"+w.Next()
	w.Write("EXISTS (SELECT 1 FROM unnest(", r, ".terms) AS ", t, "(term) JOIN terminology_set_value ", v, " ON ", v, ".set_id = ")
	w.Bind(m.Set)
	w.Write("::bigint AND ")
	for i, k := range m.Keys {
		if i > 0 {
			w.Write(" OR ")
		} else {
			w.Write("(")
		}
		w.Write(v, ".value = ", t, ".term # ")
		w.Bind(int64(k))
		w.Write("::bigint")
	}
	w.Write(") OFFSET 0)")
}

func (m Expanded) find(w *Writer, types []int16) { w.findAlone(m, types) }

func (Expanded) open() {}

// holds returns Unknown: memory does not contain the set.
func (m Expanded) holds(*Resource) Answer { return Unknown }

func (m Expanded) describe() string { return "" }

func (m Expanded) within(way []fhir.Key) Match {
	m.Keys = withinKeys(m.Keys, way)
	return m
}

package search

import "kiln/server/fhir"

// Expansion asks for the codes that `:in`, `:not-in` (Modifier "in") or `:below`,
// `:above` stand for.
type Expansion struct {
	Modifier     string // in, below, above
	ValueSet     string // canonical, for in
	System, Code string // for below and above; System may be ""
	// Implicit is the system of a code element, whose entries name none: its
	// codes are looked for without system, too.
	Implicit string
}

// Codes are the codes of an Expansion as the index holds them: a list, or where
// there are many, a set in the table terminology_set_value.
type Codes struct {
	Values []fhir.Value
	Set    int64 // 0 is none
}

// Expanded holds for a resource that has, under one of Keys, a value of a set.
type Expanded struct {
	Keys []fhir.Key
	Set  int64
}

func (Expanded) match() {}

// expandedTerms writes a SELECT of the terms that the set makes under the keys.
func (w *writer) expandedTerms(m *Expanded) {
	v := "v" + w.next()
	for i, k := range m.Keys {
		if i > 0 {
			w.s(" UNION ALL ")
		}
		w.s("SELECT ", v, ".value # ")
		w.p(int64(k))
		w.s("::bigint AS term FROM terminology_set_value ", v, " WHERE ", v, ".set_id = ")
		w.p(m.Set)
		w.s("::bigint")
	}
}

// probeExpanded tests the terms of a row against the set.
func (w *writer) probeExpanded(r string, m *Expanded) {
	v, t := "v"+w.next(), "t"+w.next()
	w.s("EXISTS (SELECT 1 FROM unnest(", r, ".terms) AS ", t, "(term) JOIN terminology_set_value ", v, " ON ", v, ".set_id = ")
	w.p(m.Set)
	w.s("::bigint AND ")
	for i, k := range m.Keys {
		if i > 0 {
			w.s(" OR ")
		} else {
			w.s("(")
		}
		w.s(v, ".value = ", t, ".term # ")
		w.p(int64(k))
		w.s("::bigint")
	}
	w.s(") OFFSET 0)")
}

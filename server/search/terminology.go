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

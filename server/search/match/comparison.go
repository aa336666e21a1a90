package match

import "kiln/server/fhir"

// Table is one of the ordered tables of the index.
type Table uint8

// The ordered tables whose entries a comparison is about.
const (
	DateTable Table = iota
	NumberTable
	QuantityTable
)

// Comparison says which entries a match compares.
type Comparison struct {
	Table  Table
	Keys   []fhir.Key
	Single bool // a resource has at most one of them
}

// ComparisonOf is the comparison that m makes; false for the kinds that make none.
func ComparisonOf(m Match) (Comparison, bool) {
	if c, ok := m.(comparing); ok {
		return c.comparison(), true
	}
	return Comparison{}, false
}

// DateBoundsOf is the comparisons with the one date entry that m asks for, which all have
// to hold of it; nil for the kinds that are about no date.
func DateBoundsOf(m Match) []Dates {
	if d, ok := m.(dated); ok {
		return d.bounds()
	}
	return nil
}

// NumbersIn is the comparison that m makes with numbers of a unit, nil for numbers
// without one; false where it makes none.
func NumbersIn(m Match, u *Unit) (Numbers, bool) {
	if n, ok := m.(numbered); ok {
		return n.numbersIn(u)
	}
	return Numbers{}, false
}

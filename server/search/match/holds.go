package match

import (
	"slices"
	"time"

	"kiln/server/fhir"
)

// Resource is a resource to be judged in memory, as stored or before it is stored.
type Resource struct {
	Type, ID    string
	VersionID   int // where the maker knows it; no match asks for it
	LastUpdated time.Time
	Index       *fhir.Index // finished
}

// HasTerm reports whether the resource has a term.
func (r *Resource) HasTerm(term int64) bool {
	_, ok := slices.BinarySearch(r.Index.Terms, term)
	return ok
}

// Answer is whether a clause holds for a resource.
type Answer uint8

// The answers, ordered: of several clauses the least holds for all, of several
// alternatives the greatest.
const (
	No Answer = iota
	// Unknown means that the answer depends on other resources or on data of the database alone: a chain,
	// `_has`, the codes of a large value set, full text.
	Unknown
	Yes
)

func of(holds bool) Answer {
	if holds {
		return Yes
	}
	return No
}

// Holds judges a resource by its index entries as SQL judges its row.
func (c *Clause) Holds(r *Resource) Answer {
	out := No
	for _, m := range c.Any {
		if out = max(out, m.holds(r)); out == Yes {
			break
		}
	}
	if c.Not {
		return Yes - out
	}
	return out
}

// Hold judges a resource by all clauses: no, where one does not hold; else yes, if
// those that are returned hold too, which the database has to be asked of.
func Hold(clauses []Clause, r *Resource) (yes bool, ask []Clause) {
	for i := range clauses {
		switch clauses[i].Holds(r) {
		case No:
			return false, nil
		case Unknown:
			ask = append(ask, clauses[i])
		}
	}
	return true, ask
}

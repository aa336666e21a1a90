package search

import (
	"fmt"
	"net/url"
	"slices"
	"strings"

	"kiln/server/fhir"
	"kiln/server/outcome"
	"kiln/server/search/match"
)

// Query is a search, read and checked: everything that it asks for can be
// applied. A Query is not changed after Parse, save by And.
type Query struct {
	// Type is the resource type searched, "" for a system search; Types are all
	// types searched, sorted, and empty when a system search names none.
	Type  string
	Types []string

	Clauses []match.Clause // ANDed

	Count  int     // matches on a page; 0 asks for the total only
	Asked  int     // the _count of the request, where it is more than Options.MaxCount; else 0
	Offset int     // matches to skip; ignored where Cursor is set
	Cursor *Cursor // where the page begins or ends, nil at the start
	Sort   []SortKey

	Includes    []Include
	RevIncludes []Include
	// Readable is what must hold of a resource that an include adds.
	Readable []match.Clause

	Summary  Summary
	Elements []string // top-level element names, nil for all
	Total    TotalMode
	Explain  bool

	// Ignored tells of parameters that were left out under Options.Lenient.
	Ignored []outcome.Issue
	// Notices warn of parameters by which not everything can be found yet.
	Notices []outcome.Issue

	applied url.Values
}

// SortKey is one key of `_sort`.
type SortKey struct {
	Code       string
	Type       fhir.SearchType // any but composite and special; token for `_id`; string where a SortIndex has the values
	Keys       []fhir.Key      // of every type searched
	Targets    []string        // of a reference: only those to these types count; nil is every one
	Single     bool
	Descending bool
	Indexed    bool // SortIndexes have the values
	Indexable  bool // a SortIndex of each type searched would have them
}

// InMemory reports whether the values of the key must be read from resources.
func (k *SortKey) InMemory() bool { return isText(k.Type) && k.Keys != nil }

// isText reports whether values of a type are kept as hashes only, so that their
// order shows in the resources alone.
func isText(t fhir.SearchType) bool {
	return t == fhir.SearchToken || t == fhir.SearchReference || t == fhir.SearchURI
}

// Include is one `_include` or `_revinclude`.
// Spec: https://hl7.org/fhir/R4/search.html#include.
type Include struct {
	Source  string // resource type that has the reference; "*" is every one
	Param   string // parameter code; "*" is every reference
	Target  string // only references to this type; "" is every one
	Iterate bool
	// Keys are the keys of the named reference parameters.
	Keys []fhir.Key
	// Canonicals are the types with a canonical URL that the references may name.
	Canonicals []Canonical
}

// Canonical is a resource type whose resources have a canonical URL.
// Spec: https://hl7.org/fhir/R4/references.html#canonical.
type Canonical struct {
	Type string
	Keys []fhir.Key // of its parameter url
}

// same reports whether both follow the same references at the same time.
func (in Include) same(o Include) bool {
	return in.Source == o.Source && in.Param == o.Param && in.Target == o.Target && in.Iterate == o.Iterate
}

// Summary is the value of `_summary`.
type Summary string

// The summaries. SummaryNone is `_summary=false`, the whole resource.
const (
	SummaryNone  Summary = ""
	SummaryTrue  Summary = "true"
	SummaryText  Summary = "text"
	SummaryData  Summary = "data"
	SummaryCount Summary = "count"
)

// TotalMode is the value of `_total`.
type TotalMode string

// The total is exact unless the client wants none or is content with an estimate.
const (
	TotalAccurate TotalMode = ""
	TotalNone     TotalMode = "none"
	TotalEstimate TotalMode = "estimate"
)

// Applied returns the parameters that the query applies, for the self link: those of the request without the
// ignored ones, `_count` after clamping, and neither `_offset` nor cursor.
func (q *Query) Applied() url.Values {
	out := make(url.Values, len(q.applied)+1)
	for k, v := range q.applied {
		out[k] = v
	}
	return out
}

// And adds a clause: access narrows a query to what may be seen. It is not part
// of Applied.
func (q *Query) And(c match.Clause) { q.Clauses = append(q.Clauses, c) }

// Holds judges one resource in memory, by its index entries. yes is false if the resource has another type or a
// clause does not hold. Otherwise ask contains the clauses on other resources or on data of the
// database alone. Without such clauses the resource matches; else About asks the database.
//
// SQL and Holds agree on every resource whose index was made by the registry that parsed the query.
func (q *Query) Holds(r *match.Resource) (yes bool, ask []match.Clause) {
	if len(q.Types) > 0 && !slices.Contains(q.Types, r.Type) {
		return false, nil
	}
	return match.Hold(q.Clauses, r)
}

// About is the query whether clauses hold for one stored resource: its total is 1
// where they do, else 0.
func About(typ, id string, clauses []match.Clause) *Query {
	one := match.Clause{Name: "_id", Value: id, Any: []match.Match{match.IDs{Refs: []int64{int64(fhir.ValueReference(typ, id))}}}}
	return &Query{Type: typ, Types: []string{typ}, Clauses: append([]match.Clause{one}, clauses...)}
}

// Describe returns the conditions of a query in words.
func (q *Query) Describe() string {
	var b strings.Builder
	if len(q.Types) == 0 {
		b.WriteString("resources of every type")
	} else {
		b.WriteString(strings.Join(q.Types, ", "))
	}
	if len(q.Clauses) > 0 {
		b.WriteString(" where ")
		b.WriteString(match.Describe(q.Clauses))
	}
	for i, k := range q.Sort {
		if i == 0 {
			b.WriteString("; by ")
		} else {
			b.WriteString(", then by ")
		}
		b.WriteString(k.Code)
		if k.Descending {
			b.WriteString(" descending")
		}
	}
	fmt.Fprintf(&b, "; %d on a page", q.Count)
	return b.String()
}

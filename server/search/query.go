package search

import (
	"net/url"
	"slices"

	"kiln/server/fhir"
	"kiln/server/outcome"

	"github.com/cockroachdb/apd/v3"
)

// Query is a search, read and checked: everything that it asks for can be
// applied. A Query is not changed after Parse, save by And.
type Query struct {
	// Type is the resource type searched, "" for a system search; Types are all
	// types searched, sorted, and empty when a system search names none.
	Type  string
	Types []string

	Clauses []Clause // ANDed

	Count  int     // matches on a page; 0 asks for the total only
	Offset int     // matches to skip; ignored where Cursor is set
	Cursor *Cursor // where the page begins or ends, nil at the start
	Sort   []SortKey

	Includes    []Include
	RevIncludes []Include
	// Readable is what must hold of a resource that an include adds.
	Readable []Clause

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

// Clause is one parameter of a query: the resource must have one of Any, or, when
// Not is set, none of them.
type Clause struct {
	Name  string // parameter as written, with modifier and chain
	Value string // as written
	Any   []Match
	Not   bool
}

// Match is something that the index must say of a resource.
type Match interface{ match() }

// Terms holds for a resource that has one of these terms.
type Terms struct{ Values []int64 }

// Dates holds for a resource with a date entry that stands to [Low, High) as Op
// says.
type Dates struct {
	Keys      []fhir.Key
	Single    bool // at most one entry for each resource
	Op        Prefix
	Low, High int64 // UTC microseconds
}

// Numbers holds for a resource with a number entry that stands as Op says to
// Value, or, where Op takes the significant figures into account, to [Low, High).
type Numbers struct {
	Keys             []fhir.Key
	Single           bool
	Op               Prefix
	Value, Low, High *apd.Decimal
}

// Quantities is Numbers for a quantity of a given unit. System "" with a Code
// accepts any system and the human unit; both "" accept any unit.
type Quantities struct {
	Numbers
	System, Code string
}

// anyUnit reports whether the comparison is of numbers in whatever unit.
func (m *Quantities) anyUnit() bool { return m.System == "" && m.Code == "" }

// Strings holds for a resource with a string that, folded, stands to Text as Op
// says.
type Strings struct {
	Keys   []fhir.Key
	Single bool
	Op     TextOp
	Text   string // folded
}

// Texts holds for a resource that has a term for one of the distinct texts of
// Keys that Op accepts: display texts, or uris at and below Text.
type Texts struct {
	Keys []fhir.Key
	Op   TextOp
	Text string
}

// TextOp is how texts are compared.
type TextOp uint8

// The comparisons of Strings and Texts.
const (
	StartsWith TextOp = iota
	Contains
	URIBelow // Text itself, or Text and further path steps or a version
	EndsWith
	Whole // equal
	Other // not equal
)

// IDs holds for the resources with these ref values (fhir.ValueReference).
type IDs struct{ Refs []int64 }

// Updated holds for a resource whose last update stands to [Low, High) as Op
// says; microseconds.
type Updated struct {
	Op        Prefix
	Low, High int64
}

// Chain holds for a resource that refers, under one of Keys, to a resource of
// type Target for which Clauses hold.
// Spec: https://hl7.org/fhir/R4/search.html#chaining.
type Chain struct {
	Keys    []fhir.Key
	Target  string
	Clauses []Clause
	// CanonicalKeys are the keys of the target's own url, for a reference that is
	// a canonical; nil where the target has none.
	CanonicalKeys []fhir.Key
}

// Has holds for a resource that a resource of type Source, for which Clauses
// hold, refers to under one of Keys.
// Spec: https://hl7.org/fhir/R4/search.html#has.
type Has struct {
	Source  string
	Keys    []fhir.Key
	Clauses []Clause
}

// Coded holds for a resource with a joint row of a composite: a code, in whatever
// system, and what Any, one of Dates, Numbers and Quantities, says of the value.
// Compile puts Any in its place, with the keys of the code in each system.
type Coded struct {
	Key  fhir.Key // fhir.Composite.Joint
	Code string
	Any  Match
}

// All holds when each of its clauses does.
type All struct{ Clauses []Clause }

func (Terms) match()      {}
func (Dates) match()      {}
func (Numbers) match()    {}
func (Quantities) match() {}
func (Strings) match()    {}
func (Texts) match()      {}
func (IDs) match()        {}
func (Updated) match()    {}
func (Chain) match()      {}
func (Has) match()        {}
func (Coded) match()      {}
func (All) match()        {}

// Prefix is a comparison. Spec: https://hl7.org/fhir/R4/search.html#prefix.
type Prefix uint8

// The prefixes, eq being the default.
const (
	EQ Prefix = iota
	NE
	LT
	LE
	GT
	GE
	SA
	EB
	AP
)

var prefixNames = [...]string{"eq", "ne", "lt", "le", "gt", "ge", "sa", "eb", "ap"}

// String returns the two letters of the prefix.
func (p Prefix) String() string { return prefixNames[p] }

// SortKey is one key of `_sort`.
type SortKey struct {
	Code       string
	Type       fhir.SearchType // any but composite and special; token for `_id`
	Keys       []fhir.Key      // of every type searched
	Targets    []string        // of a reference: only those to these types count; nil is every one
	Single     bool
	Descending bool
}

// Include is one `_include` or `_revinclude`.
// Spec: https://hl7.org/fhir/R4/search.html#include.
type Include struct {
	Source  string // resource type that has the reference; "*" is every one
	Param   string // parameter code; "*" is every reference
	Target  string // only references to this type; "" is every one
	Iterate bool
	// Keys are those of the reference parameters named.
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

// Applied returns the parameters that the query applies, for the self link:
// those of the request, without the ones that were ignored, `_count` as it was
// clamped, and without `_offset` and cursor.
func (q *Query) Applied() url.Values {
	out := make(url.Values, len(q.applied)+1)
	for k, v := range q.applied {
		out[k] = v
	}
	return out
}

// And adds a clause: access narrows a query to what may be seen. It is not part
// of Applied.
func (q *Query) And(c Clause) { q.Clauses = append(q.Clauses, c) }

// Inside narrows the query to resources of types in the compartment code/id,
// "Patient/123": to that resource, and those that refer to it under one of the
// parameters that the compartment is defined by. Like And it is not part of Applied.
// Spec: https://hl7.org/fhir/R4/http.html#vsearch, compartmentdefinition.html.
func (q *Query) Inside(r *Registry, types []string, code, id string) {
	c := Clause{Name: "compartment", Value: code + "/" + id}
	v := fhir.ValueReference(code, id)
	var keys []fhir.Key
	for _, t := range types {
		q.Notices = addNotice(q.Notices, r.notices[t])
		for _, by := range r.compartments[code].By[t] {
			if by == "{def}" {
				c.Any = append(c.Any, IDs{[]int64{int64(v)}})
			} else if param, ok := r.compiled[t][by]; ok {
				keys = append(keys, param.Keys...)
			}
		}
	}
	slices.Sort(keys)
	if keys = slices.Compact(keys); len(keys) > 0 {
		c.Any = append(c.Any, termsOf(keys, v))
	}
	q.And(c)
}

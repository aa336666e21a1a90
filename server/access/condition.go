package access

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"kiln/server/fhir"
	"kiln/server/search/match"
)

// Condition is what must hold of a resource for a caller to be let near it, in the
// query tree of search: a search ANDs it into its SQL, Holds asks it of one
// resource. The zero value lets everything through.
type Condition struct {
	none    bool
	clauses []match.Clause // ANDed
	words   string         // in FHIR's words, "" for everything
	notice  string         // warns of matches that may be missing while an index is built, "" for none
	// related asks the database about the targets of a chain; nil if no clause has a chain.
	related func(match.Related) (bool, error)
}

// nothing lets nothing through.
var nothing = Condition{none: true}

// None reports whether nothing can pass.
func (c Condition) None() bool { return c.none }

// Whole reports whether everything passes.
func (c Condition) Whole() bool { return !c.none && len(c.clauses) == 0 }

// String is the condition in FHIR's words: "Patient/1/Observation",
// "Observation?category=laboratory"; "everything", "nothing".
func (c Condition) String() string {
	switch {
	case c.none:
		return "nothing"
	case len(c.clauses) == 0:
		return "everything"
	}
	return c.words
}

// or lets through what either does.
func (c Condition) or(o Condition) Condition {
	switch {
	case c.none || o.Whole():
		return o
	case o.none || c.Whole() || c.words == o.words:
		return c
	}
	return Condition{
		clauses: []match.Clause{{Name: "access", Value: "any", Any: append(c.matches(), o.matches()...)}},
		words:   c.words + " or " + o.words,
		notice:  cmp.Or(c.notice, o.notice),
		related: c.relatedOr(o),
	}
}

// relatedOr returns the question of c about other resources, or else the question of o. All
// conditions of one principal have the same.
func (c Condition) relatedOr(o Condition) func(match.Related) (bool, error) {
	if c.related != nil {
		return c.related
	}
	return o.related
}

// and lets through what both do.
func (c Condition) and(o Condition) Condition {
	switch {
	case c.none || o.Whole():
		return c
	case o.none || c.Whole():
		return o
	}
	return Condition{clauses: slices.Concat(c.clauses, o.clauses), words: grouped(c.words) + " and " + grouped(o.words),
		notice: cmp.Or(c.notice, o.notice), related: c.relatedOr(o)}
}

// not lets through what c does not.
func (c Condition) not() Condition {
	switch {
	case c.none:
		return Condition{}
	case c.Whole():
		return nothing
	}
	return Condition{
		clauses: []match.Clause{{Name: "access", Value: "none", Any: []match.Match{match.All{Clauses: c.clauses}}, Not: true}},
		words:   "not " + grouped(c.words),
		related: c.related,
	}
}

func grouped(words string) string {
	if strings.Contains(words, " or ") || strings.Contains(words, " and ") {
		return "(" + words + ")"
	}
	return words
}

// matches is c as alternatives of one clause.
func (c Condition) matches() []match.Match {
	if len(c.clauses) == 1 && !c.clauses[0].Not {
		return slices.Clone(c.clauses[0].Any)
	}
	return []match.Match{match.All{Clauses: c.clauses}}
}

// neverClause is the clause that holds for no resource.
func neverClause() match.Clause {
	return match.Clause{Name: "access", Value: "nothing", Any: []match.Match{match.IDs{Refs: []int64{}}}}
}

// Clauses are the clauses that a query must AND to find only visible resources.
func (c Condition) Clauses() []match.Clause {
	if c.none {
		return []match.Clause{neverClause()}
	}
	return c.clauses
}

// Holds reports whether the resource passes. It asks the database about the targets of a chain.
func (c Condition) Holds(r *match.Resource) (bool, error) {
	if c.none {
		return false, nil
	}
	yes, open := match.Hold(c.clauses, r)
	if !yes || len(open) == 0 {
		return yes, nil
	}
	return c.holdOpen(open, r)
}

// holdOpen reports whether clauses that depend on other resources hold for r.
func (c Condition) holdOpen(clauses []match.Clause, r *match.Resource) (bool, error) {
	for i := range clauses {
		holds := false
		for _, m := range clauses[i].Any {
			var err error
			if holds, err = c.holdMatch(m, r); err != nil {
				return false, err
			}
			if holds {
				break
			}
		}
		if holds == clauses[i].Not {
			return false, nil
		}
	}
	return true, nil
}

// holdMatch reports whether one match holds for r.
func (c Condition) holdMatch(m match.Match, r *match.Resource) (bool, error) {
	alone := match.Clause{Any: []match.Match{m}}
	if answer := alone.Holds(r); answer != match.Unknown {
		return answer == match.Yes, nil
	}
	if inner := match.Inner(m); inner != nil {
		return c.holdOpen(inner, r)
	}
	related, ok := match.RelatedTo(m, r)
	if !ok || c.related == nil {
		return false, fmt.Errorf("access: %s cannot be asked of one resource", c)
	}
	return c.related(related)
}

// TermTest is the condition for the resource typ/id as its stored terms decide it; false
// where it asks for more than terms.
func (c Condition) TermTest(typ, id string) (match.TermTest, bool) {
	if c.Whole() {
		return match.TermTest{}, false // nothing to ask
	}
	return match.TermTestOf(c.Clauses(), int64(fhir.ValueReference(typ, id)))
}

// checkDecidable fails where clauses cannot be asked of one resource alone: chains, `_has`,
// the codes of a large value set, full text.
func checkDecidable(clauses []match.Clause) error {
	for _, c := range clauses {
		if match.Open([]match.Clause{c}) {
			return fmt.Errorf("%s=%s: a condition asks only for content of the resource itself", c.Name, c.Value)
		}
	}
	return nil
}

// joinByType is the clause that holds for a resource of each type as its condition says;
// conditions has an entry for each type that may be seen at all. false is no clause:
// each of types, all there are, passes.
func joinByType(types []string, conditions map[string]Condition) (match.Clause, bool) {
	out := match.Clause{Name: "access", Value: "by type"}
	var whole []string
	every := true
	for _, t := range types {
		c, ok := conditions[t]
		if !ok || c.none {
			every = false
			continue
		}
		if c.Whole() {
			whole = append(whole, t)
			continue
		}
		every = false
		if len(c.clauses) == 1 && !c.clauses[0].Not && match.OfOneType(c.clauses[0].Any) {
			out.Any = append(out.Any, c.clauses[0].Any...)
			continue
		}
		out.Any = append(out.Any, match.All{Clauses: append([]match.Clause{
			{Name: "_type", Value: t, Any: []match.Match{match.OfTypes{Types: []string{t}}}}}, c.clauses...)})
	}
	if every {
		return out, false
	}
	out.Any = match.Merge(out.Any)
	if len(whole) > 0 {
		out.Any = append(out.Any, match.OfTypes{Types: whole})
	}
	if len(out.Any) == 0 {
		return neverClause(), true
	}
	return out, true
}

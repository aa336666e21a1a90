package match

import "slices"

// TermTest is a condition on one resource that its stored terms alone decide, so that
// the query that reads the resource can ask it as well: the resource has a term of each
// list of Any, and none of None. The zero value holds for everything.
type TermTest struct {
	Any  [2][]int64 // nil asks nothing, an empty list holds for nothing
	None []int64
}

// TermTestOf writes the conjunction of clauses for the resource with a ref as a TermTest.
// It reports false where there is none: they ask for more than terms.
func TermTestOf(clauses []Clause, ref int64) (t TermTest, ok bool) {
	n := 0
	for _, c := range clauses {
		terms, holds, ok := termsOf(c.Any, ref)
		switch {
		case !ok:
			return TermTest{}, false
		case c.Not && holds:
			return TermTest{Any: [2][]int64{{}}}, true
		case c.Not:
			t.None = append(t.None, terms...)
		case holds:
		case n == len(t.Any):
			return TermTest{}, false
		default:
			t.Any[n] = terms
			n++
		}
	}
	return t, true
}

// termsOf is the terms of which the resource needs one for an alternative to hold; holds
// says that one holds already. ok is false for alternatives that ask for more.
func termsOf(any []Match, ref int64) (terms []int64, holds, ok bool) {
	terms = []int64{}
	for _, m := range any {
		t, is := m.(termTested)
		if !is {
			return nil, false, false
		}
		more, one, ok := t.termTest(ref)
		if !ok {
			return nil, false, false
		}
		if holds = holds || one; len(terms) == 0 && len(more) > 0 {
			terms = slices.Clip(more) // not copied where it stands alone
		} else {
			terms = append(terms, more...)
		}
	}
	return terms, holds, true
}

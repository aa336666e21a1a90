package strategy_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"testing"

	gocmp "github.com/google/go-cmp/cmp"

	"kiln/server/search/searchtest"
)

// filterLeaf is one comparison of `_filter` about a patient.
func filterLeaf(c *searchtest.Corpus, r *rand.Rand) searchtest.Condition[searchtest.Patient] {
	switch r.IntN(8) {
	case 0:
		g := searchtest.PickRandom(r, []string{"male", "female", "other"})
		return searchtest.Condition[searchtest.Patient]{Name: "gender eq", Value: g, Holds: func(p *searchtest.Patient) bool { return p.Gender == g }}
	case 1:
		g := searchtest.PickRandom(r, []string{"male", "female", "other"})
		return searchtest.Condition[searchtest.Patient]{Name: "gender ne", Value: g, Holds: func(p *searchtest.Patient) bool { return p.Gender != "" && p.Gender != g }}
	case 2:
		present := searchtest.PickRandom(r, []string{"true", "false"})
		return searchtest.Condition[searchtest.Patient]{Name: "birthdate pr", Value: present, Holds: func(p *searchtest.Patient) bool { return (p.Birth != "") == (present == "true") }}
	case 3:
		op, year := searchtest.PickRandom(r, []string{"eq", "ne", "gt", "lt", "ge", "le", "sa", "eb", "po"}), strconv.Itoa(1930+r.IntN(90))
		slow, shigh := searchtest.Span(year)
		return searchtest.Condition[searchtest.Patient]{Name: "birthdate " + op, Value: year, Holds: func(p *searchtest.Patient) bool {
			if p.Birth == "" {
				return false
			}
			low, high := searchtest.Span(p.Birth)
			if op == "po" {
				return low < shigh && high > slow
			}
			return searchtest.DateHolds(op, low, high, slow, shigh)
		}}
	case 4:
		op, text := searchtest.PickRandom(r, []string{"eq", "ne", "co", "sw", "ew"}), searchtest.Fold(searchtest.PickRandom(r, searchtest.Families))
		switch from := r.IntN(len(text)); op {
		case "co":
			text = text[from:]
		case "sw":
			text = text[:from+1]
		case "ew":
			text = text[from:]
		}
		if text = strings.TrimSpace(text); text == "" {
			text = "e"
		}
		return searchtest.Condition[searchtest.Patient]{Name: "family " + op, Value: fmt.Sprintf("%q", text), Holds: func(p *searchtest.Patient) bool {
			family, text := searchtest.JoinText(searchtest.Fold(p.Family)), searchtest.JoinText(text)
			switch op {
			case "eq":
				return family == text
			case "ne":
				return family != text
			case "co":
				return strings.Contains(family, text)
			case "sw":
				return strings.HasPrefix(family, text)
			}
			return strings.HasSuffix(family, text)
		}}
	case 5:
		n := r.IntN(2)
		return searchtest.Condition[searchtest.Patient]{Name: "organization.name eq", Value: fmt.Sprintf(`"clinic %d"`, n), Holds: func(p *searchtest.Patient) bool { return p.Organization >= 0 && p.Organization%2 == n }}
	case 6:
		org := fmt.Sprintf("org%d", r.IntN(4))
		return searchtest.Condition[searchtest.Patient]{Name: "organization re", Value: "Organization/" + org, Holds: func(p *searchtest.Patient) bool { return fmt.Sprintf("org%d", p.Organization) == org }}
	}
	inner := searchtest.PickRandom(r, searchtest.Statuses)
	return searchtest.Condition[searchtest.Patient]{Name: "_has:Observation:patient:status eq", Value: inner, Holds: func(p *searchtest.Patient) bool {
		return searchtest.AnyOf(c.Observations, func(o searchtest.Observation) bool { return o.Subject == "Patient/"+p.ID && o.Status == inner })
	}}
}

// filterTree is a random filter with what it means.
func filterTree(c *searchtest.Corpus, r *rand.Rand, depth int) (string, func(*searchtest.Patient) bool) {
	if depth == 0 || r.IntN(4) == 0 {
		leaf := filterLeaf(c, r)
		return leaf.Name + " " + leaf.Value, leaf.Holds
	}
	left, l := filterTree(c, r, depth-1)
	switch r.IntN(5) {
	case 0:
		return "not (" + left + ")", func(p *searchtest.Patient) bool { return !l(p) }
	case 1, 2:
		right, m := filterTree(c, r, depth-1)
		return "(" + left + ") and (" + right + ")", func(p *searchtest.Patient) bool { return l(p) && m(p) }
	}
	right, m := filterTree(c, r, depth-1)
	return "(" + left + ") or (" + right + ")", func(p *searchtest.Patient) bool { return l(p) || m(p) }
}

// TestRandomFilters compares `_filter` with an evaluation in memory, as candidates
// and counted and walked, alone and inside a chain.
// Spec: https://hl7.org/fhir/R4/search_filter.html.
func TestRandomFilters(t *testing.T) {
	s, _ := searchtest.Open(t)
	c := searchtest.NewCorpus(31, 120, 300)
	c.Load(t, s)
	r := rand.New(rand.NewPCG(9, 9))
	n := 150
	if testing.Short() {
		n = 40
	}
	check := func(sc searchtest.Case) {
		t.Helper()
		slices.Sort(sc.Want)
		for _, limit := range []int{0, 3} {
			limitSearches(s, limit)
			got := pages(t, s, &sc, max(1, len(sc.Want)/2))
			slices.Sort(got)
			if diff := gocmp.Diff(sc.Want, got); diff != "" {
				t.Fatalf("%v (limit %d):\n%s", sc.Values, limit, diff)
			}
			if r := searchtest.FindMatches(t, s, sc.ParseQuery(t, "_count", "0")); *r.Total != len(sc.Want) {
				t.Fatalf("%v (limit %d): total %d, want %d", sc.Values, limit, *r.Total, len(sc.Want))
			}
		}
	}
	for range n {
		text, holds := filterTree(c, r, 4)
		sc := searchtest.Case{Type: "Patient", Values: searchtest.Parameters("_filter", text)}
		for i := range c.Patients {
			if holds(&c.Patients[i]) {
				sc.Want = append(sc.Want, c.Patients[i].ID)
			}
		}
		check(sc)
		chained := searchtest.Case{Type: "Observation", Values: searchtest.Parameters("_filter", "subject:Patient["+text+"].family pr true")}
		for i := range c.Observations {
			o := &c.Observations[i]
			if searchtest.AnyOf(c.Patients, func(p searchtest.Patient) bool { return o.Subject == "Patient/"+p.ID && holds(&p) }) {
				chained.Want = append(chained.Want, o.ID)
			}
		}
		check(chained)
	}
}

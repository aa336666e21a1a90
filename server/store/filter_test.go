package store_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"testing"

	gocmp "github.com/google/go-cmp/cmp"
)

// filterLeaf is one comparison of `_filter` about a patient.
func (c *corpus) filterLeaf(r *rand.Rand) condition[patient] {
	switch r.IntN(8) {
	case 0:
		g := pick(r, []string{"male", "female", "other"})
		return condition[patient]{"gender eq", g, func(p *patient) bool { return p.gender == g }}
	case 1:
		g := pick(r, []string{"male", "female", "other"})
		return condition[patient]{"gender ne", g, func(p *patient) bool { return p.gender != "" && p.gender != g }}
	case 2:
		present := pick(r, []string{"true", "false"})
		return condition[patient]{"birthdate pr", present, func(p *patient) bool { return (p.birth != "") == (present == "true") }}
	case 3:
		op, year := pick(r, []string{"eq", "ne", "gt", "lt", "ge", "le", "sa", "eb", "po"}), strconv.Itoa(1930+r.IntN(90))
		slow, shigh := span(year)
		return condition[patient]{"birthdate " + op, year, func(p *patient) bool {
			if p.birth == "" {
				return false
			}
			low, high := span(p.birth)
			if op == "po" {
				return low < shigh && high > slow
			}
			return dateHolds(op, low, high, slow, shigh)
		}}
	case 4:
		op, text := pick(r, []string{"eq", "ne", "co", "sw", "ew"}), fold(pick(r, families))
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
		return condition[patient]{"family " + op, fmt.Sprintf("%q", text), func(p *patient) bool {
			family, text := joinTest(fold(p.family)), joinTest(text)
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
		return condition[patient]{"organization.name eq", fmt.Sprintf(`"clinic %d"`, n), func(p *patient) bool { return p.organization >= 0 && p.organization%2 == n }}
	case 6:
		org := fmt.Sprintf("org%d", r.IntN(4))
		return condition[patient]{"organization re", "Organization/" + org, func(p *patient) bool { return fmt.Sprintf("org%d", p.organization) == org }}
	}
	inner := pick(r, statuses)
	return condition[patient]{"_has:Observation:patient:status eq", inner, func(p *patient) bool {
		return anyOf(c.observations, func(o observation) bool { return o.subject == "Patient/"+p.id && o.status == inner })
	}}
}

// filterTree is a random filter with what it means.
func (c *corpus) filterTree(r *rand.Rand, depth int) (string, func(*patient) bool) {
	if depth == 0 || r.IntN(4) == 0 {
		leaf := c.filterLeaf(r)
		return leaf.name + " " + leaf.value, leaf.holds
	}
	left, l := c.filterTree(r, depth-1)
	switch r.IntN(5) {
	case 0:
		return "not (" + left + ")", func(p *patient) bool { return !l(p) }
	case 1, 2:
		right, m := c.filterTree(r, depth-1)
		return "(" + left + ") and (" + right + ")", func(p *patient) bool { return l(p) && m(p) }
	}
	right, m := c.filterTree(r, depth-1)
	return "(" + left + ") or (" + right + ")", func(p *patient) bool { return l(p) || m(p) }
}

// TestRandomFilters compares `_filter` with an evaluation in memory, as candidates
// and counted and walked, alone and inside a chain.
// Spec: https://hl7.org/fhir/R4/search_filter.html.
func TestRandomFilters(t *testing.T) {
	s, _ := open(t)
	c := newCorpus(31, 120, 300)
	c.load(t, s)
	r := rand.New(rand.NewPCG(9, 9))
	n := 150
	if testing.Short() {
		n = 40
	}
	check := func(sc searchCase) {
		t.Helper()
		slices.Sort(sc.want)
		for _, limit := range []int{0, 3} {
			s.SetSearchLimit(limit)
			got := pages(t, s, &sc, max(1, len(sc.want)/2))
			slices.Sort(got)
			if diff := gocmp.Diff(sc.want, got); diff != "" {
				t.Fatalf("%v (limit %d):\n%s", sc.values, limit, diff)
			}
			if r := find(t, s, sc.parse(t, "_count", "0")); *r.Total != len(sc.want) {
				t.Fatalf("%v (limit %d): total %d, want %d", sc.values, limit, *r.Total, len(sc.want))
			}
		}
	}
	for range n {
		text, holds := c.filterTree(r, 4)
		sc := searchCase{typ: "Patient", values: params("_filter", text)}
		for i := range c.patients {
			if holds(&c.patients[i]) {
				sc.want = append(sc.want, c.patients[i].id)
			}
		}
		check(sc)
		chained := searchCase{typ: "Observation", values: params("_filter", "subject:Patient["+text+"].family pr true")}
		for i := range c.observations {
			o := &c.observations[i]
			if anyOf(c.patients, func(p patient) bool { return o.subject == "Patient/"+p.id && holds(&p) }) {
				chained.want = append(chained.want, o.id)
			}
		}
		check(chained)
	}
}

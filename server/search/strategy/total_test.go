package strategy_test

import (
	"slices"
	"strings"
	"testing"

	"kiln/server/search/searchtest"
)

// TestTotalNoneCountsNothing asks for a page without its total: the page is the same,
// and no statement counts matches.
// Contract: Design, "Statuses and answers" (_total=none).
func TestTotalNoneCountsNothing(t *testing.T) {
	s, _ := searchtest.Open(t)
	c := searchtest.NewCorpus(32, 20, 600)
	c.Load(t, s)
	limitSearches(s, 20)
	for _, values := range [][2]string{{"status", "final"}, {"code", "8480-6"}, {"date", "ge1990"}} {
		exact := searchtest.Case{Type: "Observation", Values: searchtest.Parameters(values[0], values[1])}
		without := searchtest.Case{Type: "Observation", Values: searchtest.Parameters(values[0], values[1], "_total", "none")}
		for range 2 { // the second time the number of Observations is known
			q := without.ParseQuery(t)
			q.Explain = true
			got := searchtest.FindMatches(t, s, q)
			counted := 0
			for _, issue := range got.Issues {
				if strings.HasPrefix(issue.Diagnostics, "count\n") && !strings.Contains(issue.Diagnostics, "resource r WHERE r.rid >=") {
					counted++
				}
			}
			want := searchtest.FindMatches(t, s, exact.ParseQuery(t))
			if !slices.Equal(searchtest.IDs(got), searchtest.IDs(want)) {
				t.Errorf("%s: %v, with a total %v", &without, searchtest.IDs(got), searchtest.IDs(want))
			}
			if *want.Total > 100 && (got.Total != nil || counted > 0) {
				t.Errorf("%s: total %v, %d statements count", &without, got.Total, counted)
			}
		}
	}
}

// TestTotalEstimateCountsNothing asks for a page with an estimate of its total: the page
// is the same, no statement counts matches, and the total is near.
// Contract: Design, "Statuses and answers" (_total=estimate).
func TestTotalEstimateCountsNothing(t *testing.T) {
	s, _ := searchtest.Open(t)
	c := searchtest.NewCorpus(32, 20, 600)
	c.Load(t, s)
	limitSearches(s, 20)
	for _, values := range [][2]string{{"status", "final"}, {"code", "8480-6"}} {
		estimated := searchtest.Case{Type: "Observation", Values: searchtest.Parameters(values[0], values[1], "_total", "estimate")}
		q := estimated.ParseQuery(t)
		q.Explain = true
		got := searchtest.FindMatches(t, s, q)
		for _, issue := range got.Issues {
			if strings.HasPrefix(issue.Diagnostics, "count\n") {
				t.Errorf("%s: a statement counts", &estimated)
			}
		}
		exact := searchtest.Case{Type: "Observation", Values: searchtest.Parameters(values[0], values[1])}
		want := searchtest.FindMatches(t, s, exact.ParseQuery(t))
		if !slices.Equal(searchtest.IDs(got), searchtest.IDs(want)) {
			t.Errorf("%s: %v, with a total %v", &estimated, searchtest.IDs(got), searchtest.IDs(want))
		}
		if got.Total == nil {
			t.Fatalf("%s: no total", &estimated)
		}
		if *got.Total < *want.Total/2 || *got.Total > *want.Total*2 {
			t.Errorf("%s: total %d, exact %d", &estimated, *got.Total, *want.Total)
		}
	}
}

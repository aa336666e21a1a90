package match_test

import (
	"net/url"
	"slices"
	"testing"

	"kiln/server/search"
	"kiln/server/search/searchtest"
)

// TestHoldsAgreesWithSQL judges thousands of random resources by random queries in memory,
// and compares with the results of the same queries in SQL: every kind of match,
// conjunctions, negations, chains and filters. TestEveryParameter does the same for every
// search parameter. Contract: Design, "Imports" (access asks sees).
func TestHoldsAgreesWithSQL(t *testing.T) {
	s, _ := searchtest.Open(t)
	s.IndexBy(searchtest.Indexer{})
	c := searchtest.NewCorpus(11, 300, 1500)
	c.Load(t, s)
	stored := searchtest.ReadResources(t, s, "Patient", "Observation")
	n := 300
	if testing.Short() {
		n = 60
	}
	inMemory, asked := 0, 0
	for _, sc := range c.RandomCases(17, n) {
		q := sc.ParseQuery(t)
		if _, ask := q.Holds(&stored[sc.Type][0]); len(ask) > 0 {
			asked++
		} else {
			inMemory++
		}
		if got := searchtest.FindHolding(t, s, q, stored[sc.Type]); !slices.Equal(got, sc.Want) {
			t.Errorf("%s holds in memory for %d resources, in SQL for %d: %v and %v", &sc, len(got), len(sc.Want), got, sc.Want)
		}
		for _, other := range stored["Organization"] {
			if yes, _ := q.Holds(&other); yes {
				t.Errorf("%s holds for Organization/%s", &sc, other.ID)
			}
		}
	}
	if inMemory < n/2 {
		t.Errorf("of %d queries %d were judged without the database", n, inMemory)
	}
	t.Logf("%d queries judged in memory, %d with the database's help", inMemory, asked)
}

// TestHoldsUpdated judges _lastUpdated by each prefix.
func TestHoldsUpdated(t *testing.T) {
	s, _ := searchtest.Open(t)
	c := searchtest.NewCorpus(12, 20, 1)
	c.Load(t, s)
	stored := searchtest.ReadResources(t, s, "Patient")["Patient"]
	at := stored[0].LastUpdated.Format("2006-01-02T15:04:05.000Z")
	for _, prefix := range []string{"eq", "ne", "lt", "le", "gt", "ge", "sa", "eb"} {
		q, err := search.Parse(searchtest.Registry, "Patient", url.Values{"_lastUpdated": {prefix + at}, "_count": {"1000"}}, search.Options{MaxCount: 1000})
		if err != nil {
			t.Fatal(err)
		}
		want := searchtest.IDs(searchtest.FindMatches(t, s, q))
		slices.Sort(want)
		if got := searchtest.FindHolding(t, s, q, stored); !slices.Equal(got, want) {
			t.Errorf("%s%s holds for %v, SQL finds %v", prefix, at, got, want)
		}
	}
}

package store_test

import (
	"context"
	"net/url"
	"slices"
	"testing"

	"kiln/gen/index"
	"kiln/gen/r4"
	"kiln/server/fhir"
	"kiln/server/search"
	"kiln/server/search/match"
	"kiln/server/store"
)

// judged returns the stored resources of some types in the form that is judged in memory.
func judged(t testing.TB, s *store.Store, types ...string) map[string][]match.Resource {
	t.Helper()
	out := make(map[string][]match.Resource)
	for _, typ := range types {
		q, err := search.Parse(registry, typ, url.Values{"_count": {"100000"}}, search.Options{MaxCount: 100_000})
		if err != nil {
			t.Fatal(err)
		}
		for _, v := range find(t, s, q).Matches {
			r, err := fhir.Decode(r4.Model, v.Body)
			if err != nil {
				t.Fatal(err)
			}
			x := new(fhir.Index)
			index.Extract(x, r)
			x.Finish()
			out[typ] = append(out[typ], match.Resource{Type: typ, ID: v.ID, LastUpdated: v.LastUpdated, Index: x})
		}
	}
	return out
}

// holding returns the ids of the resources that a query holds for, judged in memory,
// and by SQL where memory says that it must be asked; sorted.
func holding(t testing.TB, s *store.Store, q *search.Query, resources []match.Resource) []string {
	t.Helper()
	var out []string
	for i := range resources {
		r := &resources[i]
		yes, ask := q.Holds(r)
		if len(ask) > 0 && !match.Open(q.Clauses) {
			t.Errorf("%s/%s leaves clauses to ask that are not told as open", r.Type, r.ID)
		}
		if yes && len(ask) > 0 {
			found, err := s.Search(context.Background(), search.About(r.Type, r.ID, ask))
			if err != nil {
				t.Fatal(err)
			}
			yes = *found.Total == 1
		}
		if yes {
			out = append(out, r.ID)
		}
	}
	slices.Sort(out)
	return out
}

// TestHoldsAgreesWithSQL judges thousands of random resources by random queries in memory,
// and compares with the results of the same queries in SQL: every kind of match,
// conjunctions, negations, chains and filters. TestEveryParameter does the same for every
// search parameter. Contract: Design, "Imports" (access asks sees).
func TestHoldsAgreesWithSQL(t *testing.T) {
	s, _ := open(t)
	s.IndexBy(compiled{})
	c := newCorpus(11, 300, 1500)
	c.load(t, s)
	stored := judged(t, s, "Patient", "Observation")
	n := 300
	if testing.Short() {
		n = 60
	}
	inMemory, asked := 0, 0
	for _, sc := range c.cases(17, n) {
		q := sc.parse(t)
		if _, ask := q.Holds(&stored[sc.typ][0]); len(ask) > 0 {
			asked++
		} else {
			inMemory++
		}
		if got := holding(t, s, q, stored[sc.typ]); !slices.Equal(got, sc.want) {
			t.Errorf("%s holds in memory for %d resources, in SQL for %d: %v and %v", &sc, len(got), len(sc.want), got, sc.want)
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
	s, _ := open(t)
	c := newCorpus(12, 20, 1)
	c.load(t, s)
	stored := judged(t, s, "Patient")["Patient"]
	at := stored[0].LastUpdated.Format("2006-01-02T15:04:05.000Z")
	for _, prefix := range []string{"eq", "ne", "lt", "le", "gt", "ge", "sa", "eb"} {
		q, err := search.Parse(registry, "Patient", url.Values{"_lastUpdated": {prefix + at}, "_count": {"1000"}}, search.Options{MaxCount: 1000})
		if err != nil {
			t.Fatal(err)
		}
		want := ids(find(t, s, q))
		slices.Sort(want)
		if got := holding(t, s, q, stored); !slices.Equal(got, want) {
			t.Errorf("%s%s holds for %v, SQL finds %v", prefix, at, got, want)
		}
	}
}

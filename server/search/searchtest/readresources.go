package searchtest

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

// ReadResources returns the stored resources of some types in the form that is tested in memory.
func ReadResources(t testing.TB, s *store.Store, types ...string) map[string][]match.Resource {
	t.Helper()
	out := make(map[string][]match.Resource)
	for _, typ := range types {
		q, err := search.Parse(Registry, typ, url.Values{"_count": {"100000"}}, search.Options{MaxCount: 100_000})
		if err != nil {
			t.Fatal(err)
		}
		for _, v := range FindMatches(t, s, q).Matches {
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

// FindHolding returns the sorted ids of the resources for which a query holds, tested in memory, and by SQL where
// memory leaves it open.
func FindHolding(t testing.TB, s *store.Store, q *search.Query, resources []match.Resource) []string {
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

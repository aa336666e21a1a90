package strategy_test

import (
	"context"
	"testing"

	"kiln/server/search/searchtest"
)

// BenchmarkSearch runs searches that are answered in different ways, one after the other. -benchmem shows their allocations.
func BenchmarkSearch(b *testing.B) {
	s, _ := searchtest.Open(b)
	s.IndexBy(searchtest.Indexer{})
	searchtest.NewCorpus(71, 100, 3000).Load(b, s)
	for _, bm := range []struct {
		name   string
		values []string
		limit  int // of candidates, 0 for the default
	}{
		{"candidates", []string{"patient", "p1"}, 0},
		{"cached terms", []string{"status", "final"}, 200},
		{"cached terms in the order of a column", []string{"status", "final", "_sort", "-date"}, 200},
		{"total alone", []string{"status", "final", "_summary", "count"}, 200},
	} {
		b.Run(bm.name, func(b *testing.B) {
			limitSearches(s, bm.limit)
			c := searchtest.Case{Type: "Observation", Values: searchtest.Parameters(bm.values...)}
			q := c.ParseQuery(b)
			run := func() {
				r, err := s.Search(context.Background(), q)
				if err != nil {
					b.Fatal(err)
				}
				r.Release()
			}
			for range 4 {
				run()
				s.Searcher().AwaitCache()
			}
			b.ReportAllocs()
			for b.Loop() {
				run()
			}
		})
	}
}

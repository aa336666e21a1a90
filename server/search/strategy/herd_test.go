package strategy_test

import (
	"context"
	"strings"
	"sync"
	"testing"

	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"

	"kiln/server/search/searchtest"
)

// countExpensiveStatements runs f, and counts by kind the statements of its searches that read every match, or every resource
// of a type.
func countExpensiveStatements(f func(ctx context.Context)) map[string]int {
	recorder := tracetest.NewSpanRecorder()
	ctx, span := sdktrace.NewTracerProvider(sdktrace.WithSpanProcessor(recorder)).Tracer("test").Start(context.Background(), "herd")
	f(ctx)
	span.End()
	kinds := make(map[string]int)
	for _, s := range recorder.Ended() {
		for _, a := range s.Attributes() {
			if a.Key != "db.query.text" {
				continue
			}
			switch sql := a.Value.AsString(); {
			case strings.HasPrefix(sql, "SELECT count(*) FROM resource r WHERE r.rid >="):
				kinds["count of the type"]++
			case strings.HasPrefix(sql, "SELECT (SELECT") && strings.Contains(sql, "count(*)"):
				kinds["count"]++
			case strings.HasPrefix(sql, "WITH m AS MATERIALIZED"):
				kinds["gather"]++
			case strings.HasPrefix(sql, "SELECT r.rid, (SELECT min("):
				kinds["sort"]++
			}
		}
	}
	return kinds
}

// TestHerdComputesOnce sends the same expensive search forty times at once to a server with
// an empty cache: its matches are counted once. The matches of a search in an order without
// an index are gathered once and sorted once for all callers. The type is counted at most
// once beside the one snapshot that counts the matches. Contract: Searches while others
// write, two queues: a thundering herd computes an expensive result once.
func TestHerdComputesOnce(t *testing.T) {
	t.Parallel()
	first, url := searchtest.Open(t)
	searchtest.NewCorpus(31, 40, 400).Load(t, first)
	for _, tt := range []struct {
		name string
		c    searchtest.Case
		want map[string]int // at most
	}{
		{"matches that a walk finds", searchtest.Case{Type: "Observation", Values: searchtest.Parameters("status", "final")}, map[string]int{"count": 1, "count of the type": 2}},
		{"a value that most resources do not have", searchtest.Case{Type: "Observation", Values: searchtest.Parameters("status:not", "unknown")}, map[string]int{"count": 1, "count of the type": 2}},
		{"only the count", searchtest.Case{Type: "Observation", Values: searchtest.Parameters("status", "final", "_summary", "count")}, map[string]int{"count": 1}},
		{"an order without an index", searchtest.Case{Type: "Observation", Values: searchtest.Parameters("date", "ge1990", "_sort", "value-quantity")}, map[string]int{"count": 1, "gather": 1, "sort": 1}},
	} {
		for _, together := range []bool{false, true} { // all wait for admission before the first is admitted
			s := searchtest.OpenAt(t, url)
			limitSearches(s, 50)      // more matches than that are counted
			if tt.want["sort"] == 0 { // the result of the background work answers the waiting searches
				s.SetSearchMemory(-1)
			}
			release := func() {}
			if together {
				var err error
				if release, err = holdExpensiveSearches(s, t.Context()); err != nil {
					t.Fatal(err)
				}
			}
			var herd sync.WaitGroup
			totals := make([]int, 40)
			kinds := countExpensiveStatements(func(ctx context.Context) {
				for i := range totals {
					q := tt.c.ParseQuery(t)
					herd.Go(func() {
						if r, err := s.Search(ctx, q); err != nil {
							t.Error(err)
						} else {
							totals[i] = *r.Total
						}
					})
				}
				if together {
					awaitExpensiveSearches(s, len(totals))
				}
				release()
				herd.Wait()
			})
			for kind, n := range kinds {
				if n > tt.want[kind] {
					t.Errorf("%s, together %t: %d statements %s, want %d at most", tt.name, together, n, kind, tt.want[kind])
				}
			}
			if kinds["count"]+kinds["gather"] == 0 {
				t.Errorf("%s: no expensive statement was run: %v", tt.name, kinds)
			}
			for _, n := range totals {
				if n != totals[0] || n < 50 {
					t.Errorf("%s: totals %v", tt.name, totals)
					break
				}
			}
		}
	}
}

// A search that the cache does not answer reads the size of the type from the cache.
func TestTypeIsNotCounted(t *testing.T) {
	t.Parallel()
	s, _ := searchtest.Open(t)
	searchtest.NewCorpus(31, 40, 400).Load(t, s)
	limitSearches(s, 10)
	counted := func(c searchtest.Case) (n, total int) {
		kinds := countExpensiveStatements(func(ctx context.Context) {
			r, err := s.Search(ctx, c.ParseQuery(t))
			if err != nil {
				t.Fatal(err)
			}
			total = *r.Total
		})
		return kinds["count of the type"], total
	}
	chained := func(gender string) searchtest.Case {
		return searchtest.Case{Type: "Observation", Values: searchtest.Parameters("status", "final", "subject:Patient.gender", gender)}
	}
	if n, total := counted(chained("female")); n != 1 || total < 10 {
		t.Fatalf("the type is counted %d times for %d matches with an empty cache", n, total)
	}
	s.Searcher().ForgetTotals()
	if _, total := counted(searchtest.Case{Type: "Observation", Values: searchtest.Parameters("status", "final")}); total < 10 {
		t.Fatalf("%d matches", total)
	}
	s.Searcher().AwaitCache()
	s.Searcher().ForgetTotals()
	if n, total := counted(chained("female")); n != 0 || total < 10 {
		t.Errorf("the type is counted %d times for %d matches with the size in the cache", n, total)
	}
}

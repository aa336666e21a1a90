package strategy_test

import (
	"context"
	"runtime"
	"testing"

	"kiln/server/search/searchtest"
)

// A server that has read ahead answers broad searches from memory, also when the search is
// new and also for resources written since. Contract: Searches while others write, broad
// searches never asked before.
func TestReadAhead(t *testing.T) {
	t.Parallel()
	s, url := searchtest.Open(t)
	s.IndexBy(searchtest.Indexer{})
	limitSearches(s, 20)
	searchtest.NewCorpus(41, 100, 400).Load(t, s)
	if _, err := searchtest.Connect(t, url).Exec(t.Context(), "ANALYZE resource"); err != nil { // it tells which types are large
		t.Fatal(err)
	}
	s.Searcher().ReadAhead(300)
	s.Searcher().AwaitCache()
	// date, value-date and value-quantity have one value in an Observation at most, and each has a
	// last update; values are read for each of the common codes by themselves, too. There are few
	// Patients, and few Observations of each: nothing of them is read.
	if r := s.Searcher().CacheState(); r.Columns != 4+len(searchtest.Codings) {
		t.Fatalf("the cache contains %+v", r)
	}
	ask := func(pairs ...string) int {
		t.Helper()
		c := searchtest.Case{Type: "Observation", Values: searchtest.Parameters(pairs...)}
		found, err := s.Search(context.Background(), c.ParseQuery(t))
		if err != nil {
			t.Fatal(err)
		}
		return *found.Total
	}
	for _, p := range [][2]string{{"date", "ge1990"}, {"status", "final"}, {"status:not", "final"}, {"_sort", ""}, {"value-quantity", "gt0"}, {"_lastUpdated", "ge2000"},
		{"code-value-quantity", "http://loinc.org|8302-2$gt0"}} {
		before := s.Searcher().CacheState().Hits
		if total := ask(p[0], p[1]); total < 20 || s.Searcher().CacheState().Hits != before+1 {
			t.Errorf("%s=%s: total %d, %d answers from memory", p[0], p[1], total, s.Searcher().CacheState().Hits-before)
		}
	}
	// Which resources have a term that is not common is found when it was asked for, for all
	// searches that name it.
	ask("status:not", "unknown")
	s.Searcher().AwaitCache()
	for _, p := range [][]string{{"status:not", "unknown"}, {"status:not", "unknown", "date", "ge1990"}, {"status:not", "unknown", "code", "8302-2", "_sort", "-date"}} {
		before := s.Searcher().CacheState().Hits
		if ask(p...); s.Searcher().CacheState().Hits != before+1 {
			t.Errorf("%v: not from memory", p)
		}
	}
	before := ask("_lastUpdated", "ge2000")
	if all := ask("_sort", ""); all != before {
		t.Errorf("%d resources, %d without a parameter", before, all)
	}
	searchtest.NewCorpus(42, 100, 500).Load(t, s) // o400 and on are new
	if after := ask("_lastUpdated", "ge2000"); after != before+100 {
		t.Errorf("%d resources, 100 more, then %d", before, after)
	}
}

// A server reads a small cache ahead at once: it waits neither for a quiet database nor for
// new statistics. Right after a long import that it has followed, it answers searches from
// memory. Contract: Searches while others write, broad searches never asked before.
func TestReadAheadBesideWrites(t *testing.T) {
	t.Parallel()
	s, url := searchtest.Open(t)
	s.IndexBy(searchtest.Indexer{})
	limitSearches(s, 20)
	work, conn := make(chan error, 1), searchtest.Connect(t, url)
	ctx, end := context.WithCancel(t.Context())
	go func() {
		_, err := conn.Exec(ctx, "SELECT pg_sleep(600)")
		work <- err
	}()
	searchtest.NewCorpus(44, 100, 400).Load(t, s)
	s.Searcher().ReadAhead(300)
	s.Searcher().AwaitCache()
	if r := s.Searcher().CacheState(); r.Columns != 4+len(searchtest.Codings) {
		t.Errorf("the cache contains %+v", r)
	}
	searchtest.NewCorpus(45, 100, 500).Load(t, s) // o400 and on are new
	c := searchtest.Case{Type: "Observation", Values: searchtest.Parameters("date", "ge1990")}
	before := s.Searcher().CacheState()
	found, err := s.Search(t.Context(), c.ParseQuery(t))
	if err != nil {
		t.Fatal(err)
	}
	if after := s.Searcher().CacheState(); *found.Total < 20 || after.Hits == before.Hits || after.Lagged > 0 {
		t.Errorf("a total of %d, and the cache contains %+v", *found.Total, after)
	}
	select {
	case err := <-work:
		t.Errorf("the database has come to rest: %v", err)
	default:
	}
	end()
	<-work
}

// What many resources refer to is read ahead with them: a chain that nobody has asked before is
// answered from memory.
// Contract: Searches while others write, broad searches never asked before.
func TestReadAheadOfLinks(t *testing.T) {
	t.Parallel()
	s, url := searchtest.Open(t)
	s.IndexBy(searchtest.Indexer{})
	limitSearches(s, 20)
	c := searchtest.NewCorpus(43, 100, 2100)
	c.Load(t, s)
	if _, err := searchtest.Connect(t, url).Exec(t.Context(), "ANALYZE resource"); err != nil {
		t.Fatal(err)
	}
	s.Searcher().ReadAhead(1000)
	s.Searcher().AwaitCache()
	ask := func(name, value string) {
		want := 0
		for _, o := range c.Observations {
			if searchtest.AnyOf(c.Patients, func(p searchtest.Patient) bool {
				holds := p.Gender == "male"
				switch value {
				case "female":
					holds = p.Gender != "female"
				case "true":
					holds = p.Birth == ""
				case c.Patients[0].Family:
					holds = p.Family == value
				}
				return o.Subject == "Patient/"+p.ID && holds
			}) {
				want++
			}
		}
		before := s.Searcher().CacheState().Hits
		x := searchtest.Case{Type: "Observation", Values: searchtest.Parameters(name, value)}
		found, err := s.Search(t.Context(), x.ParseQuery(t))
		if err != nil {
			t.Fatal(err)
		}
		if *found.Total != want || s.Searcher().CacheState().Hits != before+1 {
			t.Errorf("%s: total %d, want %d; %d answers from memory", &x, *found.Total, want, s.Searcher().CacheState().Hits-before)
		}
	}
	for name, value := range map[string]string{"patient.gender": "male", "subject:Patient.gender": "male", "patient.gender:not": "female", "patient.birthdate:missing": "true"} {
		ask(name, value)
	}
	for range 2 { // the patients of a name are found at once, and again when they are forgotten
		ask("subject:Patient.family:exact", c.Patients[0].Family)
		columns := s.Searcher().CacheState().Columns
		s.SetSearchMemory(-1)
		s.SetSearchMemory(256 << 20)
		for s.Searcher().ReadAhead(1000); s.Searcher().CacheState().Columns < columns; runtime.Gosched() {
			s.Searcher().AwaitCache()
		}
	}
}

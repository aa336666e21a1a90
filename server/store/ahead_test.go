package store_test

import (
	"context"
	"runtime"
	"testing"
)

// A server that has read ahead answers broad searches from memory, also when the search is
// new and also for resources written since. Contract: Searches while others write, broad
// searches never asked before.
func TestReadAhead(t *testing.T) {
	t.Parallel()
	s, url := open(t)
	s.IndexBy(compiled{})
	s.SetSearchLimit(20)
	newCorpus(41, 100, 400).load(t, s)
	if _, err := connect(t, url).Exec(t.Context(), "ANALYZE resource"); err != nil { // it tells which types are large
		t.Fatal(err)
	}
	s.ReadAheadFrom(300)
	s.SearchSettled()
	// date, value-date and value-quantity have one value in an Observation at most, and each has a
	// last update; values are read for each of the common codes by themselves, too. There are few
	// Patients, and few Observations of each: nothing of them is read.
	if r := s.Remembered(); r.Columns != 4+len(codings) {
		t.Fatalf("it remembers %+v", r)
	}
	ask := func(pairs ...string) int {
		t.Helper()
		c := searchCase{typ: "Observation", values: params(pairs...)}
		found, err := s.Search(context.Background(), c.parse(t))
		if err != nil {
			t.Fatal(err)
		}
		return *found.Total
	}
	for _, p := range [][2]string{{"date", "ge1990"}, {"status", "final"}, {"status:not", "final"}, {"_sort", ""}, {"value-quantity", "gt0"}, {"_lastUpdated", "ge2000"},
		{"code-value-quantity", "http://loinc.org|8302-2$gt0"}} {
		before := s.Remembered().Hits
		if total := ask(p[0], p[1]); total < 20 || s.Remembered().Hits != before+1 {
			t.Errorf("%s=%s: total %d, %d answers from memory", p[0], p[1], total, s.Remembered().Hits-before)
		}
	}
	// Which resources have a term that is not common is found when it was asked for, for all
	// searches that name it.
	ask("status:not", "unknown")
	s.SearchSettled()
	for _, p := range [][]string{{"status:not", "unknown"}, {"status:not", "unknown", "date", "ge1990"}, {"status:not", "unknown", "code", "8302-2", "_sort", "-date"}} {
		before := s.Remembered().Hits
		if ask(p...); s.Remembered().Hits != before+1 {
			t.Errorf("%v: not from memory", p)
		}
	}
	before := ask("_lastUpdated", "ge2000")
	if all := ask("_sort", ""); all != before {
		t.Errorf("%d resources, %d without a parameter", before, all)
	}
	newCorpus(42, 100, 500).load(t, s) // o400 and on are new
	if after := ask("_lastUpdated", "ge2000"); after != before+100 {
		t.Errorf("%d resources, 100 more, then %d", before, after)
	}
}

// A server reads a small cache ahead at once: it waits neither for a quiet database nor for
// new statistics. Right after a long import that it has followed, it answers searches from
// memory. Contract: Searches while others write, broad searches never asked before.
func TestReadAheadBesideWrites(t *testing.T) {
	t.Parallel()
	s, url := open(t)
	s.IndexBy(compiled{})
	s.SetSearchLimit(20)
	work, conn := make(chan error, 1), connect(t, url)
	ctx, end := context.WithCancel(t.Context())
	go func() {
		_, err := conn.Exec(ctx, "SELECT pg_sleep(600)")
		work <- err
	}()
	newCorpus(44, 100, 400).load(t, s)
	s.ReadAheadFrom(300)
	s.SearchSettled()
	if r := s.Remembered(); r.Columns != 4+len(codings) {
		t.Errorf("it remembers %+v", r)
	}
	newCorpus(45, 100, 500).load(t, s) // o400 and on are new
	c := searchCase{typ: "Observation", values: params("date", "ge1990")}
	before := s.Remembered()
	found, err := s.Search(t.Context(), c.parse(t))
	if err != nil {
		t.Fatal(err)
	}
	if after := s.Remembered(); *found.Total < 20 || after.Hits == before.Hits || after.Lagged > 0 {
		t.Errorf("a total of %d, and it remembers %+v", *found.Total, after)
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
	s, url := open(t)
	s.IndexBy(compiled{})
	s.SetSearchLimit(20)
	c := newCorpus(43, 100, 2100)
	c.load(t, s)
	if _, err := connect(t, url).Exec(t.Context(), "ANALYZE resource"); err != nil {
		t.Fatal(err)
	}
	s.ReadAheadFrom(1000)
	s.SearchSettled()
	ask := func(name, value string) {
		want := 0
		for _, o := range c.observations {
			if anyOf(c.patients, func(p patient) bool {
				holds := p.gender == "male"
				switch value {
				case "female":
					holds = p.gender != "female"
				case "true":
					holds = p.birth == ""
				case c.patients[0].family:
					holds = p.family == value
				}
				return o.subject == "Patient/"+p.id && holds
			}) {
				want++
			}
		}
		before := s.Remembered().Hits
		x := searchCase{typ: "Observation", values: params(name, value)}
		found, err := s.Search(t.Context(), x.parse(t))
		if err != nil {
			t.Fatal(err)
		}
		if *found.Total != want || s.Remembered().Hits != before+1 {
			t.Errorf("%s: total %d, want %d; %d answers from memory", &x, *found.Total, want, s.Remembered().Hits-before)
		}
	}
	for name, value := range map[string]string{"patient.gender": "male", "subject:Patient.gender": "male", "patient.gender:not": "female", "patient.birthdate:missing": "true"} {
		ask(name, value)
	}
	for range 2 { // the patients of a name are found at once, and again when they are forgotten
		ask("subject:Patient.family:exact", c.patients[0].family)
		columns := s.Remembered().Columns
		s.SetSearchMemory(-1)
		s.SetSearchMemory(256 << 20)
		for s.ReadAheadFrom(1000); s.Remembered().Columns < columns; runtime.Gosched() {
			s.SearchSettled()
		}
	}
}

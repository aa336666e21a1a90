package strategy_test

import (
	"encoding/json"
	"fmt"
	"regexp"
	"testing"

	"kiln/server/search/cache"
	"kiln/server/search/match"
	"kiln/server/search/plan"
	"kiln/server/search/searchtest"
	"kiln/server/store"
)

// lagging is a store with a search cache of Observations, beside another store of the same
// database that writes more at once than one search catches up with.
type lagging struct {
	t        *testing.T
	s, other *store.Store
}

// askedOften are the searches that the cache answers.
var askedOften = [][]string{{"status", "final"}, {"date", "ge1990"}, {"status", "final", "date", "ge1990"}}

func newLagging(t *testing.T, stepped func(gaveWay bool)) lagging {
	s, at := searchtest.Open(t)
	l := lagging{t, s, searchtest.OpenAt(t, at)}
	for _, s := range []*store.Store{s, l.other} {
		s.IndexBy(searchtest.Indexer{})
		limitSearchesStepped(s, 20, stepped)
	}
	searchtest.NewCorpus(61, 40, 400).Load(t, s)
	for range 2 {
		for _, pairs := range askedOften {
			l.ask(pairs...)
		}
		s.Searcher().AwaitCache()
	}
	return l
}

func objectWrite(t *testing.T, o searchtest.Object) *store.Write {
	t.Helper()
	raw, err := json.Marshal(o)
	if err != nil {
		t.Fatal(err)
	}
	return searchtest.NewWrite(t, raw)
}

func (l lagging) ask(pairs ...string) (total int, hit bool) {
	l.t.Helper()
	c := searchtest.Case{Type: "Observation", Values: searchtest.Parameters(pairs...)}
	before := l.s.Searcher().CacheState().Hits
	found, err := l.s.Search(l.t.Context(), c.ParseQuery(l.t))
	if err != nil {
		l.t.Fatal(err)
	}
	return *found.Total, l.s.Searcher().CacheState().Hits > before
}

// burst writes the observations of a corpus and returns the total of each search then. The
// first 400 replace earlier ones.
func (l lagging) burst(seed uint64) (want map[string]int) {
	l.t.Helper()
	c := searchtest.NewCorpus(seed, 40, cache.MaxChanges+500)
	var all []*store.Write // in one transaction: it comes as a whole
	for i := range c.Observations {
		all = append(all, objectWrite(l.t, c.Observations[i].JSON()))
	}
	if err := l.other.WriteAll(l.t.Context(), all); err != nil {
		l.t.Fatal(err)
	}
	want = map[string]int{}
	for i := range c.Observations {
		o := &c.Observations[i]
		low, high, dated := o.Date()
		slow, shigh := searchtest.Span("1990")
		since := dated && searchtest.DateHolds("ge", low, high, slow, shigh)
		for _, pairs := range askedOften {
			if (len(pairs) == 2 && pairs[0] == "date" || o.Status == "final") && (pairs[len(pairs)-2] == "status" || since) {
				want[fmt.Sprint(pairs)]++
			}
		}
	}
	return want
}

// answers asks while the memory lags, and when it has caught up.
func (l lagging) answers(want map[string]int) {
	l.t.Helper()
	for _, caughtUp := range []bool{false, true} {
		for _, pairs := range askedOften {
			total, hit := l.ask(pairs...)
			if total != want[fmt.Sprint(pairs)] || caughtUp && !hit {
				l.t.Errorf("%v: total %d, want %d; from memory: %v", pairs, total, want[fmt.Sprint(pairs)], hit)
			}
		}
		l.s.Searcher().AwaitCache()
	}
	if r := l.s.Searcher().CacheState(); r.Lagged == 0 {
		l.t.Errorf("it has never lagged: %+v", r)
	}
}

// After many changes the search cache lags: searches are answered without it until it has
// caught up with the writes of two servers, and from it again afterwards. Contract:
// Searches while others write, memory that follows the change log.
func TestMemoryCatchesUp(t *testing.T) {
	t.Parallel()
	l := newLagging(t, nil)
	l.answers(l.burst(62))
}

// A catch-up that nobody waits for stops while others write much, and goes on from there later: the
// same resources change again and again, before they were brought in and after.
func TestCatchUpGivesWay(t *testing.T) {
	t.Parallel()
	var l lagging
	const bursts = 3
	looks, gaveWay := 0, 0
	wanted := make(chan map[string]int, 1)
	l = newLagging(t, func(way bool) {
		if looks++; way {
			gaveWay++
		}
		if looks%3 == 1 && looks < 3*bursts { // in the midst of it
			if want := l.burst(uint64(64 + looks)); looks+3 >= 3*bursts {
				wanted <- want
			}
		}
	})
	l.burst(63)
	want := <-wanted
	l.answers(want)
	if gaveWay == 0 {
		t.Errorf("of %d looks none gave way to a writer", looks)
	}
}

// What memory reads of a changed resource has every kind of entries of its index.
func TestCatchUpReadsEveryKind(t *testing.T) {
	t.Parallel()
	s, at := searchtest.Open(t)
	other := searchtest.OpenAt(t, at)
	for _, s := range []*store.Store{s, other} {
		s.IndexBy(searchtest.Indexer{})
		limitSearchesStepped(s, 20, nil)
	}
	other.SetSearchMemory(-1)
	c := searchtest.NewCorpus(71, 400, 400)
	c.Load(t, s)
	const assessments = 600
	assess := func(least int) (all []*store.Write) {
		for i := range assessments {
			all = append(all, searchtest.NewWrite(t, fmt.Appendf(nil, `{"resourceType":"RiskAssessment","id":"r%d","status":"final","subject":{"reference":"Patient/p%d"},"prediction":[{"probabilityDecimal":0.%02d}]}`, i, i%3, least+i%30)))
		}
		return all
	}
	if err := s.WriteAll(t.Context(), assess(10)); err != nil {
		t.Fatal(err)
	}
	ask := func(s *store.Store, typ string, pairs ...string) int {
		t.Helper()
		c := searchtest.Case{Type: typ, Values: searchtest.Parameters(pairs...)}
		found, err := s.Search(t.Context(), c.ParseQuery(t))
		if err != nil {
			t.Fatal(err)
		}
		return *found.Total
	}
	all := map[string][]string{
		"dates":      {"Observation", "date", "ge1990"},
		"terms":      {"Observation", "status", "final"},
		"quantities": {"Observation", "value-quantity", "gt5"},
		"numbers":    {"RiskAssessment", "probability", "gt0.3"},
		"strings":    {"Patient", "name:contains", "a"},
		"updates":    {"Observation", "_lastUpdated", "ge1990"},
	}
	before := map[string]int{}
	for i := range 4 { // a total is known until something is written
		if err := s.WriteAll(t.Context(), append(assess(10)[i:i+1], objectWrite(t, c.Patients[i].JSON()))); err != nil {
			t.Fatal(err)
		}
		for name, of := range all {
			before[name] = ask(s, of[0], of[1:]...)
		}
		s.Searcher().AwaitCache()
	}
	c = searchtest.NewCorpus(72, 500, cache.MaxChanges+500)
	var burst []*store.Write
	for i := range c.Patients {
		burst = append(burst, objectWrite(t, c.Patients[i].JSON()))
	}
	for i := range c.Observations {
		burst = append(burst, objectWrite(t, c.Observations[i].JSON()))
	}
	if err := other.WriteAll(t.Context(), append(burst, assess(25)...)); err != nil {
		t.Fatal(err)
	}
	ask(s, "Observation", "status", "final")
	s.Searcher().AwaitCache()
	for name, of := range all {
		hits := s.Searcher().CacheState().Hits
		got, want := ask(s, of[0], of[1:]...), ask(other, of[0], of[1:]...)
		if got != want || got == before[name] || s.Searcher().CacheState().Hits == hits {
			t.Errorf("%s: %v: total %d, want %d, before %d; %d hits", name, of, got, want, before[name], s.Searcher().CacheState().Hits-hits)
		}
	}
	if s.Searcher().CacheState().Lagged == 0 {
		t.Error("it has never lagged")
	}
}

// A catch-up reads single resources by their surrogates.
func TestCatchUpReadsBySurrogate(t *testing.T) {
	t.Parallel()
	s, url := searchtest.Open(t)
	searchtest.NewCorpus(73, 100, 3000).Load(t, s)
	conn := searchtest.Connect(t, url)
	for _, sql := range []string{"ANALYZE", "SET enable_seqscan = off", "SET plan_cache_mode = force_generic_plan"} {
		if _, err := conn.Exec(t.Context(), sql); err != nil {
			t.Fatal(err)
		}
	}
	resources, dates, numbers, quantities, strings := plan.SelectStored([]int64{1})
	for index, st := range map[string]match.Statement{"resource_pkey": resources, "index_date_rid": dates, "index_number_rid": numbers, "index_quantity_rid": quantities, "index_string_rid": strings} {
		if got := genericPlanOf(t, conn, st); !regexp.MustCompile(index + `[^\n]*\n\s*Index Cond: \(rid = ANY \(\$1\)\)`).MatchString(got) {
			t.Errorf("%s is not looked up:\n%s", index, got)
		}
	}
}

package store_test

import (
	"encoding/json"
	"fmt"
	"testing"

	"kiln/server/search/remembered"
	"kiln/server/store"
)

// More changes than a search brings in at once let what is remembered lag: searches are answered without
// it, and with it again when it has caught up with what two servers have written.
// Contract: Searches while others write, memory that follows the change log.
func TestMemoryCatchesUp(t *testing.T) {
	t.Parallel()
	s, at := open(t)
	other := openAt(t, at)
	for _, s := range []*store.Store{s, other} {
		s.IndexBy(compiled{})
		s.SetSearchLimit(20)
	}
	newCorpus(61, 40, 400).load(t, s)
	ask := func(pairs ...string) (total int, hit bool) {
		t.Helper()
		c := searchCase{typ: "Observation", values: params(pairs...)}
		before := s.Remembered().Hits
		found, err := s.Search(t.Context(), c.parse(t))
		if err != nil {
			t.Fatal(err)
		}
		return *found.Total, s.Remembered().Hits > before
	}
	asked := [][]string{{"status", "final"}, {"date", "ge1990"}, {"status", "final", "date", "ge1990"}}
	for range 2 {
		for _, pairs := range asked {
			ask(pairs...)
		}
		s.SearchSettled()
	}
	c := newCorpus(62, 40, remembered.MaxChanges+500) // the first 400 are others than before
	var all []*store.Write                            // in one transaction: it comes as a whole
	for i := range c.observations {
		raw, err := json.Marshal(c.observations[i].json())
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, resourceWrite(t, raw))
	}
	if err := other.WriteAll(t.Context(), all); err != nil {
		t.Fatal(err)
	}
	want := map[string]int{}
	for i := range c.observations {
		o := &c.observations[i]
		low, high, dated := o.date()
		slow, shigh := span("1990")
		since := dated && dateHolds("ge", low, high, slow, shigh)
		for _, pairs := range asked {
			if (len(pairs) == 2 && pairs[0] == "date" || o.status == "final") && (pairs[len(pairs)-2] == "status" || since) {
				want[fmt.Sprint(pairs)]++
			}
		}
	}
	for _, caughtUp := range []bool{false, true} {
		for _, pairs := range asked {
			total, hit := ask(pairs...)
			if total != want[fmt.Sprint(pairs)] || caughtUp && !hit {
				t.Errorf("%v: total %d, want %d; from memory: %v", pairs, total, want[fmt.Sprint(pairs)], hit)
			}
		}
		s.SearchSettled()
	}
	if r := s.Remembered(); r.Lagged == 0 {
		t.Errorf("it has never lagged: %+v", r)
	}
}

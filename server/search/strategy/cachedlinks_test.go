package strategy_test

import (
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net/url"
	"slices"
	"strconv"
	"testing"

	"kiln/gen/index"
	"kiln/server/fhir"
	"kiln/server/search/searchtest"
	"kiln/server/store"
)

// openTwo opens two servers of one database, for which ten matches are many.
func openTwo(t testing.TB) (s, other *store.Store) {
	t.Helper()
	s, at := searchtest.Open(t)
	other = searchtest.OpenAt(t, at)
	for _, s := range []*store.Store{s, other} {
		s.IndexBy(searchtest.Indexer{})
		limitSearches(s, 10)
	}
	return s, other
}

// A linkCase is a search for resources that others are asked of too.
type linkCase struct {
	searchtest.Case
	ids func(c *searchtest.Corpus) []string // of the matches, sorted
}

// linkCases are random chains and `_has`, alone and beside other parameters.
func linkCases(c *searchtest.Corpus, r *rand.Rand, n int) (all []linkCase) {
	for range n {
		values := url.Values{}
		if r.IntN(3) == 0 { // of patients
			inner := c.SimpleObservation(r)
			values.Add("_has:Observation:patient:"+inner.Name, inner.Value)
			beside := []searchtest.Condition[searchtest.Patient]{{Holds: func(*searchtest.Patient) bool { return true }}}
			if r.IntN(2) == 0 {
				beside = append(beside, searchtest.Condition[searchtest.Patient]{Name: "gender", Value: "female", Holds: func(p *searchtest.Patient) bool { return p.Gender == "female" }})
				values.Add("gender", "female")
			}
			all = append(all, linkCase{searchtest.Case{Type: "Patient", Values: values}, func(c *searchtest.Corpus) (ids []string) {
				for i := range c.Patients {
					p := &c.Patients[i]
					if !searchtest.AnyOf(beside, func(b searchtest.Condition[searchtest.Patient]) bool { return !b.Holds(p) }) &&
						searchtest.AnyOf(c.Observations, func(o searchtest.Observation) bool { return o.Subject == "Patient/"+p.ID && inner.Holds(&o) }) {
						ids = append(ids, p.ID)
					}
				}
				slices.Sort(ids)
				return ids
			}})
			continue
		}
		var inner searchtest.Condition[searchtest.Patient]
		for inner.Name == "" || inner.Name == "organization.name" || inner.Name == "_id" || inner.Name[:1] == "_" {
			inner = c.PatientCondition(r)
		}
		values.Add(searchtest.PickRandom(r, []string{"patient.", "subject:Patient."})+inner.Name, inner.Value)
		var beside []searchtest.Condition[searchtest.Observation]
		for range r.IntN(3) {
			b := c.SimpleObservation(r)
			beside = append(beside, b)
			values.Add(b.Name, b.Value)
		}
		all = append(all, linkCase{searchtest.Case{Type: "Observation", Values: values}, func(c *searchtest.Corpus) (ids []string) {
			held := make(map[string]bool)
			for i := range c.Patients {
				held["Patient/"+c.Patients[i].ID] = inner.Holds(&c.Patients[i])
			}
			for i := range c.Observations {
				o := &c.Observations[i]
				if held[o.Subject] && !searchtest.AnyOf(beside, func(b searchtest.Condition[searchtest.Observation]) bool { return !b.Holds(o) }) {
					ids = append(ids, o.ID)
				}
			}
			slices.Sort(ids)
			return ids
		}})
	}
	return all
}

// Chains and `_has` with many matches are answered from memory, and follow the writes of
// two servers to both ends: resources that are created and deleted, that change a
// reference, or that no longer match. Contract: Searches while others write, memory that
// follows the change log.
func TestLinksFollow(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	s, other := openTwo(t)
	c := searchtest.NewCorpus(51, 60, 600)
	c.Load(t, s)
	r := rand.New(rand.NewPCG(51, 1))
	cases := linkCases(c, r, 80)
	check := func() (fromMemory int) {
		t.Helper()
		for i := range cases {
			x := &cases[i]
			want := x.ids(c)
			before := s.Searcher().CacheState().Hits
			found, err := s.Search(ctx, x.ParseQuery(t, "_count", "1000"))
			if err != nil {
				t.Fatalf("%s: %v", x, err)
			}
			hit := s.Searcher().CacheState().Hits > before
			if hit {
				fromMemory++
			}
			got := searchtest.IDs(found)
			slices.Sort(got)
			if *found.Total != len(want) || !slices.Equal(got, want) {
				t.Fatalf("%s (memory %v): total %d, %v; want %v", x, hit, *found.Total, got, want)
			}
			from := r.IntN(1 + len(want))
			page, err := s.Search(ctx, x.ParseQuery(t, "_count", "7", "_offset", strconv.Itoa(from)))
			if err != nil {
				t.Fatalf("%s: %v", x, err)
			}
			if all, part := searchtest.IDs(found), searchtest.IDs(page); !slices.Equal(part, all[from:min(from+7, len(all))]) {
				t.Fatalf("%s: the page from %d on is %v of %v", x, from, part, all)
			}
		}
		return fromMemory
	}
	check()
	s.Searcher().AwaitCache()
	check()
	s.Searcher().AwaitCache()
	first := check()
	t.Logf("%d of %d from memory", first, len(cases))
	if first < len(cases)/2 {
		t.Errorf("of %d searches %d were answered from memory", len(cases), first)
	}
	for round := range 12 {
		writer := []*store.Store{s, other}[round%2]
		some := searchtest.NewCorpus(uint64(100+round), 60, 600)
		var writes []*store.Write
		write := func(o searchtest.Object) {
			raw, err := json.Marshal(o)
			if err != nil {
				t.Fatal(err)
			}
			writes = append(writes, searchtest.NewWrite(t, raw))
		}
		remove := func(typ, id string) {
			writes = append(writes, &store.Write{Method: fhir.DELETE, ResourceType: typ, ID: id})
		}
		for i := range 3 { // patients: one goes, one changes, one comes
			switch at := r.IntN(len(c.Patients)); i {
			case 0:
				remove("Patient", c.Patients[at].ID)
				c.Patients = slices.Delete(c.Patients, at, at+1)
			case 1:
				some.Patients[i].ID = c.Patients[at].ID
				c.Patients[at] = some.Patients[i]
				write(c.Patients[at].JSON())
			default:
				some.Patients[i].ID = fmt.Sprint("new", round)
				c.Patients = append(c.Patients, some.Patients[i])
				write(some.Patients[i].JSON())
			}
		}
		gone := map[string]bool{}
		for i := range 10 {
			at := r.IntN(len(c.Observations))
			o := some.Observations[i]
			switch o.ID = c.Observations[at].ID; {
			case gone[o.ID]:
				continue
			case i%3 == 0:
				remove("Observation", o.ID)
				c.Observations = slices.Delete(c.Observations, at, at+1)
			case i%3 == 1:
				if i == 4 {
					o.Subject = fmt.Sprint("Patient/new", round)
				}
				c.Observations[at] = o
				write(o.JSON())
			default:
				o.ID = fmt.Sprint("n", round, "-", i)
				c.Observations = append(c.Observations, o)
				write(o.JSON())
			}
			gone[o.ID] = true
		}
		if err := writer.WriteAll(ctx, writes); err != nil {
			t.Fatal(err)
		}
		if now := check(); now < first*9/10 {
			t.Errorf("round %d: %d searches answered from memory, %d before", round, now, first)
		}
	}
}

// A chain that memory answers finds what another server has been the first to contain.
func TestFirstContainedIsFound(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	s, other := openTwo(t)
	c := searchtest.NewCorpus(52, 60, 600)
	c.Load(t, s)
	x := searchtest.Case{Type: "Observation", Values: url.Values{"subject:Patient.birthdate": {"le2011"}}}
	search := func() (total int, fromMemory bool) {
		t.Helper()
		before := s.Searcher().CacheState().Hits
		found, err := s.Search(ctx, x.ParseQuery(t, "_count", "1000"))
		if err != nil {
			t.Fatal(err)
		}
		return *found.Total, s.Searcher().CacheState().Hits > before
	}
	// The store knows which types are contained before the first search with links.
	few := searchtest.Case{Type: "Observation", Values: url.Values{"subject:Patient.birthdate": {"lt1800"}}}
	if _, err := s.Search(ctx, few.ParseQuery(t)); err != nil {
		t.Fatal(err)
	}
	var total int
	cached := false
	for range 2 {
		total, cached = search()
		s.Searcher().AwaitCache()
	}
	if !cached {
		t.Fatalf("%s: %d matches, not from memory", x, total)
	}
	w := searchtest.NewWrite(t, []byte(`{"resourceType":"Observation","id":"contains","status":"final","code":{"text":"x"},"subject":{"reference":"#who"},
		"contained":[{"resourceType":"Patient","id":"who","birthDate":"1990-01-02"}]}`))
	if len(w.Index.Contained) == 0 {
		t.Fatal("the index notes no reference to what is contained")
	}
	for _, e := range w.Index.Contained {
		y := new(fhir.Index)
		index.Extract(y, e.Resource)
		y.Finish()
		w.Index.AddContained(e.Key, 1, y)
	}
	w.Index.Finish()
	if err := other.WriteAll(ctx, []*store.Write{w}); err != nil {
		t.Fatal(err)
	}
	if now, _ := search(); now != total+1 {
		t.Errorf("%s: total %d, want %d", x, now, total+1)
	}
}

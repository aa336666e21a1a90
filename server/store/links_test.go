package store_test

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
	"kiln/server/store"
)

// openTwo opens two servers of one database, for which ten matches are many.
func openTwo(t testing.TB) (s, other *store.Store) {
	t.Helper()
	s, at := open(t)
	other = openAt(t, at)
	for _, s := range []*store.Store{s, other} {
		s.IndexBy(compiled{})
		s.SetSearchLimit(10)
	}
	return s, other
}

// A linkCase is a search for resources that others are asked of too.
type linkCase struct {
	searchCase
	ids func(c *corpus) []string // of the matches, sorted
}

// linkCases are random chains and `_has`, alone and beside other parameters.
func linkCases(c *corpus, r *rand.Rand, n int) (all []linkCase) {
	for range n {
		values := url.Values{}
		if r.IntN(3) == 0 { // of patients
			inner := c.simpleObservation(r)
			values.Add("_has:Observation:patient:"+inner.name, inner.value)
			beside := []condition[patient]{{holds: func(*patient) bool { return true }}}
			if r.IntN(2) == 0 {
				beside = append(beside, condition[patient]{"gender", "female", func(p *patient) bool { return p.gender == "female" }})
				values.Add("gender", "female")
			}
			all = append(all, linkCase{searchCase{typ: "Patient", values: values}, func(c *corpus) (ids []string) {
				for i := range c.patients {
					p := &c.patients[i]
					if !anyOf(beside, func(b condition[patient]) bool { return !b.holds(p) }) &&
						anyOf(c.observations, func(o observation) bool { return o.subject == "Patient/"+p.id && inner.holds(&o) }) {
						ids = append(ids, p.id)
					}
				}
				slices.Sort(ids)
				return ids
			}})
			continue
		}
		var inner condition[patient]
		for inner.name == "" || inner.name == "organization.name" || inner.name == "_id" || inner.name[:1] == "_" {
			inner = c.patientCondition(r)
		}
		values.Add(pick(r, []string{"patient.", "subject:Patient."})+inner.name, inner.value)
		var beside []condition[observation]
		for range r.IntN(3) {
			b := c.simpleObservation(r)
			beside = append(beside, b)
			values.Add(b.name, b.value)
		}
		all = append(all, linkCase{searchCase{typ: "Observation", values: values}, func(c *corpus) (ids []string) {
			held := make(map[string]bool)
			for i := range c.patients {
				held["Patient/"+c.patients[i].id] = inner.holds(&c.patients[i])
			}
			for i := range c.observations {
				o := &c.observations[i]
				if held[o.subject] && !anyOf(beside, func(b condition[observation]) bool { return !b.holds(o) }) {
					ids = append(ids, o.id)
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
	c := newCorpus(51, 60, 600)
	c.load(t, s)
	r := rand.New(rand.NewPCG(51, 1))
	cases := linkCases(c, r, 80)
	check := func() (fromMemory int) {
		t.Helper()
		for i := range cases {
			x := &cases[i]
			want := x.ids(c)
			before := s.Remembered().Hits
			found, err := s.Search(ctx, x.parse(t, "_count", "1000"))
			if err != nil {
				t.Fatalf("%s: %v", x, err)
			}
			hit := s.Remembered().Hits > before
			if hit {
				fromMemory++
			}
			got := ids(found)
			slices.Sort(got)
			if *found.Total != len(want) || !slices.Equal(got, want) {
				t.Fatalf("%s (memory %v): total %d, %v; want %v", x, hit, *found.Total, got, want)
			}
			from := r.IntN(1 + len(want))
			page, err := s.Search(ctx, x.parse(t, "_count", "7", "_offset", strconv.Itoa(from)))
			if err != nil {
				t.Fatalf("%s: %v", x, err)
			}
			if all, part := ids(found), ids(page); !slices.Equal(part, all[from:min(from+7, len(all))]) {
				t.Fatalf("%s: the page from %d on is %v of %v", x, from, part, all)
			}
		}
		return fromMemory
	}
	check()
	s.SearchSettled()
	check()
	s.SearchSettled()
	first := check()
	t.Logf("%d of %d from memory", first, len(cases))
	if first < len(cases)/2 {
		t.Errorf("of %d searches %d were answered from memory", len(cases), first)
	}
	for round := range 12 {
		writer := []*store.Store{s, other}[round%2]
		some := newCorpus(uint64(100+round), 60, 600)
		var writes []*store.Write
		write := func(o object) {
			raw, err := json.Marshal(o)
			if err != nil {
				t.Fatal(err)
			}
			writes = append(writes, resourceWrite(t, raw))
		}
		remove := func(typ, id string) {
			writes = append(writes, &store.Write{Method: fhir.DELETE, ResourceType: typ, ID: id})
		}
		for i := range 3 { // patients: one goes, one changes, one comes
			switch at := r.IntN(len(c.patients)); i {
			case 0:
				remove("Patient", c.patients[at].id)
				c.patients = slices.Delete(c.patients, at, at+1)
			case 1:
				some.patients[i].id = c.patients[at].id
				c.patients[at] = some.patients[i]
				write(c.patients[at].json())
			default:
				some.patients[i].id = fmt.Sprint("new", round)
				c.patients = append(c.patients, some.patients[i])
				write(some.patients[i].json())
			}
		}
		gone := map[string]bool{}
		for i := range 10 {
			at := r.IntN(len(c.observations))
			o := some.observations[i]
			switch o.id = c.observations[at].id; {
			case gone[o.id]:
				continue
			case i%3 == 0:
				remove("Observation", o.id)
				c.observations = slices.Delete(c.observations, at, at+1)
			case i%3 == 1:
				if i == 4 {
					o.subject = fmt.Sprint("Patient/new", round)
				}
				c.observations[at] = o
				write(o.json())
			default:
				o.id = fmt.Sprint("n", round, "-", i)
				c.observations = append(c.observations, o)
				write(o.json())
			}
			gone[o.id] = true
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
	c := newCorpus(52, 60, 600)
	c.load(t, s)
	x := searchCase{typ: "Observation", values: url.Values{"subject:Patient.birthdate": {"le2011"}}}
	search := func() (total int, fromMemory bool) {
		t.Helper()
		before := s.Remembered().Hits
		found, err := s.Search(ctx, x.parse(t, "_count", "1000"))
		if err != nil {
			t.Fatal(err)
		}
		return *found.Total, s.Remembered().Hits > before
	}
	// Which types are contained is known before there is anything to remember.
	few := searchCase{typ: "Observation", values: url.Values{"subject:Patient.birthdate": {"lt1800"}}}
	if _, err := s.Search(ctx, few.parse(t)); err != nil {
		t.Fatal(err)
	}
	var total int
	remembered := false
	for range 2 {
		total, remembered = search()
		s.SearchSettled()
	}
	if !remembered {
		t.Fatalf("%s: %d matches, not from memory", x, total)
	}
	w := resourceWrite(t, []byte(`{"resourceType":"Observation","id":"contains","status":"final","code":{"text":"x"},"subject":{"reference":"#who"},
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

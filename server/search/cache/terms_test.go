package cache

import (
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"kiln/server/fhir"
	"kiln/server/search/match"
)

// The sets of terms tell which resources have a term, for terms that occur together and
// terms that do not, while they are made and after changes.
func TestTermsFollowChanges(t *testing.T) {
	t.Parallel()
	const resources = 2000
	r := rand.New(rand.NewPCG(1, 2))
	// Terms of tens come together but for one resource in a hundred.
	draw := func() (terms []int64) {
		terms = append(terms, Every)
		for ten := range int64(5) {
			if r.IntN(3) > 0 {
				continue
			}
			for one := range int64(4) {
				if r.IntN(100) > 0 {
					terms = append(terms, 10*ten+one)
				}
			}
		}
		return append(terms, 1000) // one that is not common
	}
	var together [][]int64
	for ten := range int64(5) {
		together = append(together, []int64{10 * ten, 10*ten + 1, 10*ten + 2, 10*ten + 3})
	}
	now := make(map[int64][]int64)
	b := NewTerms(together)
	for n := range int64(resources) {
		now[n] = draw()
		b.AddResource(n, now[n])
	}
	clock := func() time.Time { return time.Unix(0, 0) }
	m := New(1<<20, clock)
	m.state, m.at = &state{}, clock()
	m.sets, m.columns, m.terms, m.common = map[Key]*item{}, map[ColumnKey]*item{}, map[termKey]*item{}, map[TypeKey]map[int64]bool{}
	f := &Found{Terms: b}
	f.MakeItems(clock())
	check := func() {
		t.Helper()
		for _, terms := range append(together, []int64{Every}) {
			for _, term := range terms {
				sets, ok := m.membersOf(0, []int64{term})
				if !ok {
					t.Fatalf("nothing is known of %d", term)
				}
				for n := range int64(resources) {
					if has, want := sets[0].Contains(uint32(n)), slices.Contains(now[n], term); has != want {
						t.Fatalf("%d has %d: %v, want %v", n, term, has, want)
					}
				}
			}
		}
	}
	change := func() map[int64]*match.Resource {
		out := make(map[int64]*match.Resource)
		for range 20 {
			n := r.Int64N(resources)
			if r.IntN(5) == 0 {
				now[n], out[n] = nil, nil
				continue
			}
			now[n] = draw()
			out[n] = &match.Resource{Index: &fhir.Index{Terms: now[n]}}
		}
		return out
	}
	f.apply(change())
	for _, i := range f.items {
		m.keep(i)
	}
	if most := len(m.items()[0].all); most > 4*len(together)+1 {
		t.Errorf("%d sets, want at most one a term", most)
	}
	check()
	for range 20 {
		m.apply(change())
		check()
	}
	for _, i := range m.items()[0].all {
		m.drop(i)
	}
	if len(m.terms) > 0 {
		t.Errorf("%d terms are left", len(m.terms))
	}
}

// A common term is not unknown because another entry has replaced it. Every resource has
// Every, which is common before the common terms have been looked for.
func TestUnknownTerms(t *testing.T) {
	t.Parallel()
	m := New(1<<20, time.Now)
	if got := m.FindEvictedTerms(3, &Terms{All: []int64{Every}, None: []int64{7}}); !slices.Equal(got, []int64{Every}) {
		t.Errorf("of a type that nothing is known of %v are lost", got)
	}
	m.common = map[TypeKey]map[int64]bool{3: {7: true}}
	q := &Terms{All: []int64{Every, 7}, Any: [][]int64{{8, 7}, {8}}, None: []int64{9}}
	if got := m.FindUnknownTerms(3, q); !slices.Equal(got, []int64{9, 8}) {
		t.Errorf("unknown are %v", got)
	}
	if got := m.FindEvictedTerms(3, q); !slices.Equal(got, []int64{Every, 7}) {
		t.Errorf("lost are %v", got)
	}
	if m.NoteCommonTerm(3, 8); !slices.Equal(m.FindUnknownTerms(3, q), []int64{9}) {
		t.Errorf("unknown are %v", m.FindUnknownTerms(3, q))
	}
	if got := m.FindEvictedTerms(3, q); !slices.Equal(got, []int64{Every, 7, 8}) {
		t.Errorf("lost are %v", got)
	}
}

// A common term is followed with all others, also if it was read alone: it is not dropped
// because no search used it during a long import.
func TestCommonTermsAreFollowed(t *testing.T) {
	t.Parallel()
	m := New(1<<20, time.Now)
	b := NewSomeTerms([]int64{Every, 7, 8})
	b.AddResource(1, []int64{Every, 7, 8})
	f := &Found{State: "5:5: index", Type: 3, Terms: b}
	f.MakeItems(time.Now())
	m.common = map[TypeKey]map[int64]bool{3: {7: true}}
	m.sets, m.columns, m.terms = map[Key]*item{}, map[ColumnKey]*item{}, map[termKey]*item{}
	if kept, _ := m.AddFound(f, Changes{Position: Position{State: f.State}, Followed: true, Now: f.State}); !kept {
		t.Fatal("what was found is not kept")
	}
	for term, some := range map[int64]bool{Every: false, 7: false, 8: true} {
		if i := m.terms[termKey{3, term}]; i == nil || i.some != some {
			t.Errorf("%d is kept as %+v", term, i)
		}
	}
}

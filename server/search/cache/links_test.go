package cache

import (
	"math/rand/v2"
	"slices"
	"testing"

	"kiln/server/fhir"
	"kiln/server/search/cache/bitmap"
	"kiln/server/search/match"
)

// A column of references gives the refs of some resources, few or many, and the resources
// that have some refs, all or the rest; also after references have been added, changed and
// removed.
func TestColumnOfReferences(t *testing.T) {
	t.Parallel()
	r := rand.New(rand.NewPCG(3, 4))
	const resources, targets, key = 6000, 90, fhir.Key(7)
	refs := make([]int64, targets)
	for i := range refs {
		refs[i] = int64(r.Uint64())
	}
	slices.Sort(refs)
	of := make(map[uint32]int64)
	for n := range uint32(resources) {
		if r.IntN(10) > 0 {
			of[n] = refs[r.IntN(targets)]
		}
	}
	b := NewColumn(ColumnKey{Type: 1, Kind: References, Keys: KeysOf([]fhir.Key{key})}, nil)
	for _, ref := range refs {
		for n := range uint32(resources) {
			if of[n] == ref && !b.AddEntry(Entry{RID: 1<<48 | int64(n), Low: ref}) {
				t.Fatalf("no room for the reference of %d", n)
			}
		}
	}
	c := b.finish()
	some := func(size int) *bitmap.Set {
		out := new(bitmap.Set)
		for range size {
			out.Add(r.Uint32N(resources))
		}
		return out
	}
	var room bitmap.Dense
	check := func() {
		t.Helper()
		for _, size := range []int{0, 1, 20, 400, resources} {
			members := some(size)
			var want []int64
			for n := range members.All(0) {
				if ref, ok := of[n]; ok {
					want = append(want, ref)
				}
			}
			slices.Sort(want)
			want = slices.Compact(want)
			if got := c.refsOf(members, &room); !slices.Equal(got, want) {
				t.Fatalf("%d resources have %d refs, want %d", members.Len(), len(got), len(want))
			}
		}
		for _, size := range []int{0, 1, 5, targets} {
			asked := append([]int64{int64(r.Uint64())}, refs[:size]...) // and one that nothing refers to
			slices.Sort(asked)
			for _, among := range []*bitmap.Set{nil, some(0), some(3), some(2000)} {
				want := new(bitmap.Set)
				for n, ref := range of {
					if slices.Contains(asked, ref) && (among == nil || among.Contains(n)) {
						want.Add(n)
					}
				}
				if got := c.having(asked, among, &room); !slices.Equal(slices.Collect(got.All(0)), slices.Collect(want.All(0))) {
					t.Fatalf("%d resources have one of %d refs, want %d", got.Len(), len(asked), want.Len())
				}
			}
		}
	}
	check()
	for range 3000 {
		n := r.Uint32N(resources)
		var resource *match.Resource
		switch r.IntN(4) {
		case 0: // it is gone
			delete(of, n)
		case 1: // it refers to something else, under another key
			delete(of, n)
			resource = &match.Resource{Index: &fhir.Index{Targets: []int64{refs[0]}}}
		default:
			of[n] = refs[r.IntN(targets)]
			resource = &match.Resource{Index: &fhir.Index{Targets: []int64{of[n]}, Terms: []int64{key.Term(fhir.Value(of[n]))}}}
		}
		if !c.apply(n, resource) {
			t.Fatalf("no room for %d", n)
		}
	}
	check()
	two := &match.Resource{Index: &fhir.Index{Targets: refs[:2], Terms: []int64{key.Term(fhir.Value(refs[0])), key.Term(fhir.Value(refs[1]))}}}
	slices.Sort(two.Index.Terms)
	if c.apply(1, two) {
		t.Error("a column has two references of one resource")
	}
}

package bitmap

import (
	"maps"
	"math/rand/v2"
	"slices"
	"testing"
)

// bitmapOf has some numbers, which may be in any order and come more than once.
func bitmapOf(some ...uint32) *Set {
	out := new(Set)
	for _, n := range some {
		out.Add(n)
	}
	return out
}

// randomNumbers are some numbers of up to a million, of any kind of block: few here, many there, all in between.
func randomNumbers(r *rand.Rand) map[uint32]bool {
	out := make(map[uint32]bool)
	for high := range uint32(r.IntN(6)) {
		page := (high + uint32(r.IntN(2))*8) << 16
		switch r.IntN(4) {
		case 0: // none
		case 1:
			for range 1 + r.IntN(200) {
				out[page+r.Uint32N(blockSize)] = true
			}
		case 2:
			for range mostListed - 20 + r.IntN(8000) {
				out[page+r.Uint32N(blockSize)] = true
			}
		default:
			for n := range uint32(blockSize) {
				out[page+n] = true
			}
			if r.IntN(2) == 0 {
				delete(out, page+r.Uint32N(blockSize))
			}
		}
	}
	return out
}

// made are numbers that come in a random way.
func makeSet(r *rand.Rand, of map[uint32]bool) *Set {
	all := slices.Sorted(maps.Keys(of))
	if r.IntN(3) == 0 {
		var d Dense
		for _, n := range all {
			d.Add(n)
		}
		return d.Set()
	}
	if r.IntN(2) == 0 {
		r.Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
	}
	return bitmapOf(all...)
}

// checkBitmap checks that s holds exactly want, by every method.
func checkBitmap(t *testing.T, r *rand.Rand, s *Set, want map[uint32]bool) {
	t.Helper()
	all := slices.Sorted(maps.Keys(want))
	if s.n != len(all) || !slices.Equal(slices.Collect(s.All(0)), all) {
		t.Fatalf("%d numbers, want %d", s.n, len(all))
	}
	n, listed, words := 0, 0, 0
	for i, b := range s.blocks {
		if n += int(b.n); b.n == 0 || i > 0 && s.blocks[i-1].high >= b.high {
			t.Fatalf("block %d of %d has %d numbers", i, b.high, b.n)
		}
		switch b.kind {
		case listedBlock:
			listed += int(b.n)
		case bitsBlock:
			words += blockWords
		}
	}
	if n != s.n || listed != len(s.listed) || words != len(s.words) {
		t.Fatalf("%d numbers in blocks of %d, %d listed of %d, %d words of %d", s.n, n, listed, len(s.listed), words, len(s.words))
	}
	var d Dense
	d.Fill(s)
	for range 50 {
		n := r.Uint32N(1 << 20)
		if s.Contains(n) != want[n] || d.Contains(n) != want[n] {
			t.Fatalf("has %d: %v, as bits %v", n, s.Contains(n), d.Contains(n))
		}
		at, there := slices.BinarySearch(all, n)
		rank := at
		if there {
			rank++
		}
		if got := s.Rank(n); got != rank {
			t.Fatalf("rank %d, want %d", got, rank)
		}
		const some = 100
		if got := firstOf(some, s.All(n)); !slices.Equal(got, all[at:min(at+some, len(all))]) {
			t.Fatalf("from %d on: %v", n, got)
		}
		before := slices.Clone(all[max(0, rank-some):rank])
		slices.Reverse(before)
		if got := firstOf(some, s.Backward(n)); !slices.Equal(got, before) {
			t.Fatalf("backwards from %d: %v", n, got)
		}
		if len(all) > 0 {
			if i := r.IntN(len(all)); s.Select(i) != all[i] {
				t.Fatalf("the %dth is %d, want %d", i, s.Select(i), all[i])
			}
		}
	}
}

func firstOf(most int, all func(func(uint32) bool)) (out []uint32) {
	all(func(n uint32) bool {
		out = append(out, n)
		return len(out) < most
	})
	return out
}

// A Set holds the numbers that were added and not removed, in any order, in blocks of every kind.
func TestBitmap(t *testing.T) {
	t.Parallel()
	r := rand.New(rand.NewPCG(3, 4))
	for range 20 {
		want := randomNumbers(r)
		s := makeSet(r, want)
		checkBitmap(t, r, s, want)
		c, was := s.Clone(), maps.Clone(want)
		for range 1 + r.IntN(4) {
			page := r.Uint32N(14) << 16
			leaves := r.IntN(2) == 0
			for _, n := range r.Perm(blockSize)[:r.IntN(blockSize)] {
				if n := page + uint32(n); leaves {
					s.Remove(n)
					delete(want, n)
				} else {
					s.Add(n)
					want[n] = true
				}
			}
			checkBitmap(t, r, s, want)
		}
		checkBitmap(t, r, c, was)
		if s.Bytes() > c.Bytes()+int64(len(want))*2+3*blockSize/8+1000 {
			t.Errorf("%d numbers take %d bytes", len(want), s.Bytes())
		}
	}
}

// Union, Intersection and Dense agree with maps of numbers, over random sets.
func TestBitmapsTogether(t *testing.T) {
	t.Parallel()
	r := rand.New(rand.NewPCG(5, 6))
	found := 0
	for range 40 {
		sets := make([]*Set, 1+r.IntN(3))
		with := make([]map[uint32]bool, len(sets))
		for i := range sets {
			with[i] = randomNumbers(r)
			sets[i] = makeSet(r, with[i])
		}
		others := make([]*Set, r.IntN(3))
		without := make([]map[uint32]bool, len(others))
		for i := range others {
			without[i] = randomNumbers(r)
			others[i] = makeSet(r, without[i])
		}
		either, each := make(map[uint32]bool), make(map[uint32]bool)
		for _, of := range with {
			for n := range of {
				either[n] = true
				has := func(of map[uint32]bool) bool { return of[n] }
				lacks := func(of map[uint32]bool) bool { return !of[n] }
				if !slices.ContainsFunc(with, lacks) && !slices.ContainsFunc(without, has) {
					each[n] = true
				}
			}
		}
		found += len(each)
		checkBitmap(t, r, Union(sets), either)
		checkBitmap(t, r, Intersection(sets, others), each)
		var d Dense
		d.Fill(Intersection(sets, others))
		checkBitmap(t, r, d.Intersection(sets[0]), each)
		d.Fill(sets[0])
		checkBitmap(t, r, d.Intersection(Intersection(sets, others)), each)
		for i := range sets {
			checkBitmap(t, r, sets[i], with[i])
		}
	}
	if found < 1000 {
		t.Errorf("%d numbers were found at all", found)
	}
}

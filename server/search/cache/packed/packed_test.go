package packed

import (
	"encoding/binary"
	"math/rand/v2"
	"slices"
	"testing"
)

// The arrays of the tests.
const (
	testNumbers Array = 0<<4 + Wide2 // with the next two
	testEnds    Array = 3<<4 + Wide2
	testStarts  Array = 4<<4 + Wide2
	testLows    Array = 8<<4 + Wide8
	testTails   Array = 9<<4 + Wide4
)

// The arrays of a piece are lists of their own, whatever happens to the others and to other pieces of the room.
func TestPiece(t *testing.T) {
	t.Parallel()
	r := rand.New(rand.NewPCG(21, 22))
	arrays := []Array{testNumbers, testEnds, testStarts, testLows, testTails}
	var pieces [7]Piece
	var wants [len(pieces)]map[Array][]uint64
	in := new(Room)
	for i := range pieces {
		pieces[i], wants[i] = NewPiece(in, new(Block)), make(map[Array][]uint64)
	}
	used := func() (n int64) {
		for i := range pieces {
			n += int64(pieces[i].Size())
		}
		return n
	}
	for range 20_000 {
		i := r.IntN(len(pieces))
		p, want := pieces[i], wants[i]
		a := arrays[r.IntN(len(arrays))]
		mask := uint64(1)<<(8<<(a&15)) - 1
		n := r.Uint64() & mask
		switch list := want[a]; {
		case len(list) == 0 && r.IntN(2) == 0:
			some := []int64{int64(r.Uint64()), 0, -1}
			FillArray(&p, a, some)
			for _, n := range some {
				list = append(list, uint64(n)&mask)
			}
			want[a] = list
		case len(list) == 0 || r.IntN(100) < 50:
			at := r.IntN(len(list) + 1)
			p.Insert(a, at, n)
			want[a] = slices.Insert(list, at, n)
		case r.IntN(100) < 60:
			at := r.IntN(len(list))
			most := 1 + r.IntN(len(list)-at)
			p.Delete(a, at, most)
			want[a] = slices.Delete(list, at, at+most)
		case a&15 == Wide2 && r.IntN(2) == 0:
			from := r.IntN(len(list) + 1)
			p.Shift(a, from, -1)
			for i := range list[from:] {
				list[from+i] = (list[from+i] - 1) & mask
			}
		case r.IntN(10) == 0:
			p.Drop(a)
			want[a] = nil
		default:
			at := r.IntN(len(list))
			p.Set(a, at, n)
			list[at] = n
		}
		switch r.IntN(500) {
		case 0:
			p.Release()
			clear(want)
		case 1:
			o := NewPiece(in, new(Block))
			o.Become(p)
			p.Release()
			pieces[i], p = o, o
		case 2:
			in = MovePieces(slices.Clone(pieces[:]), in, r.IntN(2) == 0)
			for i := range pieces {
				pieces[i].room = in
			}
			p = pieces[i]
		}
		if in.all != in.Spare()+used() {
			t.Fatalf("the room has %d bytes, of which %d are spare and %d used", in.all, in.Spare(), used())
		}
		for _, a := range arrays {
			var buf [8]byte
			var got []uint64
			width := a.bytes(1)
			for b := range slices.Chunk(p.Array(a), width) {
				clear(buf[:])
				copy(buf[:], b)
				got = append(got, binary.LittleEndian.Uint64(buf[:]))
			}
			if !slices.Equal(got, want[a]) || p.Len(a) != len(got) || p.Has(a) != (len(got) > 0) {
				t.Fatalf("array %d: %v, want %v", a.number(), got, want[a])
			}
		}
	}
}

// Blocks waste a sixteenth at most, beyond the smallest.
func TestBlocks(t *testing.T) {
	t.Parallel()
	last := uint8(0)
	for n := 1; n < 128<<10; n++ {
		class := classOf(n)
		size := sizeOf(class)
		if size < n || size-n > max(15, n/16) || class != classOf(size) || class < last || int(class) > roomClasses {
			t.Fatalf("%d bytes take a block of class %d, of %d; those before class %d", n, class, size, last)
		}
		last = class
	}
	r := Room{left: [][]byte{make([]byte, 3*mostSlab), make([]byte, mostSlab)}}
	for i := range 3 {
		if n := len(r.newSlab(16)); n > mostSlab {
			t.Errorf("slab %d has %d bytes: blocks could begin beyond %d", i, n, mostSlab)
		}
	}
}

// Numbers are kept in two, three or four bytes each, and are the same in all.
func TestPacked(t *testing.T) {
	t.Parallel()
	r := rand.New(rand.NewPCG(9, 10))
	for name, c := range map[string]struct {
		least, span uint32
		bytes       int64 // of each at first
	}{
		"near": {5_000_000, 60_000, 2}, "near the first": {0, 100, 2}, "three bytes": {0, 12_000_000, 3},
		"three bytes from a base": {3_000_000_000, 12_000_000, 3}, "four bytes": {0, 4_000_000_000, 4},
	} {
		t.Run(name, func(t *testing.T) {
			var want []uint32
			for range 400 {
				want = append(want, c.least+uint32(r.Int64N(int64(c.span))))
			}
			p := NewPiece(new(Room), new(Block))
			var base uint32
			o := NewNumbers(&p, &base, testNumbers)
			o.Fill(want)
			if got := int64(len(p.bytes())) / 400; got != c.bytes {
				t.Fatalf("%d bytes each, want %d", got, c.bytes)
			}
			for i := range 600 {
				at := r.IntN(len(want))
				if r.IntN(3) == 0 {
					o.Delete(at)
					want = slices.Delete(want, at, at+1)
					continue
				}
				n := c.least + uint32(r.Int64N(int64(c.span)))
				if i > 300 {
					n = uint32(r.IntN(1 << uint(1+r.IntN(32))))
				}
				o.Insert(at, n)
				want = slices.Insert(want, at, n)
			}
			var buf Buffer
			if got := o.read(0, o.Len(), &buf); !slices.Equal(got, want) {
				t.Fatalf("%v, want %v", got, want)
			}
			for i, n := range want {
				if o.At(i) != n || o.find(n) != slices.Index(want, n) {
					t.Fatalf("%d: %d at %d, want %d at %d", i, o.At(i), o.find(n), n, slices.Index(want, n))
				}
			}
			if o.find(c.least+c.span+1) >= 0 && !slices.Contains(want, c.least+c.span+1) {
				t.Error("one is found that is not there")
			}
		})
	}
}

// Numbers that follow one another are kept as stretches, as long as most do, and are the same.
func TestStretches(t *testing.T) {
	t.Parallel()
	r := rand.New(rand.NewPCG(19, 20))
	for _, c := range []struct {
		stretch  int   // numbers that follow one another
		together bool  // kept as such
		bytes    int64 // of all at first
	}{{40, true, 10 * (2 + 2)}, {3, true, 134 * (2 + 2)}, {1, false, 400 * 2}} {
		var want []uint32
		for n := uint32(1000); len(want) < 400; n += 1 + uint32(r.IntN(30)) {
			for range min(c.stretch, 400-len(want)) {
				want = append(want, n)
				n++
			}
		}
		p := NewPiece(new(Room), new(Block))
		var base uint32
		o := NewStretches(&p, &base, testNumbers, testEnds)
		o.Fill(want)
		if got, together := int64(len(p.bytes())), p.Has(testEnds); together != c.together || got < c.bytes || got > c.bytes+32 {
			t.Fatalf("stretches of %d: %d bytes, together %v", c.stretch, got, together)
		}
		check := func() {
			t.Helper()
			if o.Len() != len(want) {
				t.Fatalf("stretches of %d: %d numbers, want %d", c.stretch, o.Len(), len(want))
			}
			var buf Buffer
			for range 20 {
				from := r.IntN(len(want) + 1)
				to := from + r.IntN(len(want)-from+1)
				if got := o.Read(from, to, &buf); !slices.Equal(got, want[from:to]) {
					t.Fatalf("stretches of %d: from %d to %d %v, want %v", c.stretch, from, to, got, want[from:to])
				}
			}
			for i, n := range want {
				if o.At(i) != n || o.Find(n) != i {
					t.Fatalf("stretches of %d: %d at %d, want %d at %d", c.stretch, o.At(i), o.Find(n), n, i)
				}
			}
			for range 20 {
				if n := r.Uint32N(20_000); !slices.Contains(want, n) && o.Find(n) >= 0 {
					t.Fatalf("stretches of %d: %d is found, and not there", c.stretch, n)
				}
			}
		}
		check()
		for i := range 500 {
			if at := r.IntN(len(want)); r.IntN(2) == 0 {
				o.Delete(at)
				want = slices.Delete(want, at, at+1)
			} else if n := want[at] + 1; !slices.Contains(want, n) { // behind another, or at another place
				if r.IntN(2) == 0 {
					at = r.IntN(len(want))
				}
				o.Insert(at+1, n)
				want = slices.Insert(want, at+1, n)
			}
			if i%50 == 0 {
				check()
			}
		}
		for len(want) > 0 {
			at := r.IntN(len(want))
			o.Delete(at)
			want = slices.Delete(want, at, at+1)
		}
		if o.Len() != 0 {
			t.Fatalf("stretches of %d: %d numbers left", c.stretch, o.Len())
		}
	}
}

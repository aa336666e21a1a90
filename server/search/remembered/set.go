package remembered

import (
	"slices"

	"kiln/server/search/match"

	"github.com/RoaringBitmap/roaring/v2"
)

// A set is the resources of one type for which all clauses hold, by the numbers in
// their surrogates, which are dense.
type set struct {
	clauses []match.Clause
	members *roaring.Bitmap
}

func (s *set) apply(n uint32, r *match.Resource) bool {
	holds := false
	if r != nil {
		yes, ask := match.Hold(s.clauses, r)
		if len(ask) > 0 {
			return false
		}
		holds = yes
	}
	if holds {
		s.members.Add(n)
	} else {
		s.members.Remove(n)
	}
	return true
}

// compacted is b in as little memory as it takes.
func compacted(b *roaring.Bitmap) *roaring.Bitmap {
	b.RunOptimize()
	return b.Clone()
}

// containerBytes is what a container takes beside its members, of which there is one for 65,536
// resources: roaring.Bitmap.GetSizeInBytes leaves it out.
const containerBytes = 56

// leastContainer is what a container takes in roaring.Bitmap.GetSizeInBytes at least: that of one member.
const leastContainer = 4

// bitmapBytes is about what a set takes. It looks at no container's members: some are read to be counted.
func bitmapBytes(b *roaring.Bitmap) int64 {
	if b.IsEmpty() {
		return 0
	}
	size := int64(b.GetSizeInBytes())
	return size + min(size/leastContainer, int64(b.Maximum()>>16+1))*containerBytes
}

func (s *set) bytes() int64 { return bitmapBytes(s.members) + 512 }

// pageOf is the part of a set that a page has.
func pageOf(b *roaring.Bitmap, p Page) []uint32 {
	var out []uint32
	if p.Backwards {
		end := b.GetCardinality()
		if p.Bounded {
			if p.Beyond.N == 0 {
				return nil
			}
			end = b.Rank(p.Beyond.N - 1)
		}
		it := b.ReverseIterator()
		if p.Bounded && end < b.GetCardinality() {
			return reversed(b, end, p)
		}
		for skip := p.Offset; it.HasNext() && len(out) < p.Limit; {
			n := it.Next()
			if skip > 0 {
				skip--
				continue
			}
			out = append(out, n)
		}
		return out
	}
	first := uint64(p.Offset)
	if p.Bounded {
		first += b.Rank(p.Beyond.N)
	}
	if first >= b.GetCardinality() {
		return nil
	}
	start, err := b.Select(uint32(first))
	if err != nil {
		return nil
	}
	it := b.Iterator()
	it.AdvanceIfNeeded(start)
	for it.HasNext() && len(out) < p.Limit {
		out = append(out, it.Next())
	}
	return out
}

// reversed is a page of the first end members, the last of them first.
func reversed(b *roaring.Bitmap, end uint64, p Page) []uint32 {
	last := int64(end) - int64(p.Offset)
	first := max(0, last-int64(p.Limit))
	if last <= first {
		return nil
	}
	start, err := b.Select(uint32(first))
	if err != nil {
		return nil
	}
	it := b.Iterator()
	it.AdvanceIfNeeded(start)
	out := make([]uint32, 0, last-first)
	for int64(len(out)) < last-first && it.HasNext() {
		out = append(out, it.Next())
	}
	slices.Reverse(out)
	return out
}

// dense are numbers as one bit each, of which a million in no order take some milliseconds:
// sorting them takes a hundred.
type dense []uint64

func (d *dense) add(n uint32) {
	word := int(n >> 6)
	d.grow(word + 1)
	(*d)[word] |= 1 << (n & 63)
}

func (d *dense) has(n uint32) bool {
	word := int(n >> 6)
	return word < len(*d) && (*d)[word]&(1<<(n&63)) != 0
}

// set makes d those of a set.
func (d *dense) set(some *roaring.Bitmap) {
	*d = (*d)[:0]
	d.grow(int(some.DenseSize()))
	some.WriteDenseTo(*d)
}

func (d *dense) remove(n uint32) {
	if word := int(n >> 6); word < len(*d) {
		(*d)[word] &^= 1 << (n & 63)
	}
}

// union adds the numbers of other, which begins after base words.
func (d *dense) union(base int, other dense) {
	d.grow(base + len(other))
	to := (*d)[base:]
	for i, w := range other {
		to[i] |= w
	}
}

// grow makes room for so many words.
func (d *dense) grow(words int) {
	if was := len(*d); words > was {
		*d = slices.Grow(*d, words-was)[:words]
		clear((*d)[was:])
	}
}

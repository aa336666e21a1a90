package cache

import (
	"cmp"
	"math/bits"
	"slices"
)

// A room is the memory of the pieces of one column, in slabs without pointers. As separate slices, pieces would be some
// hundred thousand objects of half a kilobyte, and the garbage collector would look at each of them many times a second
// while others write. Nobody keeps the contents of a piece beyond the lock of the Memory, so a growing piece can return
// its block.
type room struct {
	slabs  [][]byte
	from   int                       // where the last slab is free
	free   [roomClasses + 1][]uint64 // blocks that are not used, by class
	unused int64                     // bytes of these
	ends   int64                     // bytes of slabs' ends that were too short for a block
	left   [][]byte                  // slabs that another room has left
	all    int64                     // bytes of slabs
}

// A slab is an eighth of all that a room has, so that a small column takes little.
const (
	leastSlab = 512
	mostSlab  = 64 << 10
)

// roomClasses is the number of sizes that blocks have: 16 bytes and their multiples, above 256 bytes
// sixteen between each power of two and the next.
const roomClasses = 16 + 16*9

// A block is where a piece lies in a room. The zero block has no room for anything.
type block struct {
	slab  uint32
	from  uint16 // in the slab
	class uint8  // from 1 on
	// begins are where each array begins, and the last ends.
	begins [maxArrays + 1]uint16
}

// classOf is the class of blocks of n bytes, or a little more, below 128 kB.
func classOf(n int) uint8 {
	if n <= 256 {
		return uint8(max(0, n-1)/16 + 1)
	}
	shift := bits.Len(uint(n-1)) - 5 // n-1 is sixteen to thirty-one times 1<<shift
	return uint8(16*(shift-4) + (n-1)>>shift + 1)
}

// size is the number of bytes of a block.
func (b *block) size() int { return sizeOf(b.class) }

func sizeOf(class uint8) int {
	if class <= 16 {
		return 16 * int(class)
	}
	return ((int(class)-1)%16 + 17) << ((class-1)/16 + 3)
}

// take gives b so many bytes at least. It had none, or they are somebody else's.
func (r *room) take(b *block, n int) {
	b.class = classOf(n)
	if list := r.free[b.class]; len(list) > 0 {
		last := list[len(list)-1]
		b.slab, b.from = uint32(last>>16), uint16(last)
		r.free[b.class] = list[:len(list)-1]
		r.unused -= int64(b.size())
		return
	}
	last := len(r.slabs) - 1
	if last < 0 || len(r.slabs[last])-r.from < b.size() {
		if last >= 0 {
			r.ends += int64(len(r.slabs[last]) - r.from)
		}
		slab := r.newSlab(b.size())
		r.slabs, r.from, r.all = append(r.slabs, slab), 0, r.all+int64(len(slab))
		last++
	}
	b.slab, b.from = uint32(last), uint16(r.from)
	r.from += b.size()
}

// newSlab is a slab of so many bytes at least.
func (r *room) newSlab(least int) []byte {
	n := max(least, min(max(int(r.all/8), leastSlab), mostSlab))
	for last := len(r.left) - 1; last >= 0; last-- {
		slab := r.left[last]
		if r.left = r.left[:last]; len(slab) >= n && len(slab) <= mostSlab { // block.from has two bytes
			return slab
		}
	}
	return make([]byte, n)
}

// moved moves all pieces of a room to a new one, slab by slab: those that are empty then are the next of the
// new one, so that it takes little more than there was.
func moved(pieces []piece, from *room, grows bool) *room {
	pieces = slices.DeleteFunc(pieces, func(p piece) bool { return p.class == 0 })
	slices.SortFunc(pieces, func(a, b piece) int { return cmp.Compare(a.slab, b.slab) })
	to := new(room)
	for i := range pieces {
		was := pieces[i].slab
		pieces[i].moveTo(to, grows)
		if i+1 < len(pieces) && pieces[i+1].slab != was {
			to.left = append(to.left, from.slabs[was])
		}
	}
	to.left = nil
	return to
}

// give returns the memory of a block.
func (r *room) give(b *block) {
	if b.class == 0 {
		return
	}
	r.free[b.class] = append(r.free[b.class], uint64(b.slab)<<16|uint64(b.from))
	r.unused += int64(b.size())
	b.class = 0
}

// spare is the size of the room beside its used blocks.
func (r *room) spare() int64 {
	if len(r.slabs) == 0 {
		return 0
	}
	return r.unused + r.ends + int64(len(r.slabs[len(r.slabs)-1])-r.from)
}

// scattered reports whether so much of the room is free that its pieces should move to another.
func (r *room) scattered() bool { return r.unused > scatteredFrom && r.unused > r.all/16 }

// scatteredFrom is the bytes up to which nothing moves.
var scatteredFrom int64 = 64 << 10

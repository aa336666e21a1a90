package packed

import (
	"cmp"
	"math/bits"
	"slices"
)

// A Room is the memory of pieces, in slabs without pointers. The zero Room is empty. Pieces as separate slices would
// be some hundred thousand objects of half a kilobyte, and the garbage collector would visit each of them many times
// a second. The owner of a room locks it: a piece that grows returns its block at once.
type Room struct {
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

// A Block is the place of a piece in a room. The zero Block has no memory.
type Block struct {
	slab  uint32
	from  uint16 // in the slab
	class uint8  // from 1 on
	// begins has the begin of each array, and the end of the last.
	begins [maxArrays + 1]uint16
}

// classOf returns the class of the smallest blocks of at least n bytes, which are below 128 kB.
func classOf(n int) uint8 {
	if n <= 256 {
		return uint8(max(0, n-1)/16 + 1)
	}
	shift := bits.Len(uint(n-1)) - 5 // n-1 is sixteen to thirty-one times 1<<shift
	return uint8(16*(shift-4) + (n-1)>>shift + 1)
}

// Size returns the number of bytes of the block.
func (b *Block) Size() int { return sizeOf(b.class) }

// sizeOf returns the number of bytes of the blocks of a class.
func sizeOf(class uint8) int {
	if class <= 16 {
		return 16 * int(class)
	}
	return ((int(class)-1)%16 + 17) << ((class-1)/16 + 3)
}

// take gives b at least n bytes. The former memory of b is not returned.
func (r *Room) take(b *Block, n int) {
	b.class = classOf(n)
	if list := r.free[b.class]; len(list) > 0 {
		last := list[len(list)-1]
		b.slab, b.from = uint32(last>>16), uint16(last)
		r.free[b.class] = list[:len(list)-1]
		r.unused -= int64(b.Size())
		return
	}
	last := len(r.slabs) - 1
	if last < 0 || len(r.slabs[last])-r.from < b.Size() {
		if last >= 0 {
			r.ends += int64(len(r.slabs[last]) - r.from)
		}
		slab := r.newSlab(b.Size())
		r.slabs, r.from, r.all = append(r.slabs, slab), 0, r.all+int64(len(slab))
		last++
	}
	b.slab, b.from = uint32(last), uint16(r.from)
	r.from += b.Size()
}

// newSlab returns a slab of at least least bytes.
func (r *Room) newSlab(least int) []byte {
	n := max(least, min(max(int(r.all/8), leastSlab), mostSlab))
	for last := len(r.left) - 1; last >= 0; last-- {
		slab := r.left[last]
		if r.left = r.left[:last]; len(slab) >= n && len(slab) <= mostSlab { // block.from has two bytes
			return slab
		}
	}
	return make([]byte, n)
}

// MovePieces moves all pieces of a room to a new one, and returns that. It moves slab by slab, and reuses each empty
// slab for the new room, so that little more memory is needed than before. With grows, pieces keep spare memory.
func MovePieces(pieces []Piece, from *Room, grows bool) *Room {
	pieces = slices.DeleteFunc(pieces, func(p Piece) bool { return p.class == 0 })
	slices.SortFunc(pieces, func(a, b Piece) int { return cmp.Compare(a.slab, b.slab) })
	to := new(Room)
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

// give returns the memory of a block to the room.
func (r *Room) give(b *Block) {
	if b.class == 0 {
		return
	}
	r.free[b.class] = append(r.free[b.class], uint64(b.slab)<<16|uint64(b.from))
	r.unused += int64(b.Size())
	b.class = 0
}

// Spare returns the bytes of the room that are in no block.
func (r *Room) Spare() int64 {
	if len(r.slabs) == 0 {
		return 0
	}
	return r.unused + r.ends + int64(len(r.slabs[len(r.slabs)-1])-r.from)
}

// Scattered reports whether the pieces should move to another room, because more than a sixteenth of this one and
// more than least bytes are free.
func (r *Room) Scattered(least int64) bool { return r.unused > least && r.unused > r.all/16 }

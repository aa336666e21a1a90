package cache

import "encoding/binary"

// A piece is some arrays of whole numbers, one behind the other in a block of a room. An array without
// numbers takes nothing.
type piece struct {
	room *room
	*block
}

// maxArrays bounds the arrays of a piece.
const maxArrays = 10

// An array is one of a piece: its number, and in the last four bits how wide its elements are.
type array uint8

// The widths of elements: of 1, 2, 4 and 8 bytes.
const (
	wide1 array = iota
	wide2
	wide4
	wide8
)

func (a array) number() int { return int(a >> 4) }

// bytes is how many bytes n elements take.
func (a array) bytes(n int) int { return n << (a & 15) }

// bytes returns the bytes of all arrays.
func (p *piece) bytes() []byte {
	if p.class == 0 {
		return nil
	}
	from := int(p.from)
	return p.room.slabs[p.slab][from : from+int(p.begins[maxArrays])]
}

// array is the bytes of an array.
func (p *piece) array(a array) []byte {
	from, to := p.begins[a>>4], p.begins[a>>4+1]
	if from == to {
		return nil
	}
	return p.room.slabs[p.slab][int(p.from)+int(from) : int(p.from)+int(to)]
}

// len is the number of elements of an array.
func (p *piece) len(a array) int { return int(p.begins[a>>4+1]-p.begins[a>>4]) >> (a & 15) }

// has reports whether an array has elements.
func (p *piece) has(a array) bool { return p.begins[a>>4+1] > p.begins[a>>4] }

// at is an element of an array of two bytes each.
func (p *piece) at(a array, i int) int { return int(uint16At(p.array(a), i)) }

func uint16At(b []byte, i int) uint16 { return binary.LittleEndian.Uint16(b[2*i:]) }

// put writes an element.
func put(b []byte, a array, i int, n uint64) {
	switch a & 15 {
	case wide1:
		b[i] = uint8(n)
	case wide2:
		binary.LittleEndian.PutUint16(b[2*i:], uint16(n))
	case wide4:
		binary.LittleEndian.PutUint32(b[4*i:], uint32(n))
	default:
		binary.LittleEndian.PutUint64(b[8*i:], n)
	}
}

// set changes an element.
func (p *piece) set(a array, i int, n uint64) { put(p.array(a), a, i, n) }

// insert puts an element into its place.
func (p *piece) insert(a array, i int, n uint64) { put(p.open(a, i, 1), a, 0, n) }

// fill writes elements to an empty array.
func fill[E uint16 | uint32 | int64](p *piece, a array, elements []E) {
	b := p.open(a, 0, len(elements))
	for i, e := range elements {
		put(b, a, i, uint64(e))
	}
}

// open makes room for n elements, and returns it. A slice that is full grows by a sixteenth: writes touch every
// piece in time.
func (p *piece) open(a array, i, n int) []byte {
	from, size := int(p.begins[a.number()])+a.bytes(i), a.bytes(n)
	was := int(p.begins[maxArrays])
	if was+size > p.size() {
		p.grow(was + size + was/16)
	}
	p.move(a, size)
	b := p.bytes()
	copy(b[from+size:], b[from:was])
	return b[from : from+size]
}

// delete takes n elements away.
func (p *piece) delete(a array, i, n int) {
	from, size := int(p.begins[a.number()])+a.bytes(i), a.bytes(n)
	b := p.bytes()
	copy(b[from:], b[from+size:])
	p.move(a, -size)
}

// move moves the end of an array, and all that is behind it.
func (p *piece) move(a array, by int) {
	for j := a.number() + 1; j < len(p.begins); j++ {
		p.begins[j] += uint16(by)
	}
}

// drop takes all elements of an array away.
func (p *piece) drop(a array) { p.delete(a, 0, p.len(a)) }

// shift adds to the elements from one on, of two bytes each.
func (p *piece) shift(a array, from, by int) {
	b := p.array(a)
	for i := 2 * from; i < len(b); i += 2 {
		binary.LittleEndian.PutUint16(b[i:], binary.LittleEndian.Uint16(b[i:])+uint16(by))
	}
}

// grow moves the piece to a block of n bytes at least.
func (p *piece) grow(n int) {
	was, old := p.bytes(), *p.block
	p.room.take(p.block, n)
	copy(p.bytes(), was)
	p.room.give(&old)
}

// moveTo moves the piece to another room, where it is to grow with a sixteenth to grow into if it has
// that. The block that it had is left to a room that is given up.
func (p *piece) moveTo(r *room, grows bool) {
	was, n := p.bytes(), int(p.begins[maxArrays])
	if grows {
		n = min(n+n/16, p.size())
	}
	if p.room, p.class = r, 0; len(was) > 0 {
		r.take(p.block, n)
		copy(p.bytes(), was)
	}
}

// release takes all arrays away, and gives the block back.
func (p *piece) release() {
	p.room.give(p.block)
	*p.block = block{}
}

// become replaces the arrays by those of o.
func (p *piece) become(o piece) {
	all := o.bytes()
	if p.class == 0 || p.class != classOf(len(all)) {
		p.room.give(p.block)
		p.room.take(p.block, len(all))
	}
	p.begins = o.begins
	copy(p.bytes(), all)
}

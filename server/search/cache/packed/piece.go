package packed

import "encoding/binary"

// A Piece is up to maxArrays arrays of whole numbers, one behind the other in one block of a room. An empty array
// uses no memory.
type Piece struct {
	room *Room
	*Block
}

// NewPiece returns the piece that is stored in block b of a room. A zero block is an empty piece.
func NewPiece(r *Room, b *Block) Piece { return Piece{r, b} }

// maxArrays is the largest number of arrays in a piece.
const maxArrays = 10

// An Array names an array of a piece: its number in the upper four bits, the width of its elements in the lower four,
// as in 3<<4 + Wide2.
type Array uint8

// The widths of elements: of 1, 2, 4 and 8 bytes.
const (
	Wide1 Array = iota
	Wide2
	Wide4
	Wide8
)

// number returns the place of the array in its piece.
func (a Array) number() int { return int(a >> 4) }

// bytes returns the size of n elements in bytes.
func (a Array) bytes(n int) int { return n << (a & 15) }

// bytes returns the bytes of all arrays.
func (p *Piece) bytes() []byte {
	if p.class == 0 {
		return nil
	}
	from := int(p.from)
	return p.room.slabs[p.slab][from : from+int(p.begins[maxArrays])]
}

// Array returns the bytes of an array, until the piece changes.
func (p *Piece) Array(a Array) []byte {
	from, to := p.begins[a>>4], p.begins[a>>4+1]
	if from == to {
		return nil
	}
	return p.room.slabs[p.slab][int(p.from)+int(from) : int(p.from)+int(to)]
}

// Len returns the number of elements of an array.
func (p *Piece) Len(a Array) int { return int(p.begins[a>>4+1]-p.begins[a>>4]) >> (a & 15) }

// Has reports whether an array has elements.
func (p *Piece) Has(a Array) bool { return p.begins[a>>4+1] > p.begins[a>>4] }

// At returns an element of an array of Wide2.
func (p *Piece) At(a Array, i int) int { return int(Uint16At(p.Array(a), i)) }

// Uint16At returns the i-th element of the bytes of an array of Wide2.
func Uint16At(b []byte, i int) uint16 { return binary.LittleEndian.Uint16(b[2*i:]) }

// put writes an element to the bytes of an array.
func put(b []byte, a Array, i int, n uint64) {
	switch a & 15 {
	case Wide1:
		b[i] = uint8(n)
	case Wide2:
		binary.LittleEndian.PutUint16(b[2*i:], uint16(n))
	case Wide4:
		binary.LittleEndian.PutUint32(b[4*i:], uint32(n))
	default:
		binary.LittleEndian.PutUint64(b[8*i:], n)
	}
}

// Set changes an element.
func (p *Piece) Set(a Array, i int, n uint64) { put(p.Array(a), a, i, n) }

// Insert inserts an element at index i.
func (p *Piece) Insert(a Array, i int, n uint64) { put(p.Open(a, i, 1), a, 0, n) }

// FillArray writes elements to an empty array.
func FillArray[E uint16 | uint32 | int64](p *Piece, a Array, elements []E) {
	b := p.Open(a, 0, len(elements))
	for i, e := range elements {
		put(b, a, i, uint64(e))
	}
}

// Open inserts n elements at index i, and returns their bytes, which the caller sets. A full block grows by a
// sixteenth, because writes reach every piece in time.
func (p *Piece) Open(a Array, i, n int) []byte {
	from, size := int(p.begins[a.number()])+a.bytes(i), a.bytes(n)
	was := int(p.begins[maxArrays])
	if was+size > p.Size() {
		p.Grow(was + size + was/16)
	}
	p.move(a, size)
	b := p.bytes()
	copy(b[from+size:], b[from:was])
	return b[from : from+size]
}

// Delete removes n elements from index i on.
func (p *Piece) Delete(a Array, i, n int) {
	from, size := int(p.begins[a.number()])+a.bytes(i), a.bytes(n)
	b := p.bytes()
	copy(b[from:], b[from+size:])
	p.move(a, -size)
}

// move moves the end of an array and everything after it.
func (p *Piece) move(a Array, by int) {
	for j := a.number() + 1; j < len(p.begins); j++ {
		p.begins[j] += uint16(by)
	}
}

// Drop removes all elements of an array.
func (p *Piece) Drop(a Array) { p.Delete(a, 0, p.Len(a)) }

// Shift adds by to the elements of an array of Wide2, from index from on.
func (p *Piece) Shift(a Array, from, by int) {
	b := p.Array(a)
	for i := 2 * from; i < len(b); i += 2 {
		binary.LittleEndian.PutUint16(b[i:], binary.LittleEndian.Uint16(b[i:])+uint16(by))
	}
}

// Grow moves the piece to a block of at least n bytes.
func (p *Piece) Grow(n int) {
	was, old := p.bytes(), *p.Block
	p.room.take(p.Block, n)
	copy(p.bytes(), was)
	p.room.give(&old)
}

// moveTo moves the piece to another room. With grows it keeps a sixteenth of spare memory, if it has that. Its block
// is not returned, because its room is given up.
func (p *Piece) moveTo(r *Room, grows bool) {
	was, n := p.bytes(), int(p.begins[maxArrays])
	if grows {
		n = min(n+n/16, p.Size())
	}
	if p.room, p.class = r, 0; len(was) > 0 {
		r.take(p.Block, n)
		copy(p.bytes(), was)
	}
}

// Release removes all arrays, and returns the block to the room.
func (p *Piece) Release() {
	p.room.give(p.Block)
	*p.Block = Block{}
}

// Become copies the arrays of o, and drops its own.
func (p *Piece) Become(o Piece) {
	all := o.bytes()
	if p.class == 0 || p.class != classOf(len(all)) {
		p.room.give(p.Block)
		p.room.take(p.Block, len(all))
	}
	p.begins = o.begins
	copy(p.bytes(), all)
}

package remembered

import (
	"encoding/binary"
	"slices"
)

// A piece is some arrays of whole numbers, one behind the other in one slice of bytes: for the collector one
// object without pointers, where slices of their own are many. An array without numbers takes nothing.
type piece struct {
	bytes  []byte
	begins [maxArrays + 1]uint16 // where each array begins, and the last ends
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

// array is the bytes of an array.
func (p *piece) array(a array) []byte { return p.bytes[p.begins[a>>4]:p.begins[a>>4+1]] }

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

// fill makes elements those of an array that has none.
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
	was := len(p.bytes)
	if was+size > cap(p.bytes) {
		p.bytes = append(slices.Grow([]byte(nil), was+size+was/16), p.bytes...)
	}
	p.bytes = p.bytes[:was+size]
	copy(p.bytes[from+size:], p.bytes[from:was])
	p.move(a, size)
	return p.bytes[from : from+size]
}

// delete takes n elements away.
func (p *piece) delete(a array, i, n int) {
	from, size := int(p.begins[a.number()])+a.bytes(i), a.bytes(n)
	p.bytes = slices.Delete(p.bytes, from, from+size)
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

// trim gives the memory back that is not filled.
func (p *piece) trim() { p.bytes = append([]byte(nil), p.bytes...) }

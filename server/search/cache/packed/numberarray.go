package packed

import (
	"math"
	"slices"
)

// Numbers are an array of 32-bit numbers in a piece, stored as distances from a base. A number takes two bytes if
// all are near each other, three bytes if all are within sixteen million, else four.
type Numbers struct {
	in   *Piece
	base *uint32
	low  Array // two bytes of each; the third and the fourth are in the arrays behind it, where one needs them
}

// NewNumbers returns the numbers in the array low of a piece, which is of Wide2, and in the two arrays after it,
// which are used for the third and fourth byte. base is stored beside the piece.
func NewNumbers(in *Piece, base *uint32, low Array) Numbers { return Numbers{in, base, low} }

// The most that a number of two, three and four bytes may be above the base.
const (
	mostIn2 = 1<<16 - 1
	mostIn3 = 1<<24 - 1
	mostIn4 = math.MaxUint32
)

// MostNumbers is the largest number of elements of Numbers.
const MostNumbers = 1024

// A Buffer is memory for unpacked numbers.
type Buffer [MostNumbers]uint32

func (o Numbers) third() Array  { return o.low&^15 + 1<<4 + Wide1 }
func (o Numbers) fourth() Array { return o.low&^15 + 2<<4 + Wide1 }

// Fill writes numbers to empty Numbers.
func (o Numbers) Fill(ns []uint32) {
	least, largest := slices.Min(ns), slices.Max(ns)
	*o.base = 0
	most := uint32(mostIn4)
	switch {
	case largest-least <= mostIn2:
		most, *o.base = mostIn2, least-min(least, (mostIn2-(largest-least))/2) // so that there is room on both sides
	case largest <= mostIn3:
		most = mostIn3
	case largest-least <= mostIn3:
		most, *o.base = mostIn3, least
	}
	byteOf := func(a Array, shift int) {
		b := o.in.Open(a, 0, len(ns))
		for i, n := range ns {
			b[i] = uint8((n - *o.base) >> shift)
		}
	}
	low := o.in.Open(o.low, 0, len(ns))
	for i, n := range ns {
		put(low, o.low, i, uint64(n-*o.base))
	}
	if most > mostIn2 {
		byteOf(o.third(), 16)
	}
	if most > mostIn3 {
		byteOf(o.fourth(), 24)
	}
}

// Len returns the number of elements.
func (o Numbers) Len() int { return o.in.Len(o.low) }

// At returns the i-th number.
func (o Numbers) At(i int) uint32 {
	v := o.View()
	return v.At(i)
}

// A View reads single numbers faster than Numbers.At. It is valid until the piece changes.
type View struct {
	base               uint32
	low, third, fourth []byte
}

// View returns a View of the numbers.
func (o Numbers) View() View {
	return View{*o.base, o.in.Array(o.low), o.in.Array(o.third()), o.in.Array(o.fourth())}
}

// At returns the i-th number.
func (v *View) At(i int) uint32 {
	n := v.base + uint32(Uint16At(v.low, i))
	if len(v.third) > 0 {
		n += uint32(v.third[i]) << 16
		if len(v.fourth) > 0 {
			n += uint32(v.fourth[i]) << 24
		}
	}
	return n
}

// most returns the largest distance from the base that fits into the present width.
func (o Numbers) most() uint32 {
	switch {
	case o.in.Has(o.fourth()):
		return mostIn4
	case o.in.Has(o.third()):
		return mostIn3
	}
	return mostIn2
}

// read unpacks the numbers from index from up to index to, without that, into buf.
func (o Numbers) read(from, to int, buf *Buffer) []uint32 {
	out := buf[:to-from]
	base := *o.base
	for i, low := 0, o.in.Array(o.low)[2*from:2*to]; i < len(out); i++ {
		out[i] = base + uint32(Uint16At(low, i))
	}
	if third := o.in.Array(o.third()); len(third) > 0 {
		for i, high := range third[from:to] {
			out[i] += uint32(high) << 16
		}
		if fourth := o.in.Array(o.fourth()); len(fourth) > 0 {
			for i, high := range fourth[from:to] {
				out[i] += uint32(high) << 24
			}
		}
	}
	return out
}

// find returns the index of n, below 0 if it is not there.
func (o Numbers) find(n uint32) int {
	distance := n - *o.base
	if distance > o.most() {
		return -1
	}
	low, third, fourth := o.in.Array(o.low), o.in.Array(o.third()), o.in.Array(o.fourth())
	for i := range len(low) / 2 {
		if Uint16At(low, i) == uint16(distance) && (len(third) == 0 || third[i] == uint8(distance>>16)) &&
			(len(fourth) == 0 || fourth[i] == uint8(distance>>24)) {
			return i
		}
	}
	return -1
}

// Insert inserts n at an index. All numbers are packed again if n does not fit into the present width.
func (o Numbers) Insert(at int, n uint32) {
	distance := n - *o.base
	most := o.most()
	if distance > most {
		var buf Buffer
		all := slices.Insert(o.read(0, o.Len(), &buf), at, n)
		o.clear()
		o.Fill(all)
		return
	}
	o.in.Insert(o.low, at, uint64(distance))
	if most > mostIn2 {
		o.in.Insert(o.third(), at, uint64(distance>>16))
	}
	if most > mostIn3 {
		o.in.Insert(o.fourth(), at, uint64(distance>>24))
	}
}

// Delete removes the number at an index.
func (o Numbers) Delete(at int) {
	for _, a := range []Array{o.low, o.third(), o.fourth()} {
		if o.in.Has(a) {
			o.in.Delete(a, at, 1)
		}
	}
}

// clear removes all numbers.
func (o Numbers) clear() {
	for _, a := range []Array{o.low, o.third(), o.fourth()} {
		o.in.Drop(a)
	}
}

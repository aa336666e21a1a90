package cache

import (
	"math"
	"slices"
)

// packed are numbers in a piece: the resources of a chunk, or the distances of its runs' values from the first. Each
// number above a base takes two bytes if all are near each other, as with resources written one after
// the other, three bytes among sixteen million, else four.
type packed struct {
	in   *piece
	base *uint32
	low  array // two bytes of each; the third and the fourth are in the arrays behind it, where one needs them
}

// The most that a number of two, three and four bytes may be above the base.
const (
	mostIn2 = 1<<16 - 1
	mostIn3 = 1<<24 - 1
	mostIn4 = math.MaxUint32
)

// packedBuffer is a buffer for unpacked numbers.
type packedBuffer [chunkFull]uint32

func (o packed) third() array  { return o.low&^15 + 1<<4 + wide1 }
func (o packed) fourth() array { return o.low&^15 + 2<<4 + wide1 }

// fill writes numbers to an empty packed.
func (o packed) fill(ns []uint32) {
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
	byteOf := func(a array, shift int) {
		b := o.in.open(a, 0, len(ns))
		for i, n := range ns {
			b[i] = uint8((n - *o.base) >> shift)
		}
	}
	low := o.in.open(o.low, 0, len(ns))
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

func (o packed) len() int { return o.in.len(o.low) }

func (o packed) at(i int) uint32 {
	v := o.view()
	return v.at(i)
}

// A packedView is packed numbers to be looked at often, until one of them changes.
type packedView struct {
	base               uint32
	low, third, fourth []byte
}

func (o packed) view() packedView {
	return packedView{*o.base, o.in.array(o.low), o.in.array(o.third()), o.in.array(o.fourth())}
}

func (v *packedView) at(i int) uint32 {
	n := v.base + uint32(uint16At(v.low, i))
	if len(v.third) > 0 {
		n += uint32(v.third[i]) << 16
		if len(v.fourth) > 0 {
			n += uint32(v.fourth[i]) << 24
		}
	}
	return n
}

// most is how far above the base a number may be that is added to these.
func (o packed) most() uint32 {
	switch {
	case o.in.has(o.fourth()):
		return mostIn4
	case o.in.has(o.third()):
		return mostIn3
	}
	return mostIn2
}

// read returns the numbers from one place to another, in buf.
func (o packed) read(from, to int, buf *packedBuffer) []uint32 {
	out := buf[:to-from]
	base := *o.base
	for i, low := 0, o.in.array(o.low)[2*from:2*to]; i < len(out); i++ {
		out[i] = base + uint32(uint16At(low, i))
	}
	if third := o.in.array(o.third()); len(third) > 0 {
		for i, high := range third[from:to] {
			out[i] += uint32(high) << 16
		}
		if fourth := o.in.array(o.fourth()); len(fourth) > 0 {
			for i, high := range fourth[from:to] {
				out[i] += uint32(high) << 24
			}
		}
	}
	return out
}

// find is the place of a number, below 0 where it has none.
func (o packed) find(n uint32) int {
	distance := n - *o.base
	if distance > o.most() {
		return -1
	}
	low, third, fourth := o.in.array(o.low), o.in.array(o.third()), o.in.array(o.fourth())
	for i := range len(low) / 2 {
		if uint16At(low, i) == uint16(distance) && (len(third) == 0 || third[i] == uint8(distance>>16)) &&
			(len(fourth) == 0 || fourth[i] == uint8(distance>>24)) {
			return i
		}
	}
	return -1
}

func (o packed) insert(at int, n uint32) {
	distance := n - *o.base
	most := o.most()
	if distance > most {
		var buf packedBuffer
		all := slices.Insert(o.read(0, o.len(), &buf), at, n)
		o.clear()
		o.fill(all)
		return
	}
	o.in.insert(o.low, at, uint64(distance))
	if most > mostIn2 {
		o.in.insert(o.third(), at, uint64(distance>>16))
	}
	if most > mostIn3 {
		o.in.insert(o.fourth(), at, uint64(distance>>24))
	}
}

func (o packed) delete(at int) {
	for _, a := range []array{o.low, o.third(), o.fourth()} {
		if o.in.has(a) {
			o.in.delete(a, at, 1)
		}
	}
}

// clear takes all numbers away.
func (o packed) clear() {
	for _, a := range []array{o.low, o.third(), o.fourth()} {
		o.in.drop(a)
	}
}

package remembered

import (
	"math"
	"slices"
)

// packed are numbers, those of a chunk's resources or how far the values of its runs are from the
// first: what each is above a base takes two bytes where all are near each other, as resources are
// that were written one after the other, and three among sixteen million.
type packed struct {
	base uint32
	low  []uint16
	high []uint8  // the rest of what they are above it; nil where that is 0 for all
	far  []uint32 // the numbers themselves, where more is needed
}

// maxDistance is how far above the base a number may be of which low and high are kept.
const maxDistance = 1<<24 - 1

// packedBuffer is what numbers are read into.
type packedBuffer [chunkFull]uint32

func packedOf(ns []uint32) (o packed) {
	least, most := slices.Min(ns), slices.Max(ns)
	switch {
	case most-least <= math.MaxUint16:
		o.base = least - min(least, (math.MaxUint16-(most-least))/2) // so that there is room on both sides
	case most <= maxDistance:
		o.high = make([]uint8, len(ns))
	case most-least <= maxDistance:
		o.base, o.high = least, make([]uint8, len(ns))
	default:
		o.far = slices.Clone(ns)
		return o
	}
	o.low = make([]uint16, len(ns))
	for i, n := range ns {
		o.low[i] = uint16(n - o.base)
		if o.high != nil {
			o.high[i] = uint8((n - o.base) >> 16)
		}
	}
	return o
}

func (o *packed) len() int { return len(o.low) + len(o.far) }

func (o *packed) at(i int) uint32 {
	switch {
	case o.far != nil:
		return o.far[i]
	case o.high != nil:
		return o.base + uint32(o.low[i]) + uint32(o.high[i])<<16
	}
	return o.base + uint32(o.low[i])
}

// most is how far above the base a number may be that is added to these.
func (o *packed) most() uint32 {
	if o.high != nil {
		return maxDistance
	}
	return math.MaxUint16
}

// read returns the numbers from one place to another, which may be in buf.
func (o *packed) read(from, to int, buf *packedBuffer) []uint32 {
	if o.far != nil {
		return o.far[from:to]
	}
	out := buf[:to-from]
	for i, low := range o.low[from:to] {
		out[i] = o.base + uint32(low)
	}
	if o.high != nil {
		for i, high := range o.high[from:to] {
			out[i] += uint32(high) << 16
		}
	}
	return out
}

// find is the place of a number, below 0 where it has none.
func (o *packed) find(n uint32) int {
	if o.far != nil {
		return slices.Index(o.far, n)
	}
	distance := n - o.base
	if distance > o.most() {
		return -1
	}
	for i, low := range o.low {
		if low == uint16(distance) && (o.high == nil || o.high[i] == uint8(distance>>16)) {
			return i
		}
	}
	return -1
}

func (o *packed) insert(at int, n uint32) {
	distance := n - o.base
	switch {
	case o.far != nil:
		o.far = insert(o.far, at, n)
	case distance > o.most():
		var buf packedBuffer
		*o = packedOf(slices.Insert(o.read(0, o.len(), &buf), at, n))
	default:
		o.low = insert(o.low, at, uint16(distance))
		if o.high != nil {
			o.high = insert(o.high, at, uint8(distance>>16))
		}
	}
}

func (o *packed) delete(at int) {
	if o.far != nil {
		o.far = slices.Delete(o.far, at, at+1)
		return
	}
	o.low = slices.Delete(o.low, at, at+1)
	if o.high != nil {
		o.high = slices.Delete(o.high, at, at+1)
	}
}

func (o *packed) bytes() int64 {
	return 2*int64(cap(o.low)) + int64(cap(o.high)) + 4*int64(cap(o.far))
}

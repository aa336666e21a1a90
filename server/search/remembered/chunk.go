package remembered

import (
	"math"
	"slices"
)

// A chunk is some hundred cells of a part, in the order of their low ends; it has one at
// least. Neighbours are alike: their low ends are kept as the distances from the first, in
// the largest unit that all are multiples of, and a tail that all have once.
type chunk struct {
	*part
	place     uint32
	tail      uint32 // of all, where tails is nil
	base      int64
	unit      int64
	distances []uint32 // nil where these do not fit
	lows      []int64  // then
	ns, tails []uint32
}

// chunkUnits are the units of distances: second, millisecond and microsecond of dates, and
// the same parts of a number.
var chunkUnits = []int64{1_000_000, 1000, 1}

func (k *chunk) len() int { return len(k.ns) }

func (k *chunk) low(i int) int64 {
	if k.distances == nil {
		return k.lows[i]
	}
	return k.base + k.unit*int64(k.distances[i])
}

func (k *chunk) cell(i int) cell {
	c := cell{k.low(i), k.ns[i], k.tail}
	if k.tails != nil {
		c.tail = k.tails[i]
	}
	return c
}

// cells are all of them, with room for one more.
func (k *chunk) cells() []cell {
	out := make([]cell, k.len(), k.len()+1)
	for i := range out {
		out[i] = k.cell(i)
	}
	return out
}

// find looks for the cell of a resource.
func (k *chunk) find(n uint32) (cell, bool) {
	if i := slices.Index(k.ns, n); i >= 0 {
		return k.cell(i), true
	}
	return cell{}, false
}

// pack keeps cells, which are in order, in the place of what there was.
func (k *chunk) pack(cells []cell) {
	k.distances, k.lows, k.ns, k.tails = nil, nil, nil, nil
	if len(cells) == 0 {
		return
	}
	k.base, k.tail = cells[0].low, cells[0].tail
	k.ns = make([]uint32, len(cells))
	alike := true
	for i, c := range cells {
		k.ns[i] = c.n
		alike = alike && c.tail == k.tail
	}
	if !alike {
		k.tails = make([]uint32, len(cells))
		for i, c := range cells {
			k.tails[i] = c.tail
		}
	}
	if k.unit = unitOf(cells); k.unit == 0 {
		k.lows = make([]int64, len(cells))
		for i, c := range cells {
			k.lows[i] = c.low
		}
		return
	}
	k.distances = make([]uint32, len(cells))
	for i, c := range cells {
		k.distances[i] = uint32((c.low - k.base) / k.unit)
	}
}

// insert puts a cell into its place; false where it is no such distance from the first cell
// as the others are, and the chunk must be packed anew.
func (k *chunk) insert(at int, c cell) bool {
	if k.distances == nil {
		k.lows = slices.Insert(k.lows, at, c.low)
	} else {
		distance := uint64(c.low) - uint64(k.base)
		if c.low < k.base || distance%uint64(k.unit) != 0 || distance/uint64(k.unit) > math.MaxUint32 {
			return false
		}
		k.distances = slices.Insert(k.distances, at, uint32(distance/uint64(k.unit)))
	}
	if k.tails == nil && c.tail != k.tail {
		k.tails = slices.Repeat([]uint32{k.tail}, k.len())
	}
	if k.tails != nil {
		k.tails = slices.Insert(k.tails, at, c.tail)
	}
	k.ns = slices.Insert(k.ns, at, c.n)
	return true
}

// delete takes a cell away.
func (k *chunk) delete(at int) {
	k.ns = slices.Delete(k.ns, at, at+1)
	if k.distances == nil {
		k.lows = slices.Delete(k.lows, at, at+1)
	} else {
		k.distances = slices.Delete(k.distances, at, at+1)
	}
	if k.tails != nil {
		k.tails = slices.Delete(k.tails, at, at+1)
	}
}

// unitOf is the unit of the distances of cells, 0 where these are too far from each other
// or too fine.
func unitOf(cells []cell) int64 {
	base := cells[0].low
	widest := uint64(cells[len(cells)-1].low) - uint64(base)
	for _, unit := range chunkUnits {
		if widest/uint64(unit) <= math.MaxUint32 && !slices.ContainsFunc(cells, func(c cell) bool { return (uint64(c.low)-uint64(base))%uint64(unit) != 0 }) {
			return unit
		}
	}
	return 0
}

// bytes is about what the chunk takes, 0 without cells.
func (k *chunk) bytes() int64 {
	if k.len() == 0 {
		return 0
	}
	return 160 + 4*int64(cap(k.distances)+cap(k.ns)+cap(k.tails)) + 8*int64(cap(k.lows))
}

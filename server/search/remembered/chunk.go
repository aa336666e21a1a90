package remembered

import (
	"math"
	"slices"
	"sort"
)

// A chunk is some hundred cells of a part, in order; it has one at least. Cells of one value
// are a run, which has the value once: most values are those of many resources. Neighbours are
// alike: the low ends of runs are kept as the distances from the first, in the largest unit
// that all are multiples of, and a tail that all have once.
type chunk struct {
	*part
	place     uint32
	tail      uint32 // of all, where tails is nil
	base      int64
	unit      int64
	ns        stretches
	starts    []uint16 // of the runs, among ns; nil where each is of one cell
	distances packed   // of the runs
	lows      []int64  // instead of distances where these do not fit, else nil
	tails     []uint32
}

// A run is the resources with one value.
type run struct {
	low  int64
	tail uint32
	ns   []uint32
}

// chunkUnits are the units of distances: second, millisecond and microsecond of dates, and
// the same parts of a number.
var chunkUnits = []int64{1_000_000, 1000, 1}

func (k *chunk) len() int { return k.ns.len() }

// low is the low end of a run.
func (k *chunk) low(r int) int64 {
	if k.lows != nil {
		return k.lows[r]
	}
	return k.base + k.unit*int64(k.distances.at(r))
}

func (k *chunk) tailOf(r int) uint32 {
	if k.tails == nil {
		return k.tail
	}
	return k.tails[r]
}

// runs is the number of runs.
func (k *chunk) runs() int {
	if k.starts == nil {
		return k.len()
	}
	return len(k.starts)
}

// bounds are the places of the cells of a run.
func (k *chunk) bounds(r int) (from, to int) {
	if k.starts == nil {
		return r, r + 1
	}
	to = k.len()
	if r+1 < len(k.starts) {
		to = int(k.starts[r+1])
	}
	return int(k.starts[r]), to
}

// run is a run whose resources may be in buf.
func (k *chunk) run(r int, buf *packedBuffer) run {
	from, to := k.bounds(r)
	return run{k.low(r), k.tailOf(r), k.ns.read(from, to, buf)}
}

// runOf is the run that has a cell.
func (k *chunk) runOf(i int) int {
	if k.starts == nil {
		return i
	}
	return sort.Search(len(k.starts), func(r int) bool { return int(k.starts[r]) > i }) - 1
}

func (k *chunk) cell(i int) cell { return k.cellOf(k.runOf(i), i) }

// cellOf is the cell at a place that is in a run.
func (k *chunk) cellOf(r, i int) cell { return cell{k.low(r), k.ns.at(i), k.tailOf(r)} }

func (k *chunk) last() cell { return k.cellOf(k.runs()-1, k.len()-1) }

// cells are all of them, with room for one more.
func (k *chunk) cells() []cell {
	out := make([]cell, 0, k.len()+1)
	var buf packedBuffer
	for i := range k.runs() {
		r := k.run(i, &buf)
		for _, n := range r.ns {
			out = append(out, cell{r.low, n, r.tail})
		}
	}
	return out
}

// seek is the first cell that is not before, which holds for some cells at the start.
func (k *chunk) seek(before func(cell) bool) int {
	r := sort.Search(k.runs(), func(r int) bool { from, _ := k.bounds(r); return !before(k.cellOf(r, from)) }) - 1
	if r < 0 {
		return 0
	}
	from, to := k.bounds(r)
	return from + sort.Search(to-from, func(i int) bool { return !before(k.cellOf(r, from+i)) })
}

// find is where the cell of a resource is, below 0 where there is none.
func (k *chunk) find(n uint32) int { return k.ns.find(n) }

// pack keeps cells, which are in order, in the place of what there was.
func (k *chunk) pack(cells []cell) {
	k.distances, k.lows, k.ns, k.starts, k.tails = packed{}, nil, stretches{}, nil, nil
	if len(cells) == 0 {
		return
	}
	k.base, k.tail = cells[0].low, cells[0].tail
	ns := make([]uint32, len(cells))
	starts, alike := make([]uint16, 0, chunkFull), true
	for i, c := range cells {
		ns[i] = c.n
		if i == 0 || c.low != cells[i-1].low || c.tail != cells[i-1].tail {
			starts = append(starts, uint16(i))
		}
		alike = alike && c.tail == k.tail
	}
	k.ns = stretchesOf(ns)
	if len(starts) < len(cells) {
		k.starts = starts
	}
	if !alike {
		k.tails = make([]uint32, len(starts))
		for r, i := range starts {
			k.tails[r] = cells[i].tail
		}
	}
	if k.unit = unitOf(cells); k.unit == 0 {
		k.lows = make([]int64, len(starts))
		for r, i := range starts {
			k.lows[r] = cells[i].low
		}
	} else {
		distances := make([]uint32, len(starts))
		for r, i := range starts {
			distances[r] = uint32((cells[i].low - k.base) / k.unit)
		}
		k.distances = packedOf(distances)
	}
	together(&k.ns.low, &k.ns.ends, &k.starts, &k.distances.low)
}

// together moves slices into one piece of memory, each without room: the collector has fewer
// to mark. One that grows leaves it, and the piece stays as long as one of them is in it.
func together(all ...*[]uint16) {
	n := 0
	for _, s := range all {
		n += len(*s)
	}
	piece := make([]uint16, 0, n)
	for _, s := range all {
		if *s != nil {
			from := len(piece)
			piece = append(piece, *s...)
			*s = piece[from:len(piece):len(piece)]
		}
	}
}

// insert puts a cell into its place; false where it is no such distance from the first cell
// as the others are, and the chunk must be packed anew.
func (k *chunk) insert(at int, c cell) bool {
	r := max(0, k.runOf(at-1)) // the run that the cell belongs to, or that it comes behind
	has := func(r int) bool {
		if r >= k.runs() {
			return false
		}
		return k.low(r) == c.low && k.tailOf(r) == c.tail
	}
	if !has(r) {
		if at > 0 {
			r++
		}
		if !has(r) && !k.insertRun(r, at, c) {
			return false
		}
	}
	if k.starts == nil && k.distances.len()+len(k.lows) == k.len() { // no run was made: the cell joins another
		k.starts = make([]uint16, k.len())
		for i := range k.starts {
			k.starts[i] = uint16(i)
		}
	}
	if k.starts != nil {
		for i := range k.starts[r+1:] {
			k.starts[r+1+i]++
		}
	}
	k.ns.insert(at, c.n)
	return true
}

// insertRun makes a run without a cell, for the value of one; false where its low end is no
// such distance as those of the others.
func (k *chunk) insertRun(r, at int, c cell) bool {
	if k.lows != nil {
		k.lows = insert(k.lows, r, c.low)
	} else {
		distance := uint64(c.low) - uint64(k.base)
		if c.low < k.base || distance%uint64(k.unit) != 0 || distance/uint64(k.unit) > math.MaxUint32 {
			return false
		}
		k.distances.insert(r, uint32(distance/uint64(k.unit)))
	}
	if k.tails == nil && c.tail != k.tail {
		k.tails = slices.Repeat([]uint32{k.tail}, k.runs())
	}
	if k.tails != nil {
		k.tails = insert(k.tails, r, c.tail)
	}
	if k.starts != nil {
		k.starts = insert(k.starts, r, uint16(at))
	}
	return true
}

// insert is slices.Insert that makes room for a sixteenth more, not for a fourth: writes touch
// every chunk in time.
func insert[E any](s []E, at int, e E) []E {
	if len(s) == cap(s) {
		s = append(make([]E, 0, len(s)+len(s)/16+4), s...)
	}
	return slices.Insert(s, at, e)
}

// delete takes a cell away.
func (k *chunk) delete(at int) {
	r := k.runOf(at)
	from, to := k.bounds(r)
	alone := to-from == 1
	k.ns.delete(at)
	if k.starts != nil {
		for i := range k.starts[r+1:] {
			k.starts[r+1+i]--
		}
	}
	if !alone {
		return
	}
	if k.starts != nil {
		k.starts = slices.Delete(k.starts, r, r+1)
	}
	if k.lows != nil {
		k.lows = slices.Delete(k.lows, r, r+1)
	} else {
		k.distances.delete(r)
	}
	if k.tails != nil {
		k.tails = slices.Delete(k.tails, r, r+1)
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
	return 320 + k.ns.bytes() + k.distances.bytes() + 4*int64(cap(k.tails)) + 8*int64(cap(k.lows)) + 2*int64(cap(k.starts))
}

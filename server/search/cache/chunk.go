package cache

import (
	"encoding/binary"
	"math"
	"slices"
	"sort"
	"sync"

	"kiln/server/search/cache/packed"
)

// A chunk is some hundred cells of a part, in order, and at least one. Cells of one value form a run, which stores the
// value once: most values occur in many resources. Neighbours are alike: the low ends of runs are stored as
// distances from the first, in the largest common unit, and a tail shared by all is stored once.
type chunk struct {
	*chunkHead
	packed.Piece
}

// A chunkHead is the stored form of a chunk beside its block: it contains no pointers.
type chunkHead struct {
	base         int64
	unit         int32
	numberBase   uint32
	distanceBase uint32
	tail         uint32 // of all, where runTails has none
	place        uint32
	part         uint32 // part.number
	lies         packed.Block
}

// The number of cells of a new chunk, and the number that a chunk never reaches.
const (
	chunkFilled = 512
	chunkFull   = packed.MostNumbers
)

// The arrays of a chunk.
const (
	numbers      packed.Array = 0<<4 + packed.Wide2 // of the resources: stretches, with the next two
	numberEnds   packed.Array = 3<<4 + packed.Wide2
	runStarts    packed.Array = 4<<4 + packed.Wide2 // among the cells; none where each run is of one
	runDistances packed.Array = 5<<4 + packed.Wide2 // packed, with the next two
	runLows      packed.Array = 8<<4 + packed.Wide8 // instead of distances where these do not fit
	runTails     packed.Array = 9<<4 + packed.Wide4
)

// ns are the resources of the cells.
func (k *chunk) ns() packed.Stretches {
	return packed.NewStretches(&k.Piece, &k.numberBase, numbers, numberEnds)
}

func (k *chunk) distances() packed.Numbers {
	return packed.NewNumbers(&k.Piece, &k.distanceBase, runDistances)
}

// A run is the resources with one value.
type run struct {
	low  int64
	tail uint32
	ns   []uint32
}

// chunkUnits are the units of distances: second, millisecond and microsecond of dates, and
// the same parts of a number.
var chunkUnits = []int32{1_000_000, 1000, 1}

func (k *chunk) len() int { return k.ns().Len() }

// low is the low end of a run.
func (k *chunk) low(r int) int64 {
	if lows := k.Array(runLows); len(lows) > 0 {
		return int64(binary.LittleEndian.Uint64(lows[8*r:]))
	}
	return k.base + int64(k.unit)*int64(k.distances().At(r))
}

// firstRun is the first run, of the first so many, whose low end is not below low.
func (k *chunk) firstRun(runs int, low int64) int {
	if k.Has(runLows) {
		return sort.Search(runs, func(r int) bool { return k.low(r) >= low })
	}
	distances := k.distances().View()
	return sort.Search(runs, func(r int) bool { return k.base+int64(k.unit)*int64(distances.At(r)) >= low })
}

func (k *chunk) tailOf(r int) uint32 {
	if tails := k.Array(runTails); len(tails) > 0 {
		return binary.LittleEndian.Uint32(tails[4*r:])
	}
	return k.tail
}

// runs is the number of runs.
func (k *chunk) runs() int {
	if n := k.Piece.Len(runStarts); n > 0 {
		return n
	}
	return k.len()
}

// bounds are the places of the cells of a run.
func (k *chunk) bounds(r int) (from, to int) {
	starts := k.Array(runStarts)
	if len(starts) == 0 {
		return r, r + 1
	}
	if 2*r+2 < len(starts) {
		to = int(packed.Uint16At(starts, r+1))
	} else {
		to = k.len()
	}
	return int(packed.Uint16At(starts, r)), to
}

// run is a run whose resources may be in buf.
func (k *chunk) run(r int, buf *packed.Buffer) run {
	from, to := k.bounds(r)
	return run{k.low(r), k.tailOf(r), k.ns().Read(from, to, buf)}
}

// runOf is the run that has a cell.
func (k *chunk) runOf(i int) int {
	starts := k.Array(runStarts)
	if len(starts) == 0 {
		return i
	}
	return sort.Search(len(starts)/2, func(r int) bool { return int(packed.Uint16At(starts, r)) > i }) - 1
}

func (k *chunk) cell(i int) cell { return k.cellOf(k.runOf(i), i) }

// cellOf is the cell at a place that is in a run.
func (k *chunk) cellOf(r, i int) cell { return cell{k.low(r), k.ns().At(i), k.tailOf(r)} }

func (k *chunk) last() cell { return k.cellOf(k.runs()-1, k.len()-1) }

// cells are all of them, with room for one more.
func (k *chunk) cells() []cell {
	out := make([]cell, 0, k.len()+1)
	var buf packed.Buffer
	for i := range k.runs() {
		r := k.run(i, &buf)
		for _, n := range r.ns {
			out = append(out, cell{r.low, n, r.tail})
		}
	}
	return out
}

// seek is the first cell that is not before another one, of which the tail is a value of some.
func (k *chunk) seek(e cell, some *tails) int {
	runs := k.runs()
	r := k.firstRun(runs, e.low)
	for ; r < runs && k.low(r) == e.low; r++ {
		from, to := k.bounds(r)
		if tail := k.tailOf(r); tail != e.tail {
			if some.values[tail] > some.values[e.tail] {
				return from
			}
			continue
		}
		ns := k.ns()
		if ns.At(to-1) < e.n { // most are newer than all others
			return to
		}
		return from + sort.Search(to-from, func(i int) bool { return ns.At(from+i) >= e.n })
	}
	if r == runs {
		return k.len()
	}
	from, _ := k.bounds(r)
	return from
}

// runFrom is the first run whose low end is not below low; one at least has such.
func (k *chunk) runFrom(low int64) int {
	return k.firstRun(k.runs()-1, low)
}

// find is where the cell of a resource is, below 0 where there is none.
func (k *chunk) find(n uint32) int { return k.ns().Find(n) }

// pack stores cells, which are in order, in place of the former cells.
func (k *chunk) pack(cells []cell) {
	if len(cells) == 0 {
		k.Release()
		return
	}
	in := packing.Get().(*packed.Room)
	defer packing.Put(in)
	head := chunkHead{base: cells[0].low, tail: cells[0].tail, unit: unitOf(cells)}
	p := head.in(in)
	defer p.Release()
	p.Grow(packRoom)
	var ns, distances, tails packed.Buffer
	var starts [chunkFull]uint16
	var lows [chunkFull]int64
	runs, alike := 0, true
	for i, c := range cells {
		ns[i] = c.n
		if i > 0 && c.low == cells[i-1].low && c.tail == cells[i-1].tail {
			continue
		}
		starts[runs], lows[runs], tails[runs] = uint16(i), c.low, c.tail
		if p.unit != 0 {
			distances[runs] = uint32((c.low - p.base) / int64(p.unit))
		}
		runs, alike = runs+1, alike && c.tail == p.tail
	}
	p.ns().Fill(ns[:len(cells)])
	if runs < len(cells) {
		packed.FillArray(&p.Piece, runStarts, starts[:runs])
	}
	if p.unit != 0 {
		p.distances().Fill(distances[:runs])
	} else {
		packed.FillArray(&p.Piece, runLows, lows[:runs])
	}
	if !alike {
		packed.FillArray(&p.Piece, runTails, tails[:runs])
	}
	k.base, k.tail, k.unit, k.numberBase, k.distanceBase = p.base, p.tail, p.unit, p.numberBase, p.distanceBase
	k.Become(p.Piece)
}

// packRoom is what most chunks take at most, in bytes.
const packRoom = 8 << 10

// packing has rooms for chunks that are being packed.
var packing = sync.Pool{New: func() any { return new(packed.Room) }}

// in is the chunk in its room.
func (h *chunkHead) in(r *packed.Room) chunk { return chunk{h, packed.NewPiece(r, &h.lies)} }

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
	if !k.Has(runStarts) && k.distances().Len()+k.Piece.Len(runLows) == k.len() { // no run was made: the cell joins another
		var starts [chunkFull]uint16
		for i := range k.len() {
			starts[i] = uint16(i)
		}
		packed.FillArray(&k.Piece, runStarts, starts[:k.len()])
	}
	k.Shift(runStarts, r+1, 1)
	k.ns().Insert(at, c.n)
	return true
}

// insertRun adds an empty run for the value of one. It returns false if the low end does not fit the distances of the
// others.
func (k *chunk) insertRun(r, at int, c cell) bool {
	runs := k.runs()
	if k.Has(runLows) {
		k.Piece.Insert(runLows, r, uint64(c.low))
	} else {
		distance := uint64(c.low) - uint64(k.base)
		if c.low < k.base || distance%uint64(k.unit) != 0 || distance/uint64(k.unit) > math.MaxUint32 {
			return false
		}
		k.distances().Insert(r, uint32(distance/uint64(k.unit)))
	}
	if !k.Has(runTails) && c.tail != k.tail {
		packed.FillArray(&k.Piece, runTails, slices.Repeat([]uint32{k.tail}, runs))
	}
	if k.Has(runTails) {
		k.Piece.Insert(runTails, r, uint64(c.tail))
	}
	if k.Has(runStarts) {
		k.Piece.Insert(runStarts, r, uint64(at))
	}
	return true
}

// delete takes a cell away.
func (k *chunk) delete(at int) {
	r := k.runOf(at)
	from, to := k.bounds(r)
	alone := to-from == 1
	k.ns().Delete(at)
	k.Shift(runStarts, r+1, -1)
	if !alone {
		return
	}
	for _, a := range []packed.Array{runStarts, runLows, runTails} {
		if k.Has(a) {
			k.Piece.Delete(a, r, 1)
		}
	}
	if k.distances().Len() > 0 {
		k.distances().Delete(r)
	}
}

// unitOf is the unit of the distances of cells, 0 where these are too far from each other
// or too fine.
func unitOf(cells []cell) int32 {
	base := cells[0].low
	widest := uint64(cells[len(cells)-1].low) - uint64(base)
	for _, unit := range chunkUnits {
		if widest/uint64(unit) <= math.MaxUint32 && !slices.ContainsFunc(cells, func(c cell) bool { return (uint64(c.low)-uint64(base))%uint64(unit) != 0 }) {
			return unit
		}
	}
	return 0
}

// size returns the approximate size of the chunk in bytes, 0 without cells.
func (k *chunk) size() int64 {
	if k.len() == 0 {
		return 0
	}
	return chunkBytes + int64(k.Piece.Size())
}

// chunkBytes is the approximate size in bytes of a chunk without its piece.
const chunkBytes = 96

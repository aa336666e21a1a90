package remembered

import (
	"slices"
	"sort"
)

// stretches are the numbers of a chunk's resources. Resources that were written together follow one another:
// where most do, the first of each stretch is kept.
type stretches struct {
	packed          // the numbers, or the first of each stretch
	ends   []uint16 // of the stretches, among the numbers; nil where each number is kept
}

func stretchesOf(ns []uint32) stretches {
	begins := func(i int) bool { return i == 0 || ns[i] != ns[i-1]+1 }
	count := 0
	for i := range ns {
		if begins(i) {
			count++
		}
	}
	if shortStretches(count, len(ns)) {
		return stretches{packed: packedOf(ns)}
	}
	first, ends := make([]uint32, 0, count), make([]uint16, 0, count)
	for i, n := range ns {
		if begins(i) {
			first, ends = append(first, n), append(ends, 0)
		}
		ends[len(ends)-1] = uint16(i + 1)
	}
	return stretches{packedOf(first), ends}
}

// shortStretches reports whether numbers take as little without so many stretches.
func shortStretches(stretches, numbers int) bool { return 2*stretches > numbers }

func (o *stretches) len() int {
	if o.ends != nil {
		return int(o.ends[len(o.ends)-1])
	}
	return o.packed.len()
}

// stretch is the one that the i-th number is in, or would be behind the last, and how far from its first.
func (o *stretches) stretch(i int) (s, from int) {
	s = sort.Search(len(o.ends), func(s int) bool { return int(o.ends[s]) > i })
	return s, i - o.start(s)
}

// start is the place of a stretch's first number.
func (o *stretches) start(s int) int {
	if s == 0 {
		return 0
	}
	return int(o.ends[s-1])
}

func (o *stretches) at(i int) uint32 {
	if o.ends == nil {
		return o.packed.at(i)
	}
	s, from := o.stretch(i)
	return o.packed.at(s) + uint32(from)
}

// read returns the numbers from one place to another, which may be in buf.
func (o *stretches) read(from, to int, buf *packedBuffer) []uint32 {
	if o.ends == nil {
		return o.packed.read(from, to, buf)
	}
	out := buf[:to-from]
	s, skip := o.stretch(from)
	for i := 0; i < len(out); s, skip = s+1, 0 {
		n := o.packed.at(s) + uint32(skip)
		for end := min(len(out), int(o.ends[s])-from); i < end; i, n = i+1, n+1 {
			out[i] = n
		}
	}
	return out
}

// find is the place of a number, below 0 where it has none.
func (o *stretches) find(n uint32) int {
	if o.ends == nil {
		return o.packed.find(n)
	}
	for s := range o.ends {
		start := o.start(s)
		if from := n - o.packed.at(s); from < uint32(int(o.ends[s])-start) {
			return start + int(from)
		}
	}
	return -1
}

func (o *stretches) insert(at int, n uint32) {
	if o.ends == nil {
		o.packed.insert(at, n)
		return
	}
	s := o.cut(at)
	if s > 0 && n == o.packed.at(s-1)+uint32(at-o.start(s-1)) {
		o.move(s-1, 1)
		return
	}
	o.packed.insert(s, n)
	o.ends = insert(o.ends, s, uint16(at))
	o.move(s, 1)
	o.spread()
}

// delete takes a number away, of some.
func (o *stretches) delete(at int) {
	if o.ends == nil {
		o.packed.delete(at)
		return
	}
	s := o.cut(at)
	o.cut(at + 1)
	o.packed.delete(s)
	o.ends = slices.Delete(o.ends, s, s+1)
	o.move(s, -1)
	o.spread()
}

// cut makes a stretch begin at a place, and returns it.
func (o *stretches) cut(at int) (s int) {
	s, from := o.stretch(at)
	if from == 0 {
		return s
	}
	o.packed.insert(s+1, o.packed.at(s)+uint32(from))
	o.ends = insert(o.ends, s, uint16(at))
	return s + 1
}

// move moves the ends of a stretch and of those behind it.
func (o *stretches) move(s, by int) {
	for i := range o.ends[s:] {
		o.ends[s+i] += uint16(by)
	}
}

// spread keeps each number where stretches are short.
func (o *stretches) spread() {
	if n := len(o.ends); n == 0 || shortStretches(n, o.len()) {
		all := make([]uint32, 0, chunkFull)
		for s := range o.ends {
			for i := range int(o.ends[s]) - o.start(s) {
				all = append(all, o.packed.at(s)+uint32(i))
			}
		}
		*o = stretches{}
		if n > 0 {
			o.packed = packedOf(all)
		}
	}
}

func (o *stretches) bytes() int64 { return o.packed.bytes() + 2*int64(cap(o.ends)) }

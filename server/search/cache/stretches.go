package cache

import "sort"

// stretches are the numbers of a chunk's resources. Resources that were written together follow one another:
// where most do, the first of each stretch is kept.
type stretches struct {
	packed       // the numbers, or the first of each stretch
	ends   array // of the stretches, among the numbers; without elements where each number is kept
}

// fill writes numbers to empty stretches.
func (o stretches) fill(ns []uint32) {
	begins := func(i int) bool { return i == 0 || ns[i] != ns[i-1]+1 }
	count := 0
	for i := range ns {
		if begins(i) {
			count++
		}
	}
	if shortStretches(count, len(ns)) {
		o.packed.fill(ns)
		return
	}
	var first packedBuffer
	var ends [chunkFull]uint16
	s := -1
	for i, n := range ns {
		if begins(i) {
			s++
			first[s] = n
		}
		ends[s] = uint16(i + 1)
	}
	o.packed.fill(first[:count])
	fill(o.in, o.ends, ends[:count])
}

// shortStretches reports whether numbers take as little without so many stretches.
func shortStretches(stretches, numbers int) bool { return 2*stretches > numbers }

func (o stretches) len() int {
	if n := o.stretches(); n > 0 {
		return o.end(n - 1)
	}
	return o.packed.len()
}

// stretches is the number of stretches, 0 where each number is kept.
func (o stretches) stretches() int { return o.in.len(o.ends) }

// end is where a stretch ends.
func (o stretches) end(s int) int { return o.in.at(o.ends, s) }

// stretch is the one that the i-th number is in, or would be behind the last, and how far from its first.
func (o stretches) stretch(i int) (s, from int) {
	s = sort.Search(o.stretches(), func(s int) bool { return o.end(s) > i })
	return s, i - o.start(s)
}

// start is the place of a stretch's first number.
func (o stretches) start(s int) int {
	if s == 0 {
		return 0
	}
	return o.end(s - 1)
}

func (o stretches) at(i int) uint32 {
	if !o.in.has(o.ends) {
		return o.packed.at(i)
	}
	s, from := o.stretch(i)
	return o.packed.at(s) + uint32(from)
}

// read returns the numbers from one place to another, which may be in buf.
func (o stretches) read(from, to int, buf *packedBuffer) []uint32 {
	if !o.in.has(o.ends) {
		return o.packed.read(from, to, buf)
	}
	out := buf[:to-from]
	s, skip := o.stretch(from)
	for i := 0; i < len(out); s, skip = s+1, 0 {
		n := o.packed.at(s) + uint32(skip)
		for end := min(len(out), o.end(s)-from); i < end; i, n = i+1, n+1 {
			out[i] = n
		}
	}
	return out
}

// find is the place of a number, below 0 where it has none.
func (o stretches) find(n uint32) int {
	if !o.in.has(o.ends) {
		return o.packed.find(n)
	}
	for s := range o.stretches() {
		start := o.start(s)
		if from := n - o.packed.at(s); from < uint32(o.end(s)-start) {
			return start + int(from)
		}
	}
	return -1
}

func (o stretches) insert(at int, n uint32) {
	if !o.in.has(o.ends) {
		o.packed.insert(at, n)
		return
	}
	s := o.cut(at)
	if s > 0 && n == o.packed.at(s-1)+uint32(at-o.start(s-1)) {
		o.in.shift(o.ends, s-1, 1)
		return
	}
	o.packed.insert(s, n)
	o.in.insert(o.ends, s, uint64(at))
	o.in.shift(o.ends, s, 1)
	o.spread()
}

// delete takes a number away, of some.
func (o stretches) delete(at int) {
	if !o.in.has(o.ends) {
		o.packed.delete(at)
		return
	}
	s := o.cut(at)
	o.cut(at + 1)
	o.packed.delete(s)
	o.in.delete(o.ends, s, 1)
	o.in.shift(o.ends, s, -1)
	o.spread()
}

// cut makes a stretch begin at a place, and returns it.
func (o stretches) cut(at int) (s int) {
	s, from := o.stretch(at)
	if from == 0 {
		return s
	}
	o.packed.insert(s+1, o.packed.at(s)+uint32(from))
	o.in.insert(o.ends, s, uint64(at))
	return s + 1
}

// spread keeps each number where stretches are short.
func (o stretches) spread() {
	n := o.stretches()
	if n > 0 && !shortStretches(n, o.len()) {
		return
	}
	var buf packedBuffer
	all := o.read(0, o.len(), &buf)
	o.packed.clear()
	o.in.drop(o.ends)
	if len(all) > 0 {
		o.packed.fill(all)
	}
}

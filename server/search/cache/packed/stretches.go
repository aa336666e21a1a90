package packed

import "sort"

// Stretches are numbers in a piece, many of them consecutive: resources that were written together have consecutive
// numbers. A stretch of consecutive numbers is stored as its first number and its end. If stretches are short, each
// number is stored.
type Stretches struct {
	Numbers       // the numbers, or the first of each stretch
	ends    Array // of the stretches, among the numbers; without elements where each number is kept
}

// NewStretches returns the numbers in the arrays of NewNumbers, with the ends of their stretches in an array of
// Wide2.
func NewStretches(in *Piece, base *uint32, low, ends Array) Stretches {
	return Stretches{NewNumbers(in, base, low), ends}
}

// Fill writes ascending numbers to empty Stretches.
func (o Stretches) Fill(ns []uint32) {
	begins := func(i int) bool { return i == 0 || ns[i] != ns[i-1]+1 }
	count := 0
	for i := range ns {
		if begins(i) {
			count++
		}
	}
	if shortStretches(count, len(ns)) {
		o.Numbers.Fill(ns)
		return
	}
	var first Buffer
	var ends [MostNumbers]uint16
	s := -1
	for i, n := range ns {
		if begins(i) {
			s++
			first[s] = n
		}
		ends[s] = uint16(i + 1)
	}
	o.Numbers.Fill(first[:count])
	FillArray(o.in, o.ends, ends[:count])
}

// shortStretches reports whether the numbers need no more memory without stretches.
func shortStretches(stretches, numbers int) bool { return 2*stretches > numbers }

// Len returns the number of elements.
func (o Stretches) Len() int {
	if n := o.stretches(); n > 0 {
		return o.end(n - 1)
	}
	return o.Numbers.Len()
}

// stretches returns the number of stretches, 0 if each number is stored.
func (o Stretches) stretches() int { return o.in.Len(o.ends) }

// end returns the index after the last number of a stretch.
func (o Stretches) end(s int) int { return o.in.At(o.ends, s) }

// stretch returns the stretch of the i-th number, and the distance from its first. For i equal to Len it returns the
// stretch after the last.
func (o Stretches) stretch(i int) (s, from int) {
	s = sort.Search(o.stretches(), func(s int) bool { return o.end(s) > i })
	return s, i - o.start(s)
}

// start returns the index of the first number of a stretch.
func (o Stretches) start(s int) int {
	if s == 0 {
		return 0
	}
	return o.end(s - 1)
}

// At returns the i-th number.
func (o Stretches) At(i int) uint32 {
	if !o.in.Has(o.ends) {
		return o.Numbers.At(i)
	}
	s, from := o.stretch(i)
	return o.Numbers.At(s) + uint32(from)
}

// Read returns the numbers from index from up to index to, without that. They may be in buf.
func (o Stretches) Read(from, to int, buf *Buffer) []uint32 {
	if !o.in.Has(o.ends) {
		return o.Numbers.read(from, to, buf)
	}
	out := buf[:to-from]
	s, skip := o.stretch(from)
	for i := 0; i < len(out); s, skip = s+1, 0 {
		n := o.Numbers.At(s) + uint32(skip)
		for end := min(len(out), o.end(s)-from); i < end; i, n = i+1, n+1 {
			out[i] = n
		}
	}
	return out
}

// Find returns the index of n, below 0 if it is not there.
func (o Stretches) Find(n uint32) int {
	if !o.in.Has(o.ends) {
		return o.Numbers.find(n)
	}
	for s := range o.stretches() {
		start := o.start(s)
		if from := n - o.Numbers.At(s); from < uint32(o.end(s)-start) {
			return start + int(from)
		}
	}
	return -1
}

// Insert inserts n at an index.
func (o Stretches) Insert(at int, n uint32) {
	if !o.in.Has(o.ends) {
		o.Numbers.Insert(at, n)
		return
	}
	s := o.cut(at)
	if s > 0 && n == o.Numbers.At(s-1)+uint32(at-o.start(s-1)) {
		o.in.Shift(o.ends, s-1, 1)
		return
	}
	o.Numbers.Insert(s, n)
	o.in.Insert(o.ends, s, uint64(at))
	o.in.Shift(o.ends, s, 1)
	o.spread()
}

// Delete removes the number at an index.
func (o Stretches) Delete(at int) {
	if !o.in.Has(o.ends) {
		o.Numbers.Delete(at)
		return
	}
	s := o.cut(at)
	o.cut(at + 1)
	o.Numbers.Delete(s)
	o.in.Delete(o.ends, s, 1)
	o.in.Shift(o.ends, s, -1)
	o.spread()
}

// cut makes a stretch begin at an index, and returns it.
func (o Stretches) cut(at int) (s int) {
	s, from := o.stretch(at)
	if from == 0 {
		return s
	}
	o.Numbers.Insert(s+1, o.Numbers.At(s)+uint32(from))
	o.in.Insert(o.ends, s, uint64(at))
	return s + 1
}

// spread stores each number if stretches have become short.
func (o Stretches) spread() {
	n := o.stretches()
	if n > 0 && !shortStretches(n, o.Len()) {
		return
	}
	var buf Buffer
	all := o.Read(0, o.Len(), &buf)
	o.Numbers.clear()
	o.in.Drop(o.ends)
	if len(all) > 0 {
		o.Numbers.Fill(all)
	}
}

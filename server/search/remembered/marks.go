package remembered

import "slices"

// A mark is the resources whose short entries in a part have low ends below a value. A range among
// millions of entries is the difference of two marks, and the entries between them and its ends.
type mark struct {
	at    int64
	below dense
}

// marksFrom is the number of entries from which a part has marks, and of those that a range has
// from which they are used.
var marksFrom = 100_000

// partMarks is how many marks a part has, the last of which is behind all entries.
const partMarks = 8

// setMarks makes the marks of a part, evenly among its entries.
func (p *part) setMarks() {
	every := (p.n - p.long.n + partMarks - 1) / partMarks
	var all dense
	n := 0
	for i, k := range p.chunks {
		if n >= every*(len(p.marks)+1) && p.chunks[i-1].last().low < k.low(0) {
			p.marks = append(p.marks, mark{k.low(0), slices.Clone(all)})
		}
		for _, of := range k.ns {
			all.add(of)
		}
		n += k.len()
	}
	p.marks = append(p.marks, mark{highest, all})
}

// newMarksBytes is about what marks would take that a part does not have, and should.
func (p *part) newMarksBytes() int64 {
	if p.marks != nil || p.n < marksFrom {
		return 0
	}
	return partMarks * int64(p.n) / 8
}

// remark brings an entry that has come or gone into the marks.
func (p *part) remark(low int64, n uint32, there bool) {
	for i := range p.marks {
		if m := &p.marks[i]; low < m.at {
			if there {
				m.below.add(n)
			} else {
				m.below.remove(n)
			}
		}
	}
}

// belowInto makes d the resources whose short entries have low ends below at.
func (p *part) belowInto(d *dense, at int64) {
	*d = (*d)[:0]
	nearest, distance := -1, p.below(at) // from nothing on
	for i := range p.marks {
		if far := p.below(at) - p.below(p.marks[i].at); max(far, -far) < distance {
			nearest, distance = i, max(far, -far)
		}
	}
	from := int64(lowest)
	if nearest >= 0 {
		from = p.marks[nearest].at
		*d = append(*d, p.marks[nearest].below...)
	}
	for r := range p.between(from, at) {
		for _, n := range r.ns {
			d.add(n)
		}
	}
	for r := range p.between(at, from) {
		for _, n := range r.ns {
			d.remove(n)
		}
	}
}

// marksBytes is what the marks take.
func (p *part) marksBytes() (n int64) {
	for i := range p.marks {
		n += int64(8 * cap(p.marks[i].below))
	}
	return n
}

// collect adds the resources for which the comparison holds to d; a and b are for it to use.
func (c *compared) collect(d, a, b *dense) {
	sure, end := max(c.sure, c.from), min(c.sureEnd, c.to)
	if c.marks == nil || c.not || sure >= end || c.below(end)-c.below(sure) < marksFrom {
		c.each(d.add)
		return
	}
	c.belowInto(a, end)
	c.belowInto(b, sure)
	d.grow(len(*a))
	for i, w := range *a {
		if i < len(*b) {
			w &^= (*b)[i]
		}
		(*d)[i] |= w
	}
	for _, edge := range [][2]int64{{c.from, sure}, {end, c.to}} {
		for r := range c.between(edge[0], edge[1]) {
			if c.tested(r.low, r.tail) {
				for _, n := range r.ns {
					d.add(n)
				}
			}
		}
	}
	for e := range c.longs() {
		if c.tested(e.low, e.tail) {
			d.add(e.n)
		}
	}
}

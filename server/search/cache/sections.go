package cache

import (
	"math"
	"slices"
	"sort"

	"kiln/server/search/cache/bitmap"
	"kiln/server/search/cache/packed"
)

// A section is the resources of the short entries of a part with low ends between two values, as
// bits from the first of them on. A range among millions of entries is some sections, and the
// entries between them and its ends.
type section struct {
	end  int64 // low ends are below it; the section begins at the end of the former one
	base int   // words before the first
	bits bitmap.Dense
}

// sectionsFrom is the number of entries from which a part has sections, and of those that a range
// has from which they are used.
var sectionsFrom = 100_000

// partSections is how many sections a part has; the last of them goes on behind all entries.
const partSections = 8

// sectionBytes is the largest size of sections in bytes for each entry: the few resources of a rare value are found one
// by one as fast.
const sectionBytes = 4

// set brings a resource into the section, or takes it away.
func (s *section) set(n uint32, there bool) {
	word := int(n>>6) - s.base
	switch {
	case !there:
		if word >= 0 && word < len(s.bits) {
			s.bits[word] &^= 1 << (n & 63)
		}
		return
	case len(s.bits) == 0:
		s.base, word = int(n>>6), 0
	case word < 0:
		more := max(-word, min(s.base, len(s.bits)/4)) // others may come before it, too
		s.bits = append(make(bitmap.Dense, more), s.bits...)
		s.base, word = s.base-more, word+more
	}
	s.bits.Grow(word + 1)
	s.bits[word] |= 1 << (n & 63)
}

// setSections makes the sections of a part, evenly among its entries.
func (p *part) setSections() {
	p.sections, p.moved = nil, 0
	every := (p.n - p.long.Len() + partSections - 1) / partSections
	var now section
	end := func(at int64) {
		now.end, now.bits = at, slices.Clone(now.bits)
		p.sections = append(p.sections, now)
		now = section{}
	}
	n, last := 0, int64(lowest)
	var buf packed.Buffer
	for i := range p.chunks {
		k := p.chunk(i)
		if due := every * (len(p.sections) + 1); n+k.len() <= due {
			for _, of := range k.ns().Read(0, k.len(), &buf) {
				now.set(of, true)
			}
			n, last = n+k.len(), p.lasts[i]
			continue
		}
		for j := range k.runs() { // a section ends within a chunk: one value may have many chunks
			r := k.run(j, &buf)
			if n >= every*(len(p.sections)+1) && last < r.low {
				end(r.low)
			}
			for _, of := range r.ns {
				now.set(of, true)
			}
			n, last = n+len(r.ns), r.low
		}
	}
	end(highest)
}

// newSectionsBytes is about what sections would take that a part does not have, and should, or has
// and so many entries have come since that they may be uneven: last updates all come behind.
func (p *part) newSectionsBytes() (n int64) {
	if p.n < sectionsFrom || (p.sections != nil || p.scarce) && p.moved < p.n/partSections {
		return 0
	}
	const looks = 16 // at the chunks of a section, and at each so manieth resource of one
	every := len(p.chunks)/partSections + 1
	for first := 0; first < len(p.chunks); first += every {
		least, most := uint32(math.MaxUint32), uint32(0)
		for i := first; i < min(first+every, len(p.chunks)); i += every/looks + 1 {
			k := p.chunk(i)
			for j := 0; j < k.len(); j += looks {
				n := k.ns().At(j)
				least, most = min(least, n), max(most, n)
			}
		}
		n += int64(most-least) / 8
	}
	if p.scarce = n > sectionBytes*int64(p.n); p.scarce {
		p.moved = 0
		return 0
	}
	return n
}

// resection brings an entry that has come or gone into the sections.
func (p *part) resection(low int64, n uint32, there bool) {
	p.moved++
	if p.sections != nil {
		p.sections[sort.Search(len(p.sections)-1, func(i int) bool { return low < p.sections[i].end })].set(n, there)
	}
}

// sectionsBytes is the size of the sections in bytes.
func (p *part) sectionsBytes() (n int64) {
	for i := range p.sections {
		n += int64(8 * cap(p.sections[i].bits))
	}
	return n
}

// nearest is the end of a section that is nearest to a value, and how many sections are before it.
func (p *part) nearest(at int64) (before int, end int64) {
	end = lowest
	below := p.below(at)
	distance := below
	for i := range p.sections {
		far := below - p.below(p.sections[i].end)
		if far = max(far, -far); far < distance {
			before, end, distance = i+1, p.sections[i].end, far
		}
	}
	return before, end
}

// within makes d the resources whose short entries have low ends in [from, to).
func (p *part) within(d *bitmap.Dense, from, to int64) {
	*d = (*d)[:0]
	add := func(from, to int64) {
		for r := range p.between(from, to) {
			for _, n := range r.ns {
				d.Add(n)
			}
		}
	}
	remove := func(from, to int64) {
		for r := range p.between(from, to) {
			for _, n := range r.ns {
				d.Remove(n)
			}
		}
	}
	first, start := p.nearest(from)
	last, end := p.nearest(to)
	if first >= last {
		add(from, to)
		return
	}
	for _, s := range p.sections[first:last] {
		d.Union(s.base, s.bits)
	}
	remove(start, from)
	add(from, start)
	remove(to, end)
	add(end, to)
}

// collect adds the resources for which the comparison holds to d; other is for it to use.
func (c *compared) collect(d, other *bitmap.Dense) {
	sure, end := max(c.sure, c.from), min(c.sureEnd, c.to)
	if c.sections == nil || c.not || sure >= end || c.below(end)-c.below(sure) < sectionsFrom {
		c.each(d.Add)
		return
	}
	c.within(other, sure, end)
	d.Union(0, *other)
	for _, edge := range [][2]int64{{c.from, sure}, {end, c.to}} {
		for r := range c.between(edge[0], edge[1]) {
			if c.tested(r.low, r.tail) {
				for _, n := range r.ns {
					d.Add(n)
				}
			}
		}
	}
	for e := range c.longs() {
		if c.tested(e.low, e.tail) {
			d.Add(e.n)
		}
	}
}

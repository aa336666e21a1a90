package remembered

import (
	"cmp"
	"iter"
	"math/bits"
	"slices"
)

// The places of entries that are in no chunk.
const (
	nowhere   = 0
	amongLong = 1
	noChunk   = 2 // the first place of a chunk
)

// pageSize is the number of resources of a page of places.
const pageSize = 1024

// A placesPage is the places of those of pageSize resources that have an entry, in their order.
type placesPage struct {
	there [pageSize / 64]uint64 // a bit for each that has one
	low   []uint16              // of each place
	high  []uint8               // the rest of it; nil where all are 0
}

func (g *placesPage) place(at int) uint32 {
	place := uint32(g.low[at])
	if g.high != nil {
		place |= uint32(g.high[at]) << 16
	}
	return place
}

// widen makes room for places beyond those of two bytes.
func (g *placesPage) widen() {
	if g.high == nil {
		g.high = make([]uint8, len(g.low))
	}
}

func (g *placesPage) setPlace(at int, place uint32) {
	g.low[at] = uint16(place)
	if g.high != nil {
		g.high[at] = uint8(place >> 16)
	}
}

func (g *placesPage) insert(at int, place uint32) {
	g.low = slices.Insert(g.low, at, uint16(place))
	if g.high != nil {
		g.high = slices.Insert(g.high, at, uint8(place>>16))
	}
}

func (g *placesPage) remove(at int) {
	g.low = slices.Delete(g.low, at, at+1)
	if g.high != nil {
		g.high = slices.Delete(g.high, at, at+1)
	}
}

// at is where the place of a resource is among those of its page, or would be.
func (g *placesPage) at(n uint32) (i int, there bool) {
	word, bit := n%pageSize/64, n%64
	for _, w := range g.there[:word] {
		i += bits.OnesCount64(w)
	}
	return i + bits.OnesCount64(g.there[word]&(1<<bit-1)), g.there[word]&(1<<bit) != 0
}

// sparse is how many resources there are at least for each that has an entry, where the
// places of these are kept with their numbers.
const sparse = 20

// placed is the place of a resource.
type placed struct{ n, place uint32 }

func comparePlaced(a, b placed) int { return cmp.Compare(a.n, b.n) }

// places are the chunks by their places, and the place of the entry of each resource.
type places struct {
	few    *list[placed] // nil where there are pages
	pages  []*placesPage
	chunks []*chunk // by place, less noChunk; nil where it is free
	free   []uint32
	wide   bool // a place is beyond those of two bytes; 2^24 chunks are all that numbers fill
}

func (o *places) get(n uint32) uint32 {
	if o.few != nil {
		e, _ := o.few.find(placed{n: n})
		return e.place
	}
	if i := int(n / pageSize); i < len(o.pages) && o.pages[i] != nil {
		if at, there := o.pages[i].at(n); there {
			return o.pages[i].place(at)
		}
	}
	return nowhere
}

func (o *places) set(n, place uint32) {
	if o.few != nil {
		o.few.remove(placed{n: n})
		if place != nowhere {
			o.few.insert(placed{n, place})
		}
		return
	}
	i := int(n / pageSize)
	if i >= len(o.pages) {
		o.pages = append(o.pages, make([]*placesPage, i+1-len(o.pages))...)
	}
	g := o.pages[i]
	if g == nil {
		g = new(placesPage)
		o.pages[i] = g
	}
	if place>>16 != 0 {
		g.widen()
		o.wide = true
	}
	at, there := g.at(n)
	switch {
	case there && place != nowhere:
		g.setPlace(at, place)
	case there:
		g.remove(at)
		g.there[n%pageSize/64] &^= 1 << (n % 64)
	case place != nowhere:
		g.insert(at, place)
		g.there[n%pageSize/64] |= 1 << (n % 64)
	}
}

// compact gives the memory back that is not filled.
func (o *places) compact() {
	if o.few != nil {
		return
	}
	n := 0
	for _, g := range o.pages {
		if g != nil {
			g.low, g.high = slices.Clip(slices.Clone(g.low)), slices.Clip(slices.Clone(g.high))
			n += len(g.low)
		}
	}
	if n*sparse >= len(o.pages)*pageSize && n > 0 {
		return
	}
	all := make([]placed, 0, n)
	for number, place := range o.along(Page{}) {
		all = append(all, placed{number, place})
	}
	few := newList(comparePlaced, all)
	o.few, o.pages = &few, nil
}

func (o *places) chunk(place uint32) *chunk { return o.chunks[place-noChunk] }

// add gives a chunk a place.
func (o *places) add(c *chunk) {
	if last := len(o.free) - 1; last >= 0 {
		c.place, o.free = o.free[last], o.free[:last]
		o.chunks[c.place-noChunk] = c
	} else {
		c.place = uint32(len(o.chunks)) + noChunk
		o.chunks = append(o.chunks, c)
	}
}

func (o *places) drop(c *chunk) {
	o.chunks[c.place-noChunk] = nil
	o.free = append(o.free, c.place)
}

// along gives the resources that have an entry, and its place, in the order of a page of
// matches.
func (o *places) along(p Page) iter.Seq2[uint32, uint32] {
	if o.few != nil {
		return o.alongFew(p)
	}
	return func(yield func(n, place uint32) bool) {
		if p.Backwards {
			last := len(o.pages)*pageSize - 1
			if p.Bounded {
				last = min(last, int(p.Beyond)-1)
			}
			for i := last / pageSize; last >= 0; i, last = i-1, i*pageSize-1 {
				for n := last; o.pages[i] != nil && n >= i*pageSize; n-- {
					if place := o.get(uint32(n)); place != nowhere && !yield(uint32(n), place) {
						return
					}
				}
			}
			return
		}
		first := 0
		if p.Bounded {
			first = int(p.Beyond) + 1
		}
		for i := first / pageSize; i < len(o.pages); i, first = i+1, (i+1)*pageSize {
			for n := first; o.pages[i] != nil && n < (i+1)*pageSize; n++ {
				if place := o.get(uint32(n)); place != nowhere && !yield(uint32(n), place) {
					return
				}
			}
		}
	}
}

func (o *places) alongFew(p Page) iter.Seq2[uint32, uint32] {
	es := o.few.from(func(e placed) bool { return p.Bounded && e.n <= p.Beyond })
	if p.Backwards {
		es = o.few.backwards(func(e placed) bool { return !p.Bounded || e.n < p.Beyond })
	}
	return func(yield func(n, place uint32) bool) {
		for e := range es {
			if !yield(e.n, e.place) {
				return
			}
		}
	}
}

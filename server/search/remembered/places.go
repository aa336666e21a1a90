package remembered

import (
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

// The number of resources of a page of places: where many of them have an entry, and where few do.
const (
	pageSize    = 1 << 10
	fewPageSize = 1 << 16
)

// sparse is how many resources there are at least for each that has an entry, where few do.
const sparse = 20

// A placesPage is the places of those of a page's resources that have an entry, in their order.
type placesPage struct {
	there []uint64 // where many have one: a bit for each resource that does
	ns    []uint16 // where few do: their numbers within the page
	low   []uint16 // of each place
	high  []uint8  // the rest of it; nil where all are 0
}

// at is where the place of a resource is among those of its page, or would be.
func (g *placesPage) at(n uint32) (i int, there bool) {
	if g.there == nil {
		return slices.BinarySearch(g.ns, uint16(n%fewPageSize))
	}
	word, bit := n%pageSize/64, n%64
	for _, w := range g.there[:word] {
		i += bits.OnesCount64(w)
	}
	return i + bits.OnesCount64(g.there[word]&(1<<bit-1)), g.there[word]&(1<<bit) != 0
}

func (g *placesPage) place(at int) uint32 {
	place := uint32(g.low[at])
	if g.high != nil {
		place |= uint32(g.high[at]) << 16
	}
	return place
}

func (g *placesPage) setPlace(at int, place uint32) {
	g.low[at] = uint16(place)
	if g.high != nil {
		g.high[at] = uint8(place >> 16)
	}
}

func (g *placesPage) insert(at int, n, place uint32) {
	if g.there == nil {
		g.ns = insert(g.ns, at, uint16(n%fewPageSize))
	} else {
		g.there[n%pageSize/64] |= 1 << (n % 64)
	}
	g.low = insert(g.low, at, uint16(place))
	if g.high != nil {
		g.high = insert(g.high, at, uint8(place>>16))
	}
}

func (g *placesPage) remove(at int, n uint32) {
	if g.there == nil {
		g.ns = slices.Delete(g.ns, at, at+1)
	} else {
		g.there[n%pageSize/64] &^= 1 << (n % 64)
	}
	g.low = slices.Delete(g.low, at, at+1)
	if g.high != nil {
		g.high = slices.Delete(g.high, at, at+1)
	}
}

// compact gives the memory back that is not filled.
func (g *placesPage) compact() {
	g.ns, g.low, g.high = slices.Clip(slices.Clone(g.ns)), slices.Clip(slices.Clone(g.low)), slices.Clip(slices.Clone(g.high))
}

// bytes is about what the page takes.
func (g *placesPage) bytes() int64 {
	return 120 + 8*int64(cap(g.there)) + 2*int64(cap(g.ns)+cap(g.low)) + int64(cap(g.high))
}

// places are the chunks by their places, and the place of the entry of each resource.
type places struct {
	few    bool // of the resources have an entry
	pages  []*placesPage
	size   int64    // of the pages, in bytes
	chunks []*chunk // by place, less noChunk; nil where it is free. 2^24 of them have all resources
	free   []uint32
}

func (o *places) pageSize() uint32 {
	if o.few {
		return fewPageSize
	}
	return pageSize
}

func (o *places) get(n uint32) uint32 {
	if i := int(n / o.pageSize()); i < len(o.pages) && o.pages[i] != nil {
		if at, there := o.pages[i].at(n); there {
			return o.pages[i].place(at)
		}
	}
	return nowhere
}

func (o *places) set(n, place uint32) {
	i := int(n / o.pageSize())
	if i >= len(o.pages) {
		o.pages = append(o.pages, make([]*placesPage, i+1-len(o.pages))...)
	}
	g := o.pages[i]
	if g == nil {
		g = new(placesPage)
		if !o.few {
			g.there = make([]uint64, pageSize/64)
		}
		o.pages[i] = g
		o.size += g.bytes()
	}
	o.size -= g.bytes()
	if place>>16 != 0 && g.high == nil {
		g.high = make([]uint8, len(g.low))
	}
	at, there := g.at(n)
	switch {
	case there && place != nowhere:
		g.setPlace(at, place)
	case there:
		g.remove(at, n)
	case place != nowhere:
		g.insert(at, n, place)
	}
	o.size += g.bytes()
}

// compact gives the memory back that is not filled, and keeps the places of few as such.
func (o *places) compact() {
	n := 0
	for _, g := range o.pages {
		if g != nil {
			n += len(g.low)
		}
	}
	if !o.few && n*sparse < len(o.pages)*pageSize || n == 0 {
		few := places{few: true, chunks: o.chunks, free: o.free}
		for number, place := range o.along(Page{}) {
			few.set(number, place)
		}
		*o = few
	}
	o.size = 0
	for _, g := range o.pages {
		if g != nil {
			g.compact()
			o.size += g.bytes()
		}
	}
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
	size := int(o.pageSize())
	return func(yield func(n, place uint32) bool) {
		if p.Backwards {
			last := len(o.pages)*size - 1
			if p.Bounded {
				last = min(last, int(p.Beyond.N)-1)
			}
			for i := last / size; last >= 0; i, last = i-1, i*size-1 {
				for n, place := range o.backwards(i, last) {
					if !yield(n, place) {
						return
					}
				}
			}
			return
		}
		first := 0
		if p.Bounded {
			first = int(p.Beyond.N) + 1
		}
		for i := first / size; i < len(o.pages); i, first = i+1, (i+1)*size {
			for n, place := range o.forwards(i, first) {
				if !yield(n, place) {
					return
				}
			}
		}
	}
}

// forwards gives the resources of a page from first on.
func (o *places) forwards(i, first int) iter.Seq2[uint32, uint32] {
	return func(yield func(n, place uint32) bool) {
		g, size := o.pages[i], int(o.pageSize())
		if g == nil {
			return
		}
		if o.few {
			at, _ := g.at(uint32(first))
			for ; at < len(g.ns); at++ {
				if !yield(uint32(i*size)+uint32(g.ns[at]), g.place(at)) {
					return
				}
			}
			return
		}
		for n := first; n < (i+1)*size; n++ {
			if at, there := g.at(uint32(n)); there && !yield(uint32(n), g.place(at)) {
				return
			}
		}
	}
}

// backwards gives the resources of a page from last on, the last one first.
func (o *places) backwards(i, last int) iter.Seq2[uint32, uint32] {
	return func(yield func(n, place uint32) bool) {
		g, size := o.pages[i], int(o.pageSize())
		if g == nil {
			return
		}
		if o.few {
			at, there := g.at(uint32(last))
			if !there {
				at--
			}
			for ; at >= 0; at-- {
				if !yield(uint32(i*size)+uint32(g.ns[at]), g.place(at)) {
					return
				}
			}
			return
		}
		for n := last; n >= i*size; n-- {
			if at, there := g.at(uint32(n)); there && !yield(uint32(n), g.place(at)) {
				return
			}
		}
	}
}

package remembered

import (
	"iter"
	"math/bits"
	"slices"
	"sort"
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
	n     int      // of these
	there []uint64 // where many have one: a bit for each resource that does
	ns    []uint16 // where few do: their numbers within the page
	// starts are where the runs of one place begin, nil where each has its own: resources
	// that were written one after the other have their last updates in one chunk.
	starts []uint16
	low    []uint16 // of each place, or run
	high   []uint8  // the rest of it; nil where all are 0
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

// run is the run that a place is in; below 0 before the first.
func (g *placesPage) run(at int) int {
	return sort.Search(len(g.starts), func(r int) bool { return int(g.starts[r]) > at }) - 1
}

func (g *placesPage) place(at int) uint32 {
	if g.starts != nil {
		at = g.run(at)
	}
	return g.kept(at)
}

// end is where a run ends.
func (g *placesPage) end(r int) int {
	if r+1 < len(g.starts) {
		return int(g.starts[r+1])
	}
	return g.n
}

// kept is what is kept as i-th place.
func (g *placesPage) kept(i int) uint32 {
	place := uint32(g.low[i])
	if g.high != nil {
		place |= uint32(g.high[i]) << 16
	}
	return place
}

func (g *placesPage) setPlace(at int, place uint32) {
	if g.starts != nil {
		if g.place(at) != place {
			g.takeFromRun(at)
			g.addToRuns(at, place)
		}
		return
	}
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
	if g.starts != nil {
		g.addToRuns(at, place)
		return
	}
	g.n++
	g.keep(at, place)
}

// keep makes place the i-th that is kept.
func (g *placesPage) keep(i int, place uint32) {
	g.low = insert(g.low, i, uint16(place))
	if g.high != nil {
		g.high = insert(g.high, i, uint8(place>>16))
	}
}

// addToRuns puts a place among the runs. Where these are short, each place has its own from then on.
func (g *placesPage) addToRuns(at int, place uint32) {
	before := g.run(at - 1)
	next := before + 1
	end := 0 // of the run before
	if before >= 0 {
		end = g.end(before)
	}
	g.n++
	for r := range g.starts[next:] {
		g.starts[next+r]++
	}
	switch {
	case before >= 0 && g.kept(before) == place:
		return
	case next < len(g.starts) && end == at && g.kept(next) == place:
		g.starts[next]--
		return
	}
	g.starts = insert(g.starts, next, uint16(at))
	g.keep(next, place)
	if before >= 0 && at < end { // in the midst of a run
		g.starts = insert(g.starts, next+1, uint16(at+1))
		g.keep(next+1, g.kept(before))
	}
	if len(g.starts) > shortRuns && 2*len(g.starts) > g.n {
		g.spread()
	}
}

// shortRuns is the number of runs up to which a page keeps them, however short they are.
const shortRuns = 8

// takeFromRun takes a place away from its run.
func (g *placesPage) takeFromRun(at int) {
	r := g.run(at)
	g.n--
	for i := range g.starts[r+1:] {
		g.starts[r+1+i]--
	}
	if int(g.starts[r]) == g.end(r) {
		g.starts, g.low = slices.Delete(g.starts, r, r+1), slices.Delete(g.low, r, r+1)
		if g.high != nil {
			g.high = slices.Delete(g.high, r, r+1)
		}
	}
}

// spread keeps each place by itself.
func (g *placesPage) spread() {
	all := placesPage{low: make([]uint16, 0, g.n)}
	if g.high != nil {
		all.high = make([]uint8, 0, g.n)
	}
	for at := range g.n {
		all.keep(at, g.place(at))
	}
	g.starts, g.low, g.high = nil, all.low, all.high
}

func (g *placesPage) remove(at int, n uint32) {
	if g.there == nil {
		g.ns = slices.Delete(g.ns, at, at+1)
	} else {
		g.there[n%pageSize/64] &^= 1 << (n % 64)
	}
	if g.starts != nil {
		g.takeFromRun(at)
		return
	}
	g.n--
	g.low = slices.Delete(g.low, at, at+1)
	if g.high != nil {
		g.high = slices.Delete(g.high, at, at+1)
	}
}

// compact gives the memory back that is not filled.
func (g *placesPage) compact() {
	together(&g.ns, &g.starts, &g.low)
	g.high = slices.Clip(slices.Clone(g.high))
}

// bytes is about what the page takes.
func (g *placesPage) bytes() int64 {
	return 152 + 8*int64(cap(g.there)) + 2*int64(cap(g.ns)+cap(g.starts)+cap(g.low)) + int64(cap(g.high))
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
		g = &placesPage{starts: []uint16{}}
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
			n += g.n
		}
	}
	if !o.few && n*sparse < len(o.pages)*pageSize || n == 0 {
		few := places{few: true, chunks: o.chunks, free: o.free}
		for number, place := range o.along(Page{}, func(uint32) bool { return false }) {
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

// along gives the resources that have an entry, and its place, in the order of a page of matches.
// Those of a place that is none's may be left out.
func (o *places) along(p Page, none func(place uint32) bool) iter.Seq2[uint32, uint32] {
	size := int(o.pageSize())
	return func(yield func(n, place uint32) bool) {
		if p.Backwards {
			last := len(o.pages)*size - 1
			if p.Bounded {
				last = min(last, int(p.Beyond.N)-1)
			}
			for i := last / size; last >= 0; i, last = i-1, i*size-1 {
				if g := o.pages[i]; g != nil && !g.backwards(uint32(last), none, yield) {
					return
				}
			}
			return
		}
		first := 0
		if p.Bounded {
			first = int(p.Beyond.N) + 1
		}
		for i := first / size; i < len(o.pages); i, first = i+1, (i+1)*size {
			if g := o.pages[i]; g != nil && !g.forwards(uint32(first), none, yield) {
				return
			}
		}
	}
}

// forwards gives the resources of a page from first on; false where they are enough.
func (g *placesPage) forwards(first uint32, none func(place uint32) bool, yield func(n, place uint32) bool) bool {
	at, _ := g.at(first)
	if g.there == nil {
		page := first - first%fewPageSize
		for ; at < g.n; at++ {
			if !yield(page+uint32(g.ns[at]), g.place(at)) {
				return false
			}
		}
		return true
	}
	page, word := first-first%pageSize, int(first%pageSize/64)
	left := g.there[word] &^ (1<<(first%64) - 1)
	until := at // those before are of a run that is left out
	for {
		if n := bits.OnesCount64(left); at+n <= until {
			at, left = at+n, 0
		}
		for ; left != 0; at, left = at+1, left&(left-1) {
			if at < until {
				continue
			}
			place := g.place(at)
			if g.starts != nil && none(place) {
				until = g.end(g.run(at))
			} else if !yield(page+uint32(word*64+bits.TrailingZeros64(left)), place) {
				return false
			}
		}
		if word++; word == len(g.there) {
			return true
		}
		left = g.there[word]
	}
}

// backwards gives the resources of a page from last on, the last one first; false where they are
// enough.
func (g *placesPage) backwards(last uint32, none func(place uint32) bool, yield func(n, place uint32) bool) bool {
	at, there := g.at(last)
	if !there {
		at--
	}
	if g.there == nil {
		page := last - last%fewPageSize
		for ; at >= 0; at-- {
			if !yield(page+uint32(g.ns[at]), g.place(at)) {
				return false
			}
		}
		return true
	}
	page, word := last-last%pageSize, int(last%pageSize/64)
	left := g.there[word] & (1<<(last%64)<<1 - 1)
	from := at // those behind are of a run that is left out
	for {
		if n := bits.OnesCount64(left); at-n >= from {
			at, left = at-n, 0
		}
		for ; left != 0; at-- {
			bit := bits.Len64(left) - 1
			left &^= 1 << bit
			if at > from {
				continue
			}
			place := g.place(at)
			if g.starts != nil && none(place) {
				from = int(g.starts[g.run(at)]) - 1
			} else if !yield(page+uint32(word*64+bit), place) {
				return false
			}
		}
		if word--; word < 0 {
			return true
		}
		left = g.there[word]
	}
}

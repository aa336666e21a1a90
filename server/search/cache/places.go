package cache

import (
	"cmp"
	"encoding/binary"
	"iter"
	"math/bits"
	"slices"
	"sort"

	"kiln/server/search/cache/packed"
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
	fewPageSize = 1 << 13
)

// sparse is how many resources there are at least for each that has an entry, where few do.
const sparse = 20

// A placesPage contains the places of a page's resources that have an entry, in their order.
type placesPage struct {
	*pageHead
	packed.Piece
}

// A pageHead is the stored form of a page beside its block: it contains no pointers.
type pageHead struct {
	n    int // of the places
	lies packed.Block
}

// The arrays of a page.
const (
	pageThere   packed.Array = 0<<4 + packed.Wide8 // where many have a place: a bit for each resource that does
	pageNumbers packed.Array = 1<<4 + packed.Wide2 // where few do: their numbers within the page
	// pageStarts are where the runs of one place begin, none where each has its own: resources
	// that were written one after the other have their last updates in one chunk.
	pageStarts packed.Array = 2<<4 + packed.Wide2
	placeLow   packed.Array = 3<<4 + packed.Wide2 // of each place, or run
	placeHigh  packed.Array = 4<<4 + packed.Wide1 // the rest of it; none where all are 0
)

// many reports whether many resources of the page have a place.
func (g *placesPage) many() bool { return g.Has(pageThere) }

// word is a word of what pageThere says.
func (g *placesPage) word(i int) uint64 { return binary.LittleEndian.Uint64(g.Array(pageThere)[8*i:]) }

// mark says whether a resource has a place, where many do.
func (g *placesPage) mark(n uint32, there bool) {
	i := int(n % pageSize / 64)
	if w, bit := g.word(i), uint64(1)<<(n%64); there {
		g.Set(pageThere, i, w|bit)
	} else {
		g.Set(pageThere, i, w&^bit)
	}
}

// find returns the position of a resource in its page, or the position where it would be inserted.
func (g *placesPage) find(n uint32) (i int, there bool) {
	if !g.many() {
		numbers := g.Array(pageNumbers)
		return sort.Find(len(numbers)/2, func(i int) int { return cmp.Compare(uint16(n%fewPageSize), packed.Uint16At(numbers, i)) })
	}
	word, bit := int(n%pageSize/64), n%64
	for w := range word {
		i += bits.OnesCount64(g.word(w))
	}
	return i + bits.OnesCount64(g.word(word)&(1<<bit-1)), g.word(word)&(1<<bit) != 0
}

// runs is the number of runs, 0 where each place is kept by itself.
func (g *placesPage) runs() int { return g.Len(pageStarts) }

// inRuns reports whether runs are kept.
func (g *placesPage) inRuns() bool { return g.n == 0 || g.Has(pageStarts) }

// run is the run that a place is in; below 0 before the first.
func (g *placesPage) run(at int) int {
	starts := g.Array(pageStarts)
	return sort.Search(len(starts)/2, func(r int) bool { return int(packed.Uint16At(starts, r)) > at }) - 1
}

func (g *placesPage) place(at int) uint32 {
	if g.inRuns() {
		at = g.run(at)
	}
	return g.kept(at)
}

// end is where a run ends.
func (g *placesPage) end(r int) int {
	if r+1 < g.runs() {
		return g.At(pageStarts, r+1)
	}
	return g.n
}

// kept returns the stored value of the i-th place.
func (g *placesPage) kept(i int) uint32 {
	place := uint32(g.At(placeLow, i))
	if high := g.Array(placeHigh); len(high) > 0 {
		place |= uint32(high[i]) << 16
	}
	return place
}

func (g *placesPage) setPlace(at int, place uint32) {
	if g.inRuns() {
		if g.place(at) != place {
			g.takeFromRun(at)
			g.addToRuns(at, place)
		}
		return
	}
	g.widen(place)
	g.Set(placeLow, at, uint64(place))
	if g.Has(placeHigh) {
		g.Set(placeHigh, at, uint64(place>>16))
	}
}

func (g *placesPage) insert(at int, n, place uint32) {
	if g.many() {
		g.mark(n, true)
	} else {
		g.Piece.Insert(pageNumbers, at, uint64(n%fewPageSize))
	}
	if g.inRuns() {
		g.addToRuns(at, place)
		return
	}
	g.n++
	g.keep(at, place)
}

// keep makes place the i-th that is kept.
func (g *placesPage) keep(i int, place uint32) {
	g.widen(place)
	if g.Has(placeHigh) || place>>16 != 0 {
		g.Piece.Insert(placeHigh, i, uint64(place>>16))
	}
	g.Piece.Insert(placeLow, i, uint64(place))
}

// widen makes room for the rest of a place.
func (g *placesPage) widen(place uint32) {
	if place>>16 != 0 && !g.Has(placeHigh) {
		clear(g.Open(placeHigh, 0, g.Len(placeLow)))
	}
}

// discard removes the stored value of the i-th place.
func (g *placesPage) discard(i int) {
	g.Delete(placeLow, i, 1)
	if g.Has(placeHigh) {
		g.Delete(placeHigh, i, 1)
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
	g.Shift(pageStarts, next, 1)
	switch {
	case before >= 0 && g.kept(before) == place:
		return
	case next < g.runs() && end == at && g.kept(next) == place:
		g.Set(pageStarts, next, uint64(at))
		return
	}
	g.Piece.Insert(pageStarts, next, uint64(at))
	g.keep(next, place)
	if before >= 0 && at < end { // in the midst of a run
		g.Piece.Insert(pageStarts, next+1, uint64(at+1))
		g.keep(next+1, g.kept(before))
	}
	if runs := g.runs(); runs > shortRuns && 2*runs > g.n {
		g.spread()
	}
}

// shortRuns is the number of runs up to which a page keeps them, however short they are.
const shortRuns = 8

// takeFromRun takes a place away from its run.
func (g *placesPage) takeFromRun(at int) {
	r := g.run(at)
	g.n--
	g.Shift(pageStarts, r+1, -1)
	if g.At(pageStarts, r) == g.end(r) {
		g.Delete(pageStarts, r, 1)
		g.discard(r)
	}
}

// spread keeps each place by itself.
func (g *placesPage) spread() {
	all := make([]uint32, g.n)
	for at := range all {
		all[at] = g.place(at)
	}
	g.Drop(pageStarts)
	g.Drop(placeLow)
	g.Drop(placeHigh)
	packed.FillArray(&g.Piece, placeLow, all)
	if slices.Max(all)>>16 != 0 {
		high := g.Open(placeHigh, 0, len(all))
		for i, place := range all {
			high[i] = uint8(place >> 16)
		}
	}
}

func (g *placesPage) remove(at int, n uint32) {
	if g.many() {
		g.mark(n, false)
	} else {
		g.Delete(pageNumbers, at, 1)
	}
	if g.inRuns() {
		g.takeFromRun(at)
		return
	}
	g.n--
	g.discard(at)
}

// size returns the approximate size of the page in bytes.
func (g *placesPage) size() int64 { return placesPageBytes + int64(g.Piece.Size()) }

// placesPageBytes is the approximate size in bytes of a page without its piece.
const placesPageBytes = 48

// places are the chunks by their places, and the place of the entry of each resource.
type places struct {
	few    bool                // of the resources have an entry
	pages  []uint32            // by number, 0 for one without places: among heads, from 1 on
	heads  together[pageHead]  // of pages
	size   int64               // of the pages, in bytes
	chunks together[chunkHead] // by place, less noChunk. 2^24 of them have all resources
	free   []uint32            // places of chunks without cells
	room   *packed.Room        // of pages and chunks
}

// together are elements without pointers that stay where they are.
type together[E any] struct {
	some [][]E // madeTogether each
	n    int
}

const madeTogether = 64

// add adds a zero element, and returns its number.
func (l *together[E]) add() int {
	if l.n%madeTogether == 0 {
		l.some = append(l.some, make([]E, madeTogether))
	}
	l.n++
	return l.n - 1
}

func (l *together[E]) at(i int) *E { return &l.some[i/madeTogether][i%madeTogether] }

// page is a page that has places; false where it has none.
func (o *places) page(i int) (g placesPage, ok bool) {
	if o.pages[i] == 0 {
		return g, false
	}
	return o.heads.at(int(o.pages[i]) - 1).in(o.room), true
}

// in is the page in its room.
func (h *pageHead) in(r *packed.Room) placesPage { return placesPage{h, packed.NewPiece(r, &h.lies)} }

func (o *places) pageSize() uint32 {
	if o.few {
		return fewPageSize
	}
	return pageSize
}

func (o *places) get(n uint32) uint32 {
	if i := int(n / o.pageSize()); i < len(o.pages) {
		if g, ok := o.page(i); ok {
			if at, there := g.find(n); there {
				return g.place(at)
			}
		}
	}
	return nowhere
}

func (o *places) set(n, place uint32) {
	i := int(n / o.pageSize())
	if i >= len(o.pages) {
		o.pages = append(o.pages, make([]uint32, i+1-len(o.pages))...)
	}
	g, ok := o.page(i)
	if !ok {
		o.pages[i] = uint32(o.heads.add()) + 1
		g, _ = o.page(i)
		if !o.few {
			clear(g.Open(pageThere, 0, pageSize/64))
		}
		o.size += g.size()
	}
	o.size -= g.size()
	at, there := g.find(n)
	switch {
	case there && place != nowhere:
		g.setPlace(at, place)
	case there:
		g.remove(at, n)
	case place != nowhere:
		g.insert(at, n, place)
	}
	o.size += g.size()
}

// compact moves everything to a new room, and so gives the memory back that is not filled, but for what pieces
// that have grown have left. It keeps the places of few as such.
func (o *places) compact(grows bool) {
	n := 0
	for i := range o.heads.n {
		n += o.heads.at(i).n
	}
	if !o.few && n*sparse < len(o.pages)*pageSize || n == 0 {
		few := places{few: true, chunks: o.chunks, free: o.free, room: o.room}
		for number, place := range o.along(Page{}, func(uint32) bool { return false }) {
			few.set(number, place)
		}
		*o = few
	}
	pieces := make([]packed.Piece, 0, o.chunks.n+o.heads.n)
	for i := range o.chunks.n {
		pieces = append(pieces, o.chunks.at(i).in(o.room).Piece)
	}
	for i := range o.heads.n {
		pieces = append(pieces, o.heads.at(i).in(o.room).Piece)
	}
	o.room = packed.MovePieces(pieces, o.room, grows)
	o.size = 0
	for i := range o.heads.n {
		g := o.heads.at(i).in(o.room)
		o.size += g.size()
	}
}

func (o *places) chunk(place uint32) chunk { return o.chunks.at(int(place - noChunk)).in(o.room) }

// newChunk is one of a part, without cells.
func (o *places) newChunk(p *part) chunk {
	var place uint32
	if last := len(o.free) - 1; last >= 0 {
		place, o.free = o.free[last], o.free[:last]
	} else {
		place = uint32(o.chunks.add()) + noChunk
	}
	k := o.chunk(place)
	k.place, k.part = place, p.number
	return k
}

func (o *places) drop(k chunk) {
	k.Release()
	*k.chunkHead = chunkHead{place: k.place}
	o.free = append(o.free, k.place)
}

// along yields the resources with an entry, and its place, in the order of a page of matches. It may skip resources
// of a place for which none returns true.
func (o *places) along(p Page, none func(place uint32) bool) iter.Seq2[uint32, uint32] {
	size := int(o.pageSize())
	return func(yield func(n, place uint32) bool) {
		if p.Backwards {
			last := len(o.pages)*size - 1
			if p.Bounded {
				last = min(last, int(p.Beyond.N)-1)
			}
			for i := last / size; last >= 0; i, last = i-1, i*size-1 {
				if g, ok := o.page(i); ok && !g.backwards(uint32(last), none, yield) {
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
			if g, ok := o.page(i); ok && !g.forwards(uint32(first), none, yield) {
				return
			}
		}
	}
}

// forwards gives the resources of a page from first on; false where they are enough.
func (g *placesPage) forwards(first uint32, none func(place uint32) bool, yield func(n, place uint32) bool) bool {
	at, _ := g.find(first)
	if !g.many() {
		page := first - first%fewPageSize
		for ; at < g.n; at++ {
			if !yield(page+uint32(g.At(pageNumbers, at)), g.place(at)) {
				return false
			}
		}
		return true
	}
	page, word := first-first%pageSize, int(first%pageSize/64)
	left := g.word(word) &^ (1<<(first%64) - 1)
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
			if g.inRuns() && none(place) {
				until = g.end(g.run(at))
			} else if !yield(page+uint32(word*64+bits.TrailingZeros64(left)), place) {
				return false
			}
		}
		if word++; word == pageSize/64 {
			return true
		}
		left = g.word(word)
	}
}

// backwards gives the resources of a page from last on, the last one first; false where they are
// enough.
func (g *placesPage) backwards(last uint32, none func(place uint32) bool, yield func(n, place uint32) bool) bool {
	at, there := g.find(last)
	if !there {
		at--
	}
	if !g.many() {
		page := last - last%fewPageSize
		for ; at >= 0; at-- {
			if !yield(page+uint32(g.At(pageNumbers, at)), g.place(at)) {
				return false
			}
		}
		return true
	}
	page, word := last-last%pageSize, int(last%pageSize/64)
	left := g.word(word) & (1<<(last%64)<<1 - 1)
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
			if g.inRuns() && none(place) {
				from = g.At(pageStarts, g.run(at)) - 1
			} else if !yield(page+uint32(word*64+bit), place) {
				return false
			}
		}
		if word--; word < 0 {
			return true
		}
		left = g.word(word)
	}
}

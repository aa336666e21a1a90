package cache

import (
	"cmp"
	"iter"
	"math"
	"slices"
	"sort"

	"kiln/server/search/cache/bitmap"
	"kiln/server/search/cache/packed"
)

// A ColumnOrder is the order of a column of dates by low ends, then by surrogate. Resources without a value come last.
type ColumnOrder struct {
	Column     ColumnKey
	Descending bool
}

// A Place is where a resource stands in a ColumnOrder.
type Place struct {
	Valued bool // it has a value
	Low    int64
	N      uint32
}

// compare orders places as the page has them.
func (p *Page) compare(a, b Place) int {
	out := 0
	switch {
	case a.Valued != b.Valued:
		if out = 1; a.Valued {
			out = -1
		}
	case a.Low != b.Low:
		if out = cmp.Compare(a.Low, b.Low); p.Order.Descending {
			out = -out
		}
	default:
		out = cmp.Compare(a.N, b.N)
	}
	if p.Backwards {
		return -out
	}
	return out
}

// beyond reports whether a place comes after the place where the page begins.
func (p *Page) beyond(a Place) bool { return !p.Bounded || p.compare(a, p.Beyond) > 0 }

// placeOf is where a resource stands.
func (c *column) placeOf(n uint32) Place {
	switch place := c.of.get(n); place {
	case nowhere:
		return Place{N: n}
	case amongLong:
		e, _ := c.part(0).long.Find(cell{n: n})
		return Place{true, e.low, n}
	default:
		k := c.of.chunk(place)
		return Place{true, k.cell(k.find(n)).low, n}
	}
}

// pageInOrder is the part of members that a page in an order of this column has: along the order
// where they are common there, else by the place of each.
func (c *column) pageInOrder(members *bitmap.Set, p *Page) []Place {
	size := p.Offset + p.Limit
	if size == 0 || members.Len() == 0 {
		return nil
	}
	most := members.Len() * looksForEntry
	if size*c.n()/members.Len() < most {
		if out, ok := c.along(members, p, most); ok {
			return out
		}
	}
	var out []Place
	full := false // the first of out are the best of those before, in order
	for n := range members.All(0) {
		at := c.placeOf(n)
		if !p.beyond(at) || full && p.compare(at, out[size-1]) > 0 {
			continue
		}
		if out = append(out, at); len(out) >= 2*size+kept { // the rest are on no page
			slices.SortFunc(out, p.compare)
			out, full = out[:size], true
		}
	}
	slices.SortFunc(out, p.compare)
	return p.cut(out)
}

// cut returns the page's part of places, which begin at the page's bound and are in its order.
func (p *Page) cut(all []Place) []Place {
	all = all[min(p.Offset, len(all)):]
	return all[:min(p.Limit, len(all))]
}

// n is the number of entries.
func (c *column) n() int {
	if p := c.parts[0]; p != nil {
		return p.n
	}
	return 0
}

// along goes along the order until the page is full, past most entries at most; false where that
// were too many.
func (c *column) along(members *bitmap.Set, p *Page, most int) (out []Place, ok bool) {
	size := p.Offset + p.Limit
	valueless := func() {
		var all []Place
		take := func(n uint32) bool {
			if at := (Place{N: n}); c.of.get(n) == nowhere && p.beyond(at) {
				all = append(all, at)
			}
			return len(out)+len(all) < size
		}
		if p.Backwards {
			members.Backward(math.MaxUint32)(take)
		} else {
			members.All(0)(take)
		}
		out = append(out, all...)
	}
	valued := p.Bounded && p.Beyond.Valued
	if p.Backwards && !valued {
		valueless()
	}
	if (p.Backwards || !p.Bounded || valued) && len(out) < size {
		if out, ok = c.alongValues(members, p, out, most); !ok {
			return nil, false
		}
	}
	if !p.Backwards && len(out) < size {
		valueless()
	}
	return p.cut(out), true
}

// alongValues is along for resources with a value: it appends candidates of the page to out.
func (c *column) alongValues(members *bitmap.Set, p *Page, out []Place, most int) ([]Place, bool) {
	part := c.parts[0]
	if part == nil {
		return out, true
	}
	size := p.Offset + p.Limit
	var long []Place // the long entries, which are in no order of values
	for e := range part.longs() {
		if at := (Place{true, e.low, e.n}); members.Contains(e.n) && p.beyond(at) {
			long = append(long, at)
		}
	}
	slices.SortFunc(long, p.compare)
	var same []Place // of one value
	flush := func() bool {
		slices.SortFunc(same, p.compare)
		for _, at := range same {
			for len(long) > 0 && p.compare(long[0], at) < 0 {
				out, long = append(out, long[0]), long[1:]
			}
			out = append(out, at)
		}
		same = same[:0]
		return len(out) < size
	}
	passed := part.long.Len() / looksForEntry
	for r := range part.runs(p) {
		if len(same) > 0 && same[0].Low != r.low && !flush() {
			return out, true
		}
		if passed += len(r.ns); passed > most {
			return nil, false
		}
		for _, n := range r.ns {
			if at := (Place{true, r.low, n}); members.Contains(n) && p.beyond(at) {
				same = append(same, at)
			}
		}
	}
	if flush() {
		out = append(out, long...)
	}
	return out, true
}

// runs gives the short entries in the direction of a page, from its bound on.
func (p *part) runs(page *Page) iter.Seq[run] {
	bound := page.Bounded && page.Beyond.Valued
	if page.Order.Descending == page.Backwards {
		from := int64(lowest)
		if bound {
			from = page.Beyond.Low
		}
		return p.between(from, highest)
	}
	return func(yield func(run) bool) {
		var buf packed.Buffer
		last := len(p.chunks) - 1
		if bound {
			i := sort.Search(len(p.lasts), func(i int) bool { return p.lasts[i] > page.Beyond.Low })
			last = min(i, last)
		}
		for i := last; i >= 0; i-- {
			k := p.chunk(i)
			for j := k.runs() - 1; j >= 0; j-- {
				if !yield(k.run(j, &buf)) {
					return
				}
			}
		}
	}
}

// looksForEntry is how many entries of a column are read along its values in the time in which
// the entry of one resource is looked up.
const looksForEntry = 8

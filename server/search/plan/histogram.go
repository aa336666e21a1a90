package plan

import (
	"sort"

	"github.com/cockroachdb/apd/v3"

	"kiln/server/fhir"
)

// A Histogram knows, for the entries of an ordered parameter, how many lie below
// each of some bounds. With it the count of one half of the axis is a subtraction
// and a look at the few entries between the value and the next bound, where
// counting the half itself reads every entry of it.
//
// It serves searches that are nothing but one comparison of a parameter with at
// most one entry for each resource, so that entries are matches.
type Histogram struct {
	parts map[int64]*histogramPart // by unit; 0 where there are none
}

type histogramPart struct {
	n      int64
	bounds []*apd.Decimal // ascending
	below  []int64        // entries with a low end below the bound
}

// histogramStep is the number of entries between two bounds.
const histogramStep = 256

// Add takes one row of Build.
func (g *Histogram) Add(unit int64, low string, below, n int64) {
	if g.parts == nil {
		g.parts = make(map[int64]*histogramPart)
	}
	part := g.parts[unit]
	if part == nil {
		part = &histogramPart{}
		g.parts[unit] = part
	}
	part.n = n
	d, _, err := apd.NewFromString(low)
	if err != nil || d.Form != apd.Finite {
		return // an open end, which is below everything
	}
	if k := len(part.bounds); k > 0 && part.bounds[k-1].Cmp(d) == 0 {
		return
	}
	part.bounds = append(part.bounds, d)
	part.below = append(part.below, below)
}

// from is the number of entries whose low end is at or above the first bound that
// is at or above v (above v, when strict), and that bound, nil for none.
func (p *histogramPart) from(v *apd.Decimal, strict bool) (int64, *apd.Decimal) {
	if p == nil {
		return 0, nil
	}
	i := sort.Search(len(p.bounds), func(i int) bool {
		c := p.bounds[i].Cmp(v)
		return c > 0 || c == 0 && !strict
	})
	if i == len(p.bounds) {
		return 0, nil
	}
	return p.n - p.below[i], p.bounds[i]
}

// fromDate is from for a date, OpenHigh + 1 where there is no bound.
func (p *histogramPart) fromDate(v int64) (n, bound int64) {
	n, b := p.from(apd.New(v, 0), false)
	if b == nil {
		return n, fhir.OpenHigh + 1
	}
	bound, _ = b.Int64()
	return n, bound
}

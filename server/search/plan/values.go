package plan

import (
	"cmp"
	"math"
	"slices"
	"strconv"
	"strings"

	"kiln/server/search/match"
)

// A Values is the values of one ordered parameter among the resources with some
// terms. It is not changed once it is made.
type Values struct {
	dates  []dateCell // ascending by low
	widest int64      // of the dates, from low to high
	units  map[int64]*numberCells
	n      int
}

type dateCell struct{ low, high, rid int64 }

// Add takes one row of Build; it reports false for what a Values does not hold:
// ranges, and numbers of more than 37 digits.
func (c *Values) Add(unit int64, lows string, highs *string, ranges bool, rids []int64) bool {
	c.n += len(rids)
	if ranges {
		return false
	}
	if highs == nil {
		d, ok := newNumberCells(lows, rids)
		if c.units == nil {
			c.units = make(map[int64]*numberCells)
		}
		c.units[unit] = d
		return ok
	}
	c.dates = make([]dateCell, len(rids))
	for i, rid := range rids {
		var low, high string
		low, lows, _ = strings.Cut(lows, ",")
		high, *highs, _ = strings.Cut(*highs, ",")
		l, err1 := strconv.ParseInt(low, 10, 64)
		h, err2 := strconv.ParseInt(high, 10, 64)
		if err1 != nil || err2 != nil {
			return false
		}
		c.dates[i] = dateCell{l, h, rid}
		c.widest = max(c.widest, h-l)
	}
	byLow := func(a, b dateCell) int { return cmp.Compare(a.low, b.low) }
	if !slices.IsSortedFunc(c.dates, byLow) {
		slices.SortFunc(c.dates, byLow)
	}
	return true
}

// Len is the number of entries.
func (c *Values) Len() int { return c.n }

// outermost keeps the first rids beyond a bound, or the last before it, in the order
// of the page, and counts all.
type outermost struct {
	backwards bool
	size      int
	beyond    int64
	bounded   bool
	n         int
	rids      []int64
}

// sorted is the size up to which a list is kept sorted; a page far behind is sorted
// when all are there.
const sorted = 512

func (o *outermost) add(rid int64) {
	o.n++
	if o.bounded && o.compare(rid, o.beyond) <= 0 {
		return
	}
	if o.size > sorted {
		o.rids = append(o.rids, rid)
		return
	}
	if len(o.rids) == o.size {
		if o.compare(rid, o.rids[o.size-1]) > 0 {
			return
		}
		o.rids = o.rids[:o.size-1]
	}
	at, _ := slices.BinarySearchFunc(o.rids, rid, o.compare)
	o.rids = slices.Insert(o.rids, at, rid)
}

// compare is negative where a comes before b.
func (o *outermost) compare(a, b int64) int {
	if o.backwards {
		return cmp.Compare(b, a)
	}
	return cmp.Compare(a, b)
}

func (o *outermost) finish() {
	if o.size > sorted {
		slices.SortFunc(o.rids, o.compare)
		o.rids = o.rids[:min(o.size, len(o.rids))]
	}
}

func (c *Values) matchDates(o *outermost, bounds []match.Dates) {
	from, to := 0, len(c.dates)
	for i := range bounds {
		f, t := c.around(&bounds[i])
		from, to = max(from, f), min(to, t)
	}
	for _, d := range c.dates[min(from, to):to] {
		if !slices.ContainsFunc(bounds, func(b match.Dates) bool { return !b.Includes(d.low, d.high) }) {
			o.add(d.rid)
		}
	}
}

// around is the part of the dates outside of which the comparison holds for none.
func (c *Values) around(m *match.Dates) (from, to int) {
	// below is the number of dates with a low end before at.
	below := func(at int64) int {
		i, _ := slices.BinarySearchFunc(c.dates, at, func(d dateCell, at int64) int { return cmp.Compare(d.low, at) })
		return i
	}
	// What ends after an instant begins less than widest before it.
	reaching := func(at int64) int {
		if at < math.MinInt64+c.widest {
			return 0
		}
		return below(at - c.widest)
	}
	from, to = 0, len(c.dates)
	switch m.Op {
	case match.EQ:
		from, to = below(m.Low), below(m.High)
	case match.LT:
		to = below(m.Low)
	case match.LE:
		to = below(m.High)
	case match.EB:
		to = below(m.Low + 1)
	case match.SA:
		from = below(m.High)
	case match.GT:
		from = reaching(m.High)
	case match.GE:
		from = min(reaching(m.High), below(m.Low))
	case match.AP:
		from, to = reaching(m.Low), below(m.High)
	}
	return from, to
}

package cache

import (
	"cmp"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/cockroachdb/apd/v3"

	"kiln/server/fhir"
	"kiln/server/search/cache/bitmap"
	"kiln/server/search/cache/packed"
	"kiln/server/search/match"
)

func init() { sectionsFrom, scatteredFrom = 100, 1<<10 }

// columnOf is the column of entries, nil where one has no room.
func columnOf(key ColumnKey, entries ...Entry) *column {
	b := NewColumn(key, nil)
	for _, e := range entries {
		if !b.AddEntry(e) {
			return nil
		}
	}
	return b.finish()
}

// A column of numbers counts and finds the same resources as a comparison of the decimals,
// with up to 24 digits behind the point.
func TestColumnOfNumbers(t *testing.T) {
	t.Parallel()
	r := rand.New(rand.NewPCG(1, 2))
	draw := func() *apd.Decimal {
		text := fmt.Sprint(r.IntN(3))
		if digits := r.IntN(25); digits > 0 {
			text += "."
			for range digits {
				text += fmt.Sprint(r.IntN(2))
			}
		}
		if r.IntN(2) == 0 {
			text = "-" + text
		}
		d, _, err := apd.NewFromString(text)
		if err != nil {
			t.Fatal(err)
		}
		return d
	}
	var values []*apd.Decimal
	var entries []Entry
	for i := range 2000 {
		d := draw()
		values = append(values, d)
		entries = append(entries, Entry{RID: int64(i), Number: d.Text('f')})
	}
	c := columnOf(ColumnKey{Kind: Numbers, Keys: KeysOf([]fhir.Key{1})}, entries...)
	if c == nil {
		t.Fatal("numbers of 24 decimals have no column")
	}
	for range 300 {
		low, high := draw(), draw()
		if r.IntN(3) == 0 {
			low = values[r.IntN(len(values))]
		}
		if low.Cmp(high) > 0 {
			low, high = high, low
		}
		for op, holds := range map[match.Prefix]func(*apd.Decimal) bool{
			match.LT: func(d *apd.Decimal) bool { return d.Cmp(low) < 0 },
			match.LE: func(d *apd.Decimal) bool { return d.Cmp(low) <= 0 },
			match.GT: func(d *apd.Decimal) bool { return d.Cmp(low) > 0 },
			match.GE: func(d *apd.Decimal) bool { return d.Cmp(low) >= 0 },
			match.EQ: func(d *apd.Decimal) bool { return d.Cmp(low) >= 0 && d.Cmp(high) < 0 },
			match.NE: func(d *apd.Decimal) bool { return d.Cmp(low) < 0 || d.Cmp(high) >= 0 },
			match.AP: func(d *apd.Decimal) bool { return d.Cmp(low) >= 0 && d.Cmp(high) <= 0 },
		} {
			asked := c.compare(match.Numbers{Keys: c.keys, Op: op, Value: low, Low: low, High: high})
			if len(asked) != 1 {
				t.Fatalf("%v: %d parts, want 1", op, len(asked))
			}
			want := 0
			for n, d := range values {
				held := holds(d)
				if held {
					want++
				}
				if got := asked[0].has(uint32(n)); got != held {
					t.Fatalf("%v %s..%s: has(%s) is %v, want %v", op, low, high, d, got, held)
				}
			}
			found := 0
			asked[0].each(func(n uint32) {
				if !holds(values[n]) {
					t.Fatalf("%v %s..%s finds %s", op, low, high, values[n])
				}
				found++
			})
			if got := asked[0].count(); got != want || found != want {
				t.Fatalf("%v %s..%s: count %d, found %d, want %d", op, low, high, got, found, want)
			}
		}
	}
}

// Numbers that are too large or too fine for a column have none.
func TestColumnRefuses(t *testing.T) {
	t.Parallel()
	for _, text := range []string{"1e14", "-1e14", "1e-25", "NaN"} {
		if c := columnOf(ColumnKey{Kind: Numbers}, Entry{RID: 1, Number: text}); c != nil {
			t.Errorf("%s has a column", text)
		}
	}
	if c := columnOf(ColumnKey{Kind: Numbers}, Entry{RID: 1, Number: "1"}, Entry{RID: 1, Number: "2"}); c != nil {
		t.Error("two numbers of one resource have a column")
	}
}

// A column of dates that is changed in place, so that chunks are split and emptied, gives
// the same results as the dates themselves: how many, which, and the pages in both
// directions.
func TestColumnFollowsChanges(t *testing.T) {
	t.Parallel()
	for name, every := range map[string]uint32{"dense": 1, "sparse": 30} {
		for _, ordered := range []bool{true, false} {
			t.Run(fmt.Sprintf("%s, read in order: %v", name, ordered), func(t *testing.T) { columnFollowsChanges(t, every, ordered) })
		}
	}
}

// columnFollowsChanges does so of resources of which every so manieth has a date.
func columnFollowsChanges(t *testing.T, every uint32, ordered bool) {
	const resources, day, hour = 6000, int64(match.Day), int64(match.Day) / 24
	r := rand.New(rand.NewPCG(3, 4))
	draw := func() (low, high int64) {
		low = (r.Int64N(400) - 200) * hour
		switch r.IntN(12) {
		case 0: // a period without a beginning or an end
			if r.IntN(2) == 0 {
				return fhir.OpenLow, low
			}
			return low, fhir.OpenHigh
		case 1:
			return low, low + 30*day
		case 2, 3:
			return low / day * day, low/day*day + day
		}
		return low, low + 1 + r.Int64N(4)*1000
	}
	now := make(map[uint32]dates)
	var entries []Entry
	for n := range uint32(resources / 2) {
		n *= every
		low, high := draw()
		now[n] = dates{low, high}
		entries = append(entries, Entry{RID: int64(n), Low: low, High: high})
	}
	if ordered {
		slices.SortFunc(entries, func(a, b Entry) int {
			return cmp.Or(cmp.Compare(a.Low, b.Low), cmp.Compare(a.High, b.High), cmp.Compare(a.RID, b.RID))
		})
	}
	key := ColumnKey{Kind: Dates, Keys: KeysOf([]fhir.Key{1})}
	c := columnOf(key, entries...)
	if few := c.of.few; few != (every > 1) {
		t.Fatalf("the places are kept as those of few: %v", few)
	}
	change := func(n uint32) {
		if r.IntN(4) == 0 {
			delete(now, n)
			if !c.apply(n, nil) {
				t.Fatal("a resource that is gone does not fit")
			}
			return
		}
		low, high := draw()
		if r.IntN(2) == 0 { // many of one moment
			low, high = hour, hour+1
		}
		now[n] = dates{low, high}
		x := &fhir.Index{Dates: []fhir.DateEntry{{Key: 1, Low: low, High: high}}}
		if !c.apply(n, &match.Resource{Index: x}) {
			t.Fatal("a date does not fit")
		}
	}
	ops := []match.Prefix{match.EQ, match.NE, match.LT, match.LE, match.GT, match.GE, match.SA, match.EB, match.AP}
	for range 300 {
		for range 60 {
			change(uint32(r.IntN(resources)) * every)
		}
		low, high := draw()
		asked := match.Dates{Keys: c.keys, Op: ops[r.IntN(len(ops))], Low: low, High: high}
		parts := c.compare(asked)
		if len(parts) != 1 {
			t.Fatalf("%d parts, want 1", len(parts))
		}
		var want []uint32
		for n := range uint32(resources) {
			n *= every
			d, there := now[n]
			held := there && asked.Includes(d.low, d.high)
			if held {
				want = append(want, n)
			}
			if got := parts[0].has(n); got != held {
				t.Fatalf("%v %d..%d: has %v is %v, want %v", asked.Op, low, high, d, got, held)
			}
		}
		var d, other bitmap.Dense
		if parts[0].newSectionsBytes() > 0 {
			parts[0].setSections()
		}
		parts[0].collect(&d, &other)
		if got := slices.Collect(d.Set().All(0)); !slices.Equal(got, want) {
			t.Fatalf("%v %d..%d: %d collected, want %d", asked.Op, low, high, len(got), len(want))
		}
		var found []uint32
		parts[0].each(func(n uint32) { found = append(found, n) })
		slices.Sort(found)
		if !slices.Equal(found, want) || parts[0].count() != len(want) {
			t.Fatalf("%v %d..%d: %d found, count %d, want %d", asked.Op, low, high, len(found), parts[0].count(), len(want))
		}
		p := Page{Backwards: r.IntN(2) == 0, Bounded: r.IntN(2) == 0, Beyond: Place{N: uint32(r.IntN(resources)) * every}, Offset: r.IntN(3) * 10, Limit: 1 + r.IntN(20)}
		var page []uint32
		for _, n := range want {
			if !p.Bounded || p.Backwards && n < p.Beyond.N || !p.Backwards && n > p.Beyond.N {
				page = append(page, n)
			}
		}
		if p.Backwards {
			slices.Reverse(page)
		}
		page = page[min(p.Offset, len(page)):]
		page = page[:min(p.Limit, len(page))]
		for _, way := range []string{"either way", "along the resources"} {
			total, got := pageOfColumn(parts, p)
			if way != "either way" {
				if p.Offset > 0 {
					continue
				}
				got, _ = parts[0].walk(p, resources)
			}
			if total != len(want) || !slices.Equal(got, page) {
				t.Fatalf("%s, %v %d..%d, %+v: %v of %d, want %v of %d", way, asked.Op, low, high, p, got, total, page, len(want))
			}
		}
		checkOrder(t, r, c, now, uint32(resources)*every)
		entries := 0
		for i := range parts[0].chunks {
			k := parts[0].chunk(i)
			entries += k.len()
		}
		if held := entries + parts[0].long.Len(); held != len(now) || held != parts[0].n {
			t.Fatalf("%d entries, %d are told, want %d", held, parts[0].n, len(now))
		}
	}
}

// Sections end where their resources do, and there are none where few of many resources have a value.
func TestSectionsTakeLittle(t *testing.T) {
	t.Parallel()
	const entries = 10_000
	r := rand.New(rand.NewPCG(11, 12))
	shuffled := r.Perm(entries)
	for name, c := range map[string]struct {
		number func(i int) int // of the resource with the i-th value
		most   int64           // bytes
		none   bool
	}{
		"one after the other": {func(i int) int { return i }, entries / 8 * 5 / 4, false},
		"the last one first":  {func(i int) int { return entries - i }, entries / 8 * 2, false},
		"in no order":         {func(i int) int { return shuffled[i] }, entries * 5 / 4, false},
		"few of many":         {func(i int) int { return shuffled[i] * 50 }, 0, true},
	} {
		b := NewColumn(ColumnKey{Kind: Dates, Keys: KeysOf([]fhir.Key{1})}, nil)
		for i := range entries {
			b.AddEntry(Entry{RID: int64(c.number(i)), Low: int64(i) * 1e6, High: int64(i)*1e6 + 1})
		}
		p := b.finish().part(0)
		if none := p.newSectionsBytes() == 0; none != c.none {
			t.Errorf("%s: no sections: %v, want %v", name, none, c.none)
		} else if !none {
			if p.setSections(); p.sectionsBytes() > c.most {
				t.Errorf("%s: %d bytes, want %d at most", name, p.sectionsBytes(), c.most)
			}
		}
	}
}

// Sections are even also where many resources have each value, and one where all have the same.
func TestSectionsAreEven(t *testing.T) {
	t.Parallel()
	const entries = 40_000
	for alike, want := range map[int]int{1: partSections, 700: partSections, 5000: partSections, entries: 1} {
		b := NewColumn(ColumnKey{Kind: Dates, Keys: KeysOf([]fhir.Key{1})}, nil)
		for n := range entries {
			low := int64(n/alike) * 1e6
			b.AddEntry(Entry{RID: int64(n), Low: low, High: low + 1})
		}
		p := b.finish().part(0)
		p.setSections()
		if len(p.sections) != want {
			t.Errorf("%d of each value: %d sections, want %d", alike, len(p.sections), want)
		}
		all := 0
		for i, s := range p.sections {
			n := s.bits.Len()
			if all += n; n > entries/want+alike {
				t.Errorf("%d of each value: section %d has %d", alike, i, n)
			}
			if i < len(p.sections)-1 && p.below(s.end) != all {
				t.Errorf("%d of each value: %d are before the end of section %d, want %d", alike, p.below(s.end), i, all)
			}
		}
		if all != entries {
			t.Errorf("%d of each value: sections have %d of %d", alike, all, entries)
		}
	}
}

// dates are the bounds of a resource's date.
type dates struct{ low, high int64 }

// checkOrder takes a page of some resources in the order of a column, along the order and by the
// place of each.
func checkOrder(t *testing.T, r *rand.Rand, c *column, now map[uint32]dates, end uint32) {
	t.Helper()
	members := new(bitmap.Set)
	for range 1 << r.IntN(12) {
		members.Add(uint32(r.IntN(int(end))))
	}
	place := func(n uint32) Place {
		d, ok := now[n]
		return Place{Valued: ok, Low: d.low, N: n}
	}
	p := Page{Order: &ColumnOrder{Column: c.key, Descending: r.IntN(2) == 0}, Backwards: r.IntN(2) == 0, Bounded: r.IntN(2) == 0,
		Beyond: place(uint32(r.IntN(int(end)))), Offset: r.IntN(3) * 10, Limit: 1 + r.IntN(20)}
	compare := func(x, y Place) int {
		var out int
		switch {
		case x.Valued && y.Valued && p.Order.Descending:
			out = cmp.Or(cmp.Compare(y.Low, x.Low), cmp.Compare(x.N, y.N))
		case x.Valued && y.Valued:
			out = cmp.Or(cmp.Compare(x.Low, y.Low), cmp.Compare(x.N, y.N))
		case x.Valued:
			out = -1
		case y.Valued:
			out = 1
		default:
			out = cmp.Compare(x.N, y.N)
		}
		if p.Backwards {
			return -out
		}
		return out
	}
	var want []Place
	for n := range members.All(0) {
		if at := place(n); !p.Bounded || compare(at, p.Beyond) > 0 {
			want = append(want, at)
		}
	}
	slices.SortFunc(want, compare)
	want = want[min(p.Offset, len(want)):]
	want = want[:min(p.Limit, len(want))]
	if got := c.pageInOrder(members, &p); !slices.Equal(got, want) {
		t.Fatalf("%+v %+v of %d: %v, want %v", p, *p.Order, members.Len(), got, want)
	}
	if got, ok := c.along(members, &p, math.MaxInt); !ok || !slices.Equal(got, want) {
		t.Fatalf("along the order, %+v %+v of %d: %v, want %v", p, *p.Order, members.Len(), got, want)
	}
}

// Places beyond two bytes are kept among the places of two, and runs of one place once,
// also after insertions in their midst.
func TestPlaces(t *testing.T) {
	t.Parallel()
	r := rand.New(rand.NewPCG(7, 8))
	wide := func(uint32) uint32 { return uint32(r.IntN(1<<uint(r.IntN(24)) + 1)) }
	for name, c := range map[string]struct {
		first    func(n uint32) uint32 // the place of each, from the start
		changes  int
		runs     bool // are kept at the end
		afterAll uint32
	}{
		"wide":           {wide, 20_000, false, 3 * pageSize},
		"runs":           {func(n uint32) uint32 { return noChunk + n/300 }, 60, true, 3 * pageSize},
		"runs, wide":     {func(n uint32) uint32 { return 1<<16 - 3 + n/300 }, 60, true, 3 * pageSize},
		"runs no longer": {func(n uint32) uint32 { return noChunk + n/300 }, 20_000, false, 3 * pageSize},
		"few in runs":    {func(n uint32) uint32 { return []uint32{noChunk + n/2000, nowhere}[min(n%40, 1)] }, 0, true, 3 * fewPageSize},
	} {
		t.Run(name, func(t *testing.T) {
			o := places{room: new(packed.Room)}
			now := make(map[uint32]uint32)
			set := func(n, place uint32) {
				now[n] = place
				o.set(n, place)
			}
			for n := range c.afterAll {
				if place := c.first(n); place != nowhere {
					set(n, place)
				}
			}
			if o.compact(false); o.few != (c.afterAll > 3*pageSize) {
				t.Fatalf("kept as those of few: %v", o.few)
			}
			for i := range c.changes {
				n := uint32(r.IntN(int(c.afterAll)))
				switch place := wide(n); {
				case i%3 == 0 && n > 0:
					set(n, o.get(n-1)) // as its neighbour
				case i%3 == 1 && c.runs:
					set(n, min(place, noChunk))
				default:
					set(n, place)
				}
			}
			if c.changes > 0 {
				o.compact(r.IntN(2) == 0)
			}
			for n := range c.afterAll {
				if got := o.get(n); got != now[n] {
					t.Fatalf("the place of %d is %d, want %d", n, got, now[n])
				}
			}
			checkAlong(t, r, &o, now, c.afterAll)
			inRuns := 0
			for i := range o.pages {
				if g, ok := o.page(i); ok && g.inRuns() {
					inRuns++
				}
			}
			if all := inRuns == len(o.pages); all != c.runs {
				t.Errorf("%d of %d pages are kept as runs", inRuns, len(o.pages))
			}
		})
	}
}

// checkAlong goes along places in both directions: all are met, in order, but for those that may be
// left out.
func checkAlong(t *testing.T, r *rand.Rand, o *places, now map[uint32]uint32, end uint32) {
	t.Helper()
	none := func(place uint32) bool { return place%2 == 0 }
	for range 40 {
		p := Page{Backwards: r.IntN(2) == 0, Bounded: r.IntN(4) > 0, Beyond: Place{N: uint32(r.IntN(int(end)))}}
		var want []uint32 // that may not be left out
		for n := range end {
			if now[n] != nowhere && !none(now[n]) && (!p.Bounded || p.Backwards && n < p.Beyond.N || !p.Backwards && n > p.Beyond.N) {
				want = append(want, n)
			}
		}
		if p.Backwards {
			slices.Reverse(want)
		}
		var got []uint32
		last := -1
		for n, place := range o.along(p, none) {
			if place != now[n] || last >= 0 && (int(n) < last) != p.Backwards || p.Bounded && (n < p.Beyond.N) != p.Backwards {
				t.Fatalf("%+v: %d with place %d behind %d, want place %d", p, n, place, last, now[n])
			}
			if last = int(n); !none(place) {
				got = append(got, n)
			}
		}
		if !slices.Equal(got, want) {
			t.Fatalf("%+v: %d met, want %d", p, len(got), len(want))
		}
	}
}

func BenchmarkColumnApply(b *testing.B) {
	r := rand.New(rand.NewPCG(5, 6))
	var entries []Entry
	for n := range 500_000 {
		low := r.Int64N(1e9) * 1e6
		entries = append(entries, Entry{RID: int64(n), Low: low, High: low + 1e6})
	}
	c := columnOf(ColumnKey{Kind: Dates, Keys: KeysOf([]fhir.Key{1})}, entries...)
	x := &match.Resource{Index: &fhir.Index{Dates: []fhir.DateEntry{{Key: 1}}}}
	b.ReportAllocs()
	for b.Loop() {
		x.Index.Dates[0].Low = r.Int64N(1e9) * 1e6
		x.Index.Dates[0].High = x.Index.Dates[0].Low + 1e6
		if !c.apply(uint32(r.IntN(len(entries))), x) {
			b.Fatal("a date does not fit")
		}
	}
}

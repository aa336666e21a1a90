package remembered

import (
	"cmp"
	"encoding/binary"
	"slices"

	"kiln/server/fhir"
	"kiln/server/search/match"

	"github.com/RoaringBitmap/roaring/v2"
)

// Kind is what the values of a column are: those of an ordered table of the index.
type Kind = match.Table

// The kinds of columns.
const (
	Dates      = match.DateTable
	Numbers    = match.NumberTable
	Quantities = match.QuantityTable
)

// ColumnKey names a parameter of which each resource of a type has one entry at most.
type ColumnKey struct {
	Type int16
	Kind Kind
	Keys string // KeysOf the keys of the entries
}

// KeysOf names keys, whatever their order.
func KeysOf(keys []fhir.Key) string {
	var b []byte
	for _, k := range slices.Sorted(slices.Values(keys)) {
		b = binary.BigEndian.AppendUint64(b, uint64(k))
	}
	return string(b)
}

// List is what KeysOf names.
func (c ColumnKey) List() []fhir.Key {
	var keys []fhir.Key
	for i := 0; i+8 <= len(c.Keys); i += 8 {
		keys = append(keys, fhir.Key(binary.BigEndian.Uint64([]byte(c.Keys[i:i+8]))))
	}
	return keys
}

// An Entry is a row of the column's table.
type Entry struct {
	RID       int64
	Low, High int64  // of a date, microseconds
	Number    string // of the others
	Unit      int64  // of a quantity
}

// A column is the values of an ordered parameter: the entries of all resources of a
// type, of quantities those of each unit.
type column struct {
	key   ColumnKey
	keys  []fhir.Key
	parts map[int64]*part // by unit; 0 where there are none
	units map[int64]*match.Unit
}

// A part is entries that are compared with each other, by their low ends and by their
// resources.
type part struct {
	points bool  // numbers, not ranges of time
	widest int64 // of the short ones
	byLow  list[cell]
	long   list[cell] // by resource
	byN    list[cell]
}

// A cell is the entry of a resource: a range of time, or a point as its two halves.
type cell struct {
	low, high int64
	n         uint32
}

// length is how long the entry of a cell is, in microseconds; 0 of a number.
func (p *part) length(c cell) int64 {
	if p.points {
		return 0
	}
	return c.high - c.low
}

// cellBytes is about what a cell takes in two lists.
const cellBytes = 60

// short is the longest entry that is found by its low end.
const short = match.Day

func compareLow(a, b cell) int { return cmp.Or(cmp.Compare(a.low, b.low), cmp.Compare(a.n, b.n)) }

func compareN(a, b cell) int { return cmp.Compare(a.n, b.n) }

// A ColumnBuilder makes a column of entries that are added one after the other.
type ColumnBuilder struct {
	column
	resources *roaring.Bitmap
	cells     map[int64]*[][]cell // by unit
}

// NewColumn returns a builder without entries. Units are those that the entries may have.
func NewColumn(key ColumnKey, units map[int64]*match.Unit) *ColumnBuilder {
	return &ColumnBuilder{column: column{key: key, keys: key.List(), parts: make(map[int64]*part), units: units},
		resources: roaring.New(), cells: make(map[int64]*[][]cell)}
}

// cellsAtOnce is the number of cells that are allocated together while a column is read.
const cellsAtOnce = 4096

// Add reports false for an entry that a column does not hold: a second one of a resource,
// and a number that is too large or too fine (pointOf).
func (b *ColumnBuilder) Add(e Entry) bool {
	c, ok := cellOf(b.key.Kind, e)
	if !ok || !b.resources.CheckedAdd(c.n) {
		return false
	}
	of := b.cells[e.Unit]
	if of == nil {
		if b.key.Kind == Quantities && b.units[e.Unit] == nil {
			return false
		}
		of = &[][]cell{nil}
		b.cells[e.Unit] = of
	}
	last := len(*of) - 1
	if len((*of)[last]) == cellsAtOnce {
		*of = append(*of, make([]cell, 0, cellsAtOnce))
		last++
	}
	(*of)[last] = append((*of)[last], c)
	return true
}

// finish returns the column, and ends the use of the builder.
func (b *ColumnBuilder) finish() *column {
	for unit, cells := range b.cells {
		b.parts[unit] = newPart(b.key.Kind, slices.Concat(*cells...))
		delete(b.cells, unit)
	}
	return &b.column
}

// newPart takes the cells, which it sorts in place.
func newPart(kind Kind, cells []cell) *part {
	p := &part{points: kind != Dates}
	isLong := func(c cell) bool { return p.length(c) > short }
	shorts := cells // in the order of their low ends, as an index gives them
	var long []cell
	if slices.ContainsFunc(cells, isLong) {
		shorts = make([]cell, 0, len(cells))
		for _, c := range cells {
			if isLong(c) {
				long = append(long, c)
			} else {
				shorts = append(shorts, c)
			}
		}
	}
	for _, c := range shorts {
		p.widest = max(p.widest, p.length(c))
	}
	p.byLow, p.long = newList(compareLow, shorts), newList(compareN, long)
	p.byN = newList(compareN, cells)
	return p
}

// cellOf reads an entry; false where a column has no room for it.
func cellOf(kind Kind, e Entry) (cell, bool) {
	n, ok := number(e.RID)
	if !ok || kind == Dates {
		return cell{e.Low, e.High, n}, ok
	}
	at, ok := parsePoint(e.Number)
	return cell{at.whole, at.rest, n}, ok
}

func (p *part) insert(c cell) {
	p.byN.insert(c)
	if p.length(c) > short {
		p.long.insert(c)
		return
	}
	p.byLow.insert(c)
	p.widest = max(p.widest, p.length(c))
}

func (p *part) remove(n uint32) {
	c, ok := p.byN.find(cell{n: n})
	if !ok {
		return
	}
	p.byN.remove(c)
	if p.length(c) > short {
		p.long.remove(c)
	} else {
		p.byLow.remove(c)
	}
}

// apply takes the entries that a resource has now, nil for one that is gone; false
// where the column has no room for them.
func (c *column) apply(n uint32, r *match.Resource) bool {
	for _, p := range c.parts {
		p.remove(n)
	}
	if r == nil {
		return true
	}
	found := 0
	add := func(e Entry) bool {
		p := c.parts[e.Unit]
		if p == nil {
			p = newPart(c.key.Kind, nil)
			c.parts[e.Unit] = p
		}
		x, ok := cellOf(c.key.Kind, e)
		if ok {
			p.insert(x)
			found++
		}
		return ok
	}
	rid := int64(n)
	switch c.key.Kind {
	case Dates:
		for _, e := range r.Index.Dates {
			if slices.Contains(c.keys, e.Key) && !add(Entry{RID: rid, Low: e.Low, High: e.High}) {
				return false
			}
		}
	case Numbers:
		for _, e := range r.Index.Numbers {
			if slices.Contains(c.keys, e.Key) && (e.Low != e.High || !add(Entry{RID: rid, Number: e.Low})) {
				return false
			}
		}
	case Quantities:
		for _, e := range r.Index.Quantities {
			if !slices.Contains(c.keys, e.Key) {
				continue
			}
			unit := fhir.UnitID(e.System, e.Code, e.Unit)
			if c.units[unit] == nil {
				u := match.NewUnit(unit, e.System, e.Code, e.Unit)
				c.units[unit] = &u
			}
			if e.Low != e.High || !add(Entry{RID: rid, Number: e.Low, Unit: unit}) {
				return false
			}
		}
	}
	return found <= 1
}

func (c *column) bytes() int64 {
	n := int64(1024)
	for _, p := range c.parts {
		n += int64(p.byN.n) * cellBytes
	}
	return n
}

// compared is a part and what a comparison asks of it.
type compared struct {
	*part
	window
}

// compare is the parts that a match is about, each with what it asks.
func (c *column) compare(m match.Match) []compared {
	var out []compared
	dates := match.DateBoundsOf(m)
	for unit, p := range c.parts {
		if dates != nil {
			windows := make([]window, len(dates))
			for i, b := range dates {
				windows[i] = dateWindow(b, p.widest)
			}
			out = append(out, compared{p, every(windows)})
		} else if n, ok := match.NumbersIn(m, c.units[unit]); ok {
			out = append(out, compared{p, numberWindow(&n)})
		}
	}
	return out
}

// count is the number of entries for which the comparison holds.
func (c *compared) count() int {
	w := &c.window
	n := 0
	scan := func(from, to int64) {
		if from >= to {
			return
		}
		for e := range c.byLow.from(func(e cell) bool { return e.low < from }) {
			if e.low >= to {
				break
			}
			if w.test(e.low, e.high) {
				n++
			}
		}
	}
	sure, end := max(w.sure, w.from), min(w.sureEnd, w.to)
	if sure < end {
		n += c.below(end) - c.below(sure)
		scan(w.from, sure)
		scan(end, w.to)
	} else {
		scan(w.from, w.to)
	}
	for e := range c.long.from(func(cell) bool { return false }) {
		if w.test(e.low, e.high) {
			n++
		}
	}
	if w.not {
		return c.byN.n - n
	}
	return n
}

// below is the number of short entries with a low end before at.
func (p *part) below(at int64) int {
	if at == lowest {
		return 0
	}
	return p.byLow.rank(func(e cell) bool { return e.low < at })
}

// reach is how many entries are looked at to find all for which the comparison holds.
func (c *compared) reach() int {
	if c.not {
		return c.byN.n
	}
	return max(0, c.below(c.to)-c.below(c.from)) + c.long.n
}

// each calls f for every resource for which the comparison holds, in no order.
func (c *compared) each(f func(n uint32)) {
	w := &c.window
	if w.not {
		for e := range c.byN.from(func(cell) bool { return false }) {
			if w.holds(e.low, e.high) {
				f(e.n)
			}
		}
		return
	}
	for e := range c.byLow.from(func(e cell) bool { return e.low < w.from }) {
		if e.low >= w.to {
			break
		}
		if w.test(e.low, e.high) {
			f(e.n)
		}
	}
	for e := range c.long.from(func(cell) bool { return false }) {
		if w.test(e.low, e.high) {
			f(e.n)
		}
	}
}

// has reports whether the comparison holds for a resource.
func (c *compared) has(n uint32) bool {
	e, ok := c.byN.find(cell{n: n})
	return ok && c.holds(e.low, e.high)
}

// pageOfColumn is the number of resources for which the comparison holds, and those
// that a page has. Along the resources few are looked at where many match, along the
// values where few do.
func pageOfColumn(cs []compared, p Page) (total int, out []uint32) {
	for i := range cs {
		total += cs[i].count()
	}
	if total == 0 || p.Limit == 0 {
		return total, nil
	}
	o := outermost{page: p, size: p.Offset + p.Limit}
	first := p // of a part: any of these may be on the page
	first.Offset, first.Limit = 0, o.size
	for i := range cs {
		if ns, ok := cs[i].walk(first, cs[i].reach()/2+first.Limit); ok {
			for _, n := range ns {
				o.add(n)
			}
			continue
		}
		cs[i].each(o.add)
	}
	return total, o.finish()
}

// walk goes along the resources, most entries at most; false where that did not find
// the page, which has no offset.
func (c *compared) walk(p Page, most int) (out []uint32, ok bool) {
	visit := func(e cell) bool {
		if most--; most < 0 {
			return false
		}
		if c.holds(e.low, e.high) {
			out = append(out, e.n)
		}
		return len(out) < p.Limit
	}
	if p.Backwards {
		for e := range c.byN.backwards(func(e cell) bool { return !p.Bounded || e.n < p.Beyond }) {
			if !visit(e) {
				break
			}
		}
	} else {
		for e := range c.byN.from(func(e cell) bool { return p.Bounded && e.n <= p.Beyond }) {
			if !visit(e) {
				break
			}
		}
	}
	return out, most >= 0
}

// outermost keeps the first resources beyond a bound, or the last before it, in the
// order of the page.
type outermost struct {
	page Page
	size int
	ns   []uint32
}

// kept is the size up to which a list is kept in order; a page far behind is sorted when
// all are there.
const kept = 512

func (o *outermost) compare(a, b uint32) int {
	if o.page.Backwards {
		return cmp.Compare(b, a)
	}
	return cmp.Compare(a, b)
}

func (o *outermost) add(n uint32) {
	if o.page.Bounded && o.compare(n, o.page.Beyond) <= 0 {
		return
	}
	if o.size > kept {
		o.ns = append(o.ns, n)
		return
	}
	if len(o.ns) == o.size {
		if o.compare(n, o.ns[o.size-1]) > 0 {
			return
		}
		o.ns = o.ns[:o.size-1]
	}
	at, _ := slices.BinarySearchFunc(o.ns, n, o.compare)
	o.ns = slices.Insert(o.ns, at, n)
}

func (o *outermost) finish() []uint32 {
	if o.size > kept {
		slices.SortFunc(o.ns, o.compare)
		o.ns = o.ns[:min(o.size, len(o.ns))]
	}
	return o.ns[min(o.page.Offset, len(o.ns)):]
}

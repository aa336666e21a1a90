package cache

import (
	"cmp"
	"encoding/binary"
	"iter"
	"slices"
	"sort"
	"time"

	"kiln/server/fhir"
	"kiln/server/search/cache/packed"
	"kiln/server/search/match"
)

// Kind is the kind of a column's values: an ordered table of the index, or References.
type Kind = match.Table

// The kinds of columns.
const (
	Dates      = match.DateTable
	Numbers    = match.NumberTable
	Quantities = match.QuantityTable
)

// ColumnKey names a parameter of which each resource of a type has one entry at most; OwnRefs is no
// parameter.
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
	Low, High int64  // of a date, microseconds; Low is a ref
	Number    string // of numbers and quantities
	Unit      int64  // of a quantity
}

// A column contains the values of an ordered parameter: the entries of all resources of a type, for quantities those
// of one unit.
type column struct {
	key   ColumnKey
	keys  []fhir.Key
	parts map[int64]*part // by unit; 0 where there are none
	list  []*part         // by number
	units map[int64]*match.Unit
	tails tails
	of    places // where the entry of each resource is
	size  int64  // of the chunks, in bytes
}

// A part is entries that are compared with each other, by their low ends.
type part struct {
	of       *places
	number   uint32
	points   bool              // numbers, not ranges of time
	n        int               // of all
	widest   int64             // of the short ones
	chunks   []uint32          // their places
	lasts    []int64           // the low ends of the chunks' last cells: finding one reads no chunk
	sizes    []int32           // of the chunks
	sections []section         // nil until they are needed
	scarce   bool              // there were too few entries among too many resources for sections
	moved    int               // entries that have come or gone since either was found
	crowded  time.Time         // when there was no room for sections
	long     packed.List[cell] // by resource
}

// A cell is the entry of a resource: a range of time, or a point as its two halves. The column's tails contain the
// second part: the length of the range or the rest of the point.
type cell struct {
	low  int64
	n    uint32
	tail uint32
}

// tails are the second parts of cells, each once: most entries share a few.
type tails struct {
	values []int64
	number map[int64]uint32
	last   uint32 // that was asked for
}

// maxTails bounds the values that no cell has any more: tails has none taken away.
const maxTails = 1 << 20

func (t *tails) of(value int64) uint32 {
	if int(t.last) < len(t.values) && t.values[t.last] == value {
		return t.last
	}
	n, ok := t.number[value]
	if !ok {
		if t.number == nil {
			t.number = make(map[int64]uint32)
		}
		n = uint32(len(t.values))
		t.values = append(t.values, value)
		t.number[value] = n
	}
	t.last = n
	return n
}

// tailBytes is the size in bytes of a tail with its number.
const tailBytes = 32

// short is the longest entry that is found by its low end.
const short = match.Day

// order compares cells by their values, and cells of one value by the numbers of their resources: the order of the
// indexes that columns are read from.
func (c *column) order(a, b cell) int {
	return cmp.Or(cmp.Compare(a.low, b.low), cmp.Compare(c.tails.values[a.tail], c.tails.values[b.tail]), cmp.Compare(a.n, b.n))
}

func compareN(a, b cell) int { return cmp.Compare(a.n, b.n) }

// high is the end of a range of time, the rest of a point.
func (c *column) high(p *part, e cell) int64 {
	if p.points {
		return c.tails.values[e.tail]
	}
	return e.low + c.tails.values[e.tail]
}

// isLong reports whether the entry of a cell is not found by its low end.
func (c *column) isLong(p *part, e cell) bool { return !p.points && c.tails.values[e.tail] > short }

// A ColumnBuilder makes a column of entries that are added one after the other, best in the
// order of the index: then it takes no more memory than the column.
type ColumnBuilder struct {
	column
	ends map[int64]*partEnd // by unit
}

// A partEnd is the unpacked end of a part: its last chunk, nil for none, and the long cells.
type partEnd struct {
	place uint32 // of its last chunk, nowhere without one
	cells []cell
	long  []cell
}

// NewColumn returns a builder without entries. Units are those that the entries may have.
func NewColumn(key ColumnKey, units map[int64]*match.Unit) *ColumnBuilder {
	return &ColumnBuilder{column: column{key: key, keys: key.List(), parts: make(map[int64]*part), units: units, of: places{room: new(packed.Room)}}, ends: make(map[int64]*partEnd)}
}

// AddEntry adds an entry. It returns false if the column cannot store it: a second entry of a resource, or a number that is too
// large or too fine (pointOf).
func (b *ColumnBuilder) AddEntry(e Entry) bool {
	c, ok := b.cellOf(e)
	if !ok || b.of.get(c.n) != nowhere {
		return false
	}
	end := b.ends[e.Unit]
	if end == nil {
		if b.key.Kind == Quantities && b.units[e.Unit] == nil {
			return false
		}
		end = &partEnd{cells: make([]cell, 0, chunkFilled)}
		b.ends[e.Unit] = end
	}
	p := b.part(e.Unit)
	switch {
	case b.isLong(p, c):
		p.n++
		end.long = append(end.long, c)
		b.of.set(c.n, amongLong)
		return true
	case !b.isNext(p, end, c):
		b.pack(p, end)
		b.insert(p, c)
		return true
	}
	p.n++
	p.widen(&b.column, c)
	if end.place == nowhere {
		end.place = b.of.newChunk(p).place
	}
	b.of.set(c.n, end.place)
	if end.cells = append(end.cells, c); len(end.cells) == chunkFilled {
		b.pack(p, end)
	}
	return true
}

// isNext reports whether a cell comes behind all that the part has.
func (b *ColumnBuilder) isNext(p *part, end *partEnd, c cell) bool {
	if n := len(end.cells); n > 0 {
		return b.order(end.cells[n-1], c) < 0
	}
	if n := len(p.chunks); n > 0 {
		last := p.chunk(n - 1)
		return b.order(last.last(), c) < 0
	}
	return true
}

// pack makes the last chunk of a part one of the others.
func (b *ColumnBuilder) pack(p *part, end *partEnd) {
	if end.place == nowhere {
		return
	}
	k := b.of.chunk(end.place)
	b.column.pack(&k, end.cells)
	p.put(len(p.chunks), k)
	end.place, end.cells = nowhere, end.cells[:0]
}

// Bytes returns the approximate size of the column in bytes.
func (b *ColumnBuilder) Bytes() int64 { return b.bytes() }

// finish returns the column, and ends the use of the builder.
func (b *ColumnBuilder) finish() *column {
	for unit, end := range b.ends {
		p := b.part(unit)
		b.pack(p, end)
		p.long = packed.NewList(compareN, end.long)
	}
	b.ends = nil
	b.compact(false)
	return &b.column
}

// scatteredFrom is the number of free bytes in a room up to which its pieces do not move to another.
var scatteredFrom int64 = 64 << 10

// compact moves everything to a new room: places.compact.
func (c *column) compact(grows bool) {
	c.of.compact(grows)
	c.size = 0
	for i := range c.of.chunks.n {
		k := c.of.chunks.at(i).in(c.of.room)
		c.size += k.size()
	}
}

// part is the part of a unit.
func (c *column) part(unit int64) *part {
	p := c.parts[unit]
	if p == nil {
		p = &part{of: &c.of, number: uint32(len(c.list)), points: c.key.Kind != Dates, long: packed.NewList[cell](compareN, nil)}
		c.parts[unit], c.list = p, append(c.list, p)
	}
	return p
}

// chunk is the i-th chunk.
func (p *part) chunk(i int) chunk { return p.of.chunk(p.chunks[i]) }

func (p *part) widen(c *column, e cell) {
	if !p.points {
		p.widest = max(p.widest, c.tails.values[e.tail])
	}
}

// cellOf reads an entry; false where a column has no room for it.
func (c *column) cellOf(e Entry) (cell, bool) {
	n, ok := number(e.RID)
	switch {
	case !ok:
		return cell{}, false
	case c.key.Kind == Dates:
		return cell{e.Low, n, c.tails.of(e.High - e.Low)}, true
	case c.key.Kind == References:
		return cell{e.Low, n, c.tails.of(0)}, true
	}
	at, ok := parsePoint(e.Number)
	return cell{at.whole, n, c.tails.of(at.rest)}, ok
}

// newChunk makes a chunk of cells.
func (c *column) newChunk(p *part, cells []cell) chunk {
	k := c.of.newChunk(p)
	for _, e := range cells {
		c.of.set(e.n, k.place)
	}
	c.pack(&k, cells)
	return k
}

// pack stores cells in a chunk, in place of the former cells.
func (c *column) pack(k *chunk, cells []cell) {
	c.change(k, func() bool { k.pack(cells); return true })
}

// change changes a chunk, whose size is the column's.
func (c *column) change(k *chunk, change func() bool) bool {
	before := k.size()
	done := change()
	c.size += k.size() - before
	return done
}

// put makes a chunk, which has cells, the i-th.
func (p *part) put(i int, k chunk) {
	p.chunks, p.lasts, p.sizes = slices.Insert(p.chunks, i, k.place), slices.Insert(p.lasts, i, 0), slices.Insert(p.sizes, i, 0)
	p.changed(i)
}

// changed tells of the i-th chunk, which has no cells any more or others.
func (p *part) changed(i int) {
	if k := p.chunk(i); k.len() > 0 {
		p.lasts[i], p.sizes[i] = k.low(k.runs()-1), int32(k.len())
		return
	}
	p.chunks, p.lasts, p.sizes = slices.Delete(p.chunks, i, i+1), slices.Delete(p.lasts, i, i+1), slices.Delete(p.sizes, i, i+1)
}

// chunkFrom is the first chunk, not before one, whose last low end is not below low: it is looked for near
// that one first.
func (p *part) chunkFrom(first int, low int64) int {
	step := 1
	for first+step < len(p.lasts) && p.lasts[first+step] < low {
		first += step
		step *= 2
	}
	i, _ := slices.BinarySearch(p.lasts[first:min(first+step+1, len(p.lasts))], low)
	return first + i
}

// chunkOf is the chunk that a cell is in, or would be; the last one where it is behind all.
func (c *column) chunkOf(p *part, e cell) int {
	i, _ := slices.BinarySearch(p.lasts, e.low)
	alike := sort.Search(len(p.lasts)-i, func(j int) bool { return p.lasts[i+j] > e.low })
	i += sort.Search(alike, func(j int) bool { k := p.chunk(i + j); return c.order(k.last(), e) >= 0 })
	return min(i, len(p.chunks)-1)
}

func (c *column) insert(p *part, e cell) {
	p.n++
	if c.isLong(p, e) {
		p.long.Insert(e)
		c.of.set(e.n, amongLong)
		return
	}
	p.widen(c, e)
	p.resection(e.low, e.n, true)
	if len(p.chunks) == 0 {
		p.put(0, c.newChunk(p, []cell{e}))
		return
	}
	i := c.chunkOf(p, e)
	in := p.chunk(i)
	at := in.seek(e, &c.tails)
	c.of.set(e.n, in.place)
	if in.len() < chunkFull-1 && c.change(&in, func() bool { return in.insert(at, e) }) {
		p.changed(i)
		return
	}
	cells := slices.Insert(in.cells(), at, e)
	if half := len(cells) / 2; len(cells) >= chunkFull {
		p.put(i+1, c.newChunk(p, cells[half:]))
		cells = cells[:half]
	}
	c.pack(&in, cells)
	p.changed(i)
}

// remove takes away the entry of a resource, if there is one.
func (c *column) remove(n uint32) {
	place := c.of.get(n)
	switch place {
	case nowhere:
		return
	case amongLong:
		p := c.part(0) // quantities have none
		p.long.Remove(cell{n: n})
		p.n--
	default:
		in := c.of.chunk(place)
		p := c.list[in.part]
		at := in.find(n)
		p.resection(in.cell(at).low, n, false)
		i := c.chunkOf(p, in.last())
		p.n--
		c.change(&in, func() bool { in.delete(at); return true })
		if p.changed(i); in.len() == 0 {
			c.of.drop(in)
		}
	}
	c.of.set(n, nowhere)
}

// apply takes the entries that a resource has now, nil for one that is gone; false
// where the column has no room for them.
func (c *column) apply(n uint32, r *match.Resource) bool {
	c.remove(n)
	return c.add(n, r)
}

// add is apply of a resource that has none.
func (c *column) add(n uint32, r *match.Resource) bool {
	if c.of.room.Scattered(scatteredFrom) {
		c.compact(true)
	}
	if r == nil {
		return true
	}
	found := 0
	add := func(e Entry) bool {
		x, ok := c.cellOf(e)
		if found++; !ok || found > 1 {
			return false
		}
		c.insert(c.part(e.Unit), x)
		return len(c.tails.values) < maxTails || len(c.tails.values) < 2*c.of.chunks.n*chunkFilled
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
	case References:
		for _, ref := range c.refs(r) {
			if !add(Entry{RID: rid, Low: ref}) {
				return false
			}
		}
	}
	return true
}

// all is the number of entries of all units.
func (c *column) all() (n int) {
	for _, p := range c.list {
		n += p.n
	}
	return n
}

func (c *column) bytes() int64 {
	n := 8<<10 + c.size + c.of.size + c.of.room.Spare() + int64(len(c.tails.values))*tailBytes
	for _, p := range c.parts {
		n += p.sectionsBytes()
	}
	return n
}

// compared is a part of a column with its comparison.
type compared struct {
	*part
	column *column
	window
}

// compare returns the parts that a match concerns, each with its comparison.
func (c *column) compare(m match.Match) []compared {
	var out []compared
	dates := match.DateBoundsOf(m)
	for unit, p := range c.parts {
		if dates != nil {
			windows := make([]window, len(dates))
			for i, b := range dates {
				windows[i] = dateWindow(b, p.widest)
			}
			out = append(out, compared{p, c, every(windows)})
		} else if n, ok := match.NumbersIn(m, c.units[unit]); ok {
			out = append(out, compared{p, c, numberWindow(&n)})
		}
	}
	return out
}

// tested returns the result of the comparison for an entry before negation.
func (c *compared) tested(low int64, tail uint32) bool {
	return c.test(low, c.column.high(c.part, cell{low: low, tail: tail}))
}

// between gives the short entries with a low end in [from, to). A run lasts until the next.
func (p *part) between(from, to int64) iter.Seq[run] {
	return func(yield func(run) bool) {
		if from >= to {
			return
		}
		var buf packed.Buffer
		for i := p.chunkFrom(0, from); i < len(p.chunks); i++ {
			k := p.chunk(i)
			for j := k.runFrom(from); j < k.runs(); j++ {
				if k.low(j) >= to || !yield(k.run(j, &buf)) {
					return
				}
			}
		}
	}
}

// longs gives the long entries.
func (p *part) longs() iter.Seq[cell] { return p.long.From(func(cell) bool { return false }) }

// count is the number of entries for which the comparison holds.
func (c *compared) count() int {
	w := &c.window
	n := 0
	scan := func(from, to int64) {
		if from >= to {
			return
		}
		for r := range c.between(from, to) {
			if c.tested(r.low, r.tail) {
				n += len(r.ns)
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
	for e := range c.longs() {
		if c.tested(e.low, e.tail) {
			n++
		}
	}
	if w.not {
		return c.n - n
	}
	return n
}

// below is the number of short entries with a low end before at.
func (p *part) below(at int64) int {
	if at == lowest {
		return 0
	}
	i, _ := slices.BinarySearch(p.lasts, at)
	n := 0
	for _, size := range p.sizes[:i] {
		n += int(size)
	}
	if i < len(p.chunks) {
		k := p.chunk(i)
		within, _ := k.bounds(k.runFrom(at))
		n += within
	}
	return n
}

// reach is how many entries are looked at to find all for which the comparison holds.
func (c *compared) reach() int {
	if c.not {
		return c.n
	}
	return max(0, c.below(c.to)-c.below(c.from)) + c.long.Len()
}

// each calls f for every resource for which the comparison holds, in no order.
func (c *compared) each(f func(n uint32)) {
	from, to := c.from, c.to
	if c.not {
		from, to = lowest, highest
	}
	for r := range c.between(from, to) {
		if c.tested(r.low, r.tail) != c.not {
			for _, n := range r.ns {
				f(n)
			}
		}
	}
	for e := range c.longs() {
		if c.tested(e.low, e.tail) != c.not {
			f(e.n)
		}
	}
}

// has reports whether the comparison holds for a resource.
func (c *compared) has(n uint32) bool { return c.hasAt(n, c.column.of.get(n)) }

// hasAt is has where the place of the resource's entry is known.
func (c *compared) hasAt(n, place uint32) bool {
	switch place {
	case nowhere:
		return false
	case amongLong:
		e, ok := c.long.Find(cell{n: n})
		return ok && c.tested(e.low, e.tail) != c.not
	}
	k := c.column.of.chunk(place)
	if k.part != c.part.number {
		return false
	}
	if same, held := c.alike(&k); same {
		return held
	}
	e := k.cell(k.find(n))
	return c.tested(e.low, e.tail) != c.not
}

// alike reports whether the comparison holds for all of a chunk, or for none, and which.
func (c *compared) alike(k *chunk) (same, held bool) {
	switch first, last := k.low(0), k.low(k.runs()-1); {
	case first >= c.sure && last < c.sureEnd:
		return true, !c.not
	case last < c.from || first >= c.to:
		return true, c.not
	}
	return false, false
}

// none reports whether the comparison holds for nothing that is in a chunk.
func (c *compared) none(place uint32) bool {
	if place == amongLong {
		return false
	}
	k := c.column.of.chunk(place)
	if k.part != c.part.number {
		return true
	}
	same, held := c.alike(&k)
	return same && !held
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
	for n, place := range c.column.of.along(p, c.none) {
		if most--; most < 0 {
			break
		}
		if c.hasAt(n, place) {
			out = append(out, n)
		}
		if len(out) >= p.Limit {
			break
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
	if o.page.Bounded && o.compare(n, o.page.Beyond.N) <= 0 {
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

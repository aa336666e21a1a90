package cache

import (
	"math"
	"slices"

	"kiln/server/search/cache/bitmap"
	"kiln/server/search/cache/packed"
	"kiln/server/search/match"
)

// OwnRefsColumn returns the key of the column with the own ref of each resource of a type.
func OwnRefsColumn(typ int16) ColumnKey { return ColumnKey{Type: typ, Kind: References} }

// A Link asks for the resources that refer to some of Others, or, where it leads Back, that these refer to.
type Link struct {
	References ColumnKey // of the type that refers to the other
	Own        ColumnKey // OwnRefsColumn of the other type
	Back       bool
	Others     *Question // without a page
}

// asks reports whether the answer depends on resources of a type.
func (q *Question) asks(typ int16) bool { return q.Type == typ || q.asksOthers(typ) }

// asksOthers reports whether it depends on them by a link.
func (q *Question) asksOthers(typ int16) bool {
	return slices.ContainsFunc(q.Links, func(l Link) bool { return l.Others.asks(typ) })
}

// version grows with every change of a type that the answer to q depends on.
func (m *Memory) version(q *Question) int {
	n := m.versions[q.Type]
	for i := range q.Links {
		n += m.version(q.Links[i].Others)
	}
	return n
}

// linked is the resources that match a question with links, and the refs that each of these has found,
// in order; false where the memory cannot tell.
func (m *Memory) linked(q *Question) (members *bitmap.Set, found [][]int64, ok bool) {
	// The copies of the parts may need as much memory as a column.
	columns := make([][2]*column, len(q.Links))
	for i := range q.Links {
		from, to := q.Links[i].columns()
		f, t := m.use(m.columns[from]), m.use(m.columns[to])
		if f == nil || t == nil {
			return nil, nil, false
		}
		columns[i] = [2]*column{f.column, t.column}
	}
	if q.Beside != nil {
		if members, ok = m.all(q.Beside); !ok {
			return nil, nil, false
		}
	}
	for i, c := range columns {
		others, ok := m.all(q.Links[i].Others)
		if !ok {
			return nil, nil, false
		}
		refs := c[0].refsOf(others, &m.dense[1])
		members = c[1].having(refs, members, &m.dense[0])
		found = append(found, refs)
	}
	return members, found, true
}

// columns returns the columns of the references of Others, and of those to the target type.
func (l *Link) columns() (from, to ColumnKey) {
	if l.Back {
		return l.References, l.Own
	}
	return l.Own, l.References
}

// all is the resources that match a question, which must not be changed.
func (m *Memory) all(q *Question) (*bitmap.Set, bool) {
	members, _, _, ok := m.members(q)
	if ok && members == nil {
		members = m.matches(m.compared(q.Columns[0]))
	}
	return members, ok
}

// linkedTo reports whether a resource has one of the refs that each link has found.
func (q *Question) linkedTo(found [][]int64, r *match.Resource) bool {
	for i := range q.Links {
		l := &q.Links[i]
		has := func(ref int64) bool {
			_, ok := slices.BinarySearch(found[i], ref)
			return ok
		}
		if l.Back && !has(ownRef(r)) || !l.Back && !slices.ContainsFunc(refsUnder(l.References.List(), r), has) {
			return false
		}
	}
	return true
}

// lookups is the number of values that can be read along a column of references in the time of looking up one
// resource.
const lookups = 200

// refsOf is the refs of some resources, each once and in order.
func (c *column) refsOf(some *bitmap.Set, room *bitmap.Dense) (refs []int64) {
	p := c.part(0)
	if some.Len() < p.n/lookups {
		for n := range some.All(0) {
			if at := c.placeOf(n); at.Valued {
				refs = append(refs, at.Low)
			}
		}
		slices.Sort(refs)
		return slices.Compact(refs)
	}
	room.Fill(some)
	var buf packed.Buffer
	for i := range p.chunks {
		k := p.chunk(i)
		for i := range k.runs() {
			r := k.run(i, &buf)
			if n := len(refs); (n == 0 || refs[n-1] != r.low) && slices.ContainsFunc(r.ns, room.Contains) {
				refs = append(refs, r.low)
			}
		}
	}
	return refs
}

// having returns the resources with one of refs, which are in order: all of them, or the members of among if that is
// not nil.
func (c *column) having(refs []int64, among *bitmap.Set, room *bitmap.Dense) *bitmap.Set {
	most := math.MaxInt
	if among != nil {
		most = among.Len() * lookups
	}
	if c.collect(refs, room, most) {
		if among != nil {
			return room.Intersection(among)
		}
		return room.Set()
	}
	out := new(bitmap.Set)
	for n := range among.All(0) {
		if at := c.placeOf(n); at.Valued {
			if _, has := slices.BinarySearch(refs, at.Low); has {
				out.Add(n)
			}
		}
	}
	return out
}

// collect adds all resources that have one of some refs; false where that would look at more than most.
func (c *column) collect(refs []int64, into *bitmap.Dense, most int) bool {
	*into = (*into)[:0]
	p := c.part(0)
	var buf packed.Buffer
	chunk := 0
	for _, ref := range refs {
		most--
		for chunk = p.chunkFrom(chunk, ref); chunk < len(p.chunks); chunk++ {
			k := p.chunk(chunk)
			run := k.runFrom(ref)
			for ; run < k.runs() && k.low(run) == ref; run++ {
				ns := k.run(run, &buf).ns
				if most -= len(ns); most < 0 {
					return false
				}
				for _, n := range ns {
					into.Add(n)
				}
			}
			if run < k.runs() {
				break
			}
		}
		if most < 0 {
			return false
		}
	}
	return true
}

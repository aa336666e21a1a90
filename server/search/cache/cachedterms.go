package cache

import (
	"slices"
	"time"

	"kiln/server/search/cache/bitmap"
	"kiln/server/search/match"
)

// byTerms is the resources for which the terms of the question hold; nil where they are
// not remembered. It may be a set that is remembered and must not be changed, but where own is true.
func (m *Memory) byTerms(q *Question) (members *bitmap.Set, own bool) {
	t := q.Terms
	if t == nil {
		return nil, false
	}
	all, ok := m.membersOf(q.Type, t.All)
	if !ok {
		return nil, false
	}
	for _, any := range t.Any {
		sets, ok := m.membersOf(q.Type, any)
		if !ok {
			return nil, false
		}
		all = append(all, bitmap.Union(sets))
	}
	none, ok := m.membersOf(q.Type, t.None)
	if !ok {
		return nil, false
	}
	if len(all) == 1 && len(none) == 0 {
		return all[0], false
	}
	begin := time.Now()
	out := bitmap.Intersection(all, none)
	if len(q.Columns) == 0 {
		m.keepExpensive(q, out, time.Since(begin))
	}
	return out, true
}

// CountResources returns the number of resources of a type in the state of the cache; false if that is unknown.
func (m *Memory) CountResources(typ int16) (n int64, ok bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	i := m.terms[termKey{typ, Every}]
	if i == nil {
		return 0, false
	}
	return int64(i.term.members.Len()), true
}

// maxUnknown limits the terms that FindUnknownTerms returns.
const maxUnknown = 16

// FindUnknownTerms returns the terms of a question that are neither cached nor common; none if they are too many to be read
// one by one.
func (m *Memory) FindUnknownTerms(typ int16, t *Terms) []int64 {
	m.mu.Lock()
	defer m.mu.Unlock()
	var out []int64
	for _, terms := range append([][]int64{t.All, t.None}, t.Any...) {
		for _, term := range terms {
			if term != Every && m.terms[termKey{typ, term}] == nil && !m.common[TypeKey(typ)][term] && !slices.Contains(out, term) {
				out = append(out, term)
			}
		}
	}
	if len(out) > maxUnknown {
		return nil
	}
	return out
}

// ListCommonTerms returns the cached common terms of a type, in ascending order.
func (m *Memory) ListCommonTerms(typ int16) []int64 {
	m.mu.Lock()
	defer m.mu.Unlock()
	var out []int64
	for term := range m.common[TypeKey(typ)] {
		if term != Every && m.terms[termKey{typ, term}] != nil {
			out = append(out, term)
		}
	}
	slices.Sort(out)
	return out
}

// FindEvictedTerms returns the common terms of a question that are not cached, because they were evicted. Every is common
// before the other terms are read.
func (m *Memory) FindEvictedTerms(typ int16, t *Terms) []int64 {
	m.mu.Lock()
	defer m.mu.Unlock()
	var out []int64
	for _, terms := range append([][]int64{t.All, t.None}, t.Any...) {
		for _, term := range terms {
			if m.isCommon(typ, term) && m.terms[termKey{typ, term}] == nil && !slices.Contains(out, term) {
				out = append(out, term)
			}
		}
	}
	return out
}

// isCommon reports whether a term is common in a type. Every is common before the other terms are read.
func (m *Memory) isCommon(typ int16, term int64) bool {
	return term == Every || m.common[TypeKey(typ)][term]
}

// NoteCommonTerm notes that many resources of a type have a term. FindUnknownTerms does not return it.
func (m *Memory) NoteCommonTerm(typ int16, term int64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if of := m.common[TypeKey(typ)]; of != nil && len(of) < maxWanted {
		of[term] = true
	}
}

// membersOf is the sets of terms; false where one is not remembered.
func (m *Memory) membersOf(typ int16, terms []int64) (sets []*bitmap.Set, ok bool) {
	for _, t := range terms {
		i := m.use(m.terms[termKey{typ, t}])
		if i == nil {
			return nil, false
		}
		sets = append(sets, i.term.members)
	}
	return sets, true
}

// applyTerms applies the present terms of a resource: at finds the item of a term, and all are the items of terms. If
// some of the terms of a set leave it, their set is among split.
func applyTerms(n uint32, r *match.Resource, at func(term int64) *item, all []keyed) (split []*item) {
	type touch struct {
		*item
		has int
	}
	var room [32]touch
	touched := room[:0]
	if r != nil {
		for _, t := range r.Index.Terms {
			i := at(t)
			if i == nil {
				continue
			}
			j := slices.IndexFunc(touched, func(o touch) bool { return o.item == i })
			if j < 0 {
				j, touched = len(touched), append(touched, touch{item: i})
			}
			touched[j].has++
		}
	}
	if every := at(Every); every != nil && !every.term.members.Contains(n) {
		all = nil // it is new: no set has it
	}
	for _, i := range all {
		if i.term == nil || !i.term.members.Contains(n) { // removing looks further
			continue
		}
		if !slices.ContainsFunc(touched, func(o touch) bool { return o.item == i.item }) {
			i.term.members.Remove(n)
		}
	}
	for _, o := range touched {
		s := o.term
		if o.has == len(s.terms) {
			s.members.Add(n)
			continue
		}
		left := *o.item
		left.term = s.split(r.HasTerm)
		left.term.members.Add(n)
		s.members.Remove(n)
		split = append(split, &left)
	}
	return split
}

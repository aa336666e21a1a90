package cache

import (
	"slices"
	"time"

	"kiln/server/search/cache/bitmap"
	"kiln/server/search/match"
)

// Found is an item read for the cache: a set, a column or terms.
type Found struct {
	State string // that it was read in
	Cost  time.Duration
	Type  int16
	Name  string // of the type
	Ahead bool   // nobody has asked for it: it takes no room from anything
	// Behind is then the number of types with more resources: the higher, the sooner a column is evicted. Terms ignore it:
	// terms of few resources need little memory, and counting them costs the database one page for each.
	Behind int

	// A set:
	Set     Key
	Clauses []match.Clause
	RIDs    []int64
	// or a column, where it is not nil:
	Column *ColumnBuilder
	// or the sets of terms, where it is not nil:
	Terms *TermsBuilder

	items []keyed
	terms map[int64]*item // the items of Terms
}

// MakeItems prepares the item; false if that is impossible.
func (f *Found) MakeItems(now time.Time) bool {
	made := func(uses float64) *item {
		if f.Ahead { // an item that no search has used is evicted first
			uses = 0.1
			if f.Terms == nil {
				uses /= float64(1 + f.Behind)
			}
		}
		return &item{typ: f.Type, cost: f.Cost, alone: f.Cost, used: now, uses: uses}
	}
	switch {
	case f.Column != nil:
		i := made(2)
		i.column = f.Column.finish()
		f.items = []keyed{{i, i.column.key}}
	case f.Terms != nil:
		var all int64
		f.terms = make(map[int64]*item)
		for _, t := range f.Terms.sets() {
			i := made(1)
			t.members = t.members.Clone()
			i.term, i.some = t, f.Terms.some
			f.addTerms(i)
			all += i.bytes()
		}
		for _, i := range f.items { // they were found together
			i.cost = time.Duration(float64(f.Cost) * float64(i.bytes()) / float64(all))
			i.alone = min(f.Cost, time.Duration(i.term.members.Len())*memberReads)
		}
	default:
		slices.Sort(f.RIDs)
		members := new(bitmap.Set)
		for _, rid := range f.RIDs {
			n, ok := number(rid)
			if !ok {
				return false
			}
			members.Add(n)
		}
		i := made(2)
		i.set = &set{clauses: f.Clauses, members: members.Clone()}
		f.items = []keyed{{i, f.Set}}
	}
	for _, i := range f.items {
		i.found = i.n()
	}
	return true
}

// NewStored returns an empty record of changed resources, to be filled and passed to ApplyStored.
func (f *Found) NewStored(rids []int64) *Stored {
	return newStored(rids, map[int16]string{f.Type: f.Name})
}

// ApplyStored applies resources read in a later state to the item. It returns false if that is impossible. After all changed
// resources were applied, the caller calls MoveToState.
func (f *Found) ApplyStored(s *Stored) bool { return f.apply(s.all) }

// MoveToState moves the item to the state now, in which the applied resources were read.
func (f *Found) MoveToState(now string) bool {
	built, ok1 := parseState(f.State)
	later, ok2 := parseState(now)
	if !ok1 || !ok2 || later.index != built.index || !later.includes(&built) {
		return false
	}
	f.State = now
	return true
}

func (f *Found) apply(changed map[int64]*match.Resource) bool {
	for rid, r := range changed {
		if int16(rid>>48) != f.Type {
			continue
		}
		n, ok := number(rid)
		if !ok {
			return false
		}
		for _, i := range f.items {
			if !i.apply(n, r, false) {
				return false
			}
		}
		if f.Terms == nil {
			continue
		}
		for _, i := range applyTerms(n, r, func(term int64) *item { return f.terms[term] }, f.items) {
			f.addTerms(i)
		}
	}
	return true
}

func (f *Found) addTerms(i *item) {
	f.items = append(f.items, ofTerms(i))
	for _, t := range i.term.terms {
		f.terms[t] = i
	}
}

// AddFound adds an item after MakeItems, with the changes since FindAddPosition. kept is false if it could not; again is true
// if the same with newer changes can succeed.
func (m *Memory) AddFound(f *Found, c Changes) (kept, again bool) {
	changed, ok := c.resources()
	if !ok {
		return false, true
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	built, ok1 := parseState(f.State)
	since, ok2 := parseState(c.State)
	read, ok3 := parseState(c.Now)
	if !ok1 || !ok2 || !ok3 || !c.Followed || c.Many || m.lags || read.index != built.index || !built.includes(&since) {
		return false, false
	}
	if m.state != nil && !m.bring(&c, changed) {
		return false, true
	}
	if !f.apply(changed) {
		return false, false
	}
	if m.state == nil {
		m.state, m.behind, m.at = &read, &read, m.now()
		m.asked = m.at
	} else {
		if m.behind != nil && !read.includes(m.behind) {
			return false, true
		}
		for _, s := range m.steps {
			if !read.includes(s.to) && !f.apply(s.changed) {
				return false, false
			}
		}
	}
	if m.sets == nil {
		m.sets, m.columns, m.terms = make(map[Key]*item), make(map[ColumnKey]*item), make(map[termKey]*item)
		m.common = make(map[TypeKey]map[int64]bool)
	}
	if f.Ahead {
		var all int64
		for _, i := range f.items {
			all += i.bytes()
		}
		if m.bytes+all > m.ahead() {
			return false, false
		}
	}
	if f.Terms != nil && !f.Terms.some {
		of := make(map[int64]bool, len(f.terms))
		for t := range f.terms {
			of[t] = true
		}
		m.common[TypeKey(f.Type)] = of
	}
	for _, i := range f.items {
		i.some = i.some && !m.isCommon(f.Type, i.term.terms[0])
		if !m.makeRoom(i.bytes(), i.score(m.now())) {
			return f.Terms != nil, false
		}
		m.keep(i)
	}
	return true, false
}

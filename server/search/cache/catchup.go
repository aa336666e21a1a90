package cache

import (
	"maps"
	"slices"
	"time"

	"kiln/server/search/match"
)

// step is a set of changes applied together.
type step struct {
	to      *state
	changed map[int64]*match.Resource
}

// maxSteps bounds the steps that are kept, maxStepped the resources in them.
const (
	maxSteps   = 256
	maxStepped = 2 * MaxChanges
)

// maxKnown bounds the versions that are known to have been brought in.
const maxKnown = 4 * maxStepped

// SettleAnswer applies changes up to the state in which c was read. It reports whether a is the answer there, or in a later
// state of the cache: then its total is exact, and the rows of its surrogates, read with c, belong to that state.
func (m *Memory) SettleAnswer(a Answer, c Changes) (Answer, bool) {
	changed, ok := c.resources()
	if !ok {
		return Answer{}, false
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.generation != a.generation || m.state == nil || !m.bring(&c, changed) {
		return Answer{}, false
	}
	if m.version(a.question) == a.version {
		return a, true
	}
	b, ok := m.again(&a)
	if !ok || !slices.Equal(a.RIDs, b.RIDs) {
		return Answer{}, false
	}
	read, ok := parseState(c.Now)
	if !ok || m.behind != nil && !read.includes(m.behind) {
		return Answer{}, false
	}
	for _, s := range m.steps {
		if read.includes(s.to) {
			continue
		}
		if a.question.Exactly {
			for rid := range s.changed {
				if a.question.asks(int16(rid >> 48)) {
					return Answer{}, false
				}
			}
		}
		for _, rid := range a.RIDs {
			if _, changed := s.changed[rid]; changed {
				return Answer{}, false
			}
		}
	}
	return b, true
}

// ApplyChanges is SettleAnswer without an answer.
func (m *Memory) ApplyChanges(c Changes) {
	changed, ok := c.resources()
	if !ok {
		return
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.state != nil {
		m.bring(&c, changed)
	}
}

// bring moves everything to the state c.Now, where so many resources have changed. It reports false
// where that cannot be, and forgets everything where it will not be.
func (m *Memory) bring(c *Changes, all map[int64]*match.Resource) bool {
	since, ok := parseState(c.State)
	if !ok {
		return false
	}
	now, ok := parseState(c.Now)
	if !ok || !c.Followed || now.index != m.state.index {
		m.forget()
		return false
	}
	if m.state.includes(&now) {
		return !m.lags
	}
	if !now.includes(m.state) {
		m.forget()
		return false
	}
	if m.lags || !m.state.includes(&since) {
		return false
	}
	if c.Many {
		// Else it may be a few since the present state, or much of this server, written while the statement began.
		if c.State == m.state.text && !m.written.knowsMore(c.Written) {
			m.lag()
		}
		return false
	}
	for t := range m.types {
		if !slices.Contains(c.Types, t) {
			return false
		}
	}
	changed := make(map[int64]*match.Resource, len(all))
	for rid, r := range all {
		if v, known := m.brought[rid]; known && r != nil && v == versionOf(r) {
			continue // by another search, which read it before
		}
		changed[rid] = r
	}
	if len(changed) > 0 {
		m.apply(changed)
		m.steps = append(m.steps, step{&now, changed})
		m.stepped++
		m.trimSteps()
	}
	m.written.brought(c.own, changed)
	m.state, m.at = &now, m.now()
	return true
}

// A CatchUp applies missed changes to a cache that has fallen behind, some resources at a time.
type CatchUp struct {
	Position
	Cost  time.Duration // of reading all items again
	Asked bool          // a search has asked the cache since it lags
	// Generation is the generation of the cache.
	Generation int

	m *Memory
}

// BeginCatchUp returns a CatchUp; false if the cache does not lag. It clears the cache if that lags for too long: the change
// log is trimmed.
func (m *Memory) BeginCatchUp() (c CatchUp, ok bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.state == nil || !m.lags {
		return c, false
	}
	if m.now().Sub(m.at) > followedFor {
		m.forget()
		return c, false
	}
	c = CatchUp{Position: m.position(), Asked: m.asked.After(m.at), m: m, Generation: m.generation}
	for i := range m.each() {
		c.Cost += i.anew()
	}
	return c, true
}

// NewStored returns an empty record of changed resources, to be filled and passed to ApplyStored.
func (c CatchUp) NewStored(rids []int64) *Stored { return newStored(rids, c.names) }

// ApplyStored applies changed resources, in any order, all of one state. If the CatchUp ends before all were applied, they are
// applied again. It returns false if the cache was cleared meanwhile.
func (c CatchUp) ApplyStored(s *Stored) bool {
	m := c.m
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.state == nil || m.generation != c.Generation {
		return false
	}
	m.apply(s.all)
	m.written.brought(nil, s.all)
	return true
}

// MoveToState moves the cache to the state now, in which all applied resources were read.
func (c CatchUp) MoveToState(now string) bool {
	later, ok := parseState(now)
	m := c.m
	m.mu.Lock()
	defer m.mu.Unlock()
	if !ok || m.state == nil || m.generation != c.Generation {
		return false
	}
	if later.index != m.state.index || !later.includes(m.state) {
		m.forget()
		return false
	}
	m.state, m.at, m.lags = &later, m.now(), false
	m.steps, m.behind = nil, &later
	return true
}

// apply brings changed resources into all items; it drops those that have no room for one.
func (m *Memory) apply(changed map[int64]*match.Resource) {
	if m.brought == nil || len(m.brought) > maxKnown {
		m.brought = make(map[int64]version)
	}
	for _, rid := range slices.Sorted(maps.Keys(changed)) { // neighbours lie together in columns
		r, t := changed[rid], int16(rid>>48)
		m.versions[t]++
		n, ok := number(rid)
		if of := m.items()[t]; of != nil && !ok {
			for _, i := range of.all {
				m.drop(i)
			}
		} else if of != nil {
			some := of.all[:of.applied]
			every := of.terms[Every]
			isNew := every != nil && !every.term.members.Contains(n)
			if isNew {
				m.some = of.ofNew(r, m.some)
				some = m.some
			}
			for _, i := range some {
				if !i.apply(n, r, isNew) || i.worthless() {
					m.drop(i)
				}
			}
			for _, i := range applyTerms(n, r, func(term int64) *item { return of.terms[term] }, of.all) {
				m.keep(ofTerms(i))
			}
		}
		delete(m.brought, rid)
		if r != nil {
			m.brought[rid] = versionOf(r)
		}
	}
	if m.changes += len(changed); m.changes >= weighEvery {
		m.weigh()
	}
}

func (m *Memory) trimSteps() {
	stepped := 0
	first := 0
	for i := len(m.steps) - 1; i >= 0; i-- {
		if stepped += len(m.steps[i].changed); stepped > maxStepped || len(m.steps)-i > maxSteps {
			first = i + 1
			break
		}
	}
	if first > 0 {
		m.behind = m.steps[first-1].to
		m.steps = slices.Delete(m.steps, 0, first)
	}
}

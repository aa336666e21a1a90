package cache

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"kiln/server/fhir"
	"kiln/server/search/match"
)

// MaxChanges is the number of changed resources of others that a search brings in at once. After more of them
// the memory lags: it answers nothing until they were brought in some at a time (CatchUp).
const MaxChanges = 4000

// MaxBrought is the largest number of changed resources that are applied in parts, to an item not yet cached or to a
// cache that has fallen behind. After more changes the cache is cleared.
const MaxBrought = 1_000_000

// A Position is where changes are read from.
type Position struct {
	State string
	Types []int16 // whose changes are read
	// Written are rows of the change log that this server writes. No more is read of them than that they are there.
	Written []*Written

	names map[int16]string // of Types
}

// Changes are the resources that have changed since a position, as plan.Changes reads them.
type Changes struct {
	Position
	Followed bool // they can be followed at all
	Many     bool // more than are read at once, or it cannot be told which
	// Rows are the present rows of Written, each as rid/version, separated by commas; a space; and a JSON array
	// of changed, or nothing. "" for no change.
	Rows string
	Now  string

	own []*Written // the writes in Rows
}

// changed is a resource as its rows are: without ID where it is gone.
type changed struct {
	RID     int64   `json:"r"`
	ID      *string `json:"i"`
	Version int     `json:"v"`
	Updated int64   `json:"u"` // microseconds
	Terms   []int64 `json:"t"`
	Targets []int64 `json:"g"`
	Dates   []struct {
		Key, Low, High int64
	} `json:"d"`
	Numbers []struct {
		Key       int64
		Low, High string
	} `json:"n"`
	Quantities []struct {
		Key                int64
		Low, High          string
		System, Code, Unit string
	} `json:"q"`
	Strings []struct {
		Key  int64
		Text string
	} `json:"s"`
}

// resources are those that have changed; false where it is not known whether all were committed. Rows
// that cannot be read cannot be followed. It waits for a commit under way, and is called without a
// lock.
func (c *Changes) resources() (all map[int64]*match.Resource, ok bool) {
	if c.Rows == "" {
		return nil, true
	}
	own, others, _ := strings.Cut(c.Rows, " ")
	all, err := parseChanged(others, c.names)
	if err != nil {
		c.Followed = false
		return nil, true
	}
	if own == "" {
		return all, true
	}
	rows := make(map[rowKey]*Written, len(c.Written))
	n := 0
	for _, v := range c.Written {
		rows[v.key()] = v
		n += len(v.versions)
	}
	if len(all) == 0 {
		all = make(map[int64]*match.Resource, n)
	}
	versions := make(map[int64]int, n) // of those that own rows have
	for text := range strings.SplitSeq(own, ",") {
		rid, version, _ := strings.Cut(text, "/")
		r, err1 := strconv.ParseInt(rid, 10, 64)
		n, err2 := strconv.ParseInt(version, 10, 32)
		if err1 != nil || err2 != nil {
			c.Followed = false
			return nil, true
		}
		v := rows[rowKey{r, int32(n)}]
		if v == nil || !v.by.wait() { // another server may have written that version then
			return nil, false
		}
		c.own = append(c.own, v)
		for _, w := range v.versions {
			last, has := versions[w.rid]
			if _, read := all[w.rid]; has && last < w.version || !has && !read { // the statement read the present version
				all[w.rid], versions[w.rid] = w.r, w.version
			}
		}
	}
	return all, true
}

// parseChanged reads a JSON array of changed, "" for an empty one. A resource that is gone is nil.
func parseChanged(rows string, names map[int16]string) (map[int64]*match.Resource, error) {
	var list []changed
	if rows != "" {
		if err := json.Unmarshal([]byte(rows), &list); err != nil {
			return nil, fmt.Errorf("read changed resources: %w", err)
		}
	}
	out := Stored{names: names, all: make(map[int64]*match.Resource, len(list))}
	for i := range list {
		c := &list[i]
		if c.ID == nil {
			out.all[c.RID] = nil
			continue
		}
		out.Resource(c.RID, *c.ID, c.Version, c.Updated, c.Terms, c.Targets)
		for _, e := range c.Dates {
			out.Date(c.RID, e.Key, e.Low, e.High)
		}
		for _, e := range c.Numbers {
			out.Number(c.RID, e.Key, e.Low, e.High)
		}
		for _, e := range c.Quantities {
			out.Quantity(c.RID, e.Key, e.Low, e.High, e.System, e.Code, e.Unit)
		}
		for _, e := range c.Strings {
			out.String(c.RID, e.Key, e.Text)
		}
	}
	return out.all, nil
}

// Stored are some stored resources, made of their rows: the row of the resource table comes before the index
// entries. A resource without one is deleted.
type Stored struct {
	names map[int16]string // of the types
	all   map[int64]*match.Resource
}

func newStored(rids []int64, names map[int16]string) *Stored {
	s := &Stored{names: names, all: make(map[int64]*match.Resource, len(rids))}
	for _, rid := range rids {
		s.all[rid] = nil
	}
	return s
}

// Resource adds one that is there, last updated so many microseconds since 1970. It keeps targets.
func (s *Stored) Resource(rid int64, id string, version int, updated int64, terms, targets []int64) {
	s.all[rid] = &match.Resource{Type: s.names[int16(rid>>48)], ID: id, VersionID: version, LastUpdated: time.UnixMicro(updated).UTC(), Index: newIndex(terms, targets, updated, 0)}
}

// index returns the index of a resource; entries of a deleted one are dropped.
func (s *Stored) index(rid int64) *fhir.Index {
	if r := s.all[rid]; r != nil {
		return r.Index
	}
	return new(fhir.Index)
}

// Date adds an entry of index_date.
func (s *Stored) Date(rid, key, low, high int64) {
	x := s.index(rid)
	x.Dates = append(x.Dates, fhir.DateEntry{Key: match.EntryKey(key, rid), Low: low, High: high})
}

// Number adds an entry of index_number, its ends as PostgreSQL writes them.
func (s *Stored) Number(rid, key int64, low, high string) {
	x := s.index(rid)
	x.Numbers = append(x.Numbers, fhir.NumberEntry{Key: fhir.Key(key), Low: low, High: high})
}

// Quantity adds an entry of index_quantity, its ends as PostgreSQL writes them.
func (s *Stored) Quantity(rid, key int64, low, high, system, code, unit string) {
	x := s.index(rid)
	x.Quantities = append(x.Quantities, fhir.QuantityEntry{Key: match.EntryKey(key, rid), Low: low, High: high, System: system, Code: code, Unit: unit})
}

// String adds an entry of index_string.
func (s *Stored) String(rid, key int64, text string) {
	x := s.index(rid)
	x.Strings = append(x.Strings, fhir.StringEntry{Key: fhir.Key(key), Text: text})
}

// newIndex is an index as it is remembered: beside its terms it has the one of every resource, beside
// its dates, of which there is room for so many, the last update, in microseconds. It keeps targets.
func newIndex(terms, targets []int64, updated int64, dates int) *fhir.Index {
	x := &fhir.Index{Terms: make([]int64, 1, 1+len(terms)), Targets: targets, Dates: make([]fhir.DateEntry, 1, 1+dates)}
	x.Terms[0], x.Dates[0] = Every, match.UpdatedEntry(updated)
	x.Terms = append(x.Terms, terms...)
	return x
}

// number is the part of a surrogate that tells resources of a type apart; false where
// it is beyond what sets hold.
func number(rid int64) (uint32, bool) {
	n := rid & (1<<48 - 1)
	return uint32(n), n>>32 == 0
}

// version tells the versions of a resource apart.
type version struct {
	id int
	at int64 // microseconds
}

func versionOf(r *match.Resource) version { return version{r.VersionID, r.LastUpdated.UnixMicro()} }

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

// Settle applies changes up to the state in which c was read. It reports whether a is the answer there, or in a later
// state of the cache: then its total is exact, and the rows of its surrogates, read with c, belong to that state.
func (m *Memory) Settle(a Answer, c Changes) (Answer, bool) {
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

// Bring is Settle without an answer.
func (m *Memory) Bring(c Changes) {
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
	Cost  time.Duration // of finding everything anew
	Asked bool          // somebody has asked since it lags
	// Generation is the generation of the cache.
	Generation int

	m *Memory
}

// CatchUp begins one; false where the memory does not lag, or has for longer than it may be followed: the
// change log does not go back for ever.
func (m *Memory) CatchUp() (c CatchUp, ok bool) {
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

// Stored are some resources that have changed, to be filled and brought in.
func (c CatchUp) Stored(rids []int64) *Stored { return newStored(rids, c.names) }

// Bring brings in resources that have changed, in any order, all of one state. Where it ends before all
// were, they are brought in again.
func (c CatchUp) Bring(s *Stored) bool {
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

// Brought moves the memory to the state now, in which everything was read that was brought in.
func (c CatchUp) Brought(now string) bool {
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

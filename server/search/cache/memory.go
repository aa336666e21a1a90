package cache

import (
	"cmp"
	"iter"
	"maps"
	"math"
	"slices"
	"sync"
	"time"

	"kiln/server/fhir"
	"kiln/server/search/cache/bitmap"
	"kiln/server/search/match"
)

// Memory is sets and columns of one state of the database. It is safe for concurrent
// use.
type Memory struct {
	now func() time.Time

	mu         sync.Mutex
	limit      int64
	state      *state // that everything is of; nil while there is nothing
	at         time.Time
	lags       bool             // far behind: it answers nothing until a CatchUp ends
	lagged     int              // how often it did
	asked      time.Time        // when something was last asked for
	generation int              // grows when everything is forgotten
	unasked    bool             // because nobody had asked for it
	types      map[int16]string // that are followed; positions have it, so it is not changed
	numbers    []int16          // of types, sorted
	versions   map[int16]int    // grows with every change of a type
	sets       map[Key]*item
	columns    map[ColumnKey]*item
	terms      map[termKey]*item
	// common are the terms of the types whose common terms have been looked for.
	common  map[TypeKey]map[int64]bool
	listed  map[int16]*listed // all items by type; nil when some have come or gone
	bytes   int64             // of all, when last added up
	changes int               // that were brought in since then
	steps   []step
	stepped int               // how many there were, with those that are gone
	behind  *state            // that the last step which is not in steps led to
	brought map[int64]version // recently applied changes, by surrogate
	dense   [2]bitmap.Dense   // for intersections
	some    []keyed           // room of listed.ofNew
	wanted  map[any]want
	refused map[any]time.Time // when a set or a column could not be kept
	hits    int64
	written written
}

// Key names the clauses of a set.
type Key [16]byte

// item is a set, a column or the set of some terms, with its use.
type item struct {
	set    *set
	column *column
	term   *termSet
	typ    int16
	cost   time.Duration // of finding it, with others that were found together
	alone  time.Duration // of finding it again by itself
	found  int           // resources that it had when that was measured
	uses   float64
	used   time.Time
	// upkeep is the approximate time spent on following changes since the last use, for items that are not kept up for all
	// searches: a set, and the set of a rare term.
	upkeep time.Duration
	some   bool // it is of such a term
}

func (i *item) bytes() int64 {
	switch {
	case i.set != nil:
		return i.set.bytes()
	case i.column != nil:
		return i.column.bytes()
	}
	return i.term.bytes()
}

// n is the number of resources that it has.
func (i *item) n() int {
	switch {
	case i.set != nil:
		return i.set.members.Len()
	case i.column != nil:
		return i.column.all()
	}
	return i.term.members.Len()
}

// entryTakes is the approximate time to read an entry of a column, memberTakes to find a member of a set by the index
// of terms, among many millions of resources. Reading all terms of a type along its resources takes less: termTakes.
// Each member is on a page of its own, while entries are adjacent: memberReads counts pages from a disk. The sum is the
// value of an item, because it is the longest wait of a search without it.
const (
	entryTakes  = time.Microsecond
	memberTakes = 3 * time.Microsecond
	memberReads = 30 * time.Microsecond
	termTakes   = 300 * time.Nanosecond
)

// with returns the time to read the item with later additions, where the item took took and each resource takes each.
func (i *item) with(took, each time.Duration) time.Duration {
	return took + time.Duration(max(0, i.n()-i.found))*each
}

// anew is how long it takes to find it anew.
func (i *item) anew() time.Duration {
	switch {
	case i.column != nil:
		return i.with(i.cost, entryTakes)
	case i.term != nil && !i.some:
		return i.with(i.cost, termTakes)
	}
	return i.with(i.cost, memberTakes)
}

// apply applies the present resource, of which the item has nothing if isNew. It returns false if a set or a column has
// no room. applyTerms handles terms.
func (i *item) apply(n uint32, r *match.Resource, isNew bool) bool {
	switch {
	case i.set != nil:
		i.upkeep += setUpkeep
		return i.set.apply(n, r)
	case i.column != nil:
		if isNew {
			return i.column.add(n, r)
		}
		return i.column.apply(n, r)
	case i.some:
		i.upkeep += termUpkeep
	}
	return true
}

// setUpkeep is about how long a set takes to follow one change.
const setUpkeep = 500 * time.Nanosecond

// termUpkeep is setUpkeep of the set of a term.
const termUpkeep = 25 * time.Nanosecond

// worthless reports whether following has taken longer than finding it anew would.
func (i *item) worthless() bool { return i.upkeep > i.anew() }

// keyed is an item and its key; one of terms has a key for each.
type keyed struct {
	*item
	key any
}

// ofTerms is the set of terms with a key.
func ofTerms(i *item) keyed { return keyed{i, termKey{i.typ, i.term.terms[0]}} }

// followedFor is how long a state is followed that nobody asks for, and how old one may be: the
// change log goes back a day at least.
const followedFor = time.Hour

// After askedFor without a question the state is followed every seldom only.
const (
	askedFor = time.Minute
	seldom   = 2 * time.Second
)

// unaskedPart is the part of MaxChanges that is followed if no search has used the cache since the last check: the
// writes of others must be read. The server's own writes are always followed. This costs an import a
// twelfth of its time, a seventh among 20 million resources; reading everything again would take minutes there.
const unaskedPart = 4

// New returns an empty Memory of at most limit bytes; 0 remembers nothing.
func New(limit int64, now func() time.Time) *Memory {
	return &Memory{limit: limit, now: now, types: make(map[int16]string), versions: make(map[int16]int), written: written{now: now, many: make(chan struct{}, 1)}}
}

// listed are all items of a type. Those that item.apply has nothing to do for come last: they are the most.
type listed struct {
	all     []keyed
	applied int // the first of all that item.apply is for
	// Of these, columns are the columns of entries, by key, and others the rest.
	columns map[fhir.Key][]keyed
	others  []keyed
	terms   map[int64]*item
}

func (l *listed) addColumn(i keyed) {
	l.all = append(l.all, i)
	if len(i.column.keys) == 0 || i.column.key.Kind == References {
		l.others = append(l.others, i)
		return
	}
	if l.columns == nil {
		l.columns = make(map[fhir.Key][]keyed)
	}
	for _, k := range i.column.keys {
		l.columns[k] = append(l.columns[k], i)
	}
}

// ofNew are the items that item.apply has something to do for where a resource is new to the memory: there are
// hundreds of columns of the values of one code, and most have no entry of it. They may be in room.
func (l *listed) ofNew(r *match.Resource, room []keyed) []keyed {
	out := append(room[:0], l.others...)
	if r == nil {
		return out
	}
	add := func(key fhir.Key) {
		for _, i := range l.columns[key] {
			if !slices.ContainsFunc(out[len(l.others):], func(o keyed) bool { return o.item == i.item }) {
				out = append(out, i)
			}
		}
	}
	for i := range r.Index.Dates {
		add(r.Index.Dates[i].Key)
	}
	for i := range r.Index.Numbers {
		add(r.Index.Numbers[i].Key)
	}
	for i := range r.Index.Quantities {
		add(r.Index.Quantities[i].Key)
	}
	return out
}

// items are all items, by type.
func (m *Memory) items() map[int16]*listed {
	if m.listed == nil {
		m.list()
	}
	return m.listed
}

// list makes listed.
func (m *Memory) list() {
	m.listed = make(map[int16]*listed)
	of := func(typ int16) *listed {
		if m.listed[typ] == nil {
			m.listed[typ] = &listed{terms: make(map[int64]*item)}
		}
		return m.listed[typ]
	}
	for k, i := range m.sets {
		l := of(i.typ)
		l.all, l.others = append(l.all, keyed{i, k}), append(l.others, keyed{i, k})
	}
	for k, i := range m.columns {
		of(i.typ).addColumn(keyed{i, k})
	}
	for _, some := range []bool{true, false} {
		for k, i := range m.terms {
			l := of(i.typ)
			l.terms[k.term] = i
			if k.term == i.term.terms[0] && i.some == some {
				l.all = append(l.all, keyed{i, k})
				if some {
					l.others = append(l.others, keyed{i, k})
				}
			}
		}
		if some {
			for _, l := range m.listed {
				l.applied = len(l.all)
			}
		}
	}
}

// each gives all items.
func (m *Memory) each() iter.Seq[keyed] {
	return func(yield func(keyed) bool) {
		for _, l := range m.items() {
			for _, i := range l.all {
				if !yield(i) {
					return
				}
			}
		}
	}
}

// weigh adds up the sizes, which grow with applied changes, and evicts items beyond the limit. Items that no search has
// used lately may grow to the part for reading ahead.
func (m *Memory) weigh() {
	m.changes, m.bytes = 0, 0
	for i := range m.each() {
		m.bytes += i.bytes()
	}
	most := m.limit
	if m.now().Sub(m.asked) > askedFor {
		most = m.ahead()
	}
	if m.bytes > most {
		m.makeRoom(m.limit-most, math.Inf(1))
	}
}

// weighEvery is how many changes are brought in before everything is weighed.
const weighEvery = 20_000

// keep adds an item, in the place of another with its key.
func (m *Memory) keep(i keyed) {
	switch k := i.key.(type) {
	case Key:
		m.freed(m.sets[k])
		m.sets[k] = i.item
	case ColumnKey:
		m.freed(m.columns[k])
		m.columns[k] = i.item
	case termKey:
		for _, t := range i.term.terms {
			k.term = t
			if old := m.terms[k]; old != nil && old != i.item && slices.Contains(old.term.terms, t) {
				m.drop(ofTerms(old))
			}
			m.terms[k] = i.item
		}
	}
	m.bytes += i.bytes()
	m.listed = nil
}

// drop forgets an item.
func (m *Memory) drop(i keyed) {
	switch k := i.key.(type) {
	case Key:
		delete(m.sets, k)
	case ColumnKey:
		delete(m.columns, k)
	case termKey:
		for _, t := range i.term.terms {
			delete(m.terms, termKey{k.typ, t})
		}
	}
	m.freed(i.item)
	m.listed = nil
}

func (m *Memory) freed(i *item) {
	if i != nil {
		m.bytes -= i.bytes()
	}
}

func (m *Memory) forget() {
	m.state, m.steps, m.behind, m.lags = nil, nil, nil, false
	m.sets, m.columns, m.terms, m.common, m.listed, m.brought, m.bytes = nil, nil, nil, nil, nil, nil, 0
	m.generation++
	m.written.forget()
}

// Clear removes everything.
func (m *Memory) Clear() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.forget()
}

// Generation returns a number that grows when the cache is cleared. unasked reports that it was cleared because no search had
// used it for followedFor, and none has since.
func (m *Memory) Generation() (n int, unasked bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.generation, m.unasked
}

// FindFollowPosition returns the position since which the cache needs changes, and the largest number of changes by others that it
// follows; false if it needs none at the moment.
func (m *Memory) FindFollowPosition() (since Position, most int, ok bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.state == nil || m.lags {
		return Position{}, 0, false
	}
	now := m.now()
	unasked := now.Sub(m.asked)
	switch {
	case unasked > followedFor:
		m.forget()
		m.unasked = true
		return Position{}, 0, false
	case unasked > askedFor && now.Sub(m.at) < seldom && !m.written.isMany():
		return Position{}, 0, false
	}
	most = MaxChanges
	if m.asked.Before(m.at) {
		most /= unaskedPart
	}
	return m.position(), most, true
}

// lag lets the memory fall behind.
func (m *Memory) lag() {
	m.lags = true
	m.lagged++
	m.written.stop()
}

// HasRecentWrites reports whether this server has written within the last seconds.
func (m *Memory) HasRecentWrites() bool { return m.written.writes() }

// AwaitManyWritten returns a channel that receives an element when this server has written many versions that were not applied.
// They are then applied as soon as possible, because otherwise a search has to apply them.
func (m *Memory) AwaitManyWritten() <-chan struct{} { return m.written.many }

// FindAddPosition returns the position since which AddFound needs changes, for an item that was read in the state built. From
// now on the cache follows the type. It returns false if the item cannot be added.
func (m *Memory) FindAddPosition(built string, typ int16, name string) (since Position, ok bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.types[typ] == "" {
		m.types = maps.Clone(m.types)
		m.types[typ] = name
		m.numbers = slices.Sorted(maps.Keys(m.types))
	}
	m.written.follow()
	b, ok := parseState(built)
	if !ok || m.lags {
		return Position{}, false
	}
	if m.state == nil || m.state.includes(&b) {
		return m.positionAt(built), true
	}
	return m.position(), true
}

// position is where the changes are read from that the memory does not know.
func (m *Memory) position() Position { return m.positionAt(m.state.text) }

func (m *Memory) positionAt(state string) Position {
	return Position{State: state, Types: m.numbers, Written: m.written.ofLate(), names: m.types}
}

// BeginWriting begins the record of a transaction's writes by this server.
func (m *Memory) BeginWriting() *Writing { return m.written.writing() }

// MaxItemBytes returns the largest size of one item in bytes.
func (m *Memory) MaxItemBytes() int64 {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.most()
}

func (m *Memory) most() int64 { return m.limit / 4 * 3 }

// AheadBytesLeft returns the number of bytes that may still be read ahead. It returns 0 instead of less than a sixteenth of the
// limit: an item that is read to the end, and then does not fit, keeps the database busy for nothing.
func (m *Memory) AheadBytesLeft() int64 {
	m.mu.Lock()
	defer m.mu.Unlock()
	left := m.ahead() - m.bytes
	if m.lags || left < m.limit/16 {
		return 0
	}
	return left
}

// ahead is the part of the limit for items read ahead; searches fill the rest.
func (m *Memory) ahead() int64 { return m.limit / 16 * 13 }

// SetLimit changes the largest size of the cache in bytes. Items beyond it are evicted, the least useful first.
func (m *Memory) SetLimit(bytes int64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.limit = bytes
	if bytes <= 0 {
		m.forget()
		return
	}
	m.makeRoom(0, math.Inf(1))
}

// makeRoom evicts the least useful items until so many bytes are free. It returns false if the new item is less
// useful than those.
func (m *Memory) makeRoom(bytes int64, score float64) bool {
	if bytes > m.most() {
		return false
	}
	if m.bytes+bytes <= m.limit {
		return true
	}
	type scored struct {
		keyed
		score float64
	}
	var all []scored
	m.bytes = 0
	now := m.now()
	for i := range m.each() {
		size := i.bytes()
		m.bytes += size
		all = append(all, scored{i, i.scoreOf(size, now)})
	}
	slices.SortFunc(all, func(a, b scored) int { return cmp.Compare(a.score, b.score) })
	for _, i := range all {
		// A little more than is needed, so that not every addition sorts anew.
		if m.bytes+bytes <= m.limit-m.limit/16 || i.score >= score {
			break
		}
		m.drop(i.keyed)
	}
	return m.bytes+bytes <= m.limit
}

// score is how much time an item saves for its size, of late.
func (i *item) score(now time.Time) float64 { return i.scoreOf(i.bytes(), now) }

func (i *item) scoreOf(bytes int64, now time.Time) float64 {
	each := memberReads
	if i.column != nil {
		each = entryTakes
	}
	return float64(i.with(i.alone, each)+time.Microsecond) * i.uses / float64(bytes) / (1 + now.Sub(i.used).Minutes())
}

func (m *Memory) use(i *item) *item {
	if i != nil {
		now := m.now()
		i.uses = i.uses/(1+now.Sub(i.used).Minutes()) + 1
		i.used, i.upkeep = now, 0
	}
	return i
}

// want counts the requests of an item.
type want struct {
	times int
	last  time.Time
}

// wantedWithin is the largest time between two requests that are counted together.
const wantedWithin = time.Minute

// maxWanted is the largest number of distinct wanted items.
const maxWanted = 4096

// WantsItem reports whether an item should be read, by its Key, ColumnKey or TypeKey: if searches have requested it for the second
// time within a minute, or an expensive search for the first time.
func (m *Memory) WantsItem(key any, expensive bool) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.limit > 0 && !m.lags && m.wants(key, expensive)
}

func (m *Memory) wants(key any, expensive bool) bool {
	now := m.now()
	if m.wanted == nil || len(m.wanted) >= maxWanted {
		m.wanted = make(map[any]want)
	}
	w := m.wanted[key]
	if now.Sub(w.last) > wantedWithin {
		w = want{}
	}
	w.times++
	wants := w.times >= 2 || expensive && w.times > 0
	if wants {
		w.times = -10 // tried now: not so soon again
	}
	w.last = now
	m.wanted[key] = w
	return wants
}

// RefuseItem notes that a set or a column cannot be cached, by its Key or ColumnKey: it has too many members, ranges of
// numbers, or several entries of a resource.
func (m *Memory) RefuseItem(key any) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.refused == nil || len(m.refused) >= maxWanted {
		m.refused = make(map[any]time.Time)
	}
	m.refused[key] = m.now()
}

// refusedFor is the time for which an item that could not be cached is not read again.
const refusedFor = 10 * time.Minute

// IsRefused reports whether a set or a column could not be cached lately, or nothing can be cached now.
func (m *Memory) IsRefused(key any) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	at, ok := m.refused[key]
	return m.limit == 0 || m.lags || ok && m.now().Sub(at) < refusedFor
}

// HasItem reports whether a set or a column is cached, or the common terms of a type were read.
func (m *Memory) HasItem(key any) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	switch k := key.(type) {
	case Key:
		return m.sets[k] != nil
	case ColumnKey:
		return m.columns[k] != nil
	case TypeKey:
		return m.common[k] != nil
	}
	return false
}

// Bytes returns the approximate size of the cache.
func (m *Memory) Bytes() int64 {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.bytes
}

// Stat is the size of the cache.
type Stat struct {
	Sets, Columns int // the sets of terms among the others
	Bytes         int64
	Hits          int64 // answers so far
	Lagged        int   // how often it was far behind
	Lags          bool  // it is
}

// Stat adds up the size of the cache.
func (m *Memory) Stat() Stat {
	m.mu.Lock()
	defer m.mu.Unlock()
	s := Stat{Sets: len(m.sets) + len(m.terms), Columns: len(m.columns), Hits: m.hits, Lagged: m.lagged, Lags: m.lags}
	for i := range m.each() {
		s.Bytes += i.bytes()
	}
	return s
}

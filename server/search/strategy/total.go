package strategy

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"time"

	"kiln/server/search/cache"
	"kiln/server/search/cache/fill"
	"kiln/server/search/match"
	"kiln/server/search/plan"
)

// knownTotal is a cached total: its scope, and the statement that makes it exact while it is valid.
type knownTotal struct {
	about int64
	// row returns the one row that scan reads. settled returns the total in the snapshot of the statement; false if it is
	// not known.
	row  match.Statement
	scan func() (into []any, settled func() (int64, bool))
	// since is the state in which base was the total, "" if the database cannot list later additions.
	since string
	base  int64
	keep  func(n int64, state string)
}

// knownTotal looks into memory for the total, exact or about.
func (x *searching) knownTotal() (*knownTotal, error) {
	if !x.usesCache() {
		return nil, nil
	}
	if len(x.plan.Drivers) > 0 && x.q.Count > 0 && !x.s.memory.overflows(x.drivingKey(0), x.s.now()) {
		return nil, nil // candidates tell
	}
	return x.bySetOrTotal()
}

// bySetOrTotal returns the cached total, from any part of the cache; nil if there is none.
func (x *searching) bySetOrTotal() (*knownTotal, error) {
	known, err := x.bySet()
	if known != nil || err != nil {
		return known, err
	}
	return x.byTotal(), nil
}

// bySet is the total that memory has, for a page that a statement finds; nil where there
// is none.
func (x *searching) bySet() (*knownTotal, error) {
	q, err := x.cacheQuestion()
	if q == nil || err != nil {
		return nil, err
	}
	total := *q
	total.Page, total.Exactly = cache.Page{}, true
	a, ok := x.s.cache.Ask(&total)
	if !ok {
		return nil, nil
	}
	r := &knownTotal{about: a.Total, row: plan.Changes(a.Position)}
	r.scan = func() ([]any, func() (int64, bool)) {
		var row plan.ChangesRow
		return row.Columns(), func() (int64, bool) {
			b, ok := x.s.cache.Settle(a, row.Changes(a.Position))
			return b.Total, ok
		}
	}
	return r, nil
}

// byTotal is the total of the same search before, nil where there is none.
func (x *searching) byTotal() *knownTotal {
	if !x.usesCache() {
		return nil
	}
	key := keyOf(x.plan.Count())
	t, ok := x.s.memory.keptTotal(key, x.s.now())
	if !ok || !plan.Lasting(t.snapshot) {
		return nil
	}
	r := &knownTotal{about: t.n, row: x.plan.Unchanged(t.snapshot), since: t.snapshot, base: t.n}
	r.row.SQL = "SELECT " + r.row.SQL
	r.keep = func(n int64, state string) {
		x.s.memory.keepTotal(key, total{n: n, snapshot: state, at: x.s.now()})
	}
	r.scan = func() ([]any, func() (int64, bool)) {
		var unchanged bool
		var state string
		return []any{&unchanged, &state}, func() (int64, bool) {
			if !unchanged || !plan.SameIndex(t.snapshot, state) {
				return 0, false
			}
			r.keep(t.n, state)
			return t.n, true
		}
	}
	return r
}

// pageKnowing runs a page statement with the total that memory has; false where that does
// not hold any more.
func (x *searching) pageKnowing(ctx context.Context, name string, st match.Statement, known *knownTotal) (p *pageRows, total int64, ok bool, err error) {
	st = st.BesideRow(known.row)
	x.noteStatement(name, st)
	into, settled := known.scan()
	if p, err = x.readRows(ctx, st, into...); err != nil {
		return nil, 0, false, err
	}
	total, ok = settled()
	return p, total, ok, nil
}

// computeTotal counts the matches, or knows them where nothing has changed since.
func (x *searching) computeTotal(ctx context.Context, known *knownTotal) (n int64, err error) {
	if n, ok, err := x.exactTotal(ctx, known); ok || err != nil {
		return n, err
	}
	count := x.plan.Count()
	waited, err := x.becomeDear(ctx)
	if err != nil {
		return 0, err
	}
	if waited || known == nil { // somebody else may have counted
		if n, ok, err := x.exactTotal(ctx, x.byTotal()); ok || err != nil {
			return n, err
		}
	}
	x.fillCache(true)
	return x.count(ctx, count, keyOf(count))
}

// exactTotal returns the cached total with later additions; false if something else has changed.
func (x *searching) exactTotal(ctx context.Context, known *knownTotal) (n int64, ok bool, err error) {
	if known == nil {
		return 0, false, nil
	}
	into, settled := known.scan()
	if err := x.queryRow(ctx, "total", known.row, into...); err != nil {
		return 0, false, err
	}
	if n, ok = settled(); ok || known.since == "" {
		return n, ok, nil
	}
	return x.added(ctx, known)
}

// added is the total where nothing but a few new resources has come since: counting
// again would read every match.
func (x *searching) added(ctx context.Context, known *knownTotal) (n int64, ok bool, err error) {
	st, ok := x.plan.Added(known.since)
	if !ok {
		return 0, false, nil
	}
	var snapshot string
	if err := x.queryRow(ctx, "count of what is new", st, &ok, &n, &snapshot); err != nil || !ok || !plan.SameIndex(known.since, snapshot) {
		return 0, false, err
	}
	known.keep(known.base+n, snapshot)
	return known.base + n, true, nil
}

// count counts and caches the number, except for uncommitted data.
func (x *searching) count(ctx context.Context, st match.Statement, key totalKey) (int64, error) {
	t := total{at: x.s.now()}
	st.SQL = "SELECT (" + st.SQL + "), " + plan.Now
	if err := x.queryRow(ctx, "count", st, &t.n, &t.snapshot); err != nil {
		return 0, err
	}
	if x.usesCache() {
		x.s.memory.keepTotal(key, t)
	}
	return t.n, nil
}

// totalOfType is about how many resources of the types searched there are. Being
// an estimate, it may be old.
func (x *searching) totalOfType(ctx context.Context, atLeast int64) (int64, error) {
	st := x.plan.CountType()
	key := keyOf(st)
	if t, ok := x.s.memory.keptTotal(key, x.s.now()); ok {
		return max(t.n, atLeast), nil
	}
	end, err := x.runAlone(ctx, key)
	if err != nil {
		return 0, err
	}
	defer end()
	if t, ok := x.s.memory.keptTotal(key, x.s.now()); ok {
		return max(t.n, atLeast), nil
	}
	t := total{at: x.s.now()}
	if t.n, err = x.sizeOfType(ctx, st); err != nil {
		return 0, err
	}
	if !x.isPrivate() {
		x.s.memory.keepTotal(key, t)
	}
	return max(t.n, atLeast), nil
}

// manyOfType is the number of resources from which on PostgreSQL's statistics are believed: to count
// more takes as long as a search, a million 0.2 s.
const manyOfType = 50_000

// sizeOfType is about what count counts, the resources of the types searched: as memory has it, or as
// PostgreSQL's statistics tell where they tell of many.
func (x *searching) sizeOfType(ctx context.Context, count match.Statement) (n int64, err error) {
	if len(x.q.Types) == 1 {
		if n, ok := x.s.cache.All(x.plan.OnlyType()); ok {
			return n, nil
		}
		x.noteStatement("size of the types", plan.TypeSizes())
		sizes, err := fill.ReadTypeSizes(ctx, x.conn)
		if err != nil {
			return 0, err
		}
		if n := sizes[x.plan.OnlyType()]; n >= manyOfType {
			return n, nil
		}
	}
	err = x.queryRow(ctx, "count of the type", count, &n)
	return n, err
}

// total is a number of matches and the snapshot in which it was counted.
type total struct {
	n        int64
	snapshot string
	at       time.Time
}

// totalKey names a statement with its arguments: two searches with the same clauses have
// the same count.
type totalKey [16]byte

func keyOf(st match.Statement) totalKey {
	h := sha256.New()
	h.Write([]byte(st.SQL))
	var buf []byte
	for _, a := range st.Args {
		switch a := a.(type) {
		case int64:
			buf = binary.BigEndian.AppendUint64(append(buf, 'i'), uint64(a))
		case []int64:
			buf = append(buf, 'I')
			for _, v := range a {
				buf = binary.BigEndian.AppendUint64(buf, uint64(v))
			}
		default:
			buf = fmt.Appendf(append(buf, 'v'), "%q", a)
		}
		buf = append(buf, 0)
	}
	h.Write(buf)
	var k totalKey
	copy(k[:], h.Sum(nil))
	return k
}

func (m *memory) keptTotal(k totalKey, now time.Time) (total, bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	t, ok := m.totals[k]
	ok = ok && now.Sub(t.at) < rememberedFor
	m.totalsCount.countLookup(ok)
	return t, ok
}

func (m *memory) keepTotal(k totalKey, t total) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.totals == nil || len(m.totals) >= rememberedSearches {
		m.totalsCount.evictions.Add(uint64(len(m.totals)))
		m.totals = make(map[totalKey]total)
	}
	m.totals[k] = t
}

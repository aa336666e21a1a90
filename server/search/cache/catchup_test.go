package cache

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"kiln/server/fhir"
	"kiln/server/search/cache/bitmap"
	"kiln/server/search/match"
)

// A memory lags when too many have changed since its own state, not since an older one that a slow
// search has; it has caught up when all were brought in, and forgets what lags for so long that the
// change log may not go back to it.
func TestCatchUp(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		m := following(t)
		generation := m.generation
		older := m.positionAt("4:4: index")
		m.ApplyChanges(Changes{Position: older, Followed: true, Many: true, Now: "6:6: index"})
		if m.lags || m.generation != generation {
			t.Fatal("it lags behind an older state")
		}
		many := Changes{Position: m.position(), Followed: true, Many: true, Now: "6:6: index"}
		m.ApplyChanges(many)
		if _, _, follows := m.FindFollowPosition(); !m.lags || follows || m.generation != generation {
			t.Fatalf("behind many changes it lags: %v, follows: %v, generation %d, before %d", m.lags, follows, m.generation, generation)
		}
		c, ok := m.BeginCatchUp()
		if !ok || c.State != "5:5: index" {
			t.Fatalf("it catches up with %q: %v", c.State, ok)
		}
		if !c.ApplyStored(c.NewStored([]int64{844424930131969})) || !m.lags || !c.MoveToState("6:6: index") || m.lags || m.state.text != "6:6: index" {
			t.Fatalf("it has caught up with %q, lags: %v", m.state.text, m.lags)
		}
		if _, ok := m.BeginCatchUp(); ok {
			t.Error("it catches up with nothing")
		}

		many.Position, many.Now = m.position(), "7:7: index"
		m.ApplyChanges(many)
		if time.Sleep(followedFor); !m.lags { // by synctest's clock, like the second below
			t.Fatal("it does not lag again")
		}
		if _, ok := m.BeginCatchUp(); !ok {
			t.Error("it does not catch up within the time that it may be followed")
		}
		time.Sleep(time.Second)
		if _, ok := m.BeginCatchUp(); ok || m.lags || m.generation != generation+1 {
			t.Errorf("a state of more than an hour is caught up with: %v; generation %d, before %d", ok, m.generation, generation)
		}
	})
}

// This server's own writes are always brought in, and reported. The writes of others are
// reported less often while no search runs.
func TestFollowing(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name           string
		brought, asked time.Duration // ago
		written        int
		most           int // 0 where it is not followed
	}{
		{"asked now", time.Second, 0, 2 * MaxChanges, MaxChanges},
		{"asked since the last look", time.Second, 100 * time.Millisecond, 2 * MaxChanges, MaxChanges},
		{"not asked", time.Second, askedFor, 2 * MaxChanges, MaxChanges / unaskedPart},
		{"not asked for long", time.Second, askedFor + time.Second, 2 * MaxChanges, MaxChanges / unaskedPart},
		{"not asked for long, with little written", time.Second, askedFor + time.Second, 1, 0},
		{"not asked for long, with little written, later", seldom, askedFor + time.Second, 1, MaxChanges / unaskedPart},
	} {
		synctest.Test(t, func(t *testing.T) {
			m := following(t)
			time.Sleep(2 * askedFor) // by synctest's clock
			m.at, m.asked = time.Now().Add(-tt.brought), time.Now().Add(-tt.asked)
			w := m.BeginWriting()
			row := w.BeginRow(1)
			for n := range int64(tt.written) {
				row.AddVersion(rid+n, 1, observation(1))
			}
			row.KeepRow()
			told := func() bool {
				select {
				case <-m.AwaitManyWritten():
					return true
				default:
					return false
				}
			}
			if told() {
				t.Errorf("%s: what is not committed is told of", tt.name)
			}
			w.EndWriting(true)
			if many := tt.written >= manyWritten; told() != many {
				t.Errorf("%s: many versions are told of: %v", tt.name, !many)
			}
			if p, most, ok := m.FindFollowPosition(); ok != (tt.most > 0) || most != tt.most || ok && len(p.Written) != 1 {
				t.Errorf("%s: %d changes of others are followed, %v; want %d; written are %v", tt.name, most, ok, tt.most, p.Written)
			}
			m.ApplyChanges(Changes{Position: Position{State: m.state.text}, Followed: true, Many: true, Now: "6:6: index"})
			if m.lags || len(m.written.of) != 1 {
				t.Errorf("%s: what is written while a statement begins makes a memory lag", tt.name)
			}
			m.ApplyChanges(Changes{Position: m.position(), Followed: true, Many: true, Now: "6:6: index"})
			if len(m.written.of) > 0 || m.written.bytes != 0 || m.written.n != 0 || m.BeginWriting() != nil {
				t.Errorf("%s: a memory that lags keeps what is written", tt.name)
			}
		})
	}
}

// A resource that is new is brought into all that it belongs to, and not looked for where it does not.
func TestNewResourcesReachTheirColumns(t *testing.T) {
	t.Parallel()
	const resources = 500
	r := rand.New(rand.NewPCG(1, 2))
	now := make(map[int64]*match.Resource) // all that are there
	index := func(n int64) *match.Resource {
		x := newIndex(nil, nil, n, 1)
		if key := fhir.Key(r.IntN(4)); key > 0 { // of two keys at most one, as a column asks it
			x.Dates = append(x.Dates, fhir.DateEntry{Key: key, Low: r.Int64N(100), High: 100})
		}
		if key := fhir.Key(r.IntN(4)); key > 0 {
			x.Numbers = append(x.Numbers, fhir.NumberEntry{Key: key, Low: "1.5", High: "1.5"})
		}
		if key := fhir.Key(r.IntN(4)); key > 0 {
			x.Quantities = append(x.Quantities, fhir.QuantityEntry{Key: key, Low: "2", High: "2", Code: "mg"})
		}
		return &match.Resource{Type: "Observation", ID: "a", VersionID: int(n), LastUpdated: time.UnixMicro(n), Index: x}
	}
	columns := []ColumnKey{
		{Kind: Dates, Keys: KeysOf([]fhir.Key{1})},
		{Kind: Dates, Keys: KeysOf([]fhir.Key{2, 3})},
		{Kind: Dates, Keys: KeysOf([]fhir.Key{3})},
		{Kind: Dates, Keys: KeysOf([]fhir.Key{match.UpdatedKey})},
		{Kind: Numbers, Keys: KeysOf([]fhir.Key{1, 2})},
		{Kind: Quantities, Keys: KeysOf([]fhir.Key{2})},
		OwnRefsColumn(0),
	}
	m := New(1<<20, time.Now)
	m.state, m.at = &state{}, time.Now()
	m.sets, m.columns, m.terms, m.common = map[Key]*item{}, map[ColumnKey]*item{}, map[termKey]*item{}, map[TypeKey]map[int64]bool{}
	for _, key := range columns {
		c := NewColumn(key, map[int64]*match.Unit{}).finish()
		m.keep(keyed{&item{column: c, cost: time.Hour}, key})
	}
	m.keep(keyed{&item{set: &set{members: new(bitmap.Set)}, cost: time.Hour}, Key{}})
	every := &item{term: &termSet{terms: []int64{Every}, members: new(bitmap.Set)}}
	m.keep(ofTerms(every))
	for range 300 {
		changed := make(map[int64]*match.Resource)
		for range 1 + r.IntN(10) {
			n := r.Int64N(resources)
			if r.IntN(4) == 0 {
				changed[n] = nil
				delete(now, n)
				continue
			}
			changed[n] = index(n)
			now[n] = changed[n]
		}
		m.apply(changed)
	}
	if len(m.columns) != len(columns) || len(now) < resources/2 {
		t.Fatalf("%d columns are left of %d, with %d resources", len(m.columns), len(columns), len(now))
	}
	for n := range int64(resources) {
		r := now[n]
		if has := m.sets[Key{}].set.members.Contains(uint32(n)); has != (r != nil) {
			t.Errorf("%d is in the set of all: %v", n, has)
		}
		for _, key := range columns {
			want := r != nil && slices.ContainsFunc(key.List(), func(k fhir.Key) bool {
				return key.Kind == Dates && slices.ContainsFunc(r.Index.Dates, func(e fhir.DateEntry) bool { return e.Key == k }) ||
					key.Kind == Numbers && slices.ContainsFunc(r.Index.Numbers, func(e fhir.NumberEntry) bool { return e.Key == k }) ||
					key.Kind == Quantities && slices.ContainsFunc(r.Index.Quantities, func(e fhir.QuantityEntry) bool { return e.Key == k })
			})
			want = want || r != nil && key == OwnRefsColumn(0)
			if has := m.columns[key].column.of.get(uint32(n)) != nowhere; has != want {
				t.Errorf("%d is in the column %v: %v, want %v", n, key, has, want)
			}
		}
	}
}

// The structures that grow with changes stay within the limit.
func TestMemoryIsWeighed(t *testing.T) {
	t.Parallel()
	m := New(1<<20, time.Now)
	m.state, m.at = &state{}, time.Now()
	m.sets, m.columns, m.terms, m.common = map[Key]*item{}, map[ColumnKey]*item{}, map[termKey]*item{}, map[TypeKey]map[int64]bool{}
	key := ColumnKey{Kind: Dates, Keys: KeysOf([]fhir.Key{1})}
	m.keep(keyed{&item{column: NewColumn(key, nil).finish()}, key})
	r := rand.New(rand.NewPCG(1, 2))
	for n := int64(0); m.HasItem(key); {
		changed := make(map[int64]*match.Resource)
		for range weighEvery / 10 {
			low := r.Int64N(math.MaxInt32) << 20
			changed[n] = &match.Resource{Index: &fhir.Index{Dates: []fhir.DateEntry{{Key: 1, Low: low, High: low + r.Int64N(1000)}}}}
			n++
		}
		if m.apply(changed); n > 1<<20 {
			t.Fatal("a column of a million entries is kept in a megabyte")
		}
	}
	if m.Bytes() != 0 {
		t.Errorf("%d bytes are kept in nothing", m.Bytes())
	}
}

package cache

import (
	"fmt"
	"testing"
	"time"

	"kiln/server/fhir"
	"kiln/server/search/cache/bitmap"
	"kiln/server/search/match"
)

// A cache stays within its limit when the limit changes: the least useful entry goes first,
// and everything if there is no room at all.
func TestSetLimit(t *testing.T) {
	t.Parallel()
	now := time.Unix(0, 0)
	m := New(1<<20, func() time.Time { return now })
	m.state, m.at = &state{}, now
	m.sets, m.columns, m.terms, m.common = map[Key]*item{}, map[ColumnKey]*item{}, map[termKey]*item{}, map[TypeKey]map[int64]bool{}
	for i := range 16 {
		members := new(bitmap.Set)
		members.Add(uint32(i))
		s := &item{set: &set{members: members}, alone: time.Duration(i) * time.Second, uses: 1, used: now}
		m.keep(keyed{s, Key{byte(i)}})
	}
	all := m.Bytes()
	m.SetLimit(all / 2)
	if got := m.Bytes(); got > all/2 || got == 0 || m.limit != all/2 {
		t.Errorf("%d bytes of %d are kept, want at most half", got, all)
	}
	if m.HasItem(Key{0}) || !m.HasItem(Key{15}) {
		t.Error("what saves most time is to be kept")
	}
	m.SetLimit(0)
	if m.Bytes() != 0 || m.HasItem(Key{15}) || m.WantsItem(Key{1}, false) || m.WantsItem(Key{1}, true) {
		t.Error("a memory without room keeps, or wants, something")
	}
	m.SetLimit(1 << 20)
	if m.WantsItem(Key{2}, false) || !m.WantsItem(Key{2}, false) || !m.WantsItem(Key{3}, true) || m.WantsItem(Key{3}, true) {
		t.Error("with room again, what is asked for twice is wanted once, what is dear at once")
	}
}

// A common term saves the cost of finding it alone, not its share of finding all together.
// Terms stay when a column goes that takes more time for its size.
func TestTermsStay(t *testing.T) {
	t.Parallel()
	const each = 400 // terms
	now := time.Unix(0, 0)
	var together [][]int64
	for term := range int64(each) {
		together = append(together, []int64{term})
	}
	terms := NewTerms(together)
	column := NewColumn(ColumnKey{Type: 7, Kind: Dates, Keys: KeysOf([]fhir.Key{1})}, nil)
	for n := range int64(100_000) {
		if !terms.AddResource(n, []int64{n % each, Every}) || !column.AddEntry(Entry{RID: n, Low: n << 33, High: n<<33 + n}) {
			t.Fatal("an entry does not fit")
		}
	}
	m := New(64<<20, func() time.Time { return now })
	for _, f := range []*Found{{Terms: terms, Cost: 100 * time.Millisecond}, {Column: column}} {
		f.State, f.Type, f.Ahead = "5:5: index", 7, true
		if f.Column != nil {
			f.Cost = time.Duration(float64(150*time.Millisecond) * float64(f.Column.Bytes()) / float64(m.Bytes()))
		}
		if !f.MakeItems(now) {
			t.Fatal("what was found cannot be kept")
		}
		if kept, _ := m.AddFound(f, Changes{Position: Position{State: f.State}, Followed: true, Now: f.State}); !kept {
			t.Fatal("what was found is not kept")
		}
	}
	m.SetLimit(m.Bytes() - 1)
	if m.HasItem(column.key) {
		t.Error("the column is kept")
	}
	for term := range int64(each) {
		if m.terms[termKey{7, term}] == nil {
			t.Fatal("a term has given way to a column")
		}
	}
}

// Terms of the smallest type are worth as much a byte as terms of the largest, and much
// more than a column of the largest.
func TestTermsOfSmallTypesStay(t *testing.T) {
	t.Parallel()
	now := time.Unix(0, 0)
	made := func(f *Found, cost time.Duration) float64 {
		f.State, f.Ahead, f.Cost = "5:5: index", true, cost
		if !f.MakeItems(now) {
			t.Fatal("what was found cannot be kept")
		}
		return f.items[0].score(now)
	}
	terms := func() *TermsBuilder {
		b := NewTerms(nil)
		for n := range int64(50_000) {
			b.AddResource(n*3, []int64{Every})
		}
		return b
	}
	column := NewColumn(ColumnKey{Type: 7, Kind: Dates, Keys: KeysOf([]fhir.Key{1})}, nil)
	for n := range int64(50_000) {
		column.AddEntry(Entry{RID: n * 3, Low: n * 7919 % 50_000 * 1e6, High: n*7919%50_000*1e6 + 1})
	}
	large, small := made(&Found{Terms: terms(), Type: 7}, time.Minute), made(&Found{Terms: terms(), Type: 8, Behind: 13}, time.Minute)
	if of := made(&Found{Column: column, Type: 7}, 50_000*entryTakes); small != large || small < 20*of {
		t.Errorf("terms of a large type are worth %g a byte, of a small one %g, a column %g", large, small, of)
	}
}

// Reading ahead uses thirteen sixteenths of the limit, and begins nothing that needs more
// than the rest.
func TestAheadLeft(t *testing.T) {
	t.Parallel()
	m := New(1600, time.Now)
	for bytes, want := range map[int64]int64{0: 1300, 1000: 300, 1200: 100, 1201: 0, 1300: 0, 1500: 0} {
		m.bytes = bytes
		if got := m.AheadBytesLeft(); got != want {
			t.Errorf("%d bytes are left beside %d, want %d", got, bytes, want)
		}
	}
	m.bytes, m.lags = 0, true
	if got := m.AheadBytesLeft(); got != 0 {
		t.Errorf("%d bytes are left where memory lags", got)
	}
}

// Sections of a column in use replace unused entries; if all other entries are more useful,
// there are no sections for a while.
func TestSectionsMakeRoom(t *testing.T) {
	t.Parallel()
	for _, useful := range []bool{false, true} {
		now := time.Unix(0, 0)
		b := NewColumn(ColumnKey{Type: 7, Kind: Dates, Keys: KeysOf([]fhir.Key{1})}, nil)
		for n := range int64(10_000) {
			b.AddEntry(Entry{RID: n, Low: n * 7919 % 10_000 * 1e6, High: n*7919%10_000*1e6 + 1})
		}
		m := New(1<<30, func() time.Time { return now })
		m.state, m.at, m.asked = &state{}, now, now
		m.sets, m.columns, m.terms, m.common = map[Key]*item{}, map[ColumnKey]*item{}, map[termKey]*item{}, map[TypeKey]map[int64]bool{}
		c := b.finish()
		m.keep(keyed{&item{column: c, alone: time.Millisecond, uses: 1, used: now}, c.key})
		other := &item{set: &set{members: new(bitmap.Set)}, typ: 7, alone: time.Millisecond, uses: 0.001, used: now}
		for n := range uint32(20_000) {
			other.set.members.Add(n * 3)
		}
		if useful {
			other.uses = 1000
		}
		m.keep(keyed{other, Key{1}})
		m.limit = m.Bytes() + 100
		ask := func() {
			q := &Question{Type: 7, Columns: []Comparison{{c.key, match.Dates{Keys: c.keys, Op: match.GE, Low: 1e9, High: 1e9}}}}
			if got := m.matches(m.compared(q.Columns[0])); got.Len() != 9000 {
				t.Fatalf("%d match, want 9000", got.Len())
			}
		}
		ask()
		if made := c.parts[0].sections != nil; made == useful || m.HasItem(Key{1}) != useful || !m.HasItem(c.key) {
			t.Errorf("others are useful: %v; sections are made: %v, the others are kept: %v", useful, made, m.HasItem(Key{1}))
		}
		if got := m.Stat().Bytes; got != m.Bytes() || got > m.limit {
			t.Errorf("%d bytes are kept, %d are told, of %d", got, m.Bytes(), m.limit)
		}
		m.limit = 1 << 30
		if ask(); useful && c.parts[0].sections != nil {
			t.Error("what had no room is tried again at once")
		}
		now = now.Add(crowdedFor)
		if ask(); c.parts[0].sections == nil {
			t.Error("there are no sections where there is room")
		}
	}
}

// Entries that were read before the first state of a cache, and are added after it, are
// read again: the changes in between are not known.
func TestFoundBeforeTheFirstState(t *testing.T) {
	t.Parallel()
	m := New(1<<20, time.Now)
	found := func(key Key) *Found {
		f := &Found{State: "5:5: index", Type: 3, Name: "Observation", Set: key, RIDs: []int64{rid}}
		if !f.MakeItems(time.Now()) {
			t.Fatal("what was found cannot be kept")
		}
		return f
	}
	since, _ := m.FindAddPosition("5:5: index", 3, "Observation")
	for _, add := range []struct {
		key         Key
		now         string
		kept, again bool
	}{{Key{1}, "7:7: index", true, false}, {Key{2}, "6:6: index", false, true}, {Key{2}, "7:7: index", true, false}} {
		kept, again := m.AddFound(found(add.key), Changes{Position: since, Followed: true, Now: add.now})
		if kept != add.kept || again != add.again || m.HasItem(add.key) != add.kept {
			t.Errorf("what was read in %s is kept: %v, read again: %v", add.now, kept, again)
		}
	}
}

// An entry that was found when it was small is worth the cost of finding it now; types with
// most resources come first. Unused entries grow up to the limit of reading ahead, recently
// used ones to the whole limit.
func TestGrown(t *testing.T) {
	t.Parallel()
	for _, asked := range []time.Duration{0, 2 * askedFor} {
		now := time.Unix(0, 0)
		m := New(1<<20, func() time.Time { return now })
		for behind := range 4 {
			f := &Found{State: "5:5: index", Type: int16(behind), Ahead: true, Behind: behind, Cost: time.Millisecond, Set: Key{byte(behind)}, RIDs: []int64{1}}
			f.MakeItems(now)
			if kept, _ := m.AddFound(f, Changes{Position: Position{State: f.State}, Followed: true, Now: f.State}); !kept {
				t.Fatal("what was found is not kept")
			}
		}
		now = now.Add(asked)
		before := m.sets[Key{3}].score(now)
		var all int64
		for n := uint32(0); len(m.sets) == 4; n += 2000 {
			all = 0
			for _, i := range m.sets {
				for j := range uint32(1000) {
					i.set.members.Add(n + 2*j)
				}
				all += i.bytes()
			}
			if n == 2000 && m.sets[Key{3}].score(now) < before/10 {
				t.Errorf("a resource is worth %g, thousands %g a byte", before, m.sets[Key{3}].score(now))
			}
			m.weigh()
		}
		most := m.limit
		if asked > 0 {
			most = m.ahead()
		}
		if all <= most || all > most+most/4 || m.Bytes() > most {
			t.Errorf("asked %s ago: it gives something up at %d bytes, and keeps %d; it has room for %d", asked, all, m.Bytes(), most)
		}
		if left := fmt.Sprint(m.HasItem(Key{0}), m.HasItem(Key{1}), m.HasItem(Key{2}), m.HasItem(Key{3})); left != "true true true false" {
			t.Errorf("asked %s ago: it keeps %s", asked, left)
		}
	}
}

package strategy

import (
	"context"
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"kiln/server/search/admission"
	"kiln/server/search/cache"
)

// Work that reads a part of a type goes before work that reads all of it, but not for ever.
func TestShortFindingsFirst(t *testing.T) {
	t.Parallel()
	terms, column, set := finding{typ: 1, terms: true, queued: time.Now()}, finding{typ: 1, column: &cache.ColumnKey{Type: 1}}, finding{typ: 1}
	w := finder{queue: []finding{terms, column, set}}
	for _, want := range []finding{column, set, terms} {
		if got := w.take(); got.key() != want.key() || w.now != want.key() {
			t.Errorf("%v goes, want %v", got.key(), want.key())
		}
	}
	terms.queued = time.Now().Add(-shortFirst)
	w.queue = []finding{terms, column}
	if got := w.take(); got.key() != terms.key() {
		t.Errorf("%v goes before what has waited", got.key())
	}
	if len(w.queue) != 1 || w.queue[0].key() != column.key() {
		t.Errorf("%v are left", w.queue)
	}
}

// Memory that lags catches up when writers are calm: at once where somebody asks, else when they have
// been for a while, as an import that waits for the disk is not. Where they never are it is forgotten
// once somebody asks.
func TestLooks(t *testing.T) {
	t.Parallel()
	const calm, busy, most = cache.MaxChanges / calmPart, cache.MaxChanges, 10 * cache.MaxChanges
	times := func(n, changed int) []int { return slices.Repeat([]int{changed}, n) }
	for _, tt := range []struct {
		name    string
		changed []int // between the looks
		asked   bool
		want    int // at the last of the looks, -1 where it waits
	}{
		{"asked, calm", times(1, calm), true, most},
		{"asked, busy", times(busyLooks-1, busy), true, -1},
		{"asked, never calm", times(busyLooks, busy), true, 0},
		{"calm for a moment", times(calmLooks-1, calm), false, -1},
		{"calm", times(calmLooks, calm), false, most},
		{"a pause of an import", slices.Concat(times(calmLooks-1, 0), times(1, busy), times(calmLooks-1, 0)), false, -1},
		{"after a pause of an import", slices.Concat(times(calmLooks-1, 0), times(1, busy), times(calmLooks, 0)), false, most},
		{"never calm", times(3*busyLooks, busy), false, -1},
		{"more than it takes to find anew", times(1, most), false, most},
	} {
		var l looks
		for i, changed := range tt.changed {
			got, ready := l.look(changed, most, tt.asked)
			if last := i == len(tt.changed)-1; ready && (!last || got != tt.want) || last && ready == (tt.want < 0) {
				t.Errorf("%s: look %d: %d, %v; want %d at look %d", tt.name, i+1, got, ready, tt.want, len(tt.changed))
				break
			}
		}
	}
}

// servingStore counts the connections that others take.
type servingStore struct {
	Store
	acquired atomic.Int64
}

func (s *servingStore) Acquired() int64 { return s.acquired.Load() }

// Reading ahead stands aside while searches are served, but not for ever, and not when a
// search waits for it.
func TestReadingAheadStandsAside(t *testing.T) {
	t.Parallel()
	const worked = 25 * time.Millisecond
	for _, tt := range []struct {
		name        string
		every       time.Duration // others take a connection so often
		until       time.Duration // for so long
		awaited     time.Duration // a search waits from then on; 0 for none
		least, most time.Duration // how long it stands aside
	}{
		{"nobody is served", time.Hour, time.Hour, 0, 0, 0},
		{"the server looks after itself", 40 * time.Millisecond, time.Hour, 0, 0, 0},
		{"others are served", time.Millisecond, time.Hour, 0, asideFor * worked, asideFor*worked + lookEvery},
		{"others were served", time.Millisecond, 100 * time.Millisecond, 0, 75 * time.Millisecond, 75*time.Millisecond + 2*lookEvery},
		{"a search waits", time.Millisecond, time.Hour, time.Nanosecond, 0, 0},
		{"a search waits later", time.Millisecond, time.Hour, 100 * time.Millisecond, 75 * time.Millisecond, 75*time.Millisecond + 2*lookEvery},
	} {
		synctest.Test(t, func(t *testing.T) {
			st := &servingStore{}
			s := &Searcher{store: st, admission: admission.New(8)}
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			begin := time.Now()
			go func() {
				for ctx.Err() == nil && time.Since(begin) < tt.until {
					wait(ctx, tt.every)
					st.acquired.Add(1)
				}
			}()
			if tt.awaited > 0 {
				time.AfterFunc(tt.awaited, func() {
					s.finder.mu.Lock()
					defer s.finder.mu.Unlock()
					s.finder.aheadNow = map[any]bool{"a column": true}
				})
			}
			rest := s.quietTime(true)
			time.Sleep(worked) // of the bubble's clock: the test does not wait
			from := time.Now()
			rest(ctx)
			if aside := time.Since(from); aside < tt.least || aside > tt.most {
				t.Errorf("%s: it stands aside for %s, want %s to %s", tt.name, aside, tt.least, tt.most)
			}
		})
	}
}

// A search that needs an entry being read ahead does not read it a second time. If it has
// been read, and was not kept, the search reads it.
func TestReadAheadIsAwaited(t *testing.T) {
	t.Parallel()
	s := New(Config{Store: &servingStore{}, MaxConns: 8, Now: time.Now})
	s.finder.ended = true // it finds nothing here
	column, other := finding{typ: 1, column: &cache.ColumnKey{Type: 1}, dear: true}, finding{typ: 2, terms: true}
	w := &s.finder
	w.readsAhead([]finding{column, other}, 0)
	if w.isAwaited() {
		t.Error("it is awaited before anybody asks")
	}
	if s.addFinding(column); !w.isAwaited() {
		t.Error("it is not awaited by who asks")
	}
	if w.hasRead(column); w.isAwaited() {
		t.Error("what has been read is still awaited")
	}
	if _, ok := w.aheadNow[column.key()]; ok {
		t.Error("what has been read is not looked for again")
	}
}

// A small column that is due is read beside work that waits for a quiet database, before it
// if it is small. Waiting work stays.
func TestSmallTypesGoFirst(t *testing.T) {
	t.Parallel()
	coded := finding{typ: 1, column: &cache.ColumnKey{Type: 1, Keys: "coded"}, coded: true}
	large, small := finding{typ: 1, terms: true}, finding{typ: 2, terms: true, soon: true}
	a := ahead{queue: []finding{coded}}
	if a.soonFirst() {
		t.Error("what waits for the database to rest is read soon")
	}
	a.add([]finding{large, small})
	a.add([]finding{small, large})
	if !a.soonFirst() {
		t.Error("a small type is not read soon")
	}
	want := []any{small.key(), coded.key(), large.key()}
	if len(a.queue) != len(want) {
		t.Fatalf("%d are to be read, want %d", len(a.queue), len(want))
	}
	for i, f := range a.queue {
		if f.key() != want[i] {
			t.Errorf("%d: %v, want %v", i, f.key(), want[i])
		}
	}
}

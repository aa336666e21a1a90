package strategy

import (
	"slices"
	"testing"
	"time"

	"kiln/server/search/remembered"
)

// What reads a part of a type goes before what reads all of it, but not for ever.
func TestShortFindingsFirst(t *testing.T) {
	t.Parallel()
	terms, column, set := finding{typ: 1, terms: true, queued: time.Now()}, finding{typ: 1, column: &remembered.ColumnKey{Type: 1}}, finding{typ: 1}
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
	const calm, busy, most = remembered.MaxChanges / calmPart, remembered.MaxChanges, 10 * remembered.MaxChanges
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

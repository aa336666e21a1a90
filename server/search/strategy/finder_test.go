package strategy

import (
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

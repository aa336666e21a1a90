package fill

import (
	"testing"
	"time"

	"kiln/server/search/cache"
)

// An item that reads a part of a type comes before an item that reads all of it, but not for ever.
func TestShortItemsFirst(t *testing.T) {
	t.Parallel()
	terms, column, set := item{typ: 1, allTerms: true, queued: time.Now()}, item{typ: 1, column: &cache.ColumnKey{Type: 1}}, item{typ: 1}
	q := newQueue()
	q.list = []item{terms, column, set}
	for _, want := range []item{column, set, terms} {
		if got, ok := q.takeItem(); !ok || got.key() != want.key() || q.current != want.key() {
			t.Errorf("took %v, want %v", got.key(), want.key())
		}
	}
	if _, ok := q.takeItem(); ok || q.current != nil {
		t.Error("took an item of an empty queue")
	}
	terms.queued = time.Now().Add(-shortItemsFirst)
	q.list = []item{terms, column}
	if got, _ := q.takeItem(); got.key() != terms.key() {
		t.Errorf("took %v before an item that has waited", got.key())
	}
	if len(q.list) != 1 || q.list[0].key() != column.key() {
		t.Errorf("%v are left", q.list)
	}
}

// A search that needs an item being read ahead does not read it a second time. If the item has been read, and was not
// kept, the search reads it.
func TestReadAheadIsAwaited(t *testing.T) {
	t.Parallel()
	column, other := item{typ: 1, column: &cache.ColumnKey{Type: 1}, expensive: true}, item{typ: 2, allTerms: true}
	q := newQueue()
	q.startAhead([]item{column, other}, 0)
	if q.isAheadAwaited() {
		t.Error("the items are awaited before a search requests one")
	}
	if q.addItem(column) || !q.isAheadAwaited() {
		t.Error("the requested item is queued again, or is not awaited")
	}
	next := q.nextFinished()
	if q.finishAhead(column); q.isAheadAwaited() {
		t.Error("the item is awaited after it has been read")
	}
	select {
	case <-next:
	default:
		t.Error("a search that waits for the item is not woken")
	}
	if !q.addItem(column) {
		t.Error("an item that was not kept cannot be requested again")
	}
}

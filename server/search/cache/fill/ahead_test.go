package fill

import (
	"testing"

	"kiln/server/search/cache"
)

// An item of a small type is read before items that wait for an idle database. These stay in the list.
func TestSmallTypesFirst(t *testing.T) {
	t.Parallel()
	coded := item{typ: 1, column: &cache.ColumnKey{Type: 1, Keys: "coded"}, coded: true}
	large, small := item{typ: 1, allTerms: true}, item{typ: 2, allTerms: true, soon: true}
	a := aheadReader{list: []item{coded}}
	if a.moveSoonFirst() {
		t.Error("an item that waits for an idle database is read soon")
	}
	a.appendItems([]item{large, small})
	a.appendItems([]item{small, large})
	if !a.moveSoonFirst() {
		t.Error("a small type is not read soon")
	}
	want := []any{small.key(), coded.key(), large.key()}
	if len(a.list) != len(want) {
		t.Fatalf("the list has %d items, want %d", len(a.list), len(want))
	}
	for n, i := range a.list {
		if i.key() != want[n] {
			t.Errorf("item %d: %v, want %v", n, i.key(), want[n])
		}
	}
}

// Between two checks of the database only a few items are read: more of them if they are columns of codes.
func TestTakeItems(t *testing.T) {
	t.Parallel()
	list := func(n int, coded, soon bool) (out []item) {
		for typ := range n {
			out = append(out, item{typ: int16(typ), allTerms: true, coded: coded, soon: soon})
		}
		return out
	}
	for _, tt := range []struct {
		name string
		list []item
		want int
	}{
		{"many types", list(20, false, false), itemsAtOnce},
		{"many columns of codes", list(20, true, false), codedAtOnce},
		{"one item", list(1, false, false), 1},
		{"one small type before others", append(list(1, false, true), list(5, false, false)...), 1},
	} {
		a := aheadReader{list: tt.list, tried: make(map[any]int)}
		got := a.takeItems(7)
		if len(got) != tt.want || len(a.list) != len(tt.list)-tt.want || len(a.tried) != tt.want {
			t.Errorf("%s: took %d and left %d of %d, want %d", tt.name, len(got), len(a.list), len(tt.list), tt.want)
		}
	}
}

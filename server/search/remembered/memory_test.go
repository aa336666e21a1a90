package remembered

import (
	"testing"
	"time"

	"github.com/RoaringBitmap/roaring/v2"
)

// What a memory holds stays within its limit when that changes: the least useful goes
// first, and everything where there is no room at all.
func TestSetLimit(t *testing.T) {
	t.Parallel()
	now := time.Unix(0, 0)
	m := New(1<<20, func() time.Time { return now })
	m.state, m.at = &state{}, now
	m.sets, m.columns, m.terms, m.common = map[Key]*item{}, map[ColumnKey]*item{}, map[termKey]*item{}, map[TypeKey]map[int64]bool{}
	for i := range 16 {
		s := &item{set: &set{members: roaring.BitmapOf(uint32(i))}, cost: time.Duration(i) * time.Second, uses: 1, used: now}
		m.keep(keyed{s, Key{byte(i)}})
	}
	all := m.Bytes()
	m.SetLimit(all / 2)
	if got := m.Bytes(); got > all/2 || got == 0 || m.limit != all/2 {
		t.Errorf("%d bytes of %d are kept, want at most half", got, all)
	}
	if m.Has(Key{0}) || !m.Has(Key{15}) {
		t.Error("what saves most time is to be kept")
	}
	m.SetLimit(0)
	if m.Bytes() != 0 || m.Has(Key{15}) || m.Wants(Key{1}, false) || m.Wants(Key{1}, true) {
		t.Error("a memory without room keeps, or wants, something")
	}
	m.SetLimit(1 << 20)
	if m.Wants(Key{2}, false) || !m.Wants(Key{2}, false) || !m.Wants(Key{3}, true) || m.Wants(Key{3}, true) {
		t.Error("with room again, what is asked for twice is wanted once, what is dear at once")
	}
}

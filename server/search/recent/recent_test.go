package recent

import (
	"slices"
	"testing"
	"time"

	"kiln/server/fhir"
	"kiln/server/search"
	"kiln/server/search/match"
	"kiln/server/search/plan"
)

var now = time.Date(2024, 5, 1, 12, 0, 0, 0, time.UTC)

// Statements have one key only if their SQL and their arguments are the same.
func TestKeyOf(t *testing.T) {
	t.Parallel()
	statements := []match.Statement{
		{SQL: "SELECT 1"},
		{SQL: "SELECT 2"},
		{SQL: "SELECT 1", Args: []any{int64(1)}},
		{SQL: "SELECT 1", Args: []any{int64(1), int64(2)}},
		{SQL: "SELECT 1", Args: []any{[]int64{1, 2}}},
		{SQL: "SELECT 1", Args: []any{"1"}},
		{SQL: "SELECT 1", Args: []any{"1", "2"}},
		{SQL: "SELECT 1", Args: []any{`1"`, "2"}},
	}
	for i, a := range statements {
		for j, b := range statements {
			if same := KeyOf(a) == KeyOf(b); same != (i == j) {
				t.Errorf("%v and %v have the same key: %v", a, b, same)
			}
		}
	}
}

// A total is used for a minute. When the cache is full, all totals are removed.
func TestTotals(t *testing.T) {
	t.Parallel()
	var totals Totals
	totals.StoreTotal(Key{1}, Total{N: 7, At: now})
	if got, ok := totals.FindTotal(Key{1}, now.Add(maxAge-1)); !ok || got.N != 7 {
		t.Errorf("within a minute: %v, %v", got, ok)
	}
	if _, ok := totals.FindTotal(Key{1}, now.Add(maxAge)); ok {
		t.Error("a total is used after a minute")
	}
	for i := range maxEntries {
		totals.StoreTotal(Key{2, byte(i), byte(i >> 8)}, Total{At: now})
	}
	s := totals.State()
	if s.Size != 1 || s.Hits != 1 || s.Misses != 1 || s.Evictions != maxEntries {
		t.Errorf("state %+v", s)
	}
	if totals.Clear(); totals.State().Size != 0 {
		t.Error("totals are left after Clear")
	}
}

func TestOverflows(t *testing.T) {
	t.Parallel()
	var o Overflows
	if o.HasOverflow(Key{1}, now) {
		t.Error("an overflow before the first")
	}
	o.StoreOverflow(Key{1}, now)
	if !o.HasOverflow(Key{1}, now.Add(maxAge-1)) || o.HasOverflow(Key{1}, now.Add(maxAge)) {
		t.Error("an overflow is not used for a minute")
	}
}

// newPlanOrder returns an order of n matches.
func newPlanOrder(t *testing.T, n int) *plan.Order {
	t.Helper()
	p := plan.Compile(&search.Query{Sort: []search.SortKey{{Code: "_lastUpdated"}}}, &match.Env{})
	o := p.NewOrder()
	for rid := range n {
		key := "1"
		o.AddMatch(int64(rid), []*string{&key})
	}
	o.FinishOrder()
	return o
}

// Orders stay within their limit of bytes, and are used for a minute after their last use.
func TestOrders(t *testing.T) {
	t.Parallel()
	const snapshot = "10:20: 1"
	if !plan.IsLasting(snapshot) {
		t.Fatalf("the snapshot %q does not last", snapshot)
	}
	order := newPlanOrder(t, 100)
	var o Orders
	o.SetLimit(2*order.Bytes() + 1)
	for i := range 3 {
		o.StoreOrder(Key{byte(i)}, &Order{Order: order, Snapshot: snapshot, Used: now})
		if _, bytes := o.Size(); bytes > o.Limit() {
			t.Errorf("%d bytes, the limit is %d", bytes, o.Limit())
		}
	}
	if o.FindOrder(Key{2}, now.Add(maxAge)) == nil || o.FindOrder(Key{2}, now.Add(maxAge+1)) != nil {
		t.Error("an order is not used for a minute")
	}
	o.StoreOrder(Key{9}, &Order{Order: order, Used: now})
	if o.FindOrder(Key{9}, now) != nil {
		t.Error("an order without a lasting snapshot is stored")
	}
	o.RemoveOrder(Key{2})
	if o.FindOrder(Key{2}, now) != nil {
		t.Error("a removed order is found")
	}
	o.StoreOrder(Key{3}, &Order{Order: order, Snapshot: snapshot, Used: now})
	o.SetLimit(order.Bytes() - 1)
	if n, bytes := o.Size(); n != 0 || bytes != 0 {
		t.Errorf("%d orders, %d bytes above the limit", n, bytes)
	}
}

// Long lists of texts are not stored, and replace shorter ones.
func TestTextCache(t *testing.T) {
	t.Parallel()
	var c TextCache
	key := fhir.Key(5)
	c.StoreTexts(key, Texts{Texts: []string{"a"}, Values: []int64{1}})
	if got, ok := c.FindTexts(key); !ok || !slices.Equal(got.Texts, []string{"a"}) {
		t.Errorf("%v, %v", got, ok)
	}
	c.StoreTexts(key, Texts{Texts: make([]string, maxTextsOfKey+1)})
	if _, ok := c.FindTexts(key); ok {
		t.Error("too many texts are stored, or old ones are left")
	}
}

func TestWithUnits(t *testing.T) {
	t.Parallel()
	one := &Units{IDs: []int64{1}, Units: []match.Unit{match.NewUnit(1, "s", "kg", "kg")}}
	two := one.WithUnits([]match.Unit{match.NewUnit(2, "s", "g", "g")})
	if len(one.IDs) != 1 || !slices.Equal(two.IDs, []int64{1, 2}) || len(two.Units) != 2 {
		t.Errorf("%v and %v", one.IDs, two.IDs)
	}
}

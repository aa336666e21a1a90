package remembered

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/cockroachdb/apd/v3"

	"kiln/server/fhir"
	"kiln/server/search/match"
)

// columnOf is the column of entries, nil where one has no room.
func columnOf(key ColumnKey, entries ...Entry) *column {
	b := NewColumn(key, nil)
	for _, e := range entries {
		if !b.Add(e) {
			return nil
		}
	}
	return b.finish()
}

// A column of numbers counts and finds what a comparison of the decimals finds, with up
// to 24 digits behind the point.
func TestColumnOfNumbers(t *testing.T) {
	t.Parallel()
	r := rand.New(rand.NewPCG(1, 2))
	draw := func() *apd.Decimal {
		text := fmt.Sprint(r.IntN(3))
		if digits := r.IntN(25); digits > 0 {
			text += "."
			for range digits {
				text += fmt.Sprint(r.IntN(2))
			}
		}
		if r.IntN(2) == 0 {
			text = "-" + text
		}
		d, _, err := apd.NewFromString(text)
		if err != nil {
			t.Fatal(err)
		}
		return d
	}
	var values []*apd.Decimal
	var entries []Entry
	for i := range 2000 {
		d := draw()
		values = append(values, d)
		entries = append(entries, Entry{RID: int64(i), Number: d.Text('f')})
	}
	c := columnOf(ColumnKey{Kind: Numbers, Keys: KeysOf([]fhir.Key{1})}, entries...)
	if c == nil {
		t.Fatal("numbers of 24 decimals have no column")
	}
	for range 300 {
		low, high := draw(), draw()
		if r.IntN(3) == 0 {
			low = values[r.IntN(len(values))]
		}
		if low.Cmp(high) > 0 {
			low, high = high, low
		}
		for op, holds := range map[match.Prefix]func(*apd.Decimal) bool{
			match.LT: func(d *apd.Decimal) bool { return d.Cmp(low) < 0 },
			match.LE: func(d *apd.Decimal) bool { return d.Cmp(low) <= 0 },
			match.GT: func(d *apd.Decimal) bool { return d.Cmp(low) > 0 },
			match.GE: func(d *apd.Decimal) bool { return d.Cmp(low) >= 0 },
			match.EQ: func(d *apd.Decimal) bool { return d.Cmp(low) >= 0 && d.Cmp(high) < 0 },
			match.NE: func(d *apd.Decimal) bool { return d.Cmp(low) < 0 || d.Cmp(high) >= 0 },
			match.AP: func(d *apd.Decimal) bool { return d.Cmp(low) >= 0 && d.Cmp(high) <= 0 },
		} {
			asked := c.compare(match.Numbers{Keys: c.keys, Op: op, Value: low, Low: low, High: high})
			if len(asked) != 1 {
				t.Fatalf("%v: %d parts, want 1", op, len(asked))
			}
			want := 0
			for n, d := range values {
				held := holds(d)
				if held {
					want++
				}
				if got := asked[0].has(uint32(n)); got != held {
					t.Fatalf("%v %s..%s: has(%s) is %v, want %v", op, low, high, d, got, held)
				}
			}
			found := 0
			asked[0].each(func(n uint32) {
				if !holds(values[n]) {
					t.Fatalf("%v %s..%s finds %s", op, low, high, values[n])
				}
				found++
			})
			if got := asked[0].count(); got != want || found != want {
				t.Fatalf("%v %s..%s: count %d, found %d, want %d", op, low, high, got, found, want)
			}
		}
	}
}

// Numbers that are too large or too fine for a column have none.
func TestColumnRefuses(t *testing.T) {
	t.Parallel()
	for _, text := range []string{"1e14", "-1e14", "1e-25", "NaN"} {
		if c := columnOf(ColumnKey{Kind: Numbers}, Entry{RID: 1, Number: text}); c != nil {
			t.Errorf("%s has a column", text)
		}
	}
	if c := columnOf(ColumnKey{Kind: Numbers}, Entry{RID: 1, Number: "1"}, Entry{RID: 1, Number: "2"}); c != nil {
		t.Error("two numbers of one resource have a column")
	}
}

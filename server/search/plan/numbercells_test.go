package plan

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"kiln/server/search/match"

	"github.com/cockroachdb/apd/v3"
)

// Cells tell the same numbers apart as decimal arithmetic.
func TestNumberCells(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	number := func() string {
		s := fmt.Sprint(r.IntN(2000) - 1000)
		if d := r.IntN(5); d > 0 {
			s += fmt.Sprintf(".%0*d", d, r.IntN(int([]int{1, 10, 100, 1000, 10000}[d])))
		}
		if r.IntN(8) == 0 {
			s = "24.32197810914500712345678"
		}
		return s
	}
	for range 200 {
		texts := make([]string, 1+r.IntN(30))
		rids := make([]int64, len(texts))
		values := make([]*apd.Decimal, len(texts))
		for i := range texts {
			texts[i], rids[i] = number(), int64(i)
			values[i], _, _ = apd.NewFromString(texts[i])
		}
		cells, ok := newNumberCells(strings.Join(texts, ","), rids)
		if !ok {
			t.Fatalf("%v are not held", texts)
		}
		for _, bound := range []string{number(), texts[0], number() + "00001", "1E+30", "-1E+30", "1E-30", "-1E-30", "0", "0E+50"} {
			v, _, err := apd.NewFromString(bound)
			if err != nil {
				t.Fatal(err)
			}
			for op, holds := range map[match.Prefix]func(int) bool{
				match.LT: func(c int) bool { return c < 0 },
				match.LE: func(c int) bool { return c <= 0 },
				match.GT: func(c int) bool { return c > 0 },
				match.GE: func(c int) bool { return c >= 0 },
			} {
				var want []int64
				for i := range values {
					if holds(values[i].Cmp(v)) {
						want = append(want, rids[i])
					}
				}
				o := &outermost{size: len(texts)}
				cells.match(o, &match.Numbers{Op: op, Value: v})
				if !slices.Equal(o.rids, want) || o.n != len(want) {
					t.Fatalf("%v %s of %v: %v, want %v", op, bound, texts, o.rids, want)
				}
			}
		}
	}
}

func TestNumberCellsRefuse(t *testing.T) {
	for _, text := range []string{"Infinity", "-Infinity", "NaN", "", "1e3", "-", "1.2.3", "12345678901234567890123456789012345678", "0.5,1234567890123456789012345678901234567"} {
		if _, ok := newNumberCells(text, make([]int64, 1+strings.Count(text, ","))); ok {
			t.Errorf("%q is held", text)
		}
	}
}

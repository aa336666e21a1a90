package plan

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"kiln/server/fhir"
	"kiln/server/search/match"
)

// What a column passes over holds for no comparison.
func TestColumnOfDates(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 4))
	for round := range 300 {
		n := r.IntN(40)
		var lows, highs []string
		var rids []int64
		var cells []dateCell
		for i := range n {
			low := int64(r.IntN(100))
			d := dateCell{low, low + 1 + int64(r.IntN(20)), int64(i)}
			if round%3 == 0 && r.IntN(6) == 0 {
				d.high = fhir.OpenHigh
			}
			if round%3 == 0 && r.IntN(6) == 0 {
				d.low = fhir.OpenLow
			}
			cells = append(cells, d)
			lows, highs, rids = append(lows, fmt.Sprint(d.low)), append(highs, fmt.Sprint(d.high)), append(rids, d.rid)
		}
		var c Values
		if text := strings.Join(highs, ","); !c.Add(0, strings.Join(lows, ","), &text, false, rids) {
			t.Fatal("the dates are not held")
		}
		for _, op := range []match.Prefix{match.EQ, match.NE, match.LT, match.LE, match.GT, match.GE, match.SA, match.EB, match.AP} {
			low := int64(r.IntN(120) - 10)
			bounds := []match.Dates{{Op: op, Low: low, High: low + 1 + int64(r.IntN(15))}}
			if r.IntN(3) == 0 {
				bounds = append(bounds, match.Dates{Op: match.GE, Low: low - 20, High: low - 19})
			}
			var want []int64
			for _, d := range cells {
				if !slices.ContainsFunc(bounds, func(b match.Dates) bool { return !b.Includes(d.low, d.high) }) {
					want = append(want, d.rid)
				}
			}
			o := &outermost{size: n + 1}
			c.matchDates(o, bounds)
			if !slices.Equal(o.rids, want) {
				t.Fatalf("%v of %v: %v, want %v", bounds, cells, o.rids, want)
			}
		}
	}
}

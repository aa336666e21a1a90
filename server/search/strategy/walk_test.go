package strategy_test

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	"kiln/server/search/searchtest"
	"kiln/server/store"
)

// What lies together far from where an order begins, as the observations of a patient who came late, is
// fetched rather than looked for among everything before; where the page is near it is walked to.
func TestFarPageIsGathered(t *testing.T) {
	t.Parallel()
	s, _ := searchtest.Open(t)
	var ws []*store.Write
	day := time.Date(2020, 1, 1, 0, 0, 0, 0, time.UTC)
	for i := range 900 {
		status := "final"
		if i < 90 {
			status = "amended"
		} else if i >= 810 {
			status = "preliminary"
		}
		of := fmt.Sprintf(`,"effectiveDateTime":%q`, day.AddDate(0, 0, i).Format(time.DateOnly))
		if i >= 300 && i < 390 {
			status, of = "cancelled", ""
		}
		ws = append(ws, searchtest.NewWrite(t, fmt.Appendf(nil, `{"resourceType":"Observation","id":"o%03d","status":%q,"code":{"text":"x"}%s}`, i, status, of)))
	}
	for _, w := range ws { // one by one, so that each has its last update
		if err := s.WriteAll(t.Context(), []*store.Write{w}); err != nil {
			t.Fatal(err)
		}
	}
	searchWithoutCache(s, 20) // and a walk of 60
	for _, tt := range []struct {
		name, status string
		sort         []string
		first, step  int // the ids of the page
		gathered     bool
	}{
		{"near", "amended", nil, 0, 1, false},
		{"far", "preliminary", nil, 810, 1, true},
		{"newest first, near", "preliminary", []string{"_sort", "-_lastUpdated"}, 899, -1, false},
		{"newest first, far", "amended", []string{"_sort", "-_lastUpdated"}, 89, -1, true},
		{"an offset near", "amended", []string{"_offset", "45"}, 45, 1, false},
		{"an offset far, of a page that is not full", "amended", []string{"_offset", "85"}, 85, 1, true},
		{"by date, near", "amended", []string{"_sort", "date"}, 0, 1, false},
		{"by date, far", "preliminary", []string{"_sort", "date"}, 810, 1, true},
		{"by date, the newest first, near", "preliminary", []string{"_sort", "-date"}, 899, -1, false},
		{"by date, the newest first, far", "amended", []string{"_sort", "-date"}, 89, -1, true},
		{"by date in a range that begins there", "preliminary", []string{"_sort", "date", "date", "ge2022-03-21"}, 810, 1, false},
		{"by a date that none has", "cancelled", []string{"_sort", "date"}, 300, 1, true},
		{"by two keys, of which one has to see all with the same date", "preliminary", []string{"_sort", "date,-_lastUpdated"}, 810, 1, false},
		{"no total", "preliminary", []string{"_total", "none"}, 810, 1, true},
		{"an estimate", "preliminary", []string{"_total", "estimate"}, 810, 1, true},
	} {
		c := searchtest.Case{Type: "Observation", Values: searchtest.Parameters(append([]string{"status", tt.status, "_count", "10"}, tt.sort...)...)}
		q := c.ParseQuery(t)
		var got []string
		var total *int
		kinds := countExpensiveStatements(func(ctx context.Context) {
			found, err := s.Search(ctx, q)
			if err != nil {
				t.Errorf("%s: %v", tt.name, err)
				return
			}
			for i := range found.Matches {
				got = append(got, found.Matches[i].ID)
			}
			total = found.Total
		})
		var want []string
		for i := range min(10, 90-max(0, q.Offset)) {
			want = append(want, fmt.Sprintf("o%03d", tt.first+tt.step*i))
		}
		if !slices.Equal(got, want) {
			t.Errorf("%s: %v, want %v", tt.name, got, want)
		}
		if total != nil && *total != 90 {
			t.Errorf("%s: total %d", tt.name, *total)
		}
		if gathered := kinds["gather"] > 0; gathered != tt.gathered {
			t.Errorf("%s: statements %v", tt.name, kinds)
		}
	}
	// A walk along what hardly any resource has comes to an end, and goes on with those that have no value.
	var patients []*store.Write
	for i := range 50 {
		died := ""
		if i%20 == 0 {
			died = fmt.Sprintf(`,"deceasedDateTime":"20%02d"`, 50-i)
		}
		patients = append(patients, searchtest.NewWrite(t, fmt.Appendf(nil, `{"resourceType":"Patient","id":"p%02d","gender":"male"%s}`, i, died)))
	}
	if err := s.WriteAll(t.Context(), patients); err != nil {
		t.Fatal(err)
	}
	kinds := countExpensiveStatements(func(ctx context.Context) {
		c := searchtest.Case{Type: "Patient", Values: searchtest.Parameters("gender", "male", "_count", "5", "_sort", "death-date")}
		found, err := s.Search(ctx, c.ParseQuery(t))
		if err != nil {
			t.Fatal(err)
		}
		if got := searchtest.IDs(found); !slices.Equal(got, []string{"p40", "p20", "p00", "p01", "p02"}) || *found.Total != 50 {
			t.Errorf("%v of %d", got, *found.Total)
		}
	})
	if kinds["gather"] > 0 {
		t.Errorf("statements %v", kinds)
	}
}

package main

import (
	"bytes"
	"testing"
)

func TestPageMissed(t *testing.T) {
	for _, tc := range []struct {
		name string
		page Page
		goal screenGoal
		want string
	}{
		{"a light and quick page", Page{First: 12_000, P50: 20, RESTP50: 4}, besideREST, ""},
		{"within a tenth of the goal", Page{P50: 25, RESTP50: 4}, besideREST, ""},
		{"slower than REST by too much", Page{P50: 26, RESTP50: 4}, besideREST, "beside REST"},
		{"a page without a goal of time", Page{P50: 2600, RESTP50: 4}, noGoal, ""},
		{"counts that are not kept", Page{First: 60_001, P50: 111}, countedGoal, "weight, time"},
	} {
		if got := tc.page.missed(tc.goal); got != tc.want {
			t.Errorf("%s: %q, want %q", tc.name, got, tc.want)
		}
	}
}

func TestPagesTable(t *testing.T) {
	var out bytes.Buffer
	if err := writePages(&out, "at rest", []Page{{Screen: "Overview", First: 21_000, Second: 9_000, P50: 12.5, P99: 40}, {Screen: "Patient", First: 17_000, Second: 5_000, P50: 30, P99: 60, REST: "Patient/1", RESTP50: 1.5, RESTP99: 3, Missed: "beside REST"}}); err != nil {
		t.Fatal(err)
	}
	// The lines with the machine differ everywhere.
	if _, table, found := bytes.Cut(out.Bytes(), []byte("in ms and bytes\n")); found {
		golden(t, "pages.txt", table)
	} else {
		t.Error("there is no table")
	}
}

package main

import (
	"bytes"
	"flag"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

var update = flag.Bool("update", false, "rewrite the golden files")

func TestFigureOf(t *testing.T) {
	for _, tc := range []struct {
		name   string
		values []float64
		want   Figure
	}{
		{"nothing is zero", nil, Figure{}},
		{"one run is its own median", []float64{3}, Figure{3, 3, 3}},
		{"the middle of three in any order", []float64{9, 1, 4}, Figure{4, 1, 9}},
		{"of four the lower middle, which was measured", []float64{4, 3, 2, 1}, Figure{2, 1, 4}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			if diff := cmp.Diff(tc.want, figureOf(tc.values)); diff != "" {
				t.Error(diff)
			}
		})
	}
	if got := (Figure{Median: 4, Min: 3, Max: 5}).Spread(); got != 0.5 {
		t.Errorf("Spread() = %v, want 0.5", got)
	}
}

func TestNumber(t *testing.T) {
	for v, want := range map[float64]string{0: "0", 0.1234: "0.12", 1.5: "1.50", 12.34: "12.3", 999.6: "1,000", 1234567: "1,234,567", -1500: "-1,500"} {
		if got := number(v); got != want {
			t.Errorf("number(%v) = %q, want %q", v, got, want)
		}
	}
}

func measured(rate int, errors int64) *Measured {
	s := &Series{Errors: errors}
	for i := range rate {
		s.Latency.Add(time.Duration(i) * time.Millisecond)
	}
	other := &Series{}
	other.Latency.Add(2 * time.Second)
	return &Measured{
		Elapsed: time.Second, Series: map[string]*Series{"quick": s, "slow": other}, Resources: int64(rate),
		Messages: map[string]int64{"GET quick: 500 no": errors},
		Usage:    map[string]Usage{"tool": {CPU: 0.5, PeakRSS: 20e6}},
	}
}

func TestResultsTable(t *testing.T) {
	wal := 1234.0
	a := summarise("crud", Load{Clients: 32}, []*Measured{measured(100, 1), measured(120, 0), measured(90, 2)})
	a.WAL, a.Tables = &wal, map[string]float64{"resource": 800, "change": 0.1}
	b := summarise("read", Load{Clients: 64, Rate: 1000}, []*Measured{{Elapsed: time.Second}})
	var out bytes.Buffer
	if err := writeResults(&out, []Result{a, b}); err != nil {
		t.Fatal(err)
	}
	golden(t, "results.txt", out.Bytes())
}

// golden compares got with a file in testdata, and rewrites it with -update.
func golden(t *testing.T, name string, got []byte) {
	t.Helper()
	path := filepath.Join("testdata", name)
	if *update {
		if err := os.WriteFile(path, got, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), string(got)); diff != "" {
		t.Errorf("%s differs (-want +got); -update rewrites it:\n%s", path, diff)
	}
}

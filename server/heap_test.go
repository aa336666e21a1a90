package server

import (
	"context"
	"os"
	"runtime"
	"runtime/debug"
	"testing"
	"time"
)

func TestGrowth(t *testing.T) {
	const mb = 1 << 20
	for name, c := range map[string]struct{ alive, remembered, runs, want int64 }{
		"little is alive":                     {alive: 16 * mb, want: 40 * mb},
		"searches":                            {alive: 30 * mb, want: 60 * mb},
		"an import":                           {alive: 60 * mb, want: 80 * mb},
		"a run of a view":                     {alive: 35 * mb, runs: 1, want: 28 * mb},
		"runs of large resources":             {alive: 200 * mb, runs: 4, want: 50 * mb},
		"an import beside what is remembered": {alive: 210 * mb, remembered: 150 * mb, want: 80 * mb},
		"an import beside more":               {alive: 260 * mb, remembered: 200 * mb, want: 56 * mb},
		"the memory is full":                  {alive: 300 * mb, remembered: 256 * mb, want: 24 * mb},
		"many Bundles beside a full memory":   {alive: 456 * mb, remembered: 256 * mb, want: 50 * mb},
		"it is as large as it can be":         {alive: 4100 * mb, remembered: 4096 * mb, want: 24 * mb},
	} {
		if got := growth(c.alive, c.remembered, c.runs); got != c.want {
			t.Errorf("%s: growth(%d MB, %d MB) = %d MB, want %d", name, c.alive/mb, c.remembered/mb, got/mb, c.want/mb)
		}
	}
}

// The growth follows the live memory from one collection to the next, and the search cache.
func TestHeapIsPaced(t *testing.T) {
	if os.Getenv("GOGC") != "" {
		t.Skip("GOGC is set")
	}
	before := debug.SetGCPercent(100)
	defer debug.SetGCPercent(before)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var h heap
	runtime.GC()
	h.paceCollections(ctx)
	remembered := make([]byte, 256<<20) // without a pointer, and never touched
	h.setCacheSize(int64(len(remembered)))
	awaitPercent := func(from, to int) {
		t.Helper()
		deadline := time.Now().Add(10 * time.Second)
		for percent := 0; ; runtime.GC() {
			percent = debug.SetGCPercent(0)
			debug.SetGCPercent(percent)
			if percent >= from && percent <= to {
				return
			}
			if time.Now().After(deadline) {
				t.Fatalf("the heap grows by %d %%, want %d to %d", percent, from, to)
			}
		}
	}
	awaitPercent(5, 16) // 24 MB of 256 and the memory of the tests
	runtime.KeepAlive(remembered)
	h.setCacheSize(0)
	awaitPercent(40, 2000)
	alone := debug.SetGCPercent(100)
	h.addRuns(1)
	h.addRuns(1)
	if percent := debug.SetGCPercent(100); percent >= alone {
		t.Errorf("the heap grows by %d %% beside a run, and by %d %% without", percent, alone)
	}
	h.addRuns(-1)
	h.addRuns(-1)
	if percent := debug.SetGCPercent(100); percent < alone {
		t.Errorf("the heap grows by %d %% after the runs, and by %d %% before", percent, alone)
	}
}

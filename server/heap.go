package server

import (
	"context"
	"os"
	"runtime"
	"runtime/debug"
	"runtime/metrics"
	"sync/atomic"
)

// heap paces the collections of the process's memory: the heap grows by a share of the live
// memory without the search cache. That cache is large, has no pointers and rarely changes.
type heap struct {
	remembered atomic.Int64 // bytes
	runs       atomic.Int64 // of views, under way
}

// The heap grows by twice the live memory, about 40 MB in a server that answers searches.
// That saves a tenth of the processor time of searches and pages, for 30 MB. Bundles in
// flight are live too: it grows by mostGrowth at most, and by less if that and the search
// cache exceed growsWithin together. Each collection marks these Bundles: it never grows by
// less than leastGrowth, nor by less than a share of them. An import with 24 MB takes a
// tenth more processor time than with 40.
const (
	growthPart  = 2
	leastPart   = 4
	leastGrowth = 24 << 20
	mostGrowth  = 80 << 20
	growsWithin = 256 << 20
	// freshGrowth is leastGrowth where little is remembered.
	freshGrowth = 40 << 20
	// runGrowth is the most while views run: a run allocates much, and little of it stays alive. It
	// keeps a fresh server with one run below 150 MB.
	runGrowth = 28 << 20
)

// growth is by how much the heap grows until it is collected, in bytes. runs are the views that run.
func growth(alive, remembered, runs int64) int64 {
	used := alive - remembered
	most := max(freshGrowth, min(growthPart*used, mostGrowth))
	if runs > 0 {
		most = runGrowth
	}
	return max(leastGrowth, used/leastPart, min(most, growsWithin-remembered))
}

// paceCollections sets the growth, now and after each collection until ctx ends. GOGC overrides it.
func (h *heap) paceCollections(ctx context.Context) {
	if os.Getenv("GOGC") != "" || ctx.Err() != nil {
		return
	}
	h.setGrowth()
	type collected struct{ _ [64]byte }
	runtime.AddCleanup(new(collected), h.paceCollections, ctx)
}

// setGrowth sets the growth by the live memory of the last collection.
func (h *heap) setGrowth() {
	live := []metrics.Sample{{Name: "/gc/heap/live:bytes"}}
	metrics.Read(live)
	if alive := int64(live[0].Value.Uint64()); alive > 0 { // something was collected
		debug.SetGCPercent(int(100 * growth(alive, h.remembered.Load(), h.runs.Load()) / alive))
	}
}

// addRuns is told how many runs of views begin, or with a negative number end.
func (h *heap) addRuns(n int) {
	if now := h.runs.Add(int64(n)); os.Getenv("GOGC") == "" && (now == 0 || now == int64(n)) {
		h.setGrowth()
	}
}

// setCacheSize is told how many bytes searches remember from now on. Much that was forgotten is collected
// first: it would count as alive.
func (h *heap) setCacheSize(bytes int64) {
	if h.remembered.Swap(bytes)-bytes > freshGrowth {
		runtime.GC()
	}
}

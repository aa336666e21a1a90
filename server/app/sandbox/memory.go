package sandbox

import (
	"fmt"
	"runtime"
	"runtime/metrics"
	"sync"
	"time"
)

// watchEvery is the time between two looks at the heap.
const watchEvery = 2 * time.Millisecond

// watch interrupts a script that holds too much memory, until end is called. It costs a
// script that ends before the first look a timer, and no goroutine.
func (r *run) watch() (end func()) {
	most := r.w.base + uint64(r.limits.Memory)
	var mu sync.Mutex // of the rest
	var timer *time.Timer
	ended := false
	mu.Lock()
	defer mu.Unlock()
	timer = time.AfterFunc(watchEvery, func() {
		mu.Lock()
		defer mu.Unlock()
		if ended {
			return
		}
		if liveHeap() > most && holds(most) {
			r.vm.Interrupt(errMemory)
			return
		}
		timer.Reset(watchEvery)
	})
	return func() {
		mu.Lock()
		defer mu.Unlock()
		ended = true
		timer.Stop()
	}
}

// holds reports whether more is in use than most, in bytes: what a script has made since
// the last collection is mostly garbage, or another collection says that it is not.
func holds(most uint64) bool {
	for range 2 {
		if runtime.GC(); marked() <= most {
			return false
		}
	}
	return true
}

// liveHeap is the size of the objects of the heap, in bytes, not yet collected ones
// included.
func liveHeap() uint64 { return heap("/memory/classes/heap/objects:bytes") }

// marked is the size of the objects that the last collection found to be in use, in bytes.
func marked() uint64 { return heap("/gc/heap/live:bytes") }

func heap(metric string) uint64 {
	s := []metrics.Sample{{Name: metric}}
	metrics.Read(s)
	return s[0].Value.Uint64()
}

// memoryFailure is why a script has ended that took more than Limits.Memory.
func memoryFailure(l Limits) *Failure {
	return &Failure{Kind: KindMemory, Message: fmt.Sprintf("the script took more than %d MB of memory (apps.sandbox.max_memory_mb)", l.Memory>>20)}
}

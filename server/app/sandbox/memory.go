package sandbox

import (
	"fmt"
	"runtime"
	"runtime/metrics"
	"time"
)

// watchEvery is the time between two looks at the heap.
const watchEvery = 2 * time.Millisecond

// watch interrupts a script that holds too much memory.
func (r *run) watch(done chan struct{}) {
	most := r.w.base + uint64(r.limits.Memory)
	t := time.NewTicker(watchEvery)
	defer t.Stop()
watching:
	for {
		select {
		case <-done:
			return
		case <-t.C:
		}
		if liveHeap() <= most {
			continue
		}
		// What the script has made since is mostly garbage, or another collection says that
		// it is not.
		for range 2 {
			if runtime.GC(); marked() <= most {
				continue watching
			}
		}
		r.vm.Interrupt(errMemory)
		return
	}
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

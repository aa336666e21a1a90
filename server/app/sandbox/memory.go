package sandbox

import (
	"fmt"
	"runtime"
	"runtime/metrics"
	"sync"
	"time"
)

// watchEvery is the time between two looks at a script.
const watchEvery = 2 * time.Millisecond

// idleLooks is after how many looks in a row that see no script a watchdog rests.
const idleLooks = 10

// watchdog interrupts a script that is over its time or holds too much memory. It looks on for a
// while when a script has ended: a timer for each would wake another thread for each.
type watchdog struct {
	mu    sync.Mutex // of all of it, and of run.own
	run   *run       // nil where no script runs
	seen  *run       // by the last look
	idle  int        // looks in a row that saw none
	timer *time.Timer
	awake bool

	demoted bool // the process has come behind the other workers
}

// demoteAfter is the processor time of a script after which its worker comes behind those whose scripts
// have just begun.
const demoteAfter = 500 * time.Millisecond

// watch begins to look at a script; mu is held.
func (d *watchdog) watch(r *run) {
	d.run = r
	if d.awake {
		return
	}
	d.awake, d.idle = true, 0
	if d.timer == nil {
		d.timer = time.AfterFunc(watchEvery, d.look)
	} else {
		d.timer.Reset(watchEvery)
	}
}

// look is one look.
func (d *watchdog) look() {
	d.mu.Lock()
	defer d.mu.Unlock()
	r := d.run
	if r == nil {
		if d.idle++; d.idle == idleLooks {
			d.awake, d.seen = false, nil
			return
		}
	} else if d.idle = 0; r.own.timeLeft(r.limits.Execution) <= 0 {
		r.vm.Interrupt(errTime)
	} else if most := r.w.base + uint64(r.limits.Memory); r == d.seen && liveHeap() > most && holds(most) {
		r.vm.Interrupt(errMemory)
	}
	if r != nil && !d.demoted && r.own.processor+processorTime()-r.own.used > demoteAfter {
		d.demoted = true
		lowerPriority()
	}
	d.seen = r
	d.timer.Reset(watchEvery)
}

// holds reports whether more than most bytes are in use. Memory allocated since the last collection is mostly garbage;
// if it would exceed most, another collection decides.
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

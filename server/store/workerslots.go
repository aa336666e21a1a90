package store

import (
	"runtime"
	"time"
)

// workerSlots bounds how many workers of a queue work at the same time. A commit and
// a query cost the same for one request as for many, and the fewer workers take them
// the more requests each has. So there are slots for half of the processors, the other
// half being PostgreSQL's. A worker that waits for longer than maxSlotWait works
// without a slot: the others are held up by a lock or a slow disk then.
type workerSlots chan struct{}

// maxSlotWait is more than an ordinary commit, which takes five milliseconds: one that reads index pages from the disk takes
// ten or more, in which the processors have nothing to do.
const maxSlotWait = 8 * time.Millisecond

func newWorkerSlots(workers int) workerSlots {
	return make(workerSlots, min(workers, max(1, runtime.NumCPU()/2)))
}

// acquire waits for a slot. It returns false after maxSlotWait: the worker has none
// then, and must not release it.
func (s workerSlots) acquire() bool {
	select {
	case s <- struct{}{}:
		return true
	default:
	}
	t := time.NewTimer(maxSlotWait)
	defer t.Stop()
	select {
	case s <- struct{}{}:
		return true
	case <-t.C:
		return false
	}
}

func (s workerSlots) release() { <-s }

package store

import (
	"runtime"
	"time"
)

// shift is the workers that work at a time. What is shared by all that waits, a
// commit or a query, is dearer the more workers share it out: only as many work as
// half of the processors, the other half being PostgreSQL's. The others come in when
// those take long, behind a lock or a slow disk.
type shift chan struct{}

// maxTurn is how long a worker waits for its turn: some ordinary commits.
const maxTurn = 20 * time.Millisecond

func newShift(workers int) shift {
	return make(shift, min(workers, max(1, runtime.NumCPU()/2)))
}

// enter waits until this worker may work, and returns false when others have taken
// too long to be waited for: then there is no leave.
func (s shift) enter() bool {
	select {
	case s <- struct{}{}:
		return true
	default:
	}
	t := time.NewTimer(maxTurn)
	defer t.Stop()
	select {
	case s <- struct{}{}:
		return true
	case <-t.C:
		return false
	}
}

func (s shift) leave() { <-s }

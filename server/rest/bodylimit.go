package rest

import (
	"context"

	"golang.org/x/sync/semaphore"

	"kiln/server/outcome"
)

// A request is worked on in several times the memory of its body: the text, the
// model, the index entries, the rows. Small bodies come and go; large ones wait
// for room, so that any number of uploaders costs a bounded amount of memory.
const (
	smallBody = 64 << 10
	// limitBytes is how much of large bodies is worked on at the same time. A body
	// above it passes alone.
	limitBytes = 24 << 20
	// arrivingBytes is how much of large bodies memory holds while they arrive. Where slow clients have
	// taken it up, bodies arrive in files.
	arrivingBytes = 16 << 20
	// unannounced is the assumed size of a large body of unknown length.
	unannounced = 4 << 20
)

// bodyLimit bounds the large bodies that are worked on at the same time.
type bodyLimit struct{ weighted, arrivals *semaphore.Weighted }

func newBodyLimit() *bodyLimit {
	return &bodyLimit{semaphore.NewWeighted(limitBytes), semaphore.NewWeighted(arrivingBytes)}
}

// admitArrived returns what gives back room for a body to arrive in; nil where there is none.
func (l *bodyLimit) admitArrived(size int64) (leave func()) {
	if !l.arrivals.TryAcquire(size) {
		return nil
	}
	return func() { l.arrivals.Release(size) }
}

// enterBody waits for room for a body of size bytes, -1 if that is not known, and returns the
// function that frees the room. It fails with throttled, 429, if the client has gone before
// its turn.
func (l *bodyLimit) enterBody(ctx context.Context, size int64) (leave func(), err error) {
	switch {
	case size >= 0 && size <= smallBody:
		return func() {}, nil
	case size < 0:
		size = unannounced
	}
	size = min(size, limitBytes)
	if err := l.weighted.Acquire(ctx, size); err != nil {
		return nil, outcome.New(outcome.CodeThrottled, "the request ended while it waited for other large requests").Because(err)
	}
	return func() { l.weighted.Release(size) }, nil
}

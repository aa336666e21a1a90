package store

import (
	"context"
	"encoding/binary"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"

	"kiln/gen/db"
	"kiln/server/fhir"
)

// reader makes one query of the reads by id that wait at the same time. A few
// workers each take all that waits: under load a query and its round trip are shared
// by dozens. A read begins after it is asked for, so it sees every write that was
// answered before.
type reader struct {
	wake  chan struct{}
	slots workerSlots
	done  sync.WaitGroup

	mu      sync.Mutex
	waiting []*readRequest
	stopped bool
}

// maxRead is the most resources of one query; bodies may be large.
const maxRead = 64

type readRequest struct {
	ref     int64
	version fhir.Version // without type and id
	id      string       // "" when there is no current version
	err     error
	done    chan struct{} // gets one value
}

var readRequests = sync.Pool{New: func() any { return &readRequest{done: make(chan struct{}, 1)} }}

func (r *reader) start(s *Store, workers int) {
	r.wake = make(chan struct{}, workers)
	r.slots = newWorkerSlots(workers)
	for range workers {
		r.done.Go(func() { r.work(s) })
	}
}

func (r *reader) stop() {
	r.mu.Lock()
	if !r.stopped {
		r.stopped = true
		close(r.wake)
	}
	r.mu.Unlock()
	r.done.Wait()
}

// read returns the current version with the ref, and the id that it has; "" when
// there is none.
func (r *reader) read(ctx context.Context, ref int64) (fhir.Version, string, error) {
	q := readRequests.Get().(*readRequest)
	*q = readRequest{ref: ref, done: q.done}
	r.mu.Lock()
	if r.stopped {
		r.mu.Unlock()
		return fhir.Version{}, "", errStopped
	}
	r.waiting = append(r.waiting, q)
	select {
	case r.wake <- struct{}{}:
	default: // every worker will look again before it rests
	}
	r.mu.Unlock()
	select {
	case <-q.done:
		version, id, err := q.version, q.id, q.err
		readRequests.Put(q)
		return version, id, err
	case <-ctx.Done():
		return fhir.Version{}, "", translate(ctx.Err()) // the request belongs to a worker
	}
}

func (r *reader) work(s *Store) {
	var refs array
	refs.oid = oidInt8
	var taken []*readRequest
	for range r.wake {
		for r.round(s, &taken, &refs) {
		}
	}
}

// round reads what waits, and returns false when nothing does. taken and refs are
// memory of the worker.
func (r *reader) round(s *Store, taken *[]*readRequest, refs *array) bool {
	if r.slots.acquire() {
		defer r.slots.release()
	}
	r.mu.Lock()
	n := min(len(r.waiting), maxRead)
	requests := append((*taken)[:0], r.waiting[:n]...)
	left := copy(r.waiting, r.waiting[n:])
	clear(r.waiting[left:])
	r.waiting = r.waiting[:left]
	r.mu.Unlock()
	if n == 0 {
		return false
	}
	err := s.readAll(requests, refs)
	if err != nil && lost(err) { // of a connection that died while it was idle
		err = s.readAll(requests, refs)
	}
	if err != nil {
		for _, q := range requests {
			q.err = translate(err)
		}
	}
	for _, q := range requests {
		q.done <- struct{}{}
	}
	clear(requests)
	*taken = requests
	return true
}

// readAll answers requests by one query. An error is that of every request.
func (s *Store) readAll(requests []*readRequest, refs *array) error {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	slices.SortFunc(requests, func(a, b *readRequest) int {
		switch {
		case a.ref < b.ref:
			return -1
		case a.ref > b.ref:
			return 1
		}
		return 0
	})
	refs.reset()
	for i, q := range requests {
		if i == 0 || q.ref != requests[i-1].ref {
			refs.int64(q.ref)
		}
	}
	conn, err := s.pool.Acquire(ctx)
	if err != nil {
		return err
	}
	defer conn.Release()
	const name = "kiln_read"
	if _, err := conn.Conn().Prepare(ctx, name, db.ReadResources); err != nil {
		return fmt.Errorf("prepare %s: %w", name, err)
	}
	rows := conn.Conn().PgConn().ExecPrepared(ctx, name, [][]byte{refs.param()}, []int16{pgx.BinaryFormatCode}, []int16{pgx.BinaryFormatCode})
	for rows.NextRow() {
		// ref, id, version, last_updated, method, body
		v := rows.Values()
		ref := int64(binary.BigEndian.Uint64(v[0]))
		i, ok := slices.BinarySearchFunc(requests, ref, func(q *readRequest, ref int64) int {
			switch {
			case q.ref < ref:
				return -1
			case q.ref > ref:
				return 1
			}
			return 0
		})
		if !ok {
			continue
		}
		body, err := copyBody(v[5])
		id := string(v[1])
		for ; i < len(requests) && requests[i].ref == ref; i++ {
			q := requests[i]
			q.id, q.err = id, err
			q.version = fhir.Version{
				VersionID: int(int32(binary.BigEndian.Uint32(v[2]))), LastUpdated: timestamp(v[3]),
				Method: fhir.Method(v[4][0]), Body: body,
			}
		}
	}
	_, err = rows.Close()
	return err
}

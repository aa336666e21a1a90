package store

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"kiln/gen/db"
	"kiln/server/fhir"
	"kiln/server/search/match"
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
	asked   *AppsQuestion // nil for none
	stopped bool
}

// maxRead is the most resources of one query; bodies may be large.
const maxRead = 64

type readRequest struct {
	ref     int64
	test    *match.TermTest // nil for no condition; a version without a body does not meet it
	version fhir.Version    // without type and id
	id      string          // "" when there is no current version
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
	return r.readIf(ctx, ref, nil)
}

// readIf is read under a condition; a version that does not meet it has no body.
func (r *reader) readIf(ctx context.Context, ref int64, test *match.TermTest) (fhir.Version, string, error) {
	q := readRequests.Get().(*readRequest)
	*q = readRequest{ref: ref, test: test, done: q.done}
	r.mu.Lock()
	if r.stopped {
		r.mu.Unlock()
		return fhir.Version{}, "", errStopped
	}
	r.waiting = append(r.waiting, q)
	r.wakeOne()
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

// wakeOne has a worker look; mu is held.
func (r *reader) wakeOne() {
	select {
	case r.wake <- struct{}{}:
	default: // every worker will look again before it rests
	}
}

func (r *reader) work(s *Store) {
	m := readMemory{refs: array{oid: oidInt8}, terms: array{oid: oidInt8}, bounds: array{oid: oidInt4}}
	for range r.wake {
		for r.round(s, &m) {
		}
	}
}

// readMemory is memory of a worker.
type readMemory struct {
	taken               []*readRequest
	refs, terms, bounds array
}

// round reads what waits, and returns false when nothing does.
func (r *reader) round(s *Store, m *readMemory) bool {
	if r.slots.acquire() {
		defer r.slots.release()
	}
	r.mu.Lock()
	n := min(len(r.waiting), maxRead)
	requests := append(m.taken[:0], r.waiting[:n]...)
	left := copy(r.waiting, r.waiting[n:])
	clear(r.waiting[left:])
	r.waiting = r.waiting[:left]
	asked := r.asked
	r.asked = nil
	r.mu.Unlock()
	if n == 0 && asked == nil {
		return false
	}
	free := 0 // those without a condition come first
	for i, q := range requests {
		if q.test == nil {
			requests[free], requests[i] = q, requests[free]
			free++
		}
	}
	for _, part := range []struct {
		requests []*readRequest
		read     func([]*readRequest, *AppsQuestion, *readMemory) error
	}{{requests[:free], s.readAll}, {requests[free:], s.readAllIf}} {
		if len(part.requests) == 0 && (asked == nil || n > 0) {
			continue
		}
		err := part.read(part.requests, asked, m)
		if err != nil && lost(err) { // of a connection that died while it was idle
			err = part.read(part.requests, asked, m)
		}
		if err != nil {
			for _, q := range part.requests {
				q.err = translate(err)
			}
		}
		if asked != nil {
			if err != nil {
				asked.err = translate(err)
			}
			close(asked.done)
			asked = nil
		}
	}
	for _, q := range requests {
		q.done <- struct{}{}
	}
	clear(requests)
	m.taken = requests
	return true
}

// readQuery runs a prepared statement, and with it asks which version the Apps have where
// asked is not nil: one way to the database and back.
func readQuery(ctx context.Context, conn *pgx.Conn, name, sql string, params [][]byte, asked *AppsQuestion, row func(values [][]byte)) error {
	if _, err := conn.Prepare(ctx, name, sql); err != nil {
		return fmt.Errorf("prepare %s: %w", name, err)
	}
	binaryFormat := []int16{pgx.BinaryFormatCode}
	if asked == nil {
		return eachRow(conn.PgConn().ExecPrepared(ctx, name, params, binaryFormat, binaryFormat), row)
	}
	const version = "kiln_apps_version"
	if _, err := conn.Prepare(ctx, version, db.AppsVersion); err != nil {
		return fmt.Errorf("prepare %s: %w", version, err)
	}
	p := conn.PgConn().StartPipeline(ctx)
	p.SendQueryPrepared(name, params, binaryFormat, binaryFormat)
	p.SendQueryPrepared(version, nil, nil, binaryFormat)
	err := p.Sync()
	for _, row := range []func([][]byte){row, asked.read} {
		var rows any
		if err == nil {
			rows, err = p.GetResults()
		}
		if err == nil {
			err = eachRow(rows.(*pgconn.ResultReader), row)
		}
	}
	return errors.Join(err, p.Close())
}

func eachRow(rows *pgconn.ResultReader, row func(values [][]byte)) error {
	for rows.NextRow() {
		row(rows.Values())
	}
	_, err := rows.Close()
	return err
}

// readAllIf answers requests with a condition by one query. An error is the error of
// every request.
func (s *Store) readAllIf(requests []*readRequest, asked *AppsQuestion, m *readMemory) error {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	m.refs.reset()
	m.terms.reset()
	m.bounds.reset()
	list := func(terms []int64) {
		m.bounds.int32(int32(m.terms.n + 1))
		for _, t := range terms {
			m.terms.int64(t)
		}
		m.bounds.int32(int32(m.terms.n))
	}
	for _, q := range requests {
		m.refs.int64(q.ref)
		for _, any := range q.test.Any {
			if any != nil {
				list(any)
				continue
			}
			m.bounds.int32(0)
			m.bounds.int32(-1)
		}
		list(q.test.None)
	}
	conn, err := s.pool.Acquire(ctx)
	if err != nil {
		return err
	}
	defer conn.Release()
	params := [][]byte{m.bounds.param(), m.terms.param(), m.refs.param()}
	return readQuery(ctx, conn.Conn(), "kiln_read_if", db.ReadResourcesIf, params, asked, func(v [][]byte) {
		// n, id, version, last_updated, method, body
		n := int(binary.BigEndian.Uint32(v[0]))
		if n < 1 || n > len(requests) {
			return
		}
		q := requests[n-1]
		q.id = string(v[1])
		q.version = fhir.Version{
			VersionID: int(int32(binary.BigEndian.Uint32(v[2]))), LastUpdated: timestamp(v[3]), Method: fhir.Method(v[4][0]),
		}
		if v[5] != nil {
			q.version.Body, q.err = copyBody(v[5])
		}
	})
}

// readAll answers requests by one query. An error is the error of every request.
func (s *Store) readAll(requests []*readRequest, asked *AppsQuestion, m *readMemory) error {
	refs := &m.refs
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
	return readQuery(ctx, conn.Conn(), "kiln_read", db.ReadResources, [][]byte{refs.param()}, asked, func(v [][]byte) {
		// ref, id, version, last_updated, method, body
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
			return
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
	})
}

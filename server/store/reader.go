package store

import (
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"runtime"
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
	replica *replica // that answers; nil for the primary

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
	ref         int64
	conditional bool           // on test; a version that does not meet it has no body
	test        match.TermTest // not changed
	started     string         // of the postmaster of a standby
	version     fhir.Version   // without type and id
	id          string         // "" when there is no current version
	at          Position       // of a standby, behind the version
	err         error
	done        chan struct{} // gets one value
}

var readRequests = sync.Pool{New: func() any { return &readRequest{done: make(chan struct{}, 1)} }}

// readWorkers is the number of workers for a pool of so many connections.
func readWorkers(maxConns int) int { return max(2, min(maxConns/2, runtime.NumCPU()+1)) }

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

// readVersion returns the current version with the ref, and the id that it has; "" when there is
// none. test is a condition, nil for none; a version that does not meet it has no body.
func (r *reader) readVersion(ctx context.Context, ref int64, test *match.TermTest) (fhir.Version, string, error) {
	want := readRequest{ref: ref}
	if test != nil {
		want.conditional, want.test = true, *test
	}
	q, err := r.ask(ctx, want)
	return q.version, q.id, err
}

// ask returns a request with its answer.
func (r *reader) ask(ctx context.Context, want readRequest) (readRequest, error) {
	q := readRequests.Get().(*readRequest)
	want.done = q.done
	*q = want
	r.mu.Lock()
	if r.stopped {
		r.mu.Unlock()
		return want, errStopped
	}
	r.waiting = append(r.waiting, q)
	r.wakeOne()
	r.mu.Unlock()
	select {
	case <-q.done:
		answered := *q
		readRequests.Put(q)
		return answered, answered.err
	case <-ctx.Done():
		return want, translateError(ctx.Err()) // the request belongs to a worker
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
	m := readMemory{refs: array{oid: oidInt8}}
	for i := range m.lists {
		m.lists[i].oid = oidInt8
	}
	for range r.wake {
		for r.round(s, &m) {
		}
	}
}

// readMemory is memory of a worker.
type readMemory struct {
	taken, now, distinct []*readRequest
	refs                 array
	lists                [3]array // of terms: TermTest.Any and TermTest.None
	widths               [3][4]byte
	params               [][]byte
}

// round reads what waits, and returns false when nothing does.
func (r *reader) round(s *Store, m *readMemory) bool {
	if r.slots.acquire() {
		defer r.slots.release()
	}
	r.mu.Lock()
	n := min(len(r.waiting), maxRead)
	m.taken = append(m.taken[:0], r.waiting[:n]...)
	left := copy(r.waiting, r.waiting[n:])
	clear(r.waiting[left:])
	r.waiting = r.waiting[:left]
	asked := r.asked
	r.asked = nil
	r.mu.Unlock()
	slices.SortFunc(m.taken, func(a, b *readRequest) int { return cmp.Or(a.kind()-b.kind(), cmp.Compare(a.ref, b.ref)) })
	for rest := m.taken; len(rest) > 0 || asked != nil; {
		now, later := m.now[:0], rest[:0]
		for _, q := range rest {
			if len(now) == 0 || now[len(now)-1].sharesQuery(q) {
				now = append(now, q)
			} else {
				later = append(later, q)
			}
		}
		err := r.readAll(s, now, asked, m)
		if err != nil && isConnectionLost(err) { // of a connection that died while it was idle
			err = r.readAll(s, now, asked, m)
		}
		for _, q := range now {
			if err != nil {
				q.err = translateError(err)
			}
			q.done <- struct{}{}
		}
		if asked != nil {
			n++
			if err != nil {
				asked.err = translateError(err)
			}
			close(asked.done)
			asked = nil
		}
		m.now, rest = now, later
	}
	clear(m.taken)
	clear(m.now)
	clear(m.distinct)
	return n > 0
}

// kind distinguishes queries by their arguments: only refs, or also some of the lists of a
// condition.
func (q *readRequest) kind() int {
	kind := 0
	if q.conditional {
		kind = 1
		for i, any := range q.test.Any {
			if any != nil {
				kind += 1 << i
			}
		}
		if q.test.None != nil {
			kind += 1 << len(q.test.Any)
		}
	}
	return kind
}

// oneList reports whether a condition asks for a term of one list and for nothing else.
func (q *readRequest) oneList() bool {
	return q.test.Any[0] != nil && q.test.Any[1] == nil && q.test.None == nil
}

// sharesQuery reports whether one query can read for q and for next, which comes after it in
// order: a query asks one condition of a resource.
func (q *readRequest) sharesQuery(next *readRequest) bool {
	return q.kind() == next.kind() && (q.ref != next.ref || slices.Equal(q.test.Any[0], next.test.Any[0]) &&
		slices.Equal(q.test.Any[1], next.test.Any[1]) && slices.Equal(q.test.None, next.test.None))
}

// preparedQuery is a prepared statement and what reads its rows.
type preparedQuery struct {
	name, sql string
	params    [][]byte
	row       func(values [][]byte)
}

// runQueries runs prepared statements: one way to the database and back, and one snapshot where that is the default of the
// connection.
func runQueries(ctx context.Context, conn *pgx.Conn, queries ...preparedQuery) error {
	for _, q := range queries {
		if _, err := conn.Prepare(ctx, q.name, q.sql); err != nil {
			return fmt.Errorf("prepare %s: %w", q.name, err)
		}
	}
	binaryFormat := []int16{pgx.BinaryFormatCode}
	if len(queries) == 1 {
		q := queries[0]
		return eachRow(conn.PgConn().ExecPrepared(ctx, q.name, q.params, binaryFormat, binaryFormat), q.row)
	}
	p := conn.PgConn().StartPipeline(ctx)
	for _, q := range queries {
		p.SendQueryPrepared(q.name, q.params, binaryFormat, binaryFormat)
	}
	err := p.Sync()
	for _, q := range queries {
		var rows any
		if err == nil {
			rows, err = p.GetResults()
		}
		if err == nil {
			err = eachRow(rows.(*pgconn.ResultReader), q.row)
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

// readAll answers requests that share a query, in the order of their refs, and the question
// for the version of the Apps. An error is the error of every request.
func (r *reader) readAll(s *Store, requests []*readRequest, asked *AppsQuestion, m *readMemory) error {
	m.refs.reset()
	m.distinct = m.distinct[:0]
	for i, q := range requests {
		if i == 0 || q.ref != requests[i-1].ref {
			m.refs.int64(q.ref)
			m.distinct = append(m.distinct, q)
		}
	}
	name, sql := "kiln_read", db.ReadResources
	m.params = append(m.params[:0], m.refs.param())
	switch {
	case len(requests) == 0 || !requests[0].conditional:
	case requests[0].oneList():
		name, sql = "kiln_read_having", db.ReadResourcesHaving
		m.tests(1)
	default:
		name, sql = "kiln_read_if", db.ReadResourcesIf
		m.tests(len(m.lists))
	}
	query := preparedQuery{name, sql, m.params, func(v [][]byte) {
		// ref, id, version, last_updated, method, body
		ref := int64(binary.BigEndian.Uint64(v[0]))
		i, ok := slices.BinarySearchFunc(requests, ref, func(q *readRequest, ref int64) int { return cmp.Compare(q.ref, ref) })
		if !ok {
			return
		}
		var body []byte
		var err error
		if v[5] != nil {
			body, err = copyBody(v[5])
		}
		id := string(v[1])
		for ; i < len(requests) && requests[i].ref == ref; i++ {
			q := requests[i]
			q.id, q.err = id, err
			q.version = fhir.Version{
				VersionID: int(int32(binary.BigEndian.Uint32(v[2]))), LastUpdated: parseTimestamp(v[3]),
				Method: fhir.Method(v[4][0]), Body: body,
			}
		}
	}}
	if r.replica != nil {
		return r.replica.runShared(requests, query)
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	conn, err := s.pool.Acquire(ctx)
	if err != nil {
		return err
	}
	defer conn.Release()
	if asked == nil {
		return runQueries(ctx, conn.Conn(), query)
	}
	return runQueries(ctx, conn.Conn(), query, preparedQuery{name: "kiln_apps_version", sql: db.AppsVersion, row: asked.read})
}

// tests adds the parameters of the conditions of m.distinct: the first so many lists and
// their widths.
func (m *readMemory) tests(lists int) {
	for i := range lists {
		list, width := &m.lists[i], 0
		of := func(q *readRequest) []int64 { return [3][]int64{q.test.Any[0], q.test.Any[1], q.test.None}[i] }
		for _, q := range m.distinct {
			if width = max(width, len(of(q))); of(q) != nil {
				width = max(width, 1) // an empty list holds for nothing
			}
		}
		list.reset()
		for _, q := range m.distinct {
			for _, t := range of(q) {
				list.int64(t)
			}
			for range width - len(of(q)) {
				list.null()
			}
		}
		binary.BigEndian.PutUint32(m.widths[i][:], uint32(width))
		m.params = append(m.params, list.param(), m.widths[i][:])
	}
}

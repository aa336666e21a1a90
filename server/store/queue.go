package store

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"kiln/gen/db"
	"kiln/server/fhir"
)

// queue makes one transaction of the short writes that wait at the same time.
// A few workers each take all that waits: the busier the server, the more writes
// share a commit. Every commit costs its statements and its flush, so only as many
// workers write at a time as the machine has processors for; the others come in
// when those have to wait, for a lock or a slow disk.
type queue struct {
	store *Store
	wake  chan struct{}
	slots workerSlots
	done  sync.WaitGroup

	mu      sync.Mutex
	waiting []*unit
	// busy are the resources that a worker is writing. Another write of one of
	// them is left waiting, rather than have a worker and all it has taken wait
	// for the lock.
	busy    map[int64]struct{}
	stopped bool
}

const (
	maxShared = 32  // writes of a unit that shares a transaction
	maxTaken  = 256 // writes of a shared transaction
)

// unit is writes that are done together or not at all.
type unit struct {
	entries  []entry
	tell     func() ([]byte, error) // returns the audit events of the writes, nil for none
	state    atomic.Int32
	err      error
	position Position // behind the commit; the zero Position where nobody asked
	done     chan struct{}
}

const (
	unitWaiting int32 = iota
	unitTaken
	unitAbandoned
)

var errStopped = unavailableError("the server is stopping")

func (q *queue) start(s *Store, workers int) {
	q.store = s
	q.wake = make(chan struct{}, workers)
	q.slots = newWorkerSlots(workers)
	q.busy = make(map[int64]struct{})
	for range workers {
		q.done.Go(q.work)
	}
}

// stop lets the workers finish what waits.
func (q *queue) stop() {
	q.mu.Lock()
	if !q.stopped {
		q.stopped = true
		close(q.wake)
	}
	q.mu.Unlock()
	q.done.Wait()
}

// write waits until ws are committed. When ctx ends before a worker has taken
// them nothing is written; afterwards the outcome is waited for.
func (q *queue) write(ctx context.Context, ws []*Write) error {
	entries, err := q.store.prepareEntries(ctx, ws)
	if err != nil {
		return err
	}
	u := &unit{entries: entries, done: make(chan struct{})}
	u.tell = func() ([]byte, error) {
		return eventsOf(ctx, ws, entries, func(i int) []byte {
			if ws[i].Resource == nil {
				return nil
			}
			return ws[i].Resource.Header().Raw
		})
	}
	if !slices.ContainsFunc(ws, func(w *Write) bool { return w.Method == fhir.DELETE }) {
		events, err := u.tell()
		if err != nil {
			return err
		}
		u.tell = func() ([]byte, error) { return events, nil }
	}
	for i := range entries {
		entries[i].unit = u
		for j := range i {
			if entries[i].ref == entries[j].ref {
				return &WriteError{i, writtenTwice(&entries[i], j)}
			}
		}
	}
	q.mu.Lock()
	if q.stopped {
		q.mu.Unlock()
		return errStopped
	}
	q.waiting = append(q.waiting, u)
	select {
	case q.wake <- struct{}{}:
	default: // every worker will look again before it rests
	}
	q.mu.Unlock()
	select {
	case <-u.done:
	case <-ctx.Done():
		if u.state.CompareAndSwap(unitWaiting, unitAbandoned) {
			return translateError(ctx.Err())
		}
		<-u.done
	}
	noteCommit(ctx, u.position)
	return u.err
}

func (q *queue) work() {
	for range q.wake {
		for q.round() {
		}
	}
}

// round writes what waits, and returns false when nothing does.
func (q *queue) round() bool {
	if q.slots.acquire() {
		defer q.slots.release()
	}
	taken := q.take()
	if len(taken) == 0 {
		return false
	}
	q.store.writeUnits(taken)
	q.give(taken)
	return true
}

// take returns waiting units that touch different resources.
func (q *queue) take() []*unit {
	q.mu.Lock()
	defer q.mu.Unlock()
	var taken []*unit
	n := 0
	rest := q.waiting[:0]
	for i, u := range q.waiting {
		if n >= maxTaken {
			rest = append(rest, q.waiting[i:]...)
			break
		}
		if q.anyBusy(u) {
			rest = append(rest, u)
			continue
		}
		if !u.state.CompareAndSwap(unitWaiting, unitTaken) {
			continue
		}
		for j := range u.entries {
			q.busy[u.entries[j].ref] = struct{}{}
		}
		n += len(u.entries)
		taken = append(taken, u)
	}
	clear(q.waiting[len(rest):])
	q.waiting = rest
	return taken
}

func (q *queue) anyBusy(u *unit) bool {
	for i := range u.entries {
		if _, ok := q.busy[u.entries[i].ref]; ok {
			return true
		}
	}
	return false
}

// give answers the units and frees their resources.
func (q *queue) give(units []*unit) {
	q.mu.Lock()
	for _, u := range units {
		for i := range u.entries {
			delete(q.busy, u.entries[i].ref)
		}
	}
	q.mu.Unlock()
	for _, u := range units {
		close(u.done)
	}
}

// writeUnits writes units in one transaction, and each alone when that fails:
// then only those fail that must.
func (s *Store) writeUnits(units []*unit) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	err := s.resolveLostCommit(units, s.tryUnits(ctx, units))
	if err == nil {
		return
	}
	if !settled(err) || len(units) == 1 && !isRetryable(err) {
		for _, u := range units {
			if u.err == nil || !errors.Is(err, errUnreplicated) { // else it was left out
				u.err = translateError(err)
			}
		}
		return
	}
	for _, u := range units {
		for attempt := 1; ; attempt++ {
			u.err = nil
			err := s.resolveLostCommit([]*unit{u}, s.tryUnits(ctx, []*unit{u}))
			if err == nil {
				break
			}
			u.err = translateError(err)
			if attempt == maxAttempts || !isRetryable(err) || pauseBeforeRetry(ctx, attempt) != nil {
				break
			}
			if isOutdated(err) {
				if err := s.renewUnit(ctx, u); err != nil {
					u.err = translateError(err)
					break
				}
			}
		}
	}
}

// errNotCommitted is of a transaction whose commit broke off, and which is known not to be committed.
var errNotCommitted = unavailableError("the database cannot be reached")

// resolveLostCommit returns the error of units after that of their transaction: where the answer to the commit
// did not come, it looks for their versions.
func (s *Store) resolveLostCommit(units []*unit, err error) error {
	var lost *lostCommitError
	if !errors.As(err, &lost) {
		return err
	}
	var made *entry
	for _, u := range units {
		for i := range u.entries {
			if e := &u.entries[i]; u.err == nil && e.action != nothing {
				made = e
			}
		}
	}
	if made == nil {
		return errors.Join(errNotCommitted, err) // nothing was to be stored
	}
	committed, known := s.findCommit(lost, made.made())
	switch {
	case !known:
		return errUnknownCommit.With(err)
	case !committed:
		return errors.Join(errNotCommitted, err)
	}
	for _, u := range units {
		for i := range u.entries {
			if u.err == nil {
				u.entries[i].finishWrite()
			}
		}
	}
	s.announceChange()
	return nil
}

// settled reports whether err is known to have left nothing behind: PostgreSQL
// refused something. A connection that ended may have ended after the commit.
func settled(err error) bool {
	if isRetryable(err) {
		return true
	}
	var pg *pgconn.PgError
	return errors.As(err, &pg) && !strings.HasPrefix(pg.Code, "57P") && !strings.HasPrefix(pg.Code, "08")
}

// tryUnits writes units in one transaction. A unit that breaks a precondition
// gets its err and is left out; an error that is returned left nothing written.
func (s *Store) tryUnits(ctx context.Context, units []*unit) (err error) {
	conn, err := s.pool.Acquire(ctx)
	if err != nil {
		return err
	}
	defer conn.Release()
	var entries []*entry
	creates := true
	for _, u := range units {
		for i := range u.entries {
			entries = append(entries, &u.entries[i])
			creates = creates && u.entries[i].w.Method == fhir.POST
		}
	}
	if !creates {
		if _, err := conn.Exec(ctx, "BEGIN"); err != nil {
			return err
		}
		defer func() {
			if err != nil && !conn.Conn().IsClosed() {
				if _, rollback := conn.Exec(ctx, "ROLLBACK"); rollback != nil {
					err = errors.Join(err, rollback)
				}
			}
		}()
		q := db.New(conn)
		fail := func(e *entry, err error) error {
			if e.unit.err == nil {
				e.unit.err = &WriteError{e.index, translateError(err)}
			}
			return nil
		}
		if err := s.resolveEntries(ctx, q, entries, s.commitClock(), fail); err != nil {
			return err
		}
	} else if floor := s.momentFloor(); slices.ContainsFunc(entries, func(e *entry) bool { return !e.lastUpdated.After(floor) }) {
		stampCreates(entries, s.commitClock().UTC().Truncate(time.Microsecond))
	}
	return s.commitEntries(ctx, conn.Conn(), entries, !creates)
}

// commitEntries writes the entries of units that have not failed, and commits.
func (s *Store) commitEntries(ctx context.Context, conn *pgx.Conn, entries []*entry, begun bool) (err error) {
	g := groups.Get().(*group)
	defer g.release()
	g.reset()
	sortEntries(entries)
	claims := false
	written := s.searcher.BeginWriting()
	defer func() { written.EndWriting(err == nil) }()
	row := written.BeginRow(len(entries))
	for _, e := range entries {
		if e.unit.err == nil {
			g.addEntry(e)
			noteWrite(row, e)
			claims = claims || e.action == claimed
			if e.index == 0 {
				events, err := e.unit.tell()
				if err != nil {
					return err
				}
				g.addEvents(events)
			}
		}
	}
	row.KeepRow()
	terms := g.terms()
	var position Position
	if !claims {
		var after []preparedQuery
		if s.HasReplicas() {
			after = append(after, s.replicas.positionQuery(func(p Position) { position = p }))
		}
		err = s.commit(ctx, conn, func(ctx context.Context) error { return g.sendGroup(ctx, conn, begun, true, after...) })
	} else {
		err = g.sendGroup(ctx, conn, begun, false)
	}
	if err != nil && !errors.Is(err, errUnreplicated) {
		return fmt.Errorf("write: %w", err)
	}
	if claims {
		alive := entries[:0:0]
		for _, e := range entries {
			if e.unit.err == nil {
				alive = append(alive, e)
			}
		}
		if err := lostRace(ctx, db.New(conn), alive); err != nil {
			return err
		}
		err = s.commit(ctx, conn, func(ctx context.Context) error {
			_, err := conn.Exec(ctx, "COMMIT")
			return err
		})
		if err != nil && !errors.Is(err, errUnreplicated) {
			return err
		}
	}
	for _, e := range entries {
		if e.unit.err == nil {
			e.finishWrite()
			e.unit.position = position
		}
	}
	s.flush.add(terms)
	s.announceChange()
	return err
}

package store

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"kiln/gen/db"
	"kiln/server/fhir"
	"kiln/server/outcome"
	"kiln/server/search/cache"
)

// Write is one change of one resource.
type Write struct {
	// Method POST creates with an id that the server has made, which nothing else
	// can have; PUT updates or creates, PATCH updates, DELETE deletes.
	Method           fhir.Method
	ResourceType, ID string
	Body             *fhir.Body  // nil for DELETE
	Index            *fhir.Index // finished; nil for DELETE
	// Resource is the source of Index, so that Store.Indexer can make it again if search
	// parameters change meanwhile; nil for DELETE and with Modify.
	Resource fhir.Resource
	// IfMatch are the versions of which one must be current, none for any; one below 0
	// never is. Another one is a conflict, an absent resource a failed precondition
	// (412).
	IfMatch []int
	// IfExists is `If-Match: *`: the resource must exist, else 412.
	IfExists bool
	// IfNoneMatch is `If-None-Match: *`: the resource must not exist, else 412.
	IfNoneMatch bool
	// NotVersions are the entity tags of an If-None-Match: none of these versions
	// may be current, else 412. An absent resource fulfils it.
	NotVersions []int
	// UnmodifiedSince is a time in seconds that the current version must not be younger
	// than, else 412. An absent resource fulfils it, and the zero time asks for nothing.
	UnmodifiedSince time.Time
	// MustExist refuses to create: not-found or deleted.
	MustExist bool
	// Modify gives body and index from the current version, instead of Body and
	// Index. It runs while the resource is locked, and again when the
	// transaction is.
	Modify func(current fhir.Version) (*fhir.Body, *fhir.Index, error)
	// UnlessEqual reports whether a PUT changes nothing of the current version: then it makes no
	// version, and Result is the current one. nil always makes one.
	UnlessEqual func(current fhir.Version) bool
	// Unlogged leaves a POST out of the change log: it raises no event. Its version is
	// stored, and read again, with the method fhir.Unlogged.
	Unlogged bool

	// Guard lets the write pass, or not; nil lets everything pass.
	Guard Guard
	// Note is for the Hook of the resource type: from Before to InTx.
	Note any

	// Result is the version made. DELETE of a deleted resource has the earlier deletion
	// here, DELETE of a resource that never existed a VersionID of 0.
	Result  fhir.Version
	Created bool // there was no current version before
	Equal   bool // no version was made; see UnlessEqual
}

// Guard decides which resources a writer may see and change. It is asked while the resource
// is locked, and again while the transaction is.
type Guard interface {
	// Sees reports whether the writer can know of a version that has content. A
	// resource whose current version, or whose last one before its deletion, is not
	// seen is absent to the writer.
	Sees(v fhir.Version) (bool, error)
	// Hidden is the error of a write that would create over a hidden resource.
	Hidden() error
	// May fails where the writer may not make of current the version that x is the
	// index of. current is nil where the resource id is created, x for a deletion.
	May(current *fhir.Version, id string, x *fhir.Index) error
}

// WriteError is a failed write among several.
type WriteError struct {
	Index int // of the write
	Err   error
}

func (e *WriteError) Error() string { return e.Err.Error() }

// Unwrap returns the reason.
func (e *WriteError) Unwrap() error { return e.Err }

// Write makes one change, durable on return. Changes that come at the same time
// share a transaction, and each succeeds or fails by itself.
func (s *Store) Write(ctx context.Context, w *Write) error {
	err := s.WriteAll(ctx, []*Write{w})
	if e, ok := err.(*WriteError); ok {
		return e.Err
	}
	return err
}

// WriteAll makes several changes of different resources, all or none, durable on
// return. It is InTx with one Tx.Write, but shares its transaction with others
// when it is short. The first change that fails is a *WriteError.
func (s *Store) WriteAll(ctx context.Context, ws []*Write) error {
	if len(ws) == 0 {
		return nil
	}
	if len(ws) <= maxShared && !modifies(ws) && !s.hasHooks(ws) && !isFollowed(ctx) {
		return s.queue.write(ctx, ws)
	}
	return s.InTx(ctx, func(t *Tx) error { return t.Write(ctx, ws) })
}

// modifies reports whether a write runs a function under its lock: neighbours
// should not wait for that.
func modifies(ws []*Write) bool {
	for _, w := range ws {
		if w.Modify != nil {
			return true
		}
	}
	return false
}

// Tx is one transaction. It is not safe for concurrent use.
type Tx struct {
	store *Store
	tx    pgx.Tx
	terms int // written so far
	wrote bool
	made  []madeVersion // one of the versions of each Write
	// parametersVersion is the version that the transaction has raised the search
	// parameters to, 0 when it has not.
	parametersVersion int64
	renew             bool            // make the indexes of writes anew
	hooks             map[string]bool // to tell of the commit
	written           *cache.Writing
}

// CommitEarly lets the transaction end before it is durable: a crash of PostgreSQL may undo
// it, whole, up to a second later.
func (t *Tx) CommitEarly(ctx context.Context) error {
	_, err := t.tx.Exec(ctx, "SET LOCAL synchronous_commit = off")
	return err
}

// EndWhenIdle lets PostgreSQL end the transaction if its client says nothing for so long.
func (t *Tx) EndWhenIdle(ctx context.Context, d time.Duration) error {
	_, err := t.tx.Exec(ctx, fmt.Sprintf("SET LOCAL idle_in_transaction_session_timeout = %d", d.Milliseconds()))
	return err
}

const maxAttempts = 10

// InTx runs fn in one READ COMMITTED transaction and commits when fn returns
// nil. After a serialization failure, a deadlock or a lost race it runs fn
// again, so fn must have no effect outside the transaction that it cannot
// repeat.
func (s *Store) InTx(ctx context.Context, fn func(*Tx) error) error {
	renew := false
	for attempt := 1; ; attempt++ {
		epoch := s.Epoch()
		t := Tx{store: s, renew: renew, written: s.searcher.BeginWriting()}
		err := s.runTransaction(ctx, func(tx pgx.Tx) error {
			t.tx = tx
			return fn(&t)
		})
		var lost *lostCommitError
		if errors.As(err, &lost) {
			if len(t.made) == 0 {
				err = errUnknownCommit.With(err)
			} else if committed, known := s.findCommit(lost, t.made[0]); committed {
				err = nil
			} else if known {
				err = errors.Join(errNotCommitted, err)
			} else {
				err = errUnknownCommit.With(err)
			}
		}
		stored := err == nil || errors.Is(err, errUnreplicated)
		t.written.EndWriting(stored && lost == nil)
		if stored {
			noteCommit(ctx, Position{})
			s.flush.add(t.terms)
			if t.wrote {
				s.announceChange()
			}
			t.runCommitted(ctx)
		}
		if err == nil || attempt == maxAttempts || !isRetryable(err) || ctx.Err() != nil {
			return translateError(err)
		}
		if isOutdated(err) {
			if err := s.refreshIndexer(ctx, epoch); err != nil {
				return translateError(err)
			}
			renew = true
		}
		if err := pauseBeforeRetry(ctx, attempt); err != nil {
			return translateError(err)
		}
	}
}

// runTransaction runs fn in one transaction. Some connections are kept out of it: what fn
// asks of the Store itself, rather than of its transaction, needs one, and were
// all taken by transactions that wait for one, none would ever be free.
func (s *Store) runTransaction(ctx context.Context, fn func(pgx.Tx) error) error {
	select {
	case s.transactions <- struct{}{}:
		defer func() { <-s.transactions }()
	case <-ctx.Done():
		return ctx.Err()
	}
	conn, err := s.pool.Acquire(ctx)
	if err != nil {
		return err
	}
	defer conn.Release()
	tx, err := conn.Begin(ctx)
	if err != nil {
		return err
	}
	defer func() { // after a panic, too; nothing remains to be done after a commit
		if rollback := tx.Rollback(ctx); rollback != nil && !errors.Is(rollback, pgx.ErrTxClosed) {
			conn.Conn().Close(ctx)
		}
	}()
	if err := fn(tx); err != nil {
		return err
	}
	return s.commit(ctx, conn.Conn(), tx.Commit)
}

// pauseBeforeRetry waits a random time, longer with every attempt, so that colliding transactions do
// not collide again.
func pauseBeforeRetry(ctx context.Context, attempt int) error {
	t := time.NewTimer(rand.N(time.Duration(attempt) * 5 * time.Millisecond))
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// Write makes several changes, of different resources, in a handful of
// statements. The first one that fails is a *WriteError, after which the
// transaction can only be given up.
func (t *Tx) Write(ctx context.Context, ws []*Write) error {
	return t.write(ctx, ws, func(i int, err error) error { return &WriteError{i, err} })
}

// WriteEach is Write, but leaves out a write that a precondition or the guard refuses, and calls fail
// with its number and the reason. It fails like Write for other reasons.
func (t *Tx) WriteEach(ctx context.Context, ws []*Write, fail func(i int, err error)) error {
	return t.write(ctx, ws, func(i int, err error) error {
		fail(i, err)
		return nil
	})
}

// write is Write; refused returns nil to go on without a write that is refused.
func (t *Tx) write(ctx context.Context, ws []*Write, refused func(i int, err error) error) error {
	seen := make(map[int64]int, len(ws))
	if t.renew {
		if err := t.store.renewIndexes(ctx, ws...); err != nil {
			return err
		}
	}
	if len(t.store.hooksByType()) > 0 {
		if err := t.prepareHooks(ctx, ws); err != nil {
			return err
		}
	}
	entries, err := t.store.prepareEntries(ctx, ws)
	if err != nil {
		return err
	}
	sorted := make([]*entry, len(entries))
	for i := range entries {
		e := &entries[i]
		if first, ok := seen[e.ref]; ok {
			return &WriteError{i, writtenTwice(e, first)}
		}
		seen[e.ref] = i
		sorted[i] = e
	}
	q := db.New(t.tx)
	fail := func(e *entry, err error) error {
		e.action = nothing
		return refused(e.index, translateError(err))
	}
	if err := t.store.resolveEntries(ctx, q, sorted, t.store.commitClock(), fail); err != nil {
		return translateError(err)
	}
	// Every writer inserts in the same order, as it locks in the same order.
	sortEntries(sorted)
	g := groups.Get().(*group)
	defer g.release()
	g.reset()
	for _, e := range sorted {
		g.addEntry(e)
	}
	events, err := eventsOf(ctx, ws, entries, func(i int) []byte { return entries[i].body })
	if err != nil {
		return err
	}
	g.addEvents(events)
	t.terms += g.terms()
	t.wrote = true
	if t.parametersVersion != 0 {
		if err := t.checkOwn(g); err != nil {
			return err
		}
	}
	if err := g.sendGroup(ctx, t.tx.Conn(), true, false); err != nil {
		return translateError(fmt.Errorf("write: %w", err))
	}
	if err := lostRace(ctx, q, sorted); err != nil {
		return translateError(err)
	}
	row := t.written.BeginRow(len(sorted))
	for _, e := range sorted {
		e.finishWrite()
		noteWrite(row, e)
	}
	if i := slices.IndexFunc(sorted, func(e *entry) bool { return e.action != nothing }); i >= 0 {
		t.made = append(t.made, sorted[i].made())
	}
	row.KeepRow()
	if err := t.runHooks(ctx, sorted); err != nil {
		return err
	}
	return t.followWrites(ctx, ws)
}

func writtenTwice(e *entry, first int) error {
	return outcome.Invalid("%s/%s is written twice, by entries %d and %d", e.w.ResourceType, e.w.ID, first, e.index)
}

// Conn is the transaction itself, for parts that keep tables of their own beside the
// resources.
func (t *Tx) Conn() pgx.Tx { return t.tx }

// Lock takes transaction locks on arbitrary numbers, in ascending order, and
// waits for them. Call it once, first: then transactions with several locks
// cannot wait for each other in a circle.
func (t *Tx) Lock(ctx context.Context, keys ...int64) error {
	return translateError(db.New(t.tx).Lock(ctx, keys))
}

package store

import (
	"context"
	"errors"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"kiln/server/outcome"
)

// lostCommitError is of a commit whose answer did not come: the transaction may be committed or not.
type lostCommitError struct {
	epoch   EpochID   // of the PostgreSQL that was asked
	backend int32     // its process
	until   time.Time // the request is to be answered by then
	err     error
}

func (e *lostCommitError) Error() string { return "commit: " + e.err.Error() }

func (e *lostCommitError) Unwrap() error { return e.err }

// errUnreplicated is of a commit that ended before a synchronous standby had confirmed it. It is stored, and a failover
// may lose it.
var errUnreplicated = outcome.New(outcome.CodeTimeout, "the write is on the primary alone: no synchronous standby has confirmed it in time, and a failover may lose it")

// errUnknownCommit is what a client is told of a lostCommitError that nobody could resolve.
var errUnknownCommit = outcome.New(outcome.CodeTimeout, "the connection to the database broke while the write was committed: it may be stored or not")

// Keys of the CustomData of a connection: a mark that errUnreplicated is due, and the number of the process.
const (
	unreplicated = "unreplicated"
	backendKey   = "backend"
)

// noteNotice marks a connection whose commit did not wait for its standby: PostgreSQL reports success with a warning. The
// text of the warning depends on lc_messages, and all warnings have its code. The routine is unmistakable.
func noteNotice(conn *pgconn.PgConn, n *pgconn.Notice) {
	if n.Routine == "SyncRepWaitForLSN" {
		conn.CustomData()[unreplicated] = true
	}
}

// commit runs the statements that end a transaction on a connection, which fail with a *lostCommitError where
// the answer did not come, and with errUnreplicated where the standby did not confirm. A commit waits for its standby at
// most s.timeout.
func (s *Store) commit(ctx context.Context, conn *pgx.Conn, do func(ctx context.Context) error) error {
	data := conn.PgConn().CustomData()
	delete(data, unreplicated)
	backend, _ := data[backendKey].(int32)
	until := time.Now().Add(s.timeout * 9 / 10)
	ended := make(chan struct{})
	waiting := time.AfterFunc(s.timeout, func() { s.endStandbyWait(backend, ended) })
	err := do(ctx)
	close(ended)
	waiting.Stop()
	switch {
	case err == nil && data[unreplicated] != nil:
		return errUnreplicated
	case err == nil || settled(err) || errors.Is(err, pgx.ErrTxCommitRollback):
		return err
	}
	epoch, _ := data[epochKey].(EpochID)
	return &lostCommitError{epoch: epoch, backend: backend, until: until, err: err}
}

// endStandbyWait ends the wait of a backend for a synchronous standby, whenever it begins before ended is closed. The
// transaction is committed then.
func (s *Store) endStandbyWait(backend int32, ended <-chan struct{}) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	for {
		select {
		case <-ended:
			return
		default:
		}
		_, err := s.side.Exec(ctx, "SELECT pg_cancel_backend(a.pid) FROM pg_stat_activity a WHERE a.pid = $1 AND a.wait_event = 'SyncRep'", backend)
		if err != nil {
			s.log.Warn("end the wait for a synchronous standby", "error", err)
		}
		if !SleepFor(ctx, signEvery) {
			return
		}
	}
}

// madeVersion identifies a version that a transaction has made.
type madeVersion struct {
	ref         int64
	version     int
	lastUpdated time.Time
}

func (e *entry) made() madeVersion { return madeVersion{e.ref, e.version, e.lastUpdated} }

// lookAgain is the time between two looks for a version.
const lookAgain = 100 * time.Millisecond

// findCommit looks whether the transaction of a commit that broke off is committed, by one of its versions. It waits for
// a primary as long as the request may take; known is false where it could not find out.
func (s *Store) findCommit(lost *lostCommitError, v madeVersion) (committed, known bool) {
	ctx, cancel := context.WithDeadline(context.Background(), lost.until)
	defer cancel()
	for {
		committed, known, err := s.lookForVersion(ctx, lost, v)
		if known && err == nil {
			return committed, true
		}
		if !SleepFor(ctx, lookAgain) {
			return false, false
		}
	}
}

func (s *Store) lookForVersion(ctx context.Context, lost *lostCommitError, v madeVersion) (committed, known bool, err error) {
	conn, err := s.pool.Acquire(ctx)
	if err != nil {
		return false, false, err
	}
	defer conn.Release()
	if epoch, _ := conn.Conn().PgConn().CustomData()[epochKey].(EpochID); epoch == lost.epoch {
		// The same primary: the backend may still be about to commit, and to wait for a standby.
		var works bool
		if err := conn.QueryRow(ctx, "SELECT EXISTS (SELECT FROM pg_stat_activity a WHERE a.pid = $1)", lost.backend).Scan(&works); err != nil || works {
			return false, false, err
		}
	}
	err = conn.QueryRow(ctx, `SELECT EXISTS (SELECT FROM resource r WHERE r.ref = $1 AND r.shard = ($1 & 255)::smallint AND r.version = $2 AND r.last_updated = $3)
		OR EXISTS (SELECT FROM resource_history h WHERE h.ref = $1 AND h.shard = ($1 & 255)::smallint AND h.version = $2 AND h.last_updated = $3)`,
		v.ref, v.version, v.lastUpdated).Scan(&committed)
	if err != nil || !committed {
		return false, err == nil, err
	}
	// Its standby may not have it. A later commit waits for the earlier ones.
	tx, err := conn.Begin(ctx)
	if err != nil {
		return false, false, err
	}
	if _, err := tx.Exec(ctx, "SELECT pg_logical_emit_message(true, 'kiln', '')"); err != nil {
		return false, false, errors.Join(err, tx.Rollback(ctx))
	}
	err = s.commit(ctx, conn.Conn(), tx.Commit)
	return true, err == nil, err
}

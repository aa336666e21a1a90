package store

import (
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"kiln/gen/db"
	"kiln/server/search/match"
)

// A snapshot is one snapshot of a standby. Its first statement takes it, and is sent together with the question for its
// place: a read of one statement is one way to the standby and back. If more statements follow, they run in a
// transaction, which begins in the same pipeline.
//
// A read of one statement needs no transaction of its own: PostgreSQL runs the statements of a pipeline up to its Sync as
// one, and these connections default to REPEATABLE READ. Source: PostgreSQL, "Message Flow", Pipelining.
type snapshot struct {
	rep     *replica
	began   time.Time // of the request
	started string    // of the postmaster that was chosen
	alone   bool      // one statement will probably do

	conn  *pgxpool.Conn // nil before the first statement, and for a shared query
	taken bool
	open  bool     // the transaction goes on
	at    Position // behind everything that it shows
	again bool     // the read has to begin again, in a transaction

	searches bool // the snapshot must have the server's search parameters and the assumed parts
	state    ParametersState
	parts    *standbyParts // until it is taken: that are assumed
}

// standbyParts are the parts of a standby.
type standbyParts struct {
	more  []int64 // as the database has them
	parts *match.Parts
}

// errReadAgain is the error of a read that needs more statements, or other parts, than assumed.
var errReadAgain = errors.New("store: the read has to begin again")

// beginAgain makes the read begin again.
func (n *snapshot) beginAgain() error {
	n.again = true
	return errReadAgain
}

// mayBeAlone reports whether the next statement is probably the only one.
func (n *snapshot) mayBeAlone() bool { return n.alone && !n.taken }

// placeColumns are the place of a snapshot: behind everything that it shows, because functions are called after the snapshot
// is taken. The commit that is being replayed can be visible before pg_last_wal_replay_lsn() counts it, and then WAL behind
// that place has been received.
const placeColumns = `coalesce((pg_last_wal_replay_lsn() - '0/0'::pg_lsn)::bigint, 0), coalesce((pg_last_wal_receive_lsn() - '0/0'::pg_lsn)::bigint, 0),
	pg_snapshot_xmax(pg_current_snapshot())::text::bigint`

// Statements that ask for the place: with all that searches depend on, and with the epoch alone.
var (
	snapshotSQL = "SELECT " + placeColumns + ", s.* FROM (" + db.ParametersState + ") s"
	placeSQL    = "SELECT " + placeColumns + ", g.epoch FROM search_registry g"
)

// replayedPosition is the position of a place.
func replayedPosition(epoch, replayed, received, seen int64) Position {
	at := Position{Epoch: EpochID(epoch), LSN: uint64(replayed), Seen: uint64(seen)}
	if received > replayed {
		at.LSN++
	}
	at.LSN = max(at.LSN, 1)
	return at
}

// acquire takes a connection to the postmaster that was chosen.
func (rep *replica) acquire(ctx context.Context, began time.Time, started string) (*pgxpool.Conn, error) {
	ctx, cancel := context.WithDeadline(ctx, began.Add(rep.store.replicas.patience()))
	defer cancel()
	conn, err := rep.pool.Acquire(ctx)
	if err != nil {
		return nil, fmt.Errorf("%w: %s: %w", errUsePrimary, rep.name, err)
	}
	if conn.Conn().PgConn().CustomData()[startedKey] != started {
		conn.Release()
		return nil, fmt.Errorf("%w: %s has been started again", errUsePrimary, rep.name)
	}
	return conn, nil
}

// acquire takes one of the connections for snapshots.
func (n *snapshot) acquire(ctx context.Context) (err error) {
	places := n.rep.places
	wait, cancel := context.WithDeadline(ctx, n.began.Add(n.rep.store.replicas.patience()))
	defer cancel()
	select {
	case places <- struct{}{}:
	case <-wait.Done():
		return fmt.Errorf("%w: %s: %w", errUsePrimary, n.rep.name, wait.Err())
	}
	if n.conn, err = n.rep.acquire(ctx, n.began, n.started); err != nil {
		<-places
	}
	return err
}

// runShared runs a query of several requests, with the question for its place.
func (rep *replica) runShared(requests []*readRequest, query preparedQuery) error {
	ctx, end := rep.keepAlive(context.Background())
	defer end()
	started := requests[0].started
	if slices.ContainsFunc(requests, func(q *readRequest) bool { return q.started != started }) {
		return fmt.Errorf("%w: %s has been started again", errUsePrimary, rep.name)
	}
	conn, err := rep.acquire(ctx, time.Now(), started)
	if err != nil {
		return err
	}
	defer conn.Release()
	var at Position
	place := preparedQuery{name: "kiln_place", sql: placeSQL, row: func(v [][]byte) {
		number := func(i int) int64 { return int64(binary.BigEndian.Uint64(v[i])) }
		at = replayedPosition(number(3), number(0), number(1), number(2))
	}}
	err = runQueries(ctx, conn.Conn(), place, query)
	switch cause := context.Cause(ctx); {
	case errors.Is(cause, errReplicaHangs):
		return cause
	case err != nil:
		return err
	case isPromoted(conn.Conn().PgConn()):
		return errUsePrimary
	}
	for _, q := range requests {
		q.at = at
	}
	return nil
}

// query runs a statement. alone says that it is probably the only one.
func (n *snapshot) query(ctx context.Context, alone bool, sql string, args []any) (pgx.Rows, error) {
	if n.open {
		return n.conn.Query(ctx, sql, args...)
	}
	results, err := n.take(ctx, !alone || !n.alone, func(b *pgx.Batch) { b.Queue(sql, args...) })
	if err != nil {
		return nil, err
	}
	rows, err := results.Query()
	return &firstRows{Rows: rows, results: results}, err
}

// take takes the snapshot by the statements that add queues, and with open leaves its transaction open.
func (n *snapshot) take(ctx context.Context, open bool, add func(*pgx.Batch)) (_ pgx.BatchResults, err error) {
	if n.taken {
		return nil, n.beginAgain()
	}
	if n.conn == nil {
		if err := n.acquire(ctx); err != nil {
			return nil, err
		}
	}
	var b pgx.Batch
	if open {
		b.Queue("BEGIN")
	}
	b.Queue(snapshotSQL)
	add(&b)
	results := n.conn.SendBatch(ctx, &b)
	defer func() {
		if err != nil {
			_ = results.Close()
		}
	}()
	if open {
		if _, err := results.Exec(); err != nil {
			return nil, err
		}
	}
	var r db.ParametersStateRow
	var replayed, received, seen int64
	if err := results.QueryRow().Scan(&replayed, &received, &seen, &r.Version, &r.Progress, &r.Definitions, &r.Fingerprint, &r.Epoch, &r.Moment, &r.MoreParts); err != nil {
		return nil, err
	}
	n.taken, n.open = true, open
	n.at = replayedPosition(r.Epoch, replayed, received, seen)
	n.state = ParametersState{Version: r.Version, Progress: r.Progress, Definitions: r.Definitions, Fingerprint: r.Fingerprint, Epoch: EpochID(r.Epoch)}
	if n.searches && !slices.Equal(n.parts.more, r.MoreParts) {
		n.rep.parts.Store(&standbyParts{r.MoreParts, partsOf(r.MoreParts)})
		return nil, n.beginAgain()
	}
	if n.parts = n.rep.parts.Load(); !slices.Equal(n.parts.more, r.MoreParts) {
		n.parts = &standbyParts{r.MoreParts, partsOf(r.MoreParts)}
	}
	if n.searches {
		return results, n.checkParameters()
	}
	return results, nil
}

// takeAlone takes the snapshot of a read that has needed no statement.
func (n *snapshot) takeAlone(ctx context.Context) error {
	results, err := n.take(ctx, false, func(*pgx.Batch) {})
	if err != nil {
		return err
	}
	return results.Close()
}

// beginSearch prepares the snapshot for a search.
func (n *snapshot) beginSearch() error {
	n.searches = true
	switch {
	case n.taken && !n.open:
		return n.beginAgain()
	case n.taken:
		return n.checkParameters()
	}
	n.parts = n.rep.parts.Load()
	return nil
}

// checkParameters fails if the snapshot has other search parameters than this server.
func (n *snapshot) checkParameters() error {
	if known := n.rep.store.replicas.parameter.Load(); known == nil || *known != n.state {
		return errUsePrimary
	}
	return nil
}

// end gives the connection back. Nobody waits for the end of the transaction.
func (n *snapshot) end() {
	if n.conn == nil {
		return
	}
	if n.conn.Conn().PgConn().TxStatus() == 'I' {
		n.conn.Release()
		<-n.rep.places
		return
	}
	go func() {
		defer func() { <-n.rep.places }()
		ctx, cancel := context.WithTimeout(context.Background(), watchTimeout)
		defer cancel()
		_, _ = n.conn.Exec(ctx, "ROLLBACK") // a connection whose transaction goes on is closed
		n.conn.Release()
	}()
}

// Query runs a statement in the snapshot. Exec and QueryRow are as usual.
func (n *snapshot) Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error) {
	return n.query(ctx, false, sql, args)
}

// QueryAlone is Query for a statement that is probably the only one.
func (n *snapshot) QueryAlone(ctx context.Context, sql string, args ...any) (pgx.Rows, error) {
	return n.query(ctx, true, sql, args)
}

func (n *snapshot) QueryRow(ctx context.Context, sql string, args ...any) pgx.Row {
	rows, err := n.Query(ctx, sql, args...)
	return firstRow{rows, err}
}

func (n *snapshot) Exec(ctx context.Context, sql string, args ...any) (pgconn.CommandTag, error) {
	rows, err := n.Query(ctx, sql, args...)
	if err != nil {
		return pgconn.CommandTag{}, err
	}
	rows.Close()
	return rows.CommandTag(), rows.Err()
}

// aloneConn is a snapshot for queries of one statement.
type aloneConn struct{ *snapshot }

func (c aloneConn) QueryRow(ctx context.Context, sql string, args ...any) pgx.Row {
	rows, err := c.QueryAlone(ctx, sql, args...)
	return firstRow{rows, err}
}

// firstRows are the rows of the statement that took the snapshot.
type firstRows struct {
	pgx.Rows
	results pgx.BatchResults
	err     error
}

func (r *firstRows) Next() bool {
	if r.Rows.Next() {
		return true
	}
	r.Close()
	return false
}

func (r *firstRows) Close() {
	r.Rows.Close()
	r.err = r.results.Close()
}

func (r *firstRows) Err() error { return cmp.Or(r.Rows.Err(), r.err) }

// firstRow is the first of some rows.
type firstRow struct {
	rows pgx.Rows
	err  error
}

func (r firstRow) Scan(into ...any) error {
	if r.err != nil {
		return r.err
	}
	defer r.rows.Close()
	if !r.rows.Next() {
		return cmp.Or(r.rows.Err(), pgx.ErrNoRows)
	}
	if err := r.rows.Scan(into...); err != nil {
		return err
	}
	r.rows.Close()
	return r.rows.Err()
}

package store

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"

	"kiln/gen/db"
	"kiln/server/search"
	"kiln/server/search/match"
)

// ReplicaReader are the reads of one snapshot of a standby.
type ReplicaReader struct {
	Tx
	parts *match.Parts // nil until a search asks
}

// errUsePrimary is the error of a read that a standby cannot answer exactly.
var errUsePrimary = errors.New("store: the primary has to answer")

// ErrUsePrimary returns the error by which a read says that the primary has to answer.
func ErrUsePrimary() error { return errUsePrimary }

// Search is Store.Search in the snapshot.
func (t *ReplicaReader) Search(ctx context.Context, q *search.Query) (*SearchResult, error) {
	s := t.store
	if t.parts == nil {
		r, err := db.New(t.tx).ParametersState(ctx)
		if err != nil {
			return nil, translateError(err)
		}
		known := s.replicas.parameter.Load()
		is := ParametersState{Version: r.Version, Progress: r.Progress, Definitions: r.Definitions, Fingerprint: r.Fingerprint, Epoch: EpochID(r.Epoch)}
		if known == nil || *known != is {
			return nil, errUsePrimary
		}
		t.parts = partsOf(r.MoreParts)
	}
	r, err := s.searcher.SearchOn(ctx, t.tx, q, replicaSearchable{searchable{s}, t})
	return r, translateError(err)
}

// replicaSearchable is the standby as searches see it.
type replicaSearchable struct {
	searchable
	t *ReplicaReader
}

func (v replicaSearchable) Parts(context.Context) (*match.Parts, error) { return v.t.parts, nil }

// TypeNumber asks the snapshot for a type that this server has not seen.
func (v replicaSearchable) TypeNumber(ctx context.Context, typ string) (int16, bool, error) {
	if n, ok := v.KnownType(typ); ok {
		return n, true, nil
	}
	rows, err := db.New(v.t.tx).ResourceTypes(ctx)
	for _, r := range rows {
		if r.Name == typ {
			return r.Typ, true, nil
		}
	}
	return 0, false, err
}

// errReplicaHangs is the cause of the end of a read on a standby that gives no sign of life.
var errReplicaHangs = errors.New("store: the replica does not answer")

// leastPatience is how long a standby may be silent where ReplicaConfig.Wait is shorter.
const leastPatience = 20 * time.Millisecond

// patience is how long a standby may be silent while a request waits for it: longer where nobody else could answer.
func (r *replicas) patience() time.Duration {
	if r.isPrimaryLost() {
		return max(r.config.Wait, watchTimeout)
	}
	return max(r.config.Wait, leastPatience)
}

// keepAlive returns a context that ends when the standby gives no sign of life within patience. A long
// statement goes on while another connection is answered.
func (rep *replica) keepAlive(ctx context.Context) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancelCause(ctx)
	half := rep.store.replicas.patience() / 2
	var again *time.Timer
	var mu sync.Mutex
	mu.Lock()
	again = time.AfterFunc(half, func() {
		sign, end := context.WithTimeout(ctx, half)
		defer end()
		if err := rep.askReplayed(sign); err != nil && ctx.Err() == nil {
			cancel(errReplicaHangs)
			return
		}
		mu.Lock()
		defer mu.Unlock()
		if ctx.Err() == nil {
			again.Reset(half)
		}
	})
	mu.Unlock()
	return ctx, func() {
		cancel(context.Canceled)
		mu.Lock()
		defer mu.Unlock()
		again.Stop()
	}
}

// read runs a read in one snapshot. The place lies behind everything that the snapshot shows: the commit that is
// being replayed can be visible before pg_last_wal_replay_lsn() counts it, and then WAL behind that place has been received.
func (rep *replica) read(outer context.Context, began time.Time, read func(context.Context, *ReplicaReader) error) (at Position, err error) {
	rep.mu.Lock()
	started := rep.started
	rep.mu.Unlock()
	ctx, end := rep.keepAlive(outer)
	defer end()
	begin, cancel := context.WithDeadline(ctx, began.Add(rep.store.replicas.patience()))
	conn, err := rep.pool.Acquire(begin)
	if err != nil {
		cancel()
		return at, fmt.Errorf("%w: %s: %w", errUsePrimary, rep.name, err)
	}
	defer conn.Release()
	tx, err := conn.BeginTx(begin, pgx.TxOptions{IsoLevel: pgx.RepeatableRead, AccessMode: pgx.ReadOnly})
	cancel()
	if err != nil {
		return at, fmt.Errorf("begin on %s: %w", rep.name, err)
	}
	defer func() { _ = tx.Rollback(context.WithoutCancel(ctx)) }()
	t := &ReplicaReader{Tx: Tx{store: rep.store, tx: tx}}
	answer := read(ctx, t)
	if cause := context.Cause(ctx); errors.Is(cause, errReplicaHangs) {
		return at, cause
	}
	if answer != nil && !isAnswer(outer, answer) {
		return at, answer
	}
	var replayed, received, seen int64
	err = tx.QueryRow(ctx, `SELECT coalesce((pg_last_wal_replay_lsn() - '0/0'::pg_lsn)::bigint, 0), coalesce((pg_last_wal_receive_lsn() - '0/0'::pg_lsn)::bigint, 0),
		pg_snapshot_xmax(pg_current_snapshot())::text::bigint`).Scan(&replayed, &received, &seen)
	switch {
	case err != nil:
		return at, err
	case isPromoted(conn.Conn().PgConn()):
		return at, errUsePrimary
	}
	at = Position{LSN: uint64(replayed), Seen: uint64(seen)}
	if received > replayed {
		at.LSN++
	}
	at.LSN = max(at.LSN, 1)
	rep.noteReplayed(at.LSN, started) // every later snapshot of it shows at least this
	return at, answer
}

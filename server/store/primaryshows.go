package store

import (
	"context"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"
)

// AwaitOnPrimary waits until the primary shows everything that a standby has shown: a read that goes from one to the
// other does not go back in time. It fails with transient.
func (s *Store) AwaitOnPrimary(ctx context.Context, need Position) error {
	r := &s.replicas
	epoch := s.Epoch()
	shows := func() bool {
		ended := r.ended.Load()
		return need.Seen == 0 || need.Epoch != epoch || ended != nil && ended.epoch == epoch && ended.xid >= need.Seen
	}
	if shows() {
		return nil
	}
	if _, err := s.PositionNow(ctx); err != nil {
		return err
	}
	if shows() {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, s.timeout)
	defer cancel()
	var waited []string // transactions of the primary that the standby may have shown
	first := true
	for pause := time.Millisecond; ; pause = min(2*pause, 50*time.Millisecond) {
		running, err := readRunning(ctx, r.side, need.Seen)
		if err != nil {
			return translateError(err)
		}
		if first {
			first, waited = false, r.committedOnReplica(ctx, need.LSN, running)
		} else {
			waited = slices.DeleteFunc(waited, func(x string) bool { return !slices.Contains(running, x) })
		}
		switch {
		case len(waited) == 0 || s.Epoch() != epoch:
			return nil
		case !SleepFor(ctx, pause):
			return unavailableError("the primary does not show a commit yet that a replica has shown")
		}
	}
}

// readRunning lists the running transactions of the primary below a number, in its snapshot and beyond. It leaves out
// transactions that wait for their client or for a lock: these have not begun to commit, and no standby can have shown them.
func readRunning(ctx context.Context, conn querier, below uint64) ([]string, error) {
	rows, err := conn.Query(ctx, `SELECT x::text FROM (SELECT pg_current_snapshot() AS now) s,
			LATERAL (SELECT pg_snapshot_xip(s.now) AS x
				UNION ALL SELECT later::text::xid8 FROM generate_series(pg_snapshot_xmax(s.now)::text::bigint, least($1 - 1, pg_snapshot_xmax(s.now)::text::bigint + 10000)) later) running
		WHERE x < $1::bigint::text::xid8 AND NOT EXISTS (SELECT FROM pg_stat_activity a WHERE a.backend_xid = x::xid AND (a.state LIKE 'idle in transaction%' OR a.wait_event_type = 'Lock'))`, int64(below))
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, pgx.RowTo[string])
}

// committedOnReplica filters the primary's running transactions: a standby behind a place has committed the returned ones. Without
// such a standby it returns all.
func (r *replicas) committedOnReplica(ctx context.Context, place uint64, running []string) []string {
	if len(running) == 0 {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, r.patience())
	defer cancel()
	for _, rep := range r.list {
		if !rep.serves() || rep.replayed.Load() < place && (rep.askReplayed(ctx) != nil || rep.replayed.Load() < place) {
			continue
		}
		var committed []string
		rows, err := rep.probe.Query(ctx, `SELECT x FROM unnest($1::text[]) x
			WHERE CASE WHEN x::xid8 < pg_snapshot_xmax(pg_current_snapshot()) THEN pg_xact_status(x::xid8) = 'committed' END`, running)
		if err == nil {
			committed, err = pgx.CollectRows(rows, pgx.RowTo[string])
		}
		if err == nil {
			return committed
		}
	}
	return running
}

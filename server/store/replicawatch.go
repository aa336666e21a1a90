package store

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"strconv"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"kiln/queries"
	"kiln/server/telemetry"
)

// startedKey is the key of the start of the postmaster in the CustomData of a connection.
const startedKey = "started"

// open makes the pool. Its connections are of the PostgreSQL that the watch asks, and of no other behind the same address.
func (rep *replica) open(ctx context.Context, maxConns int, settings string) (*pgxpool.Pool, error) {
	c, err := pgxpool.ParseConfig(rep.url)
	if err != nil {
		return nil, err
	}
	rep.host = net.JoinHostPort(c.ConnConfig.Host, strconv.Itoa(int(c.ConnConfig.Port)))
	c.MaxConns = int32(maxConns)
	c.MaxConnIdleTime, c.MaxConnLifetime, c.MaxConnLifetimeJitter = 5*time.Minute, time.Hour, 10*time.Minute
	c.ConnConfig.ConnectTimeout = cmp.Or(c.ConnConfig.ConnectTimeout, watchTimeout)
	c.ConnConfig.Tracer = telemetry.Statements{}
	c.AfterConnect = func(ctx context.Context, conn *pgx.Conn) error {
		var started string
		var recovers bool
		if err := conn.QueryRow(ctx, "SELECT pg_postmaster_start_time()::text, pg_is_in_recovery()").Scan(&started, &recovers); err != nil {
			return err
		}
		rep.mu.Lock()
		same := started == rep.started
		rep.mu.Unlock()
		if !same || !recovers {
			return fmt.Errorf("%s: another PostgreSQL answers", rep.name)
		}
		conn.PgConn().CustomData()[startedKey] = started
		_, err := conn.PgConn().Exec(ctx, settings+"SET default_transaction_read_only = on; SET default_transaction_isolation = 'repeatable read';").ReadAll()
		return err
	}
	c.PrepareConn = func(_ context.Context, conn *pgx.Conn) (bool, error) { return !isPromoted(conn.PgConn()), nil }
	return pgxpool.NewWithConfig(ctx, c)
}

// isPromoted reports whether a connection that was made to a standby is one to a primary now. PostgreSQL reports it with the
// end of each statement.
func isPromoted(conn *pgconn.PgConn) bool { return conn.ParameterStatus("in_hot_standby") != "on" }

// serves reports whether reads may go to the standby.
func (rep *replica) serves() bool {
	_, ok := rep.servesPlace(0)
	return ok
}

// servesPlace reports whether reads may go to the standby that need a place of the log. started is the start of the
// postmaster that has replayed it: after a crash it may replay it again.
func (rep *replica) servesPlace(place uint64) (started string, ok bool) {
	rep.mu.Lock()
	defer rep.mu.Unlock()
	return rep.started, rep.state == Streaming && !rep.silent.Load() && rep.epoch == rep.store.Epoch() && rep.replayed.Load() >= place
}

// seen is the answer of a standby to the watch.
type seenReplica struct {
	started    string
	recovers   bool
	system     int64
	database   int64
	epoch      EpochID
	schema     int64
	replayed   uint64
	lastReplay time.Time
}

func askReplica(ctx context.Context, conn *pgx.Conn) (a seenReplica, err error) {
	var last *time.Time
	var epoch, replayed int64
	var migrated bool
	err = conn.QueryRow(ctx, `SELECT pg_postmaster_start_time()::text, pg_is_in_recovery(), (SELECT c.system_identifier FROM pg_control_system() c),
		(SELECT d.oid::bigint FROM pg_database d WHERE d.datname = current_database()),
		coalesce((pg_last_wal_replay_lsn() - '0/0'::pg_lsn)::bigint, 0), pg_last_xact_replay_timestamp(),
		to_regclass('search_registry') IS NOT NULL AND to_regclass('goose_db_version') IS NOT NULL`).
		Scan(&a.started, &a.recovers, &a.system, &a.database, &replayed, &last, &migrated)
	if err != nil || !migrated {
		return a, err
	}
	a.replayed = uint64(replayed)
	if last != nil {
		a.lastReplay = *last
	}
	err = conn.QueryRow(ctx, "SELECT g.epoch, (SELECT max(v.version_id) FROM goose_db_version v WHERE v.is_applied) FROM search_registry g").Scan(&epoch, &a.schema)
	a.epoch = EpochID(epoch)
	return a, err
}

// watch looks at the standby until ctx ends: on a connection that it keeps, and on a new one each time, which may
// reach another PostgreSQL.
func (rep *replica) watch(ctx context.Context, looked chan<- struct{}) {
	var kept *pgx.Conn
	defer func() {
		if kept != nil {
			closeQuietly(kept)
		}
	}()
	for n := 0; ; n++ {
		kept = rep.look(ctx, kept, n%2 == 1)
		if looked != nil {
			close(looked)
			looked = nil
		}
		if !SleepFor(ctx, watchEvery) {
			return
		}
	}
}

// look asks the standby once, and returns the connection to keep.
func (rep *replica) look(ctx context.Context, kept *pgx.Conn, afresh bool) *pgx.Conn {
	ctx, cancel := context.WithTimeout(ctx, watchTimeout)
	defer cancel()
	var a seenReplica
	var err error
	if kept == nil {
		kept, err = pgx.Connect(ctx, rep.url)
	}
	if err == nil {
		if a, err = askReplica(ctx, kept); err != nil {
			closeQuietly(kept)
			kept = nil
		}
	}
	var other string
	if err == nil && afresh {
		if conn, e := pgx.Connect(ctx, rep.url); e == nil {
			_ = conn.QueryRow(ctx, "SELECT pg_postmaster_start_time()::text").Scan(&other)
			closeQuietly(conn)
		}
	}
	if errors.Is(ctx.Err(), context.Canceled) {
		return kept
	}
	rep.judge(a, other, err)
	return kept
}

// judge sets the state.
func (rep *replica) judge(a seenReplica, other string, err error) {
	s := rep.store
	rep.mu.Lock()
	before, restarted := rep.state, false
	state, reason := Streaming, ""
	e := s.memory.Load().epochs
	last := e[len(e)-1]
	if err == nil && a.started != rep.started {
		restarted = rep.started != ""
		rep.started = a.started
		rep.replayed.Store(0)
	}
	if other != "" && other != rep.started {
		rep.several = time.Now()
	}
	rep.lag, rep.bytes = s.replicas.lagOf(a.replayed, a.lastReplay)
	switch {
	case err != nil:
		state, reason = Unreachable, reasonOf(err)
		rep.lag, rep.bytes = 0, 0
	case TimeSince(rep.several) < severalFor:
		state, reason = SeveralBehind, "different PostgreSQLs answer at this address"
	case !a.recovers:
		state, reason = IsPrimary, "it is not in recovery"
		rep.lag, rep.bytes = 0, 0
	case a.system != last.SystemIdentifier || a.database != last.DatabaseOID:
		state, reason = Foreign, "it is another database than the primary's"
	case a.schema != queries.Latest():
		state, reason = OtherSchema, fmt.Sprintf("its schema has version %d, this build needs %d", a.schema, queries.Latest())
	case a.epoch != last.ID:
		state, reason = Foreign, "it is not of the primary's epoch"
	case rep.lag > s.replicas.config.MaxLag:
		state, reason = Lagging, fmt.Sprintf("it is %s behind", rep.lag.Round(time.Second))
	}
	rep.state, rep.reason, rep.epoch = state, reason, a.epoch
	rep.mu.Unlock()
	if err == nil {
		rep.noteReplayed(a.replayed, a.started)
	}
	if restarted || state != Streaming && before == Streaming {
		go rep.pool.Reset()
		go rep.probe.Reset()
	}
	if state != before {
		level := slog.LevelWarn
		if state == Streaming || state == IsPrimary {
			level = slog.LevelInfo
		}
		s.log.Log(context.Background(), level, "a replica has another state", "replica", rep.name, "state", string(state), "reason", reason)
	}
}

func reasonOf(err error) string {
	var pg *pgconn.PgError
	switch {
	case errors.As(err, &pg):
		return pg.Message
	case errors.Is(err, context.DeadlineExceeded):
		return "it does not answer"
	}
	return "it cannot be reached"
}

// noteReplayed raises the place that the standby is known to have replayed.
func (rep *replica) noteReplayed(lsn uint64, started string) {
	rep.mu.Lock()
	defer rep.mu.Unlock()
	if rep.started == started && lsn > rep.replayed.Load() {
		rep.replayed.Store(lsn)
	}
}

package store

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
)

// OldTransaction is a transaction that has written something. Readers of the change log pass a change
// on when all transactions that began to write before it have ended, in every database of the cluster.
type OldTransaction struct {
	Age      time.Duration
	Database string
	PID      int32 // 0 for a prepared transaction
	User     string
	Client   string // application_name, or the name of a prepared transaction
}

// String says which transaction it is.
func (t OldTransaction) String() string {
	if t.PID == 0 {
		return fmt.Sprintf("prepared transaction %s of %s in database %s", t.Client, t.User, t.Database)
	}
	return fmt.Sprintf("process %d of %s (%s) in database %s", t.PID, t.User, t.Client, t.Database)
}

// Querier is a connection or a pool.
type Querier interface {
	QueryRow(ctx context.Context, sql string, args ...any) pgx.Row
}

// FindOldestTransaction returns the oldest transaction of the cluster that has written something, the
// zero value where there is none. PostgreSQL shows transactions of other users only to members
// of pg_read_all_stats.
func FindOldestTransaction(ctx context.Context, q Querier) (OldTransaction, error) {
	var t OldTransaction
	var seconds float64
	err := q.QueryRow(ctx, `SELECT extract(epoch FROM clock_timestamp() - o.began)::float8, o.database, o.pid, o.usename, o.client
		FROM (
			SELECT a.xact_start AS began, coalesce(a.datname, '') AS database, a.pid, coalesce(a.usename, '') AS usename, coalesce(a.application_name, '') AS client
			FROM pg_stat_activity a
			WHERE a.backend_xid IS NOT NULL AND a.pid <> pg_backend_pid() AND a.xact_start IS NOT NULL
			UNION ALL
			SELECT p.prepared, p.database, 0, p.owner, p.gid
			FROM pg_prepared_xacts p
		) o
		ORDER BY o.began
		LIMIT 1`).Scan(&seconds, &t.Database, &t.PID, &t.User, &t.Client)
	if errors.Is(err, pgx.ErrNoRows) {
		return OldTransaction{}, nil
	}
	t.Age = time.Duration(seconds * float64(time.Second))
	return t, err
}

package store

import (
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"kiln/server/outcome"
)

// BuildProgress is how far PostgreSQL is with an index.
type BuildProgress struct {
	// Total and Done are blocks of the table, or rows, as the phase counts them; 0
	// where PostgreSQL says nothing.
	Total, Done int64
	Phase       string // as PostgreSQL names it
}

// IndexProgress returns the progress of the indexes that PostgreSQL builds now, by name.
func (s *Store) IndexProgress(ctx context.Context) (map[string]BuildProgress, error) {
	rows, err := s.side.Query(ctx, `
		SELECT c.relname::text, p.phase, CASE WHEN p.blocks_total > 0 THEN p.blocks_total ELSE p.tuples_total END,
			CASE WHEN p.blocks_total > 0 THEN p.blocks_done ELSE p.tuples_done END
		FROM pg_stat_progress_create_index p
		JOIN pg_class c ON c.oid = p.index_relid`)
	out := make(map[string]BuildProgress)
	if err == nil {
		var name string
		var p BuildProgress
		_, err = pgx.ForEachRow(rows, []any{&name, &p.Phase, &p.Total, &p.Done}, func() error { out[name] = p; return nil })
	}
	if err != nil {
		return nil, translateError(fmt.Errorf("progress of index builds: %w", err))
	}
	return out, nil
}

// ValidIndexes are the indexes that queries use, of those with these names.
func (s *Store) ValidIndexes(ctx context.Context, names []string) (map[string]bool, error) {
	rows, err := s.side.Query(ctx, `
		SELECT c.relname::text FROM pg_class c
		JOIN pg_index i ON i.indexrelid = c.oid
		WHERE i.indisvalid AND c.relnamespace = current_schema()::regnamespace AND c.relname = ANY ($1::text[])`, names)
	if err != nil {
		return nil, translateError(err)
	}
	list, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		return nil, translateError(err)
	}
	out := make(map[string]bool, len(list))
	for _, name := range list {
		out[name] = true
	}
	return out, nil
}

// BuildIndex builds an index by a statement CREATE INDEX CONCURRENTLY, and drops the unfinished part of
// an earlier attempt first. An index that is complete stays as it is. BuildIndex uses a connection of its
// own, because a build can take hours. parallel lets PostgreSQL use several processes. BuildIndex fails with invalid
// where PostgreSQL rejects the statement.
//
// Only one server works on an index at a time: another one waits until the connection of the first has
// ended, also where that server is frozen.
func (s *Store) BuildIndex(ctx context.Context, name, statement string, parallel bool) error {
	return s.lockIndex(ctx, name, func(conn *pgx.Conn, valid bool) error {
		if valid {
			return nil
		}
		if err := dropIndex(ctx, conn, name); err != nil {
			return err
		}
		if !parallel {
			if _, err := conn.Exec(ctx, "SET max_parallel_maintenance_workers = 0"); err != nil {
				return err
			}
		}
		_, err := conn.Exec(ctx, statement)
		if e := (*pgconn.PgError)(nil); ctx.Err() == nil && errors.As(err, &e) && !isRetryable(err) && e.Severity != "FATAL" {
			return outcome.UnprocessableContent(outcome.CodeInvalid, "the index cannot be built").Because(err)
		}
		return err
	})
}

// DropUnfinishedIndex drops an index whose build was given up. A complete index stays.
func (s *Store) DropUnfinishedIndex(ctx context.Context, name string) error {
	return s.lockIndex(ctx, name, func(conn *pgx.Conn, valid bool) error {
		if valid {
			return nil
		}
		return dropIndex(ctx, conn, name)
	})
}

func dropIndex(ctx context.Context, conn *pgx.Conn, name string) error {
	_, err := conn.Exec(ctx, "DROP INDEX CONCURRENTLY IF EXISTS "+pgx.Identifier{name}.Sanitize())
	return err
}

// lockIndex runs do on a connection that alone works on an index. The lock ends with the connection.
func (s *Store) lockIndex(ctx context.Context, name string, do func(conn *pgx.Conn, valid bool) error) error {
	conn, err := s.ownConnection(ctx, "SET statement_timeout = 0; SET lock_timeout = '1min';")
	if err != nil {
		return translateError(err)
	}
	defer conn.Close(context.WithoutCancel(ctx))
	for {
		var mine bool
		if err := conn.QueryRow(ctx, "SELECT pg_try_advisory_lock($1)", indexLock(name)).Scan(&mine); err != nil {
			return translateError(err)
		}
		if mine {
			break
		}
		// A session that waits inside PostgreSQL would hold a snapshot, and CREATE INDEX CONCURRENTLY of the
		// other server waits for all older snapshots.
		timer := time.NewTimer(lookForLock)
		select {
		case <-ctx.Done():
			timer.Stop()
			return ctx.Err()
		case <-timer.C:
		}
	}
	valid, err := s.ValidIndexes(ctx, []string{name})
	if err != nil {
		return err
	}
	return translateError(do(conn, valid[name]))
}

// lookForLock is how often a server tries for an index that another one works on.
const lookForLock = 250 * time.Millisecond

// indexLock is the advisory lock of an index.
func indexLock(name string) int64 {
	h := fnv.New64a()
	h.Write([]byte("index build " + name))
	return int64(h.Sum64())
}

// ownConnection is a connection outside of the pools, with the settings of theirs
// and more.
func (s *Store) ownConnection(ctx context.Context, more string) (*pgx.Conn, error) {
	conn, err := pgx.ConnectConfig(ctx, s.pool.Config().ConnConfig)
	if err != nil {
		return nil, err
	}
	if _, err := conn.PgConn().Exec(ctx, settings(2*time.Minute)+more).ReadAll(); err != nil {
		conn.Close(ctx)
		return nil, err
	}
	return conn, nil
}

package store

import (
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"log/slog"
	"time"

	"github.com/jackc/pgx/v5"

	"kiln/gen/db"
)

// IndexBuild is an index that is built, or was, while others read and write. Any
// server builds it; where that one ends, another begins again.
type IndexBuild struct {
	ID        string // ascends with time
	Name      string // of the index
	Statement string // CREATE INDEX CONCURRENTLY …
	Reason    string
	Created   time.Time
	Started   time.Time // zero before
	Finished  time.Time // zero until then
	Cancelled bool
	Failure   string
	// Total and Done are blocks of the table, or rows, as the phase counts them; 0
	// where PostgreSQL says nothing.
	Total, Done int64
	Phase       string // as PostgreSQL names it
}

// AddIndexBuild adds a job.
func (s *Store) AddIndexBuild(ctx context.Context, b IndexBuild) error {
	return translateError(db.New(s.pool).AddIndexBuild(ctx, db.AddIndexBuildParams{ID: b.ID, Name: b.Name, Statement: b.Statement, Reason: b.Reason, Created: b.Created}))
}

// IndexBuilds are the jobs, oldest first: those under way, and those that ended
// within a week.
func (s *Store) IndexBuilds(ctx context.Context) ([]IndexBuild, error) {
	rows, err := db.New(s.side).IndexBuilds(ctx)
	if err != nil {
		return nil, translateError(err)
	}
	type progress struct {
		phase       string
		total, done int64
	}
	under := make(map[string]progress)
	list, err := s.side.Query(ctx, `
		SELECT c.relname::text, p.phase, CASE WHEN p.blocks_total > 0 THEN p.blocks_total ELSE p.tuples_total END,
			CASE WHEN p.blocks_total > 0 THEN p.blocks_done ELSE p.tuples_done END
		FROM pg_stat_progress_create_index p
		JOIN pg_class c ON c.oid = p.index_relid`)
	if err == nil {
		var name string
		var p progress
		_, err = pgx.ForEachRow(list, []any{&name, &p.phase, &p.total, &p.done}, func() error { under[name] = p; return nil })
	}
	if err != nil {
		return nil, translateError(fmt.Errorf("progress of index builds: %w", err))
	}
	out := make([]IndexBuild, len(rows))
	for i, r := range rows {
		b := IndexBuild{ID: r.ID, Name: r.Name, Statement: r.Statement, Reason: r.Reason, Created: r.Created.UTC(), Cancelled: r.Cancel, Failure: r.Failure}
		if r.Started.Valid {
			b.Started = r.Started.Time.UTC()
		}
		if r.Finished.Valid {
			b.Finished = r.Finished.Time.UTC()
		} else if p, ok := under[r.Name]; ok {
			b.Phase, b.Total, b.Done = p.phase, p.total, p.done
		}
		out[i] = b
	}
	return out, nil
}

// CancelIndexBuild tells the builder of an index to give up, and reports whether
// there was such a job under way.
func (s *Store) CancelIndexBuild(ctx context.Context, id string) (bool, error) {
	n, err := db.New(s.pool).CancelIndexBuild(ctx, id)
	return n > 0, translateError(err)
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

// BuildIndex builds the next index that waits and that no other server builds, and
// returns when it is done with; worked is false where there was none. It takes a
// connection of its own: building may take hours.
func (s *Store) BuildIndex(ctx context.Context) (worked bool, err error) {
	waiting, err := db.New(s.side).WaitingIndexBuilds(ctx)
	if err != nil || len(waiting) == 0 {
		return false, translateError(err)
	}
	conn, err := s.ownConnection(ctx, "SET statement_timeout = 0; SET lock_timeout = '1min';")
	if err != nil {
		return false, translateError(err)
	}
	defer conn.Close(context.WithoutCancel(ctx))
	for _, w := range waiting {
		var mine bool
		if err := conn.QueryRow(ctx, "SELECT pg_try_advisory_lock($1)", buildLock(w.ID)).Scan(&mine); err != nil {
			return false, translateError(err)
		}
		if mine { // the lock ends with the connection
			return true, translateError(s.buildIndex(ctx, conn, w))
		}
	}
	return false, nil
}

// buildLock is the advisory lock of a job.
func buildLock(id string) int64 {
	h := fnv.New64a()
	h.Write([]byte("index build " + id))
	return int64(h.Sum64())
}

// lookForCancel is how often a builder looks whether it is to give up.
const lookForCancel = 250 * time.Millisecond

func (s *Store) buildIndex(ctx context.Context, conn *pgx.Conn, w db.WaitingIndexBuildsRow) error {
	q := db.New(s.side)
	if n, err := q.StartIndexBuild(ctx, db.StartIndexBuildParams{ID: w.ID, Now: s.now()}); err != nil || n == 0 {
		return err // somebody else has ended it meanwhile
	}
	index := pgx.Identifier{w.Name}.Sanitize()
	dropInvalid := func(ctx context.Context) error {
		valid, err := s.ValidIndexes(ctx, []string{w.Name})
		if err != nil || valid[w.Name] {
			return err
		}
		_, err = conn.Exec(ctx, "DROP INDEX CONCURRENTLY IF EXISTS "+index)
		return err
	}
	building, giveUp := context.WithCancelCause(ctx)
	defer giveUp(nil)
	go func() {
		tick := time.NewTicker(lookForCancel)
		defer tick.Stop()
		for {
			select {
			case <-building.Done():
				return
			case <-tick.C:
			}
			if cancelled, err := q.IndexBuildCancelled(building, w.ID); err == nil && cancelled {
				giveUp(errIndexCancelled)
			}
		}
	}()
	cancelled, err := q.IndexBuildCancelled(ctx, w.ID)
	if err != nil {
		return err
	}
	if cancelled {
		giveUp(errIndexCancelled)
	}
	err = dropInvalid(building) // of a builder that has ended before its time
	if err == nil {
		_, err = conn.Exec(building, w.Statement)
	}
	if ctx.Err() != nil {
		return ctx.Err() // the server ends: another one begins again
	}
	failure := ""
	if err != nil {
		if failure = "the index cannot be built"; errors.Is(context.Cause(building), errIndexCancelled) {
			failure = errIndexCancelled.Error()
		} else {
			s.log.Error("an index cannot be built", slog.String("index", w.Name), slog.Any("error", err))
		}
		if err := dropInvalid(ctx); err != nil {
			s.log.Error("the unfinished part of an index cannot be dropped", slog.String("index", w.Name), slog.Any("error", err))
		}
	}
	if err := q.FinishIndexBuild(ctx, db.FinishIndexBuildParams{ID: w.ID, Now: s.now(), Failure: failure}); err != nil {
		return err
	}
	return q.TrimIndexBuilds(ctx, s.now().Add(-keepJobs))
}

var errIndexCancelled = errors.New("cancelled by an administrator")

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

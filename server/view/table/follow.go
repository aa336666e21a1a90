package table

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/prometheus/client_golang/prometheus"

	"kiln/server/access"
	"kiln/server/fhir"
	"kiln/server/interaction"
	"kiln/server/jobs"
	"kiln/server/outcome"
	"kiln/server/store"
)

// The times of a Service.
const (
	roundInterval = 200 * time.Millisecond // least time between two looks at the change log
	pollInterval  = time.Second            // longest time between two looks
	lookEvery     = time.Second            // between two looks for tables to build
	swapInterval  = 500 * time.Millisecond // least time between two tries of a swap
	// lockTimeout bounds how long a swap waits for a reader, and so how long other readers wait behind it.
	lockTimeout = 100 * time.Millisecond
	// idleTimeout ends the transaction of a server that is gone and whose connection is not closed.
	idleTimeout = 30 * time.Second
)

// refsAtOnce is the number of resources that are read together.
const refsAtOnce = 500

// Service builds the tables of all views, and keeps them current. Its fields are set before Open.
type Service struct {
	*interaction.Service
	Jobs         *jobs.Core
	SnapshotWait func() time.Duration // for older transactions
	Enabled      func(ctx context.Context) bool
	Logger       *slog.Logger

	wake chan struct{}
}

// Open prepares the service and registers its metrics.
func (s *Service) Open(metrics prometheus.Registerer) {
	s.wake = make(chan struct{}, 1)
	metrics.MustRegister(&tableMetrics{s})
	s.Store.Follow("ViewDefinition", store.Hook{InTx: s.afterWrite, Committed: func(_ context.Context, changed bool) {
		if changed {
			s.Wake()
		}
	}})
}

func (s *Service) pool() *pgxpool.Pool { return s.Store.Pool() }

// bases are the bases of references to this server.
func (s *Service) bases(g *generation) []string {
	out := slices.Clone(s.BaseURLs)
	if g.base != "" && !slices.Contains(out, g.base) {
		out = append(out, g.base)
	}
	return out
}

// Wake lets Run look for work at once.
func (s *Service) Wake() {
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

// Run works until ctx ends. Each server runs it; one at a time works on a table.
func (s *Service) Run(ctx context.Context) {
	ctx = access.WithPrincipal(ctx, access.Open)
	following := make(map[int64]context.CancelFunc)
	var working sync.WaitGroup
	defer working.Wait()
	tick := time.NewTicker(lookEvery)
	defer tick.Stop()
	for ctx.Err() == nil {
		list, err := s.look(ctx)
		if err != nil && ctx.Err() == nil {
			s.Logger.Error("look for tables of views", slog.Any("error", err))
		}
		if err == nil {
			found := make(map[int64]bool)
			for _, g := range list {
				found[g.id] = true
				if following[g.id] == nil {
					under, cancel := context.WithCancel(ctx)
					following[g.id] = cancel
					working.Go(func() { s.follow(under, g.id) })
				}
			}
			for id, cancel := range following {
				if !found[id] {
					cancel()
					delete(following, id)
				}
			}
		}
		select {
		case <-ctx.Done():
		case <-s.wake:
		case <-tick.C:
		}
	}
	for _, cancel := range following {
		cancel()
	}
}

// look starts the builds that are missing, notes those that failed, and returns the generations that follow.
func (s *Service) look(ctx context.Context) ([]*generation, error) {
	if err := s.addMissing(ctx); err != nil {
		return nil, err
	}
	list, err := readGenerations(ctx, s.pool(), "g.state <> 'failed'")
	if err != nil {
		return nil, err
	}
	for _, g := range list {
		if g.state == Building {
			if err := s.startBuild(ctx, g); err != nil {
				return nil, err
			}
		}
	}
	return slices.DeleteFunc(list, func(g *generation) bool { return g.state == Building }), nil
}

// addMissing adds a generation where the table is gone, for a backup has no tables of views, or where an older build of
// the server has stored a newer version of the view.
func (s *Service) addMissing(ctx context.Context) error {
	rows, err := s.pool().Query(ctx, `SELECT t.name, t.view, coalesce(max(g.version), 0),
			coalesce(bool_or(g.state <> 'failed' AND to_regclass(format('view.%I', CASE g.state WHEN 'shown' THEN t.name ELSE '_build_' || g.id END)) IS NULL), false)
		FROM view_table t LEFT JOIN view_generation g ON g.name = t.name GROUP BY t.name, t.view`)
	if err != nil {
		return err
	}
	type kept struct {
		name, view string
		version    int
		gone       bool
	}
	list, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (kept, error) {
		var k kept
		err := row.Scan(&k.name, &k.view, &k.version, &k.gone)
		return k, err
	})
	if err != nil {
		return err
	}
	for _, k := range list {
		_, version, err := storedView(ctx, s.pool(), k.view)
		if errors.Is(err, pgx.ErrNoRows) {
			continue // removed without its history; the table goes on with the last version
		}
		if err != nil {
			return err
		}
		if version == k.version && !k.gone {
			continue
		}
		err = pgx.BeginFunc(ctx, s.pool(), func(tx pgx.Tx) error {
			if err := lockView(ctx, tx, k.view); err != nil {
				return err
			}
			return replace(ctx, tx, k.name, k.view)
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// replace adds a generation with the current version of a view, in the place of one that is not shown yet. It does
// nothing where that version has one.
func replace(ctx context.Context, tx pgx.Tx, name, viewID string) error {
	body, version, err := storedView(ctx, tx, viewID)
	if err != nil {
		return err
	}
	list, err := readGenerations(ctx, tx, "g.name = $1", name)
	if err != nil {
		return err
	}
	upToDate := false
	for _, g := range list {
		var there bool
		if err := tx.QueryRow(ctx, "SELECT to_regclass($1) IS NOT NULL", g.relation()).Scan(&there); err != nil {
			return err
		}
		if g.version == version && (there || g.state == Failed) {
			upToDate = true
			continue
		}
		if g.state != shown || !there {
			if err := dropGeneration(ctx, tx, g); err != nil {
				return err
			}
		}
	}
	if upToDate {
		return nil
	}
	_, err = addGeneration(ctx, tx, name, version, body)
	return err
}

// startBuild adds the job of a generation, or notes that it has failed.
func (s *Service) startBuild(ctx context.Context, g *generation) error {
	if g.job != "" {
		j, err := s.Jobs.Get(ctx, g.job)
		if err != nil {
			return err
		}
		if j != nil && j.State != jobs.Failed && j.State != jobs.Cancelled {
			return nil
		}
		if j != nil {
			return s.fail(ctx, g, j)
		}
	}
	job := s.Jobs.NewID()
	tag, err := s.pool().Exec(ctx, "UPDATE view_generation SET job = $3 WHERE id = $1 AND job = $2 AND state = 'building'", g.id, g.job, job)
	if err != nil || tag.RowsAffected() == 0 {
		return err
	}
	spec, err := json.Marshal(buildSpec{g.id})
	if err != nil {
		return err
	}
	return s.Jobs.Add(ctx, &jobs.Job{ID: job, Type: BuildJob, Client: "view." + g.name, Principal: []byte("{}"), Spec: spec,
		Reason: fmt.Sprintf("build view.%s of version %d of its view", g.name, g.version)}, jobs.Part{Spec: struct{}{}})
}

// fail notes that a build has failed, and drops its table.
func (s *Service) fail(ctx context.Context, g *generation, j *jobs.Job) error {
	reason := j.Failure
	if j.State == jobs.Cancelled {
		reason = "the build was cancelled"
	}
	return pgx.BeginFunc(ctx, s.pool(), func(tx pgx.Tx) error {
		tag, err := tx.Exec(ctx, "UPDATE view_generation SET state = 'failed', reason = $2 WHERE id = $1 AND state = 'building'", g.id, reason)
		if err != nil || tag.RowsAffected() == 0 {
			return err
		}
		if _, err := tx.Exec(ctx, "DROP TABLE IF EXISTS "+g.relation()); err != nil {
			return err
		}
		_, err = tx.Exec(ctx, "DELETE FROM change_reader WHERE name = $1", g.reader())
		return err
	})
}

// follow keeps a table current until ctx ends.
func (s *Service) follow(ctx context.Context, id int64) {
	woken, stop := s.Store.WatchChanges()
	defer stop()
	tried := time.Time{}
	for ctx.Err() == nil {
		state, err := s.round(ctx, id)
		if err == nil && state == built && time.Since(tried) >= swapInterval {
			tried = time.Now()
			err = s.swap(ctx, id)
		}
		if err != nil && ctx.Err() == nil && !isConflict(err) {
			s.Logger.Error("a table of a view does not follow; it is tried again", slog.Int64("generation", id), slog.Any("error", err))
		}
		pause := time.NewTimer(roundInterval)
		select {
		case <-ctx.Done():
		case <-pause.C:
		}
		poll := time.NewTimer(pollInterval - roundInterval)
		select {
		case <-ctx.Done():
		case <-woken:
		case <-poll.C:
		}
		pause.Stop()
		poll.Stop()
	}
}

// isConflict reports that another server has worked on the same table, or that a reader holds a table.
func isConflict(err error) bool {
	var e *pgconn.PgError
	return errors.As(err, &e) && (e.Code == "40001" || e.Code == "40P01" || e.Code == "55P03")
}

// inSnapshot runs fn in a transaction with one snapshot.
func (s *Service) inSnapshot(ctx context.Context, first string, fn func(tx pgx.Tx) error) error {
	return pgx.BeginTxFunc(ctx, s.pool(), pgx.TxOptions{IsoLevel: pgx.RepeatableRead}, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, fmt.Sprintf("SET LOCAL idle_in_transaction_session_timeout = %d", idleTimeout.Milliseconds())); err != nil {
			return err
		}
		if first != "" {
			if _, err := tx.Exec(ctx, first); err != nil {
				return err
			}
		}
		return fn(tx)
	})
}

// round brings a table to the state of now. It returns the state of its generation; "" where another server works on it.
func (s *Service) round(ctx context.Context, id int64) (state string, err error) {
	err = s.inSnapshot(ctx, "", func(tx pgx.Tx) error {
		state, err = s.catchUp(ctx, tx, id)
		return err
	})
	return state, err
}

// unseen are the changes of transactions that the snapshot of a generation does not see.
const unseen = `SELECT c.rids, c.refs, c.methods FROM change c, seen s WHERE c.epoch = s.epoch AND c.xid >= pg_snapshot_xmin(s.seen) AND NOT pg_visible_in_snapshot(c.xid, s.seen)
	UNION ALL SELECT c.rids, c.refs, c.methods FROM change c, seen s WHERE c.epoch > s.epoch`

// catchUp brings a table to the state of the snapshot of a transaction.
func (s *Service) catchUp(ctx context.Context, tx pgx.Tx, id int64) (state string, err error) {
	var locked bool
	if err := tx.QueryRow(ctx, "SELECT pg_try_advisory_xact_lock(hashtextextended('view generation ' || $1::bigint, 0))", id).Scan(&locked); err != nil || !locked {
		return "", err
	}
	list, err := readGenerations(ctx, tx, "g.id = $1 AND g.state IN ('built', 'shown')", id)
	if err != nil || len(list) == 0 {
		return "", err
	}
	g := list[0]
	v, err := g.view()
	if err != nil {
		return "", err
	}
	var news bool
	if err := tx.QueryRow(ctx, "WITH seen AS (SELECT g.epoch, g.seen FROM view_generation g WHERE g.id = $1) SELECT EXISTS ("+unseen+")", id).Scan(&news); err != nil || !news {
		return g.state, err
	}
	rows, err := tx.Query(ctx, "WITH seen AS (SELECT g.epoch, g.seen FROM view_generation g WHERE g.id = $1), l AS ("+unseen+`)
		SELECT DISTINCT u.ref FROM l CROSS JOIN LATERAL unnest(l.rids, l.refs) AS u(rid, ref)
		WHERE l.methods <> 'V' AND u.rid >> 48 = (SELECT t.typ FROM resource_type t WHERE t.name = $2)`, id, v.Resource)
	if err != nil {
		return "", err
	}
	refs, err := pgx.CollectRows(rows, pgx.RowTo[int64])
	if err != nil {
		return "", err
	}
	e := v.NewEvaluator(ctx, s.bases(g), s.Now())
	added, removed, problems := int64(0), int64(0), int64(0)
	b := &batch{c: &chunk{}}
	flush := func() error {
		gone, fewer, err := b.store(ctx, tx, g, v.Resource)
		added, removed, problems = added+b.c.rows, removed+gone, problems+int64(len(b.c.problems))-fewer
		b = &batch{c: &chunk{}}
		return err
	}
	for some := range slices.Chunk(refs, refsAtOnce) {
		err := s.Store.CurrentOf(ctx, tx, v.Resource, some, func(r *store.Stored) error {
			if r.Method == fhir.DELETE {
				if r.ID == "" {
					b.unnamed = append(b.unnamed, r.Ref)
				} else {
					b.ids = append(b.ids, r.ID)
				}
				return nil
			}
			b.ids = append(b.ids, r.ID)
			decoded, err := s.decode(ctx, &r.Version)
			if err != nil {
				return err
			}
			return evaluateInto(b.c, e, decoded)
		})
		if err == nil && len(b.c.data) > chunkBytes {
			err = flush()
		}
		if err != nil {
			return "", err
		}
	}
	if len(refs) == 0 {
		// A position that is lost with the database's last moments is found again.
		if _, err := tx.Exec(ctx, "SET LOCAL synchronous_commit = off"); err != nil {
			return "", err
		}
	}
	if err := flush(); err != nil {
		return "", err
	}
	if _, err := tx.Exec(ctx, `UPDATE view_generation SET epoch = (SELECT g.epoch FROM search_registry g), seen = pg_current_snapshot(), rows = rows + $2, problems = problems + $3
		WHERE id = $1`, id, added-removed, problems); err != nil {
		return "", err
	}
	_, err = tx.Exec(ctx, `UPDATE change_reader r SET epoch = g.epoch, xid = pg_snapshot_xmin(g.seen), rid = 0, version = 0 FROM view_generation g WHERE g.id = $1 AND r.name = $2`, id, g.reader())
	return g.state, err
}

// batch is the new rows of changed resources.
type batch struct {
	c       *chunk
	ids     []string // of all resources whose rows are replaced
	unnamed []int64  // references of removed resources whose ids nobody knows any more
}

// store replaces rows. It returns the numbers of rows and of problems that were there before.
func (b *batch) store(ctx context.Context, tx pgx.Tx, g *generation, typ string) (rows, problems int64, err error) {
	if len(b.unnamed) > 0 {
		if err := b.findIDs(ctx, tx, g, typ); err != nil {
			return 0, 0, err
		}
	}
	if len(b.ids) == 0 {
		return 0, 0, nil
	}
	tag, err := tx.Exec(ctx, "DELETE FROM "+g.relation()+" WHERE "+ID+" = ANY ($1::text[])", b.ids)
	if err != nil {
		return 0, 0, err
	}
	fewer, err := tx.Exec(ctx, "DELETE FROM view_problem WHERE generation = $1 AND id = ANY ($2::text[])", g.id, b.ids)
	if err != nil {
		return 0, 0, err
	}
	return tag.RowsAffected(), fewer.RowsAffected(), b.c.copyInto(ctx, tx, g)
}

// findIDs finds the ids of resources that were removed with their history, among those in the table.
func (b *batch) findIDs(ctx context.Context, tx pgx.Tx, g *generation, typ string) error {
	wanted := make(map[int64]bool)
	for _, ref := range b.unnamed {
		wanted[ref] = true
	}
	rows, err := tx.Query(ctx, "SELECT "+ID+" FROM "+g.relation()+" UNION SELECT id FROM view_problem WHERE generation = $1", g.id)
	if err != nil {
		return err
	}
	defer rows.Close()
	for rows.Next() {
		var id string
		if err := rows.Scan(&id); err != nil {
			return err
		}
		if wanted[int64(fhir.ValueReference(typ, id))] {
			b.ids = append(b.ids, id)
		}
	}
	return rows.Err()
}

// swap shows a table that is built: one transaction brings it to the state of now, drops the old one and renames it. A
// long reader of the old table makes it fail with 55P03; it is tried again.
func (s *Service) swap(ctx context.Context, id int64) error {
	list, err := readGenerations(ctx, s.pool(), "g.name = (SELECT o.name FROM view_generation o WHERE o.id = $1)", id)
	if err != nil {
		return err
	}
	var old, next *generation
	for _, g := range list {
		switch {
		case g.id == id && g.state == built:
			next = g
		case g.state == shown:
			old = g
		}
	}
	if next == nil {
		return nil
	}
	first := fmt.Sprintf("SET LOCAL lock_timeout = %d", lockTimeout.Milliseconds())
	if old != nil { // before the snapshot, so that no round of the old table is later than it
		waits, err := s.readersWait(ctx, next)
		if err != nil || waits {
			return err
		}
		first += "; LOCK TABLE " + old.relation() + " IN ACCESS EXCLUSIVE MODE"
	}
	err = s.inSnapshot(ctx, first, func(tx pgx.Tx) error {
		if state, err := s.catchUp(ctx, tx, id); err != nil || state != built {
			return err
		}
		if old != nil {
			if err := copyGrants(ctx, tx, old, next); err != nil {
				return err
			}
			if err := dropGeneration(ctx, tx, old); err != nil {
				return dependency(err, old.name)
			}
		}
		if _, err := tx.Exec(ctx, "ALTER TABLE "+next.relation()+" RENAME TO "+pgx.Identifier{next.name}.Sanitize()); err != nil {
			return err
		}
		_, err := tx.Exec(ctx, "UPDATE view_generation SET state = 'shown', reason = '' WHERE id = $1", id)
		return err
	})
	if e, ok := outcome.From(err); ok && e.Issues[0].Code == outcome.CodeConflict {
		_, err = s.pool().Exec(ctx, "UPDATE view_generation SET reason = $2 WHERE id = $1 AND reason <> $2", id, e.Error())
	}
	return err
}

// readersWait reports whether a transaction has an older snapshot than the new table: it would find the table empty.
func (s *Service) readersWait(ctx context.Context, next *generation) (bool, error) {
	var waits bool
	err := s.pool().QueryRow(ctx, `SELECT EXISTS (
		SELECT FROM pg_stat_activity a
		WHERE a.datname = current_database() AND a.backend_type = 'client backend' AND a.pid <> pg_backend_pid() AND a.backend_xmin IS NOT NULL
			AND age(a.backend_xmin) > (SELECT age(g.filled::xid) FROM view_generation g WHERE g.id = $1))`, next.id).Scan(&waits)
	return waits, err
}

package table

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/prometheus/client_golang/prometheus"

	"kiln/server/access"
	"kiln/server/interaction"
	"kiln/server/jobs"
	"kiln/server/store"
)

// The times of a Service.
const (
	roundInterval = 200 * time.Millisecond // least time between two looks at the change log
	pollInterval  = time.Second            // longest time between two looks
	lookEvery     = time.Second            // between two looks for tables to build
	swapInterval  = 500 * time.Millisecond // least time between two tries of a swap
	apartTime     = 2 * time.Second        // a table whose round has failed does not share the rounds of others for so long
)

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

// follower keeps tables current until stop.
type follower struct {
	stop  context.CancelFunc
	ids   atomic.Pointer[[]int64] // of their generations
	swaps bool                    // it follows one generation that is built, and shows it
}

// Run works until ctx ends. Each server runs it; one at a time works on a table. The tables of a type that are shown
// have one follower, which reads and decodes a changed resource once for all of them.
func (s *Service) Run(ctx context.Context) {
	ctx = access.WithPrincipal(ctx, access.Open)
	followers := make(map[string]*follower)
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
			wanted := make(map[string][]int64)
			for _, g := range list {
				wanted[g.follower()] = append(wanted[g.follower()], g.id)
				if followers[g.follower()] == nil {
					under, stop := context.WithCancel(ctx)
					f := &follower{stop: stop, swaps: g.state == built}
					f.ids.Store(&[]int64{g.id})
					followers[g.follower()] = f
					working.Go(func() { s.follow(under, f) })
				}
			}
			for name, f := range followers {
				if ids, ok := wanted[name]; ok {
					f.ids.Store(&ids)
				} else {
					f.stop()
					delete(followers, name)
				}
			}
		}
		select {
		case <-ctx.Done():
		case <-s.wake:
		case <-tick.C:
		}
	}
	for _, f := range followers {
		f.stop()
	}
}

// follower is the name of the follower of a generation: the generations of a type that are shown have one, and each one
// that is built has one of its own.
func (g *generation) follower() string {
	if g.state == shown {
		return g.resourceType()
	}
	return strconv.FormatInt(g.id, 10)
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

// follow keeps the tables of a follower current until ctx ends.
func (s *Service) follow(ctx context.Context, f *follower) {
	woken, stop := s.Store.WatchChanges()
	defer stop()
	tried := time.Time{}
	apart := make(map[int64]time.Time)
	for ctx.Err() == nil {
		s.bringCurrent(ctx, *f.ids.Load(), apart)
		if f.swaps && time.Since(tried) >= swapInterval {
			tried = time.Now()
			for _, id := range *f.ids.Load() {
				s.logFailure(ctx, id, s.swap(ctx, id))
			}
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

// bringCurrent brings tables to the state of now, in one round. If that fails, each of them has a round of its own, and
// those that fail again take no part until their time in apart.
func (s *Service) bringCurrent(ctx context.Context, ids []int64, apart map[int64]time.Time) {
	now := time.Now()
	together := slices.DeleteFunc(slices.Clone(ids), func(id int64) bool { return now.Before(apart[id]) })
	err := s.round(ctx, together)
	if err == nil || isConflict(err) && !isLocked(err) {
		return
	}
	for _, id := range together {
		if len(together) > 1 {
			err = s.round(ctx, []int64{id})
		}
		if err != nil {
			apart[id] = time.Now().Add(apartTime)
			s.logFailure(ctx, id, err)
		}
	}
}

// logFailure logs the error of some work on a generation, unless it is repeated anyway.
func (s *Service) logFailure(ctx context.Context, id int64, err error) {
	if err != nil && ctx.Err() == nil && !isConflict(err) {
		s.Logger.Error("a table of a view does not follow; it is tried again", slog.Int64("generation", id), slog.Any("error", err))
	}
}

// isConflict reports that the same work can succeed when it is repeated: another server has worked on the same table,
// or somebody holds a lock of it.
func isConflict(err error) bool {
	var e *pgconn.PgError
	return errors.As(err, &e) && (e.Code == "40001" || e.Code == "40P01") || isLocked(err)
}

// isLocked reports that somebody holds a lock of a table.
func isLocked(err error) bool {
	var e *pgconn.PgError
	return errors.As(err, &e) && e.Code == "55P03"
}

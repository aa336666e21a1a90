package table

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"kiln/server/fhir"
	"kiln/server/jobs"
	"kiln/server/outcome"
	"kiln/server/store"
	"kiln/server/view"
)

// BuildJob is the type of the jobs that build tables.
const BuildJob = "view-build"

// Sizes of a build.
const (
	pageResources  = 500     // resources that a page reads
	chunkBytes     = 4 << 20 // rows that a transaction stores
	chunkResources = 20000   // resources whose rows a transaction stores
	pagesAhead     = 3       // pages between the goroutine that reads and the one that evaluates
)

// buildSpec names the generation that a job builds.
type buildSpec struct {
	Generation int64 `json:"generation"`
}

// buildProgress is how far a build is: the moment that it reads, and the last surrogate that it has stored.
type buildProgress struct {
	Moment time.Time `json:"moment"`
	Done   int64     `json:"done"`
	After  int64     `json:"after"`
	Last   int64     `json:"last"`
}

// Kind is the type of job of builds.
func (s *Service) Kind() jobs.Kind {
	return jobs.Kind{Type: BuildJob, Run: s.runBuild, Ended: func(ctx context.Context, _ *jobs.Job) { s.Wake() }}
}

// runBuild builds the table of a generation: it stores the rows of one moment, then the indexes. Follow stores the
// changes from the snapshot on that the generation was made with, which is older than the moment.
func (s *Service) runBuild(ctx context.Context, t *jobs.Task) (jobs.Result, error) {
	var spec buildSpec
	if err := json.Unmarshal(t.Job.Spec, &spec); err != nil {
		return jobs.Result{}, err
	}
	list, err := readGenerations(ctx, s.pool(), "g.id = $1 AND g.state = 'building'", spec.Generation)
	if err != nil || len(list) == 0 { // dropped, or built before a server died
		return jobs.Result{}, err
	}
	result, err := s.buildGeneration(ctx, t, list[0])
	if err != nil {
		if left, again := readGenerations(ctx, s.pool(), "g.id = $1", spec.Generation); again == nil && len(left) == 0 {
			return jobs.Result{}, nil // dropped while it was built
		}
	}
	return result, err
}

// buildGeneration is runBuild for a generation that exists.
func (s *Service) buildGeneration(ctx context.Context, t *jobs.Task, g *generation) (jobs.Result, error) {
	v, err := g.view()
	if err != nil {
		return jobs.Result{}, err
	}
	var p buildProgress
	if err := json.Unmarshal(t.Kept, &p); err != nil {
		return jobs.Result{}, err
	}
	if p.Moment.IsZero() {
		if p.Moment, err = s.Store.FixMoment(ctx, s.SnapshotWait()); err != nil {
			return jobs.Result{}, err
		}
		low, high, err := s.Store.TypeSpan(ctx, v.Resource, p.Moment)
		if err != nil {
			return jobs.Result{}, err
		}
		p.After, p.Last = low-1, high
		if high == 0 {
			p.After = 0
		}
		err = pgx.BeginFunc(ctx, s.pool(), func(tx pgx.Tx) error { return t.Keep(ctx, tx, p, 0) })
		if err != nil {
			return jobs.Result{}, err
		}
	}
	if err := s.storeRows(ctx, t, g, v, &p); err != nil {
		return jobs.Result{}, err
	}
	err = pgx.BeginFunc(ctx, s.pool(), func(tx pgx.Tx) error {
		if err := t.Keep(ctx, tx, p, p.Done); err != nil {
			return err
		}
		if err := addIndexes(ctx, tx, g); err != nil {
			return err
		}
		_, err := tx.Exec(ctx, "UPDATE view_generation SET state = 'built', filled = pg_current_xact_id() WHERE id = $1", g.id)
		return err
	})
	var e *pgconn.PgError
	if errors.As(err, &e) && strings.HasPrefix(e.Code, "54") {
		err = outcome.UnprocessableContent(outcome.CodeInvalid, "an index cannot be built: %s", e.Message)
	}
	if err == nil {
		s.Wake()
	}
	return jobs.Result{Done: p.Done}, err
}

// addIndexes builds the indexes of a generation.
func addIndexes(ctx context.Context, tx pgx.Tx, g *generation) error {
	for i, list := range append([][]string{{ID}}, g.indexes...) {
		quoted := make([]string, len(list))
		for k, name := range list {
			quoted[k] = pgx.Identifier{name}.Sanitize()
		}
		sql := fmt.Sprintf("CREATE INDEX %s ON %s (%s)", pgx.Identifier{fmt.Sprintf("_index_%d_%d", g.id, i)}.Sanitize(), g.relation(), strings.Join(quoted, ", "))
		if _, err := tx.Exec(ctx, sql); err != nil {
			return err
		}
	}
	_, err := tx.Exec(ctx, "ANALYZE "+g.relation())
	return err
}

// page is some resources in the order of their surrogates.
type page struct {
	resources []fhir.Resource
	end       int64 // surrogate
}

// storeRows stores the rows of all resources behind p.After. Three goroutines read, evaluate and store.
func (s *Service) storeRows(ctx context.Context, t *jobs.Task, g *generation, v *view.View, p *buildProgress) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	pages := make(chan page, pagesAhead)
	chunks := make(chan *chunk, 1)
	stored := make(chan error, 1)
	storing := t.NewPacer()
	go func() {
		defer close(pages)
		if err := s.readPages(ctx, t.NewPacer(), v.Resource, *p, pages); err != nil {
			cancel(err)
		}
	}()
	go func() {
		for c := range chunks {
			err := storing.Slice(ctx, len(c.items)+len(c.problems), func() error { return s.storeChunk(ctx, t, g, c, p) })
			if err != nil {
				cancel(err)
				break
			}
		}
		stored <- context.Cause(ctx)
	}()
	e := v.NewEvaluator(ctx, s.bases(g), p.Moment)
	c := &chunk{}
	send := func() bool {
		select {
		case chunks <- c:
			c = &chunk{}
			return true
		case <-ctx.Done():
			return false
		}
	}
	var err error
	resources := 0
evaluate:
	for read := range pages {
		for _, r := range read.resources {
			if err = evaluateInto(c, e, r); err != nil {
				cancel(err)
				break evaluate
			}
		}
		c.last = read.end
		if resources += len(read.resources); len(c.data) >= chunkBytes || resources >= storing.Size(chunkResources) {
			resources = 0
			if !send() {
				break
			}
		}
	}
	if err == nil && context.Cause(ctx) == nil && c.last > 0 {
		send()
	}
	close(chunks)
	return <-stored
}

// storeChunk stores a chunk with the progress of the build.
func (s *Service) storeChunk(ctx context.Context, t *jobs.Task, g *generation, c *chunk, p *buildProgress) error {
	next := *p
	next.After, next.Done = c.last, p.Done+int64(len(c.items)+len(c.problems))
	err := pgx.BeginFunc(ctx, s.pool(), func(tx pgx.Tx) error {
		if err := t.Keep(ctx, tx, next, next.Done); err != nil {
			return err
		}
		if err := c.copyInto(ctx, tx, g); err != nil {
			return err
		}
		tag, err := tx.Exec(ctx, "UPDATE view_generation SET rows = rows + $2, problems = problems + $3 WHERE id = $1", g.id, c.rows, len(c.problems))
		if err == nil && tag.RowsAffected() == 0 {
			err = outcome.New(outcome.CodeNotFound, "the table was dropped")
		}
		return err
	})
	*p = next
	return err
}

// readPages reads and decodes the resources of a build.
func (s *Service) readPages(ctx context.Context, pacer *jobs.Pacer, typ string, p buildProgress, pages chan<- page) error {
	for p.After < p.Last {
		out := page{}
		asked := store.MomentPage{ResourceType: typ, At: p.Moment, After: p.After, Last: p.Last, Count: pacer.Size(pageResources)}
		err := pacer.Slice(ctx, asked.Count, func() (err error) {
			out.end, err = s.Store.VersionsAt(ctx, asked, func(v *store.Stored) error {
				r, err := s.decode(ctx, &v.Version)
				out.resources = append(out.resources, r)
				return err
			})
			return err
		})
		if err != nil {
			return err
		}
		p.After = out.end
		select {
		case pages <- out:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return nil
}

// decode reads a resource as a run of a view shows it.
func (s *Service) decode(ctx context.Context, v *fhir.Version) (fhir.Resource, error) {
	if s.Masks[v.ResourceType] != nil {
		list := []fhir.Version{*v}
		if err := s.Mask(ctx, list); err != nil {
			return nil, err
		}
		*v = list[0]
	}
	in, err := fhir.Read(s.Model, bytes.Clone(v.Body))
	if err != nil {
		return nil, fmt.Errorf("%s/%s: %w", v.ResourceType, v.ID, err)
	}
	return in.Resource, nil
}

package searchshape

import (
	"context"
	"encoding/json"
	"log/slog"
	"time"

	"kiln/server/jobs"
	"kiln/server/outcome"
	"kiln/server/store"
)

// BuildType is the type of the jobs that build indexes.
const BuildType = "index-build"

// Build is the work of such a job.
type Build struct {
	Name      string `json:"name"`      // of the index
	Statement string `json:"statement"` // CREATE INDEX CONCURRENTLY …
}

// ReadBuild returns the work of a job of BuildType.
func ReadBuild(j *jobs.Job) (Build, error) {
	var b Build
	if err := json.Unmarshal(j.Spec, &b); err != nil {
		return b, outcome.New(outcome.CodeException, "the job of an index cannot be read").Because(err)
	}
	return b, nil
}

// BuildKind is the kind of the jobs that build indexes, for Core.Kinds: while others read and write, and
// again from the start where a server has ended before its time.
func BuildKind(s *store.Store, log *slog.Logger) jobs.Kind {
	return jobs.Kind{Type: BuildType,
		Run: func(ctx context.Context, t *jobs.Task) (jobs.Result, error) {
			b, err := ReadBuild(t.Job)
			if err != nil {
				return jobs.Result{}, err
			}
			if err := t.Wait(); err != nil { // for PostgreSQL, perhaps for hours
				return jobs.Result{}, err
			}
			return jobs.Result{}, s.BuildIndex(ctx, b.Name, b.Statement, !t.NewPacer().Busy())
		},
		Ended: func(ctx context.Context, j *jobs.Job) {
			if j.State == jobs.Done {
				return
			}
			b, err := ReadBuild(j)
			if err == nil {
				// The builder, on any server, stops within the time between two renewals of its lease.
				bounded, cancel := context.WithTimeout(ctx, dropTimeout)
				defer cancel()
				err = s.DropUnfinishedIndex(bounded, b.Name)
			}
			if err != nil {
				log.Warn("the unfinished part of an index was not dropped; the next build of it drops it", slog.String("index", b.Name), slog.Any("error", err))
			}
		},
	}
}

// dropTimeout bounds how long the end of a job waits for its builder and for PostgreSQL.
const dropTimeout = 10 * time.Second

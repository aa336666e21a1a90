package server

import (
	"context"
	"log/slog"
	"time"

	"kiln/server/admin"
	"kiln/server/jobs"
	"kiln/server/search"
	"kiln/server/searchshape"
	"kiln/server/store"
)

// searchRecorder counts the searches that are run.
func (s *Server) searchRecorder() *searchshape.Recorder {
	r := &searchshape.Recorder{Store: s.Store, Now: time.Now, Logger: s.Logger,
		Slow: func() time.Duration { return time.Duration(s.now().Log.SlowSearchMS) * time.Millisecond }}
	s.runInBackground(func(ctx context.Context) {
		tick := time.NewTicker(flushShapes)
		defer tick.Stop()
		for {
			select {
			case <-tick.C:
				if err := r.Flush(ctx); err != nil && ctx.Err() == nil {
					s.Logger.Warn("the shapes of searches cannot be kept", slog.Any("error", err))
				}
			case <-ctx.Done():
				bounded, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
				defer cancel()
				_ = r.Flush(bounded) // figures of the last seconds, no more
				return
			}
		}
	})
	return r
}

// flushShapes is the interval at which counts are stored for the other servers.
const flushShapes = time.Second

// trimInterval is how often a server deletes stored searches that are no longer good.
const trimInterval = time.Minute

// trimStoredSearches deletes the stored searches that are no longer good.
func (s *Server) trimStoredSearches(ctx context.Context) {
	tick := time.NewTicker(trimInterval)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
			if err := s.Store.TrimStoredSearches(ctx, time.Duration(s.now().Search.StoredMinutes)*time.Minute); err != nil && ctx.Err() == nil {
				s.Logger.Warn("stored searches cannot be deleted", slog.Any("error", err))
			}
		case <-ctx.Done():
			return
		}
	}
}

// searchesPart is what administrators see of searches.
type searchesPart struct {
	*searchshape.Recorder
	*searchshape.Advisor
}

// searches shows the counted searches and suggests indexes, which jobs of the core build.
func (s *Server) searches() searchesPart {
	s.runInBackground(s.trimStoredSearches)
	return searchesPart{s.recorder, &searchshape.Advisor{Recorder: s.recorder, Store: s.Store, Jobs: s.bulk.Jobs, Now: time.Now, Logger: s.Logger,
		Registry: func() *search.Registry { return s.Parameters.Current() }}}
}

// reindexJobs are the jobs on the search index.
type reindexJobs struct{ store *store.Store }

// Jobs lists them.
func (r reindexJobs) Jobs(ctx context.Context) ([]admin.Job, error) {
	list, err := r.store.ReindexJobs(ctx)
	if err != nil {
		return nil, err
	}
	out := make([]admin.Job, len(list))
	for i, j := range list {
		a := admin.Job{ID: j.ID, Type: "reindex", State: admin.JobRunning, ResourceType: j.ResourceType, Created: j.Created, Started: timeOrNil(j.Planned), Finished: timeOrNil(j.Finished),
			Total: j.Total, Done: j.Done, Failed: j.Failed, Failure: j.Failure, Reason: j.ReasonText(),
			Parts: j.Parts, PartsDone: j.PartsDone, Attempts: j.Attempts}
		switch {
		case j.Cancelled:
			a.State = admin.JobCancelled
		case !j.Finished.IsZero() && j.State == jobs.Failed:
			a.State = admin.JobFailed
		case !j.Finished.IsZero():
			a.State = admin.JobDone
		case j.Planned.IsZero() || j.State == jobs.Waiting:
			a.State = admin.JobWaiting
		}
		a.Measure(time.Now())
		out[i] = a
	}
	return out, nil
}

// Cancel ends a job.
func (r reindexJobs) Cancel(ctx context.Context, id string) (bool, error) {
	return r.store.CancelReindexJob(ctx, id)
}

func timeOrNil(t time.Time) *time.Time {
	if t.IsZero() {
		return nil
	}
	return &t
}

package server

import (
	"context"
	"log/slog"
	"time"

	"kiln/server/admin"
	"kiln/server/fhir"
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
	built chan<- struct{}
}

// Apply makes this server build the index, unless another one does.
func (p searchesPart) Apply(ctx context.Context, id string) (string, error) {
	job, err := p.Advisor.Apply(ctx, id)
	if err == nil {
		select {
		case p.built <- struct{}{}:
		default: // it will look anyway
		}
	}
	return job, err
}

// searches shows the counted searches, suggests indexes and builds them.
func (s *Server) searches() searchesPart {
	wake := make(chan struct{}, 1)
	s.runInBackground(func(ctx context.Context) { s.buildIndexes(ctx, wake) })
	s.runInBackground(s.trimStoredSearches)
	return searchesPart{s.recorder, &searchshape.Advisor{Recorder: s.recorder, Store: s.Store, Now: time.Now, NewID: fhir.NewID, Logger: s.Logger,
		Registry: func() *search.Registry { return s.Parameters.Current() }}, wake}
}

// lookForBuilds is how often a server looks for indexes that nobody builds.
const lookForBuilds = 5 * time.Second

func (s *Server) buildIndexes(ctx context.Context, wake <-chan struct{}) {
	tick := time.NewTicker(lookForBuilds)
	defer tick.Stop()
	for {
		worked, err := s.Store.BuildIndex(ctx)
		if err != nil && ctx.Err() == nil {
			s.Logger.Warn("an index cannot be built now", slog.Any("error", err))
		}
		if worked && err == nil {
			continue
		}
		select {
		case <-wake:
		case <-tick.C:
		case <-ctx.Done():
			return
		}
	}
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
			Total: j.Total, Done: j.Done, Failed: j.Failed, Failure: j.Failure, Reason: j.ReasonText()}
		switch {
		case j.Cancelled:
			a.State = admin.JobCancelled
		case !j.Finished.IsZero():
			a.State = admin.JobDone
		case j.Planned.IsZero():
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

// indexBuilds are the indexes that are built.
type indexBuilds struct{ store *store.Store }

// Jobs lists them.
func (b indexBuilds) Jobs(ctx context.Context) ([]admin.Job, error) {
	list, err := b.store.IndexBuilds(ctx)
	if err != nil {
		return nil, err
	}
	out := make([]admin.Job, len(list))
	for i, j := range list {
		a := admin.Job{ID: j.ID, Type: "index-build", State: admin.JobWaiting, Reason: j.Reason, Created: j.Created, Started: timeOrNil(j.Started), Finished: timeOrNil(j.Finished),
			Total: j.Total, Done: j.Done, Failure: j.Failure, Detail: j.Statement}
		switch {
		case !j.Finished.IsZero() && j.Cancelled && j.Failure != "":
			a.State = admin.JobCancelled
		case !j.Finished.IsZero() && j.Failure != "":
			a.State = admin.JobFailed
		case !j.Finished.IsZero():
			a.State = admin.JobDone
		case !j.Started.IsZero():
			a.State = admin.JobRunning
		}
		a.Measure(time.Now())
		out[i] = a
	}
	return out, nil
}

// Cancel ends a job.
func (b indexBuilds) Cancel(ctx context.Context, id string) (bool, error) {
	return b.store.CancelIndexBuild(ctx, id)
}

func timeOrNil(t time.Time) *time.Time {
	if t.IsZero() {
		return nil
	}
	return &t
}

package server

import (
	"context"
	"crypto/rand"
	"net/http"
	"net/netip"
	"slices"
	"time"

	"kiln/server/admin"
	"kiln/server/bulk"
	"kiln/server/jobs"
	"kiln/server/searchparam"
	"kiln/server/searchshape"
	"kiln/server/store"
)

// bulkData builds Bulk Data and the jobs that it runs.
func (s *Server) bulkData() (*bulk.Service, error) {
	b := &bulk.Service{
		Service:       s.Service,
		Operations:    s.Operations,
		Storage:       bulk.Directory(s.Config.bulkDirectory()),
		Settings:      func() bulk.Settings { return s.derived.Load().bulk },
		ImportEnabled: func(ctx context.Context) bool { return s.enabled(ctx, "bulk.import") },
		ExportEnabled: func(ctx context.Context) bool { return s.enabled(ctx, "bulk.export") },
		Authorization: s.Config.Auth.Enabled,
		Audit:         s.audit,
		Address:       func(r *http.Request) netip.Addr { return s.derived.Load().web.Proxies.ClientAddress(r) },
		Log:           s.Logger,
	}
	objects, err := s.Config.objectStore()
	if err != nil {
		return nil, err
	}
	if objects != nil {
		b.OpenObject = objects.OpenObject
	}
	if s.Config.Bulk.S3.Bucket != "" {
		b.Storage = objects
	}
	b.Jobs = &jobs.Core{Pool: s.Store.Pool(), Settings: func() jobs.Settings { return s.derived.Load().jobs }, NewID: rand.Text, Logger: s.Logger,
		Remove: func(ctx context.Context, job string) error { return b.Storage.RemoveJob(ctx, job) }, Sweep: b.Sweep, Authorization: s.Config.Auth.Enabled,
		Requests: s.inFlight.Total}
	b.Jobs.Kinds = b.Kinds()
	b.Jobs.Open(s.Metrics)
	return b, nil
}

// coreJobs are the jobs of the core, but for those on the search index: reindexJobs lists those.
type coreJobs struct {
	core  *jobs.Core
	store *store.Store
}

// Jobs lists them. An index that is built has the progress that PostgreSQL shows, and its statement.
func (c coreJobs) Jobs(ctx context.Context) ([]admin.Job, error) {
	list, err := c.core.List(ctx)
	if err != nil {
		return nil, err
	}
	list = slices.DeleteFunc(list, func(j jobs.Job) bool { return j.Type == searchparam.ReindexType })
	var progress map[string]store.BuildProgress
	out := make([]admin.Job, len(list))
	for i := range list {
		j := &list[i]
		out[i] = adminJob(j)
		if j.Type != searchshape.BuildType {
			continue
		}
		b, err := searchshape.ReadBuild(j)
		if err != nil {
			return nil, err
		}
		if out[i].Detail = b.Statement; j.State != jobs.Running {
			continue
		}
		if progress == nil {
			if progress, err = c.store.IndexProgress(ctx); err != nil {
				return nil, err
			}
		}
		out[i].Total, out[i].Done = progress[b.Name].Total, progress[b.Name].Done
		out[i].Measure(time.Now())
	}
	return out, nil
}

// adminJob is a job as administrators see it.
func adminJob(j *jobs.Job) admin.Job {
	a := admin.Job{ID: j.ID, Type: j.Type, State: j.State, Reason: j.Reason, Created: j.Created, Started: timeOrNil(j.Started), Finished: timeOrNil(j.Finished),
		Total: j.Total, Done: j.Done, Failed: j.Failed, Failure: j.Failure, Client: j.Client, User: j.User, Request: j.Request, Expires: timeOrNil(j.Expires),
		Parts: j.Parts, PartsDone: j.PartsDone, Attempts: j.Attempts}
	a.Measure(time.Now())
	return a
}

// Cancel ends a job.
func (c coreJobs) Cancel(ctx context.Context, id string) (bool, error) { return c.core.Cancel(ctx, id) }

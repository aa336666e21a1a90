package bulk

import (
	"context"
	"io"
	"log/slog"
	"maps"
	"net/http"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"kiln/server/audit"
	"kiln/server/interaction"
	"kiln/server/jobs"
	"kiln/server/operation"
	"kiln/server/web"
)

// Settings are what administrators choose; they can change at run time.
type Settings struct {
	PollsPerMinute int           // of one job
	Retention      time.Duration // of results
	MaxFileBytes   int64
	QuotaBytes     int64 // of all files; 0 means none
	SnapshotWait   time.Duration
	Import         ImportSettings
}

// Service is Bulk Data. Its fields are set before Mount.
type Service struct {
	*interaction.Service
	Operations *operation.Set
	Jobs       *jobs.Core
	Storage    Storage
	// OpenObject opens an object for s3: sources; nil without an object store.
	OpenObject func(ctx context.Context, bucket, key string) (io.ReadCloser, error)
	Settings   func() Settings
	// ExportEnabled and ImportEnabled report whether the client of a request may export and import.
	ExportEnabled, ImportEnabled func(ctx context.Context) bool
	// Authorization says that downloads need an access token.
	Authorization bool
	Audit         *audit.Recorder
	Address       func(r *http.Request) netip.Addr // of the client
	Log           *slog.Logger

	// Results are the jobs of other packages, by type.
	Results map[string]Result

	comparing sync.Mutex // held by compareStorage
	mark      string     // of Storage; "" before the first comparison
	compared  time.Time
	shared    atomic.Bool // the other servers of the database have the same Storage
	polls     pollCounter
	sets      patientSets
	uploads   uploads

	sourcesOnce sync.Once
	sources     *http.Client
}

// Intervals of compareStorage.
const (
	compareEach = 5 * time.Second  // between two comparisons
	storageGone = 15 * time.Second // after which a storage that no server has any more gives its place to another one
)

// compareStorage compares the storage of this server with the shared storage of the database, every few
// seconds. Before the first kick-off there is no shared storage: create makes one. Where no server has
// the shared storage any more, as after the loss of a disk, the storage of this server takes its place.
func (s *Service) compareStorage(ctx context.Context, create bool) error {
	s.comparing.Lock()
	defer s.comparing.Unlock()
	if s.mark != "" && time.Since(s.compared) < compareEach {
		return nil
	}
	known, err := s.Jobs.DirectoryMark(ctx)
	if err != nil || known == "" && !create {
		return err
	}
	own := s.mark
	if own == "" {
		if own, err = s.Storage.Mark(ctx); err != nil {
			return err
		}
	}
	if known == "" {
		if _, err = s.Jobs.MarkDirectory(ctx, own); err != nil {
			return err
		}
	}
	if known, err = s.Jobs.SeeDirectory(ctx, own); err != nil {
		return err
	}
	if known != own {
		replaced, err := s.Jobs.ReplaceDirectory(ctx, known, own, storageGone, s.storedTypes())
		if err != nil {
			return err
		}
		if replaced {
			s.Log.Warn("bulk.directory is another folder than before, and no server has the old one: its jobs and results are lost")
			if known, err = s.Jobs.SeeDirectory(ctx, own); err != nil {
				return err
			}
		}
	}
	first := s.mark == ""
	s.mark, s.compared = own, time.Now()
	if was := s.shared.Swap(own == known); own != known && (was || first) {
		s.Log.Error("bulk.directory is not the folder of the other servers of this database: this server runs no bulk jobs")
	}
	return nil
}

// storedTypes are the types of jobs that have files.
func (s *Service) storedTypes() []string {
	return append([]string{"export", "search", "import"}, slices.Sorted(maps.Keys(s.Results))...)
}

// RunsJobs reports whether this server can run parts of jobs.
func (s *Service) RunsJobs() bool {
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
	defer cancel()
	if err := s.compareStorage(ctx, false); err != nil {
		s.Log.Warn("compare bulk.directory with that of other servers", slog.Any("error", err))
	}
	return s.shared.Load()
}

// orphanAge is the age from which files of no job are removed: an upload is stored before its job is added.
const orphanAge = 24 * time.Hour

// Sweep removes files of no job: of uploads that the end of a server broke off, and files that a server wrote after
// the end of its lease.
func (s *Service) Sweep(ctx context.Context) error {
	if !s.shared.Load() {
		return nil
	}
	ids, err := s.Storage.Jobs(ctx, orphanAge)
	if err != nil || len(ids) == 0 {
		return err
	}
	known, err := s.Jobs.Known(ctx, ids)
	if err != nil {
		return err
	}
	for _, id := range ids {
		if slices.Contains(known, id) {
			continue
		}
		if err := s.Storage.RemoveJob(ctx, id); err != nil {
			return err
		}
	}
	return nil
}

// Kinds are the types of jobs that the service runs.
func (s *Service) Kinds() []jobs.Kind {
	ready := s.RunsJobs
	return []jobs.Kind{
		{Type: "export", Run: s.runExport, Ready: ready, Ended: s.jobEnded},
		{Type: "search", Run: s.runSearch, Ready: ready},
		{Type: "import", Run: s.runImport, Ready: ready, Ended: s.jobEnded},
	}
}

// Mount serves the status URLs and files.
func (s *Service) Mount(m *web.Mux) {
	m.HandleFunc(web.Jobs, "GET /$job/{id}", s.status)
	m.HandleFunc(web.Jobs, "DELETE /$job/{id}", s.remove)
	m.HandleFunc(web.Jobs, "GET /$job/{id}/{file}", s.download)
}

// pollCounter counts the requests for the status of each job.
type pollCounter struct {
	mu   sync.Mutex
	seen map[string][]time.Time
}

// allow counts a request, and returns how long to wait where there are more than most in a minute.
func (c *pollCounter) allow(job string, most int, now time.Time) (wait time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.seen == nil {
		c.seen = make(map[string][]time.Time)
	}
	if len(c.seen) > 10_000 {
		for id, list := range c.seen {
			if now.Sub(list[len(list)-1]) > time.Minute {
				delete(c.seen, id)
			}
		}
	}
	list := c.seen[job]
	for len(list) > 0 && now.Sub(list[0]) >= time.Minute {
		list = list[1:]
	}
	if len(list) >= most {
		c.seen[job] = list
		return time.Minute - now.Sub(list[0])
	}
	c.seen[job] = append(list, now)
	return 0
}

// auditJob records an event of an export or import; the event is kickoff, end, cancel or download.
func (s *Service) auditJob(e audit.Event, job *jobs.Job, event string) {
	if s.Audit == nil || s.Audit.Rest() == audit.Off || job.Type != "export" && job.Type != "import" {
		return
	}
	e.Interaction, e.Action = job.Type+"-"+event, "E"
	if event == "download" {
		e.Action = "R"
	}
	_, path, _ := strings.Cut(job.Request, "://")
	if at := strings.IndexByte(path, '/'); at >= 0 {
		e.Query = path[at:]
	}
	s.Audit.Record(e)
}

// jobEnded records the end of a job.
func (s *Service) jobEnded(ctx context.Context, j *jobs.Job) {
	if j.Type == "import" && j.State == jobs.Done {
		s.dropInputs(ctx, j)
	}
	e := audit.Event{Time: s.Now(), Outcome: audit.Success, Client: j.Client, Subject: j.User, Description: j.Failure}
	what := "end"
	switch j.State {
	case jobs.Failed:
		e.Outcome = audit.Serious
	case jobs.Cancelled:
		what = "cancel"
	}
	s.auditJob(e, j, what)
}

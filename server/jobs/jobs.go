package jobs

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/prometheus/client_golang/prometheus"

	"kiln/gen/db"
	"kiln/server/outcome"
)

// The states of a job.
const (
	Waiting   = "waiting"
	Running   = "running"
	Done      = "done"
	Failed    = "failed"
	Cancelled = "cancelled"
)

// The kinds of a file.
const (
	Output  = "output"
	Deleted = "deleted"
	Errors  = "error"
)

// Settings are what administrators choose; they can change at run time.
type Settings struct {
	Workers      int           // parts of this server under way
	Lease        time.Duration // a part whose lease is not renewed for so long goes to another server
	MaxAttempts  int           // failures and lost leases of a part that fail its job
	MaxPerClient int           // unfinished jobs of a client
	Retention    time.Duration // results are kept so long
}

// Job is one piece of long work.
type Job struct {
	ID, Type, State string
	Client, User    string
	Principal       []byte // JSON, as the adder wrote it
	Request, Base   string
	Spec, Shared    []byte // JSON
	Reason          string
	Created         time.Time
	Started         time.Time // zero before
	Finished        time.Time // zero before
	Expires         time.Time // zero before the end
	Expired         bool
	Total, Done     int64 // resources; Done includes running parts
	Failed          int64
	Code, Failure   string
	Parts           int64
	PartsDone       int64
	Attempts        int // the most of a part
}

// Task is a part that this server works on.
type Task struct {
	Job    *Job
	Number int
	Stage  int
	Spec   []byte // JSON of the part
	Lease  int64

	mu   sync.Mutex
	done int64
}

// Progress says how many resources the part has done so far.
func (t *Task) Progress(done int64) {
	t.mu.Lock()
	t.done = done
	t.mu.Unlock()
}

func (t *Task) unreportedProgress() int64 {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.done
}

// Part is a part to be added to a job.
type Part struct {
	Stage int
	Spec  any // encoded as JSON
}

// File is a file of a job.
type File struct {
	Name, Kind, Type string // Name is chosen when the file is stored
	Lines, Bytes     int64
	Path             string // in the storage
	Input            string // of an import; "" for nothing
}

// Result is the result of a part.
type Result struct {
	Parts               []Part
	Files               []File
	Total, Done, Failed int64          // added to the job's numbers
	Shared              map[string]any // added to Job.Shared
	Data                any            // kept with the part; see Core.Results
}

// Kind is one type of job.
type Kind struct {
	Type string
	// Run works on a part until ctx ends. An *outcome.Error fails the job; after another error
	// the part is tried again.
	Run func(ctx context.Context, t *Task) (Result, error)
	// Ready reports whether this server can run parts of the type; nil is always.
	Ready func() bool
	// Ended is called on the server that ended a job; may be nil.
	Ended func(ctx context.Context, j *Job)
}

// Core runs jobs. Its fields are set before Run.
type Core struct {
	Pool     *pgxpool.Pool
	Settings func() Settings
	NewID    func() string
	Logger   *slog.Logger
	Kinds    []Kind
	// Remove deletes the files of a job.
	Remove func(ctx context.Context, job string) error
	// Authorization says that jobs have clients and users, which can be disabled.
	Authorization bool

	holder    string
	wake      chan struct{}
	parts     *prometheus.CounterVec
	resources *prometheus.CounterVec
}

// Open prepares the Core and registers its metrics.
func (c *Core) Open(metrics prometheus.Registerer) {
	c.holder, c.wake = c.NewID(), make(chan struct{}, 1)
	c.parts = prometheus.NewCounterVec(prometheus.CounterOpts{Name: "service_job_parts_total", Help: "Parts of jobs, by type and outcome: done, failed, lost."}, []string{"type", "outcome"})
	c.resources = prometheus.NewCounterVec(prometheus.CounterOpts{Name: "service_job_resources_total", Help: "Resources that jobs have processed, by type."}, []string{"type"})
	metrics.MustRegister(c.parts, c.resources, &jobCounts{core: c})
}

// Wake lets Run look for parts at once.
func (c *Core) Wake() {
	select {
	case c.wake <- struct{}{}:
	default:
	}
}

// Add adds a job with its first parts. It fails with throttled, 429, where the client has
// MaxPerClient unfinished jobs.
func (c *Core) Add(ctx context.Context, j *Job, parts ...Part) error {
	j.ID = c.NewID()
	err := pgx.BeginFunc(ctx, c.Pool, func(tx pgx.Tx) error {
		q := db.New(tx)
		if err := q.LockJobClient(ctx, j.Client); err != nil {
			return err
		}
		n, err := q.CountUnfinishedJobs(ctx, j.Client)
		if err != nil {
			return err
		}
		if most := c.Settings().MaxPerClient; n >= int64(most) {
			return outcome.New(outcome.CodeThrottled, "this client has %d unfinished jobs, as many as jobs.max_per_client allows; wait for one of them or DELETE it", n)
		}
		if err := q.AddJob(ctx, db.AddJobParams{ID: j.ID, Type: j.Type, Client: j.Client, Username: j.User, Principal: j.Principal, Request: j.Request,
			Base: j.Base, Spec: j.Spec, Reason: j.Reason}); err != nil {
			return err
		}
		return addParts(ctx, q, j.ID, parts)
	})
	if err == nil {
		c.Wake()
	}
	return err
}

func addParts(ctx context.Context, q *db.Queries, job string, parts []Part) error {
	for _, p := range parts {
		spec, err := json.Marshal(p.Spec)
		if err != nil {
			return err
		}
		if err := q.AddJobPart(ctx, db.AddJobPartParams{Job: job, Stage: int32(p.Stage), Spec: spec}); err != nil {
			return err
		}
	}
	return nil
}

// Get returns a job; nil where there is none.
func (c *Core) Get(ctx context.Context, id string) (*Job, error) {
	r, err := db.New(c.Pool).GetJob(ctx, id)
	if errors.Is(err, pgx.ErrNoRows) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read job: %w", err)
	}
	return &Job{ID: r.ID, Type: r.Type, State: r.State, Client: r.Client, User: r.Username, Principal: r.Principal, Request: r.Request, Base: r.Base,
		Spec: r.Spec, Shared: r.Shared, Reason: r.Reason, Created: r.Created.UTC(), Started: instant(r.Started), Finished: instant(r.Finished),
		Expires: instant(r.Expires), Expired: r.Expired, Total: r.Total, Done: r.Done + r.UnderWay, Failed: r.Failed, Code: r.Code, Failure: r.Failure,
		Parts: r.Parts, PartsDone: r.PartsDone, Attempts: int(r.Attempts)}, nil
}

func instant(t pgtype.Timestamptz) time.Time {
	if !t.Valid {
		return time.Time{}
	}
	return t.Time.UTC()
}

// List returns all jobs, newest first.
func (c *Core) List(ctx context.Context) ([]Job, error) {
	rows, err := db.New(c.Pool).ListJobs(ctx)
	if err != nil {
		return nil, fmt.Errorf("list jobs: %w", err)
	}
	out := make([]Job, len(rows))
	for i, r := range rows {
		out[i] = Job{ID: r.ID, Type: r.Type, State: r.State, Client: r.Client, User: r.Username, Request: r.Request, Reason: r.Reason,
			Created: r.Created.UTC(), Started: instant(r.Started), Finished: instant(r.Finished), Expires: instant(r.Expires),
			Total: r.Total, Done: r.Done + r.UnderWay, Failed: r.Failed, Code: r.Code, Failure: r.Failure, Parts: r.Parts, PartsDone: r.PartsDone,
			Attempts: int(r.Attempts)}
	}
	return out, nil
}

// Files returns the files of a job.
func (c *Core) Files(ctx context.Context, job string) ([]File, error) {
	rows, err := db.New(c.Pool).JobFiles(ctx, job)
	if err != nil {
		return nil, fmt.Errorf("files of a job: %w", err)
	}
	out := make([]File, len(rows))
	for i, r := range rows {
		out[i] = File{Name: r.Name, Kind: r.Kind, Type: r.Type, Lines: r.Lines, Bytes: r.Bytes, Path: r.Path, Input: r.Input}
	}
	return out, nil
}

// File returns one file of a job; nil where there is none.
func (c *Core) File(ctx context.Context, job, name string) (*File, error) {
	r, err := db.New(c.Pool).JobFileByName(ctx, db.JobFileByNameParams{Job: job, Name: name})
	if errors.Is(err, pgx.ErrNoRows) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("file of a job: %w", err)
	}
	return &File{Name: r.Name, Kind: r.Kind, Type: r.Type, Lines: r.Lines, Bytes: r.Bytes, Path: r.Path}, nil
}

// Results returns Result.Data of the parts of a job that are done, by number.
func (c *Core) Results(ctx context.Context, job string) ([][]byte, error) {
	rows, err := db.New(c.Pool).JobPartResults(ctx, job)
	if err != nil {
		return nil, fmt.Errorf("results of a job: %w", err)
	}
	out := make([][]byte, len(rows))
	for i, r := range rows {
		out[i] = r.Result
	}
	return out, nil
}

// StoredBytes is the size of all files of all jobs.
func (c *Core) StoredBytes(ctx context.Context) (int64, error) {
	return db.New(c.Pool).JobFileBytes(ctx)
}

// Cancel ends a job that has not ended, and reports whether there was one.
func (c *Core) Cancel(ctx context.Context, id string) (bool, error) {
	return c.endJob(ctx, id, Cancelled, "", "")
}

// Expire removes the results of a job that has ended.
func (c *Core) Expire(ctx context.Context, id string) error {
	_, err := db.New(c.Pool).ExpireJob(ctx, id)
	if err == nil {
		c.Wake()
	}
	return err
}

// endJob ends a job that has not ended as failed or cancelled.
func (c *Core) endJob(ctx context.Context, id, state, code, failure string) (bool, error) {
	n, err := db.New(c.Pool).EndJob(ctx, db.EndJobParams{ID: id, State: state, Code: code, Failure: failure, RetentionMs: c.Settings().Retention.Milliseconds()})
	if err != nil {
		return false, fmt.Errorf("end job: %w", err)
	}
	if n > 0 {
		c.announceEnd(ctx, id)
	}
	c.Wake()
	return n > 0, nil
}

// announceEnd tells the kind of a job of its end.
func (c *Core) announceEnd(ctx context.Context, id string) {
	j, err := c.Get(ctx, id)
	if err != nil || j == nil {
		c.Logger.Error("read a job that has ended", slog.String("job", id), slog.Any("error", err))
		return
	}
	if k := c.kindOf(j.Type); k != nil && k.Ended != nil {
		k.Ended(ctx, j)
	}
}

func (c *Core) kindOf(typ string) *Kind {
	for i := range c.Kinds {
		if c.Kinds[i].Type == typ {
			return &c.Kinds[i]
		}
	}
	return nil
}

// DirectoryMark is the mark of the folder of results that the servers share, "" before the first.
func (c *Core) DirectoryMark(ctx context.Context) (string, error) {
	return db.New(c.Pool).JobDirectoryMark(ctx)
}

// MarkDirectory returns the mark of the folder of results that the servers share: own, where there
// was none.
func (c *Core) MarkDirectory(ctx context.Context, own string) (string, error) {
	return db.New(c.Pool).MarkJobDirectory(ctx, own)
}

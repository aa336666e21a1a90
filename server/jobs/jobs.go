package jobs

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"slices"
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
	Input   = "input" // is read by later parts, and in no manifest
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
	Attempts        int    // the most of a part
	Files           []File // of a job that is added: files that there are already
}

// Task is a part that this server works on.
type Task struct {
	Job    *Job
	Number int
	Stage  int
	Spec   []byte // JSON of the part
	Lease  int64
	// Kept is the JSON of the last Keep, by this server or by another one; {} before.
	Kept []byte

	away func() bool // see Wait
	pace *pace
	mu   sync.Mutex
	done int64
}

// Keep stores the progress of the part, in the transaction that also stores its results so far. It fails
// where the task has lost its lease or the job has ended: the caller must give the transaction up then.
func (t *Task) Keep(ctx context.Context, tx pgx.Tx, progress any, done int64) error {
	text, err := json.Marshal(progress)
	if err != nil {
		return err
	}
	n, err := db.New(tx).KeepJobPartProgress(ctx, db.KeepJobPartProgressParams{Job: t.Job.ID, Number: int32(t.Number), Lease: t.Lease, Progress: text, Done: done})
	if err == nil && n == 0 {
		err = errLost
	}
	return err
}

// Wait says that the part waits for somebody else from here to its end, such as a slow source: it no
// longer counts as one of Settings.Workers. Where too many parts of this server wait already, Wait
// returns ErrLater, which Kind.Run returns: the part is tried again later, and that counts as no attempt.
func (t *Task) Wait() error {
	if t.away == nil || t.away() {
		return nil
	}
	return ErrLater
}

// ErrLater gives a part back that cannot be worked on now.
var ErrLater = errors.New("jobs: later")

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
	Suffix           string // of Name; "" is .ndjson
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
	// Run works on a part until ctx ends. An *outcome.Error fails the job, unless it says that
	// something does not answer now or is busy; after another error the part is tried again.
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
	// Sweep deletes files of no job, sometimes; nil deletes none.
	Sweep func(ctx context.Context) error
	// Authorization says that jobs have clients and users, which can be disabled.
	Authorization bool
	// Requests returns the time that requests have been in flight on this server so far, added up: the jobs give way
	// to them (Pacer). nil has none.
	Requests func() time.Duration

	pace      *pace
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
	c.pace = newPace(c.Requests)
	metrics.MustRegister(c.parts, c.resources, c.pace.rested, &jobCounts{core: c})
}

// Wake lets Run look for parts at once.
func (c *Core) Wake() {
	select {
	case c.wake <- struct{}{}:
	default:
	}
}

// CheckClient fails with throttled, 429, where a client has MaxPerClient unfinished jobs.
func (c *Core) CheckClient(ctx context.Context, client string) error {
	return c.checkClient(ctx, db.New(c.Pool), client)
}

func (c *Core) checkClient(ctx context.Context, q *db.Queries, client string) error {
	if client == "" { // an administrator or a server
		return nil
	}
	n, err := q.CountUnfinishedJobs(ctx, client)
	if err != nil {
		return err
	}
	if most := c.Settings().MaxPerClient; n >= int64(most) {
		return outcome.New(outcome.CodeThrottled, "this client has %d unfinished jobs, as many as jobs.max_per_client allows; wait for one of them or DELETE it", n)
	}
	return nil
}

// Add adds a job with its first parts, under Job.ID or, where that is empty, under a new id. It fails
// with throttled, 429, where the client has MaxPerClient unfinished jobs. A job without a client is not limited.
func (c *Core) Add(ctx context.Context, j *Job, parts ...Part) error {
	if j.ID == "" {
		j.ID = c.NewID()
	}
	err := pgx.BeginFunc(ctx, c.Pool, func(tx pgx.Tx) error {
		q := db.New(tx)
		if err := q.LockJobClient(ctx, j.Client); err != nil {
			return err
		}
		if err := c.checkClient(ctx, q, j.Client); err != nil {
			return err
		}
		if err := q.AddJob(ctx, db.AddJobParams{ID: j.ID, Type: j.Type, Client: j.Client, Username: j.User, Principal: j.Principal, Request: j.Request,
			Base: j.Base, Spec: j.Spec, Reason: j.Reason, Total: j.Total}); err != nil {
			return err
		}
		if err := addFiles(ctx, q, j.ID, j.Files); err != nil {
			return err
		}
		return addParts(ctx, q, j.ID, parts)
	})
	if err == nil {
		c.Wake()
	}
	return err
}

func addFiles(ctx context.Context, q *db.Queries, job string, files []File) error {
	for _, f := range files {
		prefix := ""
		if f.Kind != Output {
			prefix = f.Kind + "."
		}
		if err := q.AddJobFile(ctx, db.AddJobFileParams{Job: job, Prefix: prefix, Suffix: cmp.Or(f.Suffix, ".ndjson"), Kind: f.Kind, Type: f.Type, Lines: f.Lines, Bytes: f.Bytes,
			Path: f.Path, Input: f.Input}); err != nil {
			return err
		}
	}
	return nil
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
		out[i] = Job{ID: r.ID, Type: r.Type, State: r.State, Client: r.Client, User: r.Username, Request: r.Request, Spec: r.Spec, Reason: r.Reason,
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

// AddErrors stores errors of lines of an input in a transaction, until the input has most of them.
func (t *Task) AddErrors(ctx context.Context, tx pgx.Tx, input int, lines []int64, outcomes []string, most int) error {
	if len(lines) == 0 {
		return nil
	}
	return db.New(tx).AddJobErrors(ctx, db.AddJobErrorsParams{Job: t.Job.ID, Input: int32(input), Lines: lines, Bodies: outcomes, Most: int64(most)})
}

// LineError is an error that AddErrors has stored.
type LineError struct {
	Line    int64
	Outcome string // JSON of an OperationOutcome
}

// LineErrors returns errors of an input by line, from after on, at most count.
func (c *Core) LineErrors(ctx context.Context, job string, input int, after int64, count int) ([]LineError, error) {
	rows, err := db.New(c.Pool).JobErrors(ctx, db.JobErrorsParams{Job: job, Input: int32(input), After: after, Count: int32(count)})
	if err != nil {
		return nil, fmt.Errorf("errors of a job: %w", err)
	}
	out := make([]LineError, len(rows))
	for i, r := range rows {
		out[i] = LineError{r.Line, r.Body}
	}
	return out, nil
}

// DropInput forgets the inputs and errors of a job whose lines are stored.
func (c *Core) DropInput(ctx context.Context, job string) error {
	q := db.New(c.Pool)
	if err := q.DeleteJobErrors(ctx, job); err != nil {
		return err
	}
	return q.DeleteJobFilesOfKind(ctx, db.DeleteJobFilesOfKindParams{Job: job, Kind: Input})
}

// Known returns the ids of jobs whose files are not removed, out of ids.
func (c *Core) Known(ctx context.Context, ids []string) ([]string, error) {
	return db.New(c.Pool).KnownJobs(ctx, ids)
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

// SeeDirectory notes that a server whose folder of results has a mark is there, and returns the mark of
// the folder that the servers share. MarkDirectory comes before.
func (c *Core) SeeDirectory(ctx context.Context, own string) (string, error) {
	return db.New(c.Pool).SeeJobDirectory(ctx, own)
}

// ReplaceDirectory makes the folder of this server the one that the servers share, where no server with
// the folder of the mark known has been there for the time gone. Files in the old folder are lost:
// unfinished jobs of some types fail with no-store, and the results of the others expire. It reports
// whether it did so.
func (c *Core) ReplaceDirectory(ctx context.Context, known, own string, gone time.Duration, types []string) (bool, error) {
	n, err := db.New(c.Pool).ReplaceJobDirectory(ctx, db.ReplaceJobDirectoryParams{Own: own, Known: known, Seconds: int64(gone.Seconds())})
	if err != nil || n == 0 {
		return false, err
	}
	list, err := c.List(ctx)
	if err != nil {
		return false, err
	}
	for i := range list {
		switch j := &list[i]; {
		case !slices.Contains(types, j.Type):
		case j.Finished.IsZero():
			_, err = c.endJob(ctx, j.ID, Failed, string(outcome.CodeNoStore), "the files of the job were in another bulk.directory, which no server has any more")
		default:
			err = c.Expire(ctx, j.ID)
		}
		if err != nil {
			return false, err
		}
	}
	return true, nil
}

package jobs

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"

	"kiln/gen/db"
	"kiln/server/outcome"
)

// The times of a Core.
const (
	lookForParts  = time.Second            // between two looks for parts that others have added or lost
	sweepEvery    = 10 * time.Minute       // between two looks for files of no job
	cleanEvery    = 2 * time.Second        // between two looks for results to remove and owners that are gone
	retryPause    = 500 * time.Millisecond // before the next attempt of a part that failed
	renewEach     = 4                      // a lease is renewed when a part of it, one in so many, is over
	mostBetween   = time.Second            // the longest time between two renewals, which tell the progress too
	keepEnded     = 7 * 24 * time.Hour     // jobs are listed so long after their end
	returnTimeout = 3 * time.Second        // a stopping server gives a part back within this time
	mostWaiting   = 8                      // parts of a server that wait for somebody else; see Task.Wait
	laterPause    = 2 * time.Second        // before the next try of a part that returned ErrLater
)

// errLost ends the work on a part whose lease is over, or whose job has ended.
var errLost = errors.New("jobs: the lease is lost or the job has ended")

// Run works on parts until ctx ends, and gives back those that are under way then.
func (c *Core) Run(ctx context.Context) {
	var working sync.WaitGroup
	defer working.Wait()
	working.Go(func() { c.clean(ctx) })
	var busy, waiting atomic.Int64
	for ctx.Err() == nil {
		for busy.Load() < int64(c.Settings().Workers) && ctx.Err() == nil {
			t, err := c.claim(ctx)
			if err != nil && ctx.Err() == nil {
				c.Logger.Error("look for parts of jobs", slog.Any("error", err))
			}
			if t == nil {
				break
			}
			counted := &busy
			t.away = func() bool {
				if counted == &waiting {
					return true
				}
				if waiting.Add(1) > mostWaiting {
					waiting.Add(-1)
					return false
				}
				busy.Add(-1)
				counted = &waiting
				c.Wake()
				return true
			}
			busy.Add(1)
			working.Go(func() {
				c.work(ctx, t)
				counted.Add(-1)
				c.Wake()
			})
		}
		timer := time.NewTimer(lookForParts)
		select {
		case <-ctx.Done():
		case <-c.wake:
		case <-timer.C:
		}
		timer.Stop()
	}
}

// claim leases the next part; nil where there is none.
func (c *Core) claim(ctx context.Context) (*Task, error) {
	var types []string
	for _, k := range c.Kinds {
		if k.Ready == nil || k.Ready() {
			types = append(types, k.Type)
		}
	}
	if len(types) == 0 {
		return nil, nil
	}
	s := c.Settings()
	r, err := db.New(c.Pool).ClaimJobPart(ctx, db.ClaimJobPartParams{Holder: c.holder, LeaseMs: s.Lease.Milliseconds(), Types: types})
	if errors.Is(err, pgx.ErrNoRows) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	j, err := c.Get(ctx, r.Job)
	if err != nil || j == nil {
		return nil, err
	}
	if r.Lost {
		c.parts.WithLabelValues(j.Type, "lost").Inc()
	}
	if int(r.Attempts) >= s.MaxAttempts {
		_, err := c.endJob(ctx, j.ID, Failed, string(outcome.CodeException), fmt.Sprintf("a part was given up after %d attempts", r.Attempts))
		return nil, err
	}
	return &Task{Job: j, Number: int(r.Number), Stage: int(r.Stage), Spec: r.Spec, Lease: r.Lease, Kept: r.Progress, pace: c.pace}, nil
}

// work runs one part, with its lease renewed beside it, and stores the result.
func (c *Core) work(ctx context.Context, t *Task) {
	under, stop := context.WithCancelCause(ctx)
	var renewing sync.WaitGroup
	renewing.Go(func() { c.renew(under, t, stop) })
	result, err := c.run(under, t)
	cause := context.Cause(under)
	stop(nil)
	renewing.Wait()
	if err == nil {
		err = c.finish(ctx, t, result)
	}
	if err == nil {
		c.parts.WithLabelValues(t.Job.Type, "done").Inc()
		c.resources.WithLabelValues(t.Job.Type).Add(float64(result.Done))
		c.Wake() // the next stage
		return
	}
	if errors.Is(err, errLost) || errors.Is(cause, errLost) {
		c.parts.WithLabelValues(t.Job.Type, "lost").Inc()
		return
	}
	after, cancel := context.WithTimeout(context.WithoutCancel(ctx), returnTimeout)
	defer cancel()
	if later := errors.Is(err, ErrLater); later || ctx.Err() != nil { // or a clean stop
		pause := time.Duration(0)
		if later {
			pause = laterPause
		}
		if err := c.giveBack(after, t, false, pause); err != nil {
			c.Logger.Warn("give a part of a job back", slog.String("job", t.Job.ID), slog.Any("error", err))
		}
		return
	}
	c.parts.WithLabelValues(t.Job.Type, "failed").Inc()
	if e, ok := outcome.From(err); ok && permanent(e) {
		_, err := c.endJob(after, t.Job.ID, Failed, string(e.Issues[0].Code), e.Error())
		if err != nil {
			c.Logger.Error("end a job", slog.String("job", t.Job.ID), slog.Any("error", err))
		}
		return
	}
	c.Logger.Error("a part of a job failed", slog.String("job", t.Job.ID), slog.Int("part", t.Number), slog.Any("error", err))
	if err := c.giveBack(after, t, true, retryPause); err != nil {
		c.Logger.Error("give a part of a job back", slog.String("job", t.Job.ID), slog.Any("error", err))
	}
}

// ErrFinal is the cause of an error of code transient that fails a job at once.
var ErrFinal = errors.New("jobs: no further attempt")

// permanent reports whether another attempt would fail in the same way. Databases come back, and others
// stop changing the same resources.
func permanent(e *outcome.Error) bool {
	switch e.Issues[0].Code {
	case outcome.CodeTransient:
		return errors.Is(e, ErrFinal)
	case outcome.CodeException, outcome.CodeTimeout, outcome.CodeConflict, outcome.CodeThrottled:
		return false
	}
	return true
}

// run is Kind.Run; a panic is an error.
func (c *Core) run(ctx context.Context, t *Task) (result Result, err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("panic: %v", p)
		}
	}()
	return c.kindOf(t.Job.Type).Run(ctx, t)
}

// renew renews the lease of a part until ctx ends, and stops the work where the lease is lost.
func (c *Core) renew(ctx context.Context, t *Task, stop context.CancelCauseFunc) {
	lease := c.Settings().Lease
	renewed := time.Now()
	tick := time.NewTicker(min(lease/renewEach, mostBetween))
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		bounded, cancel := context.WithTimeout(ctx, lease/2)
		began := time.Now()
		n, err := db.New(c.Pool).RenewJobPart(bounded, db.RenewJobPartParams{Job: t.Job.ID, Number: int32(t.Number), Lease: t.Lease,
			LeaseMs: lease.Milliseconds(), Done: t.unreportedProgress()})
		cancel()
		switch {
		case err == nil && n > 0:
			renewed = began
		case err == nil, time.Since(renewed) > lease:
			stop(errLost)
			return
		}
	}
}

// finish stores the result of a part, and ends the job with its last part. It stores
// nothing if the task has lost the lease.
func (c *Core) finish(ctx context.Context, t *Task, r Result) error {
	data, err := json.Marshal(r.Data)
	if err != nil {
		return err
	}
	shared := []byte("{}")
	if len(r.Shared) > 0 {
		if shared, err = json.Marshal(r.Shared); err != nil {
			return err
		}
	}
	ended := false
	err = pgx.BeginFunc(ctx, c.Pool, func(tx pgx.Tx) error {
		q := db.New(tx)
		if _, err := q.LockJob(ctx, t.Job.ID); errors.Is(err, pgx.ErrNoRows) {
			return errLost
		} else if err != nil {
			return err
		}
		n, err := q.FinishJobPart(ctx, db.FinishJobPartParams{Job: t.Job.ID, Number: int32(t.Number), Lease: t.Lease, Done: r.Done, Result: data})
		if err == nil && n == 0 {
			err = errLost
		}
		if err != nil {
			return err
		}
		if err := addFiles(ctx, q, t.Job.ID, r.Files); err != nil {
			return err
		}
		if err := q.AddJobProgress(ctx, db.AddJobProgressParams{ID: t.Job.ID, Total: r.Total, Done: r.Done, Failed: r.Failed, Shared: shared}); err != nil {
			return err
		}
		if err := addParts(ctx, q, t.Job.ID, r.Parts); err != nil {
			return err
		}
		m, err := q.FinishJob(ctx, db.FinishJobParams{ID: t.Job.ID, RetentionMs: c.Settings().Retention.Milliseconds()})
		ended = m > 0
		return err
	})
	if err == nil && ended {
		c.announceEnd(context.WithoutCancel(ctx), t.Job.ID)
	}
	return err
}

// giveBack lets another server, or another attempt, have a part.
func (c *Core) giveBack(ctx context.Context, t *Task, failed bool, pause time.Duration) error {
	p := db.ReturnJobPartParams{Job: t.Job.ID, Number: int32(t.Number), Lease: t.Lease, PauseMs: pause.Milliseconds()}
	if failed {
		p.Failed = 1
	}
	_, err := db.New(c.Pool).ReturnJobPart(ctx, p)
	return err
}

// clean removes results that have expired, jobs that ended long ago, and the jobs of owners that
// are gone.
func (c *Core) clean(ctx context.Context) {
	tick := time.NewTicker(cleanEvery)
	defer tick.Stop()
	var swept time.Time
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		if c.Sweep != nil && time.Since(swept) > sweepEvery {
			swept = time.Now()
			if err := c.Sweep(ctx); err != nil && ctx.Err() == nil {
				c.Logger.Error("look for files of no job", slog.Any("error", err))
			}
		}
		if err := c.cleanOnce(ctx); err != nil && ctx.Err() == nil {
			c.Logger.Error("clean up after jobs", slog.Any("error", err))
		}
	}
}

func (c *Core) cleanOnce(ctx context.Context) error {
	q := db.New(c.Pool)
	ids, err := q.JobsToClean(ctx)
	if err != nil {
		return err
	}
	for _, id := range ids {
		if c.Remove != nil {
			if err := c.Remove(ctx, id); err != nil {
				return err
			}
		}
		if err := q.SetJobRemoved(ctx, id); err != nil {
			return err
		}
	}
	if err := q.TrimJobs(ctx, keepEnded.Milliseconds()); err != nil {
		return err
	}
	if !c.Authorization {
		return nil
	}
	owners, err := q.UnfinishedJobOwners(ctx)
	if err != nil {
		return err
	}
	for _, o := range owners {
		active, err := q.JobOwnerActive(ctx, db.JobOwnerActiveParams(o))
		if err != nil {
			return err
		}
		if active {
			continue
		}
		jobs, err := q.UnfinishedJobsOf(ctx, db.UnfinishedJobsOfParams(o))
		if err != nil {
			return err
		}
		for _, id := range jobs {
			if _, err := c.endJob(ctx, id, Cancelled, "", "the client or user of the job is disabled"); err != nil {
				return err
			}
		}
	}
	return nil
}

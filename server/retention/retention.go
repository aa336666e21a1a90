// Package retention removes old AuditEvents and old versions of resources, as jobs of the core of
// package jobs. It decides which of them are old; the tables belong to package store.
//
//	Start ──> job ──> part "plan": counts, fixes the instants
//	                    ├──> part "audit":   AuditEvents from before audit.retention_days
//	                    └──> part "history": versions superseded before fhir.history_retention_days
//
// A part removes at most a hundred resources in a transaction that also stores its progress under
// the lease of the part. So a killed server loses and repeats nothing, and a server that was
// frozen removes nothing after another one has taken over. While requests come, the transactions are
// smaller and a part rests between them (jobs.Pacer).
package retention

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"time"

	"kiln/server/audit"
	"kiln/server/jobs"
	"kiln/server/outcome"
	"kiln/server/store"
)

// Type is the type of the jobs.
const Type = "retention"

const (
	// batchSize is the most removals of a transaction: 100 take 8 to 16 ms. Larger batches delay the commits of
	// requests, which wait for the WAL of the batch.
	batchSize = 100
	startEach = 24 * time.Hour // a job starts by itself as often
	lookEach  = time.Minute    // for whether one is due
)

// auditType is the type that audit.retention_days is about.
const auditType = "AuditEvent"

// Settings are what administrators choose. 0 days keep everything.
type Settings struct {
	AuditDays   int // audit.retention_days
	HistoryDays int // fhir.history_retention_days
}

// Service starts and runs the jobs. Its fields are set before use.
type Service struct {
	Store    *store.Store
	Jobs     *jobs.Core
	Settings func() Settings
	Now      func() time.Time
	// Audit records the start and the end of a job.
	Audit  func(e audit.Event)
	Logger *slog.Logger
}

// part is the specification of a part.
type part struct {
	Do     string    `json:"do"` // plan, audit or history
	Before time.Time `json:"before,omitzero"`
}

// kept is the progress of a part.
type kept struct {
	Removed int64               `json:"removed"`
	Looked  int64               `json:"looked"` // at versions; some of them stay
	Type    int16               `json:"type"`   // of the versions
	Cursor  store.VersionCursor `json:"cursor"` // among them
}

// removed is the result of a part.
type removed struct {
	AuditEvents int64 `json:"auditEvents"`
	Versions    int64 `json:"versions"`
}

// Kind is the kind of the jobs, for Core.Kinds.
func (s *Service) Kind() jobs.Kind {
	return jobs.Kind{Type: Type, Run: s.run, Ended: s.jobEnded}
}

// Start adds a job. It fails with conflict, 409, while another one has not ended, and with
// invalid, 422, where the settings keep everything.
func (s *Service) Start(ctx context.Context, reason string) (*jobs.Job, error) {
	c := s.Settings()
	if c.AuditDays == 0 && c.HistoryDays == 0 {
		return nil, outcome.UnprocessableContent(outcome.CodeInvalid, "audit.retention_days and fhir.history_retention_days are 0: everything is kept for ever")
	}
	list, err := s.Jobs.List(ctx)
	if err != nil {
		return nil, err
	}
	for _, j := range list {
		if j.Type == Type && j.Finished.IsZero() {
			return nil, outcome.New(outcome.CodeConflict, "the retention job %s has not ended: wait for it, or cancel it", j.ID)
		}
	}
	j := &jobs.Job{Type: Type, Reason: reason, Spec: []byte("{}"), Principal: []byte("{}")}
	if err := s.Jobs.Add(ctx, j, jobs.Part{Spec: part{Do: "plan"}}); err != nil {
		return nil, err
	}
	s.Audit(audit.Event{Interaction: "retention-start", Action: "D", Outcome: audit.Success, Description: "retention job " + j.ID + ": " + reason})
	return s.Jobs.Get(ctx, j.ID)
}

// Run starts a job once a day, until ctx ends. Any number of servers may do so.
func (s *Service) Run(ctx context.Context) {
	tick := time.NewTicker(lookEach)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		if err := s.startWhenDue(ctx); err != nil && ctx.Err() == nil {
			s.Logger.Error("start the job of retention", slog.Any("error", err))
		}
	}
}

// startWhenDue starts a job where the last one was added a day ago, and something is old.
func (s *Service) startWhenDue(ctx context.Context) error {
	c := s.Settings()
	if c.AuditDays == 0 && c.HistoryDays == 0 {
		return nil
	}
	last, err := s.Store.LastRetention(ctx)
	if err != nil || s.Now().Sub(last) < startEach {
		return err
	}
	_, err = s.Start(ctx, "once a day")
	if outcome.Is(err, outcome.CodeConflict) || outcome.Is(err, outcome.CodeThrottled) { // another server was faster
		return nil
	}
	return err
}

// run works on a part.
func (s *Service) run(ctx context.Context, t *jobs.Task) (jobs.Result, error) {
	var p part
	if err := json.Unmarshal(t.Spec, &p); err != nil {
		return jobs.Result{}, outcome.New(outcome.CodeException, "the part of a retention job cannot be read").Because(err)
	}
	var k kept
	if err := json.Unmarshal(t.Kept, &k); err != nil {
		return jobs.Result{}, outcome.New(outcome.CodeException, "the progress of a retention job cannot be read").Because(err)
	}
	switch p.Do {
	case "plan":
		return s.plan(ctx)
	case "audit":
		err := s.removeAuditEvents(ctx, t, p, &k)
		return jobs.Result{Done: k.Removed, Data: removed{AuditEvents: k.Removed}}, err
	case "history":
		err := s.removeVersions(ctx, t, p, &k)
		return jobs.Result{Done: k.Looked, Data: removed{Versions: k.Removed}}, err
	}
	return jobs.Result{}, outcome.New(outcome.CodeException, "%q is no part of a retention job", p.Do)
}

// plan fixes the instants, so that all servers and attempts mean the same ones.
func (s *Service) plan(ctx context.Context) (jobs.Result, error) {
	c := s.Settings()
	var r jobs.Result
	if c.AuditDays > 0 {
		before := s.Now().AddDate(0, 0, -c.AuditDays)
		typ, err := s.findType(ctx, auditType)
		if err != nil {
			return r, err
		}
		if typ.Name != "" {
			n, err := s.Store.CountOld(ctx, typ, before)
			if err != nil {
				return r, err
			}
			r.Total += n
			r.Parts = append(r.Parts, jobs.Part{Stage: 1, Spec: part{"audit", before}})
		}
	}
	if c.HistoryDays > 0 {
		before := s.Now().AddDate(0, 0, -c.HistoryDays)
		n, err := s.Store.CountOldVersions(ctx, before)
		if err != nil {
			return r, err
		}
		r.Total += n
		r.Parts = append(r.Parts, jobs.Part{Stage: 1, Spec: part{"history", before}})
	}
	return r, nil
}

// findType returns a type of the database, the zero value where nothing of it was ever stored.
func (s *Service) findType(ctx context.Context, name string) (store.StoredType, error) {
	types, err := s.Store.StoredTypes(ctx)
	if err != nil {
		return store.StoredType{}, err
	}
	for _, t := range types {
		if t.Name == name {
			return t, nil
		}
	}
	return store.StoredType{}, nil
}

func (s *Service) removeAuditEvents(ctx context.Context, t *jobs.Task, p part, k *kept) error {
	typ, err := s.findType(ctx, auditType)
	if err != nil || typ.Name == "" {
		return err
	}
	pacer := t.NewPacer()
	for more := true; more; {
		size := pacer.Size(batchSize)
		err := pacer.Slice(ctx, size, func() error {
			var next kept
			err := s.Store.InTx(ctx, func(tx *store.Tx) error {
				n, err := tx.RemoveOld(ctx, typ, p.Before, size)
				if err != nil {
					return err
				}
				next, more = *k, n == int64(size)
				next.Removed += n
				return t.Keep(ctx, tx.Conn(), next, next.Removed)
			})
			if err == nil {
				*k = next
			}
			return err
		})
		if err != nil {
			return err
		}
		t.Progress(k.Removed)
	}
	return nil
}

func (s *Service) removeVersions(ctx context.Context, t *jobs.Task, p part, k *kept) error {
	types, err := s.Store.StoredTypes(ctx)
	if err != nil {
		return err
	}
	pacer := t.NewPacer()
	for _, typ := range types { // ascending numbers
		if typ.Number < k.Type {
			continue
		}
		if typ.Number > k.Type {
			k.Type, k.Cursor = typ.Number, store.VersionCursor{}
		}
		for more := true; more; {
			size := pacer.Size(batchSize)
			err := pacer.Slice(ctx, size, func() error {
				var next kept
				err := s.Store.InTx(ctx, func(tx *store.Tx) error {
					b, err := tx.RemoveVersions(ctx, typ, p.Before, k.Cursor, size)
					if err != nil {
						return err
					}
					next, more = *k, b.Looked == int64(size)
					next.Cursor = b.Next
					next.Removed += b.Removed
					next.Looked += b.Looked
					return t.Keep(ctx, tx.Conn(), next, next.Looked)
				})
				if err == nil {
					*k = next
				}
				return err
			})
			if err != nil {
				return err
			}
			t.Progress(k.Looked)
		}
	}
	return nil
}

// jobEnded records the end of a job.
func (s *Service) jobEnded(ctx context.Context, j *jobs.Job) {
	e := audit.Event{Interaction: "retention-end", Action: "D", Outcome: audit.Success}
	e.Description = fmt.Sprintf("retention job %s: %s", j.ID, j.State)
	switch j.State {
	case jobs.Failed:
		e.Outcome = audit.Serious
		e.Description += ": " + j.Failure
	case jobs.Done:
		counts, err := s.countRemoved(ctx, j.ID)
		if err != nil {
			s.Logger.Error("count what a retention job has removed", slog.Any("error", err))
		}
		e.Description += counts
	}
	s.Audit(e)
}

// countRemoved describes the numbers of removed resources of a job.
func (s *Service) countRemoved(ctx context.Context, job string) (string, error) {
	results, err := s.Jobs.Results(ctx, job)
	if err != nil {
		return "", err
	}
	var sum removed
	for _, data := range results {
		var r removed
		if err := json.Unmarshal(data, &r); err != nil {
			return "", err
		}
		sum.AuditEvents += r.AuditEvents
		sum.Versions += r.Versions
	}
	return fmt.Sprintf(", %d AuditEvents and %d versions removed", sum.AuditEvents, sum.Versions), nil
}

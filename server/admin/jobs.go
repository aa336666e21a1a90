package admin

import (
	"cmp"
	"context"
	"math"
	"net/http"
	"slices"
	"strings"
	"time"

	"kiln/server/outcome"
	"kiln/server/web"
)

// Job is work that goes on in the background, on any server. Rate is in units of
// Total a second; Remaining is nil where nobody can tell.
type Job struct {
	ID           string     `json:"id"`
	Type         string     `json:"type"`  // export, search, import, view-export, view-build, reindex, index-build or retention
	State        string     `json:"state"` // waiting, running, done, failed or cancelled
	ResourceType string     `json:"resource_type,omitempty"`
	Reason       string     `json:"reason"`
	Created      time.Time  `json:"created"`
	Started      *time.Time `json:"started"`
	Finished     *time.Time `json:"finished"`
	Total        int64      `json:"total"`
	Done         int64      `json:"done"`
	Failed       int64      `json:"failed"`
	Rate         float64    `json:"rate"`
	Remaining    *int64     `json:"remaining_seconds"`
	Failure      string     `json:"failure,omitempty"`
	Detail       string     `json:"detail,omitempty"`
	// Of jobs that clients start, and of the parts of a job.
	Client    string     `json:"client,omitempty"`
	User      string     `json:"user,omitempty"`
	Request   string     `json:"request,omitempty"`
	Expires   *time.Time `json:"expires,omitempty"`
	Parts     int64      `json:"parts"`
	PartsDone int64      `json:"parts_done"`
	Attempts  int        `json:"attempts"` // the most of a part
}

// The states of a job.
const (
	JobWaiting   = "waiting"
	JobRunning   = "running"
	JobDone      = "done"
	JobFailed    = "failed"
	JobCancelled = "cancelled"
)

// JobSource knows the jobs of one kind.
type JobSource interface {
	Jobs(ctx context.Context) ([]Job, error)
	// Cancel ends a job, and reports whether there was one under way with this id.
	Cancel(ctx context.Context, id string) (bool, error)
}

// Measure fills in rate and time left, of a job that has them.
func (j *Job) Measure(now time.Time) {
	if j.Started == nil || j.Done == 0 {
		return
	}
	until := now
	if j.Finished != nil {
		until = *j.Finished
	}
	took := until.Sub(*j.Started).Seconds()
	if took <= 0 {
		return
	}
	rate := float64(j.Done) / took
	j.Rate = math.Round(rate*10) / 10
	if j.State == JobRunning && j.Total > 0 {
		left := int64(math.Ceil(float64(max(0, j.Total-j.Done)) / rate))
		j.Remaining = &left
	}
}

func (p *Part) mountJobs(m *web.Mux) {
	m.HandleFunc(web.Admin, "GET /admin/jobs", func(w http.ResponseWriter, r *http.Request) {
		list, err := p.jobs(r.Context())
		if typ := r.URL.Query().Get("type"); typ != "" {
			list = slices.DeleteFunc(list, func(j Job) bool { return j.Type != typ })
		}
		if state := r.URL.Query().Get("state"); state != "" {
			list = slices.DeleteFunc(list, func(j Job) bool { return j.State != state })
		}
		writeAnswer(w, r, list, err)
	})
	m.HandleFunc(web.Admin, "GET /admin/jobs/{id}", func(w http.ResponseWriter, r *http.Request) {
		job, _, err := p.findJob(r.Context(), r.PathValue("id"))
		writeAnswer(w, r, job, err)
	})
	m.HandleFunc(web.Admin, "DELETE /admin/jobs/{id}", p.cancelJob)
	m.HandleFunc(web.Admin, "POST /admin/retention", func(w http.ResponseWriter, r *http.Request) {
		job, err := p.StartRetention(r.Context())
		p.answerChange(w, r, err, "retention", "job "+job.ID)
		if err != nil {
			writeAnswer(w, r, nil, err)
			return
		}
		writeAccepted(w, r, job)
	})
}

// jobs are the jobs of every kind, newest first.
func (p *Part) jobs(ctx context.Context) ([]Job, error) {
	all := []Job{}
	for _, s := range p.Jobs {
		list, err := s.Jobs(ctx)
		if err != nil {
			return nil, err
		}
		all = append(all, list...)
	}
	slices.SortStableFunc(all, func(a, b Job) int { return cmp.Or(b.Created.Compare(a.Created), strings.Compare(b.ID, a.ID)) })
	return all, nil
}

func (p *Part) findJob(ctx context.Context, id string) (Job, JobSource, error) {
	for _, s := range p.Jobs {
		list, err := s.Jobs(ctx)
		if err != nil {
			return Job{}, nil, err
		}
		if i := slices.IndexFunc(list, func(j Job) bool { return j.ID == id }); i >= 0 {
			return list[i], s, nil
		}
	}
	return Job{}, nil, noJob(id)
}

// cancelJob ends a job and answers with its state then; a job that has ended already is a
// conflict.
func (p *Part) cancelJob(w http.ResponseWriter, r *http.Request) {
	job, source, err := p.findJob(r.Context(), r.PathValue("id"))
	if err != nil {
		writeAnswer(w, r, nil, err)
		return
	}
	cancelled, err := source.Cancel(r.Context(), job.ID)
	if err == nil && !cancelled { // perhaps since it was looked for
		if job, _, err = p.findJob(r.Context(), job.ID); err == nil {
			err = outcome.New(outcome.CodeConflict, "job %s has ended already: it is %s", job.ID, job.State)
		}
	}
	p.answerChange(w, r, err, "job "+job.ID, "cancelled")
	if err == nil {
		job, _, err = p.findJob(r.Context(), job.ID)
	}
	writeAnswer(w, r, job, err)
}

package console

import (
	"net/http"
	"time"
)

// job is a job, as /admin/jobs answers it.
type job struct {
	ID, Type, State, Reason, Failure, Detail string
	ResourceType                             string `json:"resource_type"`
	Created, Finished                        *time.Time
	Total, Done, Failed                      int64
	Rate                                     float64
	Remaining                                *int64 `json:"remaining_seconds"`
}

// jobsShown is how many jobs the page has.
const jobsShown = 200

// jobs lists the jobs of all kinds.
func (v *visit) jobs(_ []string) error {
	var list []job
	if err := v.get("/admin/jobs", &list); err != nil {
		return err
	}
	t := table{Name: v.T("Jobs"), Head: columns(v.T("Job"), v.T("Type"), v.T("State"), v.T("Progress"), v.T("Created"), v.T("Description"), "")}
	t.Head[6].Text = v.T("Action")
	for i, j := range list {
		if i == jobsShown {
			t.More = v.T("The newest %d are shown.", jobsShown)
			break
		}
		done := cell{Text: formatNumber(v.Language, j.Done) + " / " + formatNumber(v.Language, j.Total)}
		if j.Total == 0 {
			done.Text = formatNumber(v.Language, j.Done)
		}
		action := cell{}
		if j.State == "running" || j.State == "waiting" {
			done.Progress = &progress{v.T("Progress of %s", j.ID), min(j.Done, max(j.Total, 1)), max(j.Total, 1)}
			action.Buttons = []button{v.post(v.T("Cancel job"), "/console/jobs", "id", j.ID)}
		}
		words := j.Reason
		if j.Failure != "" {
			words = j.Failure
		}
		if j.ResourceType != "" {
			words = j.ResourceType + ": " + words
		}
		t.Rows = append(t.Rows, []cell{{Text: j.ID, Head: true}, textCell(j.Type), {Tag: j.State}, done, timeCell(j.Created), {Text: clipText(words)}, action})
	}
	return v.showPanel("jobs", v.T("Jobs"), panel{Tables: []table{t}, Refresh: 3})
}

// cancelJob ends a job.
func (v *visit) cancelJob(_ []string) error {
	if err := v.send(http.MethodDelete, "/admin/jobs/"+escape(v.form.Get("id")), nil, nil); err != nil {
		return err
	}
	return v.done("/console/jobs", v.T("The job is cancelled."))
}

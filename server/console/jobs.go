package console

import (
	"encoding/json"
	"net/http"
	"net/url"
	"strings"
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
	t := v.jobsTable(list[:min(len(list), jobsShown)])
	if len(list) > jobsShown {
		t.More = v.T("The newest %d are shown.", jobsShown)
	}
	export := v.newForm("/console/jobs", v.T("Export"), field{Label: v.T("Types"), Name: "types", Hint: v.T("Such as Patient,Observation; empty exports everything.")})
	export.Hidden = [][2]string{{"action", "export"}}
	return v.showPanel("jobs", v.T("Jobs"), panel{Forms: []panelForm{export}, Tables: []table{t}, Refresh: 3})
}

// jobsTable is the table Jobs.
func (v *visit) jobsTable(list []job) table {
	t := table{Name: v.T("Jobs"), Head: columns(v.T("Job"), v.T("Type"), v.T("State"), v.T("Progress"), v.T("Created"), v.T("Description"), v.T("Action"))}
	for _, j := range list {
		done := cell{Text: formatNumber(v.Language, j.Done) + " / " + formatNumber(v.Language, j.Total)}
		if j.Total == 0 {
			done.Text = formatNumber(v.Language, j.Done)
		}
		action := cell{}
		if j.runs() {
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
		t.Rows = append(t.Rows, []cell{linkCell(j.ID, "/console/jobs/"+escape(j.ID)), textCell(j.Type), {Tag: j.State}, done, timeCell(j.Created), {Text: clipText(words)}, action})
	}
	return t
}

// runs reports whether the job has not ended.
func (j *job) runs() bool { return j.State == "running" || j.State == "waiting" }

// job shows a job with the files that it has made.
func (v *visit) job(parts []string) error {
	var j job
	if err := v.get("/admin/jobs/"+escape(parts[0]), &j); err != nil {
		return err
	}
	p := panel{Links: []navItem{{Name: v.T("Jobs"), Path: "/console/jobs"}}, Tables: []table{v.jobsTable([]job{j})}}
	switch {
	case j.runs():
		p.Refresh = 3
	case j.State == "done":
		p.Tables = append(p.Tables, v.filesTable(j.ID))
	}
	return v.showPanel("jobs", v.T("Job"), p)
}

// resultFile is a file that a job has made.
type resultFile struct {
	Type, URL string
	Count     int64
}

// filesTable is the table Files of a job that is done.
func (v *visit) filesTable(id string) table {
	t := table{Name: v.T("Files"), Head: columns(v.T("File"), v.T("Type"), "#"+v.T("Lines"))}
	target := "/$job/" + escape(id)
	a := v.call(http.MethodGet, target, nil)
	if a.status == http.StatusSeeOther {
		a = v.call(http.MethodGet, target+"/result", nil)
	}
	if err := a.err(); err != nil {
		if a.status != http.StatusNotFound { // a job without a result of its own
			t.More = clipText(err.Error())
		}
		return t
	}
	for _, f := range filesOf(a.Bytes()) {
		row := []cell{{Head: true}, textCell(f.Type), {Class: "number"}}
		if f.Count > 0 {
			row[2] = v.numberCell(f.Count)
		}
		_, name, own := strings.Cut(f.URL, target+"/")
		switch outside := safeLink(f.URL); {
		case own:
			row[0].Text, row[0].Link = name, "/console/jobs/"+escape(id)+"/"+escape(name)
		case outside != "": // in an object store
			u, _, _ := strings.Cut(outside, "?")
			row[0].Text, row[0].Link, row[0].Outside = u[strings.LastIndexByte(u, '/')+1:], outside, true
		}
		t.Rows = append(t.Rows, row)
	}
	return t
}

// filesOf reads the files of a manifest of Bulk Data Access, or of the Parameters of an export of SQL on FHIR.
func filesOf(body []byte) (list []resultFile) {
	var m struct {
		Output, Deleted, Error []resultFile
		Parameter              []struct {
			Name string
			Part []struct {
				Name        string
				ValueString string `json:"valueString"`
				ValueURI    string `json:"valueUri"`
			}
		}
	}
	if json.Unmarshal(body, &m) != nil {
		return nil
	}
	for _, files := range [][]resultFile{m.Output, m.Deleted, m.Error} {
		for _, f := range files {
			if f.URL != "" { // the outputs of an import are numbers
				list = append(list, f)
			}
		}
	}
	for _, p := range m.Parameter {
		if p.Name != "output" {
			continue
		}
		name := ""
		for _, part := range p.Part {
			switch part.Name {
			case "name":
				name = part.ValueString
			case "location":
				list = append(list, resultFile{Type: name, URL: part.ValueURI})
			}
		}
	}
	return list
}

// download passes a file on as it comes, and keeps any other answer.
type download struct {
	*answer
	to   http.ResponseWriter
	name string
	sent bool
}

// SetWriteDeadline lets a client read slowly.
func (d *download) SetWriteDeadline(t time.Time) error {
	return http.NewResponseController(d.to).SetWriteDeadline(t)
}

func (d *download) WriteHeader(status int) {
	if d.sent || d.answer.status != 0 {
		return
	}
	if status != http.StatusOK {
		d.answer.WriteHeader(status)
		return
	}
	d.sent = true
	h := d.to.Header()
	for _, name := range []string{"Content-Type", "Content-Length"} {
		if value := d.header.Get(name); value != "" {
			h.Set(name, value)
		}
	}
	h.Set("Content-Disposition", `attachment; filename="`+d.name+`"`)
	h.Set("Content-Security-Policy", "default-src 'none'; sandbox")
	d.to.WriteHeader(status)
}

func (d *download) Write(b []byte) (int, error) {
	if d.answer.status == 0 {
		d.WriteHeader(http.StatusOK)
	}
	if d.sent {
		return d.to.Write(b)
	}
	return d.answer.Write(b)
}

// downloadFile sends a file of a job. As in REST, only the owner of the job can read it.
func (v *visit) downloadFile(parts []string) error {
	v.screen = "download"
	name := strings.Map(func(r rune) rune {
		if r == '.' || r == '-' || r >= '0' && r <= '9' || r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' {
			return r
		}
		return '_'
	}, parts[1])
	d := &download{answer: &answer{header: make(http.Header)}, to: v.x, name: name}
	v.callInto(v.r.Context(), d, http.MethodGet, "/$job/"+escape(parts[0])+"/"+escape(parts[1]), nil)
	if d.sent {
		return nil
	}
	v.screen = "error"
	if err := d.err(); err != nil {
		return err
	}
	return errNoPage
}

// changeJobs begins an export, or ends a job.
func (v *visit) changeJobs(_ []string) error {
	if v.form.Get("action") == "export" {
		q := make(url.Values)
		if types := strings.Join(strings.FieldsFunc(v.form.Get("types"), func(r rune) bool { return r == ',' || r == ' ' }), ","); types != "" {
			q.Set("_type", types)
		}
		a := v.call(http.MethodGet, "/$export"+queryOf(q), nil, "Prefer", "respond-async")
		if err := a.err(); err != nil {
			return err
		}
		at := a.header.Get("Content-Location")
		return v.done("/console/jobs/"+escape(at[strings.LastIndexByte(at, '/')+1:]), v.T("The export is started."))
	}
	if err := v.send(http.MethodDelete, "/admin/jobs/"+escape(v.form.Get("id")), nil, nil); err != nil {
		return err
	}
	return v.done("/console/jobs", v.T("The job is cancelled."))
}

package operate

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"regexp"
	"slices"
	"strings"
	"time"

	"kiln/server/access"
	"kiln/server/bulk"
	"kiln/server/fhir"
	"kiln/server/jobs"
	"kiln/server/outcome"
	"kiln/server/parameters"
	"kiln/server/rest"
	"kiln/server/view"
	"kiln/server/view/format"
	"kiln/server/web"
)

// ExportJob is the type of the jobs of $sql-export.
const ExportJob = "view-export"

// exportSpec contains the parameters of an export's kick-off.
type exportSpec struct {
	Outputs  []exportOutput `json:"outputs"`
	Format   string         `json:"format"`
	Header   bool           `json:"header"`
	Patients []string       `json:"patients,omitempty"`
	Groups   []string       `json:"groups,omitempty"`
	Since    time.Time      `json:"since,omitzero"`
	Tracking string         `json:"tracking,omitempty"`
}

// exportOutput is one subject of an export.
type exportOutput struct {
	Name     string          `json:"name"`
	File     string          `json:"file"` // begins the names of its files
	Resource string          `json:"resource"`
	View     json.RawMessage `json:"view"`
}

// exportPart is the work of a part: the moment, or one output.
type exportPart struct {
	Plan   bool `json:"plan,omitempty"`
	Output int  `json:"output"`
}

// exportShared is the result of the first part.
type exportShared struct {
	Moment time.Time `json:"viewMoment"`
}

// maxSubjects bounds the subjects of an export.
const maxSubjects = 100

var fileNamePattern = regexp.MustCompile(`^[A-Za-z0-9_-]{1,64}$`)

// export starts an export.
func (s *Service) export(ctx context.Context, x *web.Exchange, r *http.Request, k rest.KickOff) {
	if !s.Enabled(ctx) {
		x.Fail(r, outcome.NotImplemented("views are switched off (views.enabled)"))
		return
	}
	if r.Method != http.MethodPost {
		x.Fail(r, outcome.MethodNotAllowed("%s is called by POST", k.Operation))
		return
	}
	s.Bulk.Start(ctx, x, r, k, func() (*jobs.Job, []jobs.Part, error) {
		spec, err := s.readExport(ctx, r, k)
		if err != nil {
			return nil, nil, err
		}
		stored, err := json.Marshal(spec)
		if err != nil {
			return nil, nil, err
		}
		return &jobs.Job{Type: ExportJob, Spec: stored, Reason: fmt.Sprintf("an export of %d views", len(spec.Outputs))}, []jobs.Part{{Spec: exportPart{Plan: true}}}, nil
	})
}

// namesRespondAsync reports whether a value of Prefer has respond-async.
func namesRespondAsync(prefer string) bool {
	for item := range strings.FieldsFuncSeq(prefer, func(c rune) bool { return c == ',' || c == ';' }) {
		if strings.TrimSpace(item) == "respond-async" {
			return true
		}
	}
	return false
}

// readExport reads and checks a kick-off.
func (s *Service) readExport(ctx context.Context, r *http.Request, k rest.KickOff) (*exportSpec, error) {
	if !slices.ContainsFunc(r.Header.Values("Prefer"), namesRespondAsync) {
		return nil, outcome.New(outcome.CodeRequired, "%s is asynchronous: expected the header Prefer: respond-async", k.Operation).At("Prefer")
	}
	list, err := s.readInputs(r, k.Operation)
	if err != nil {
		return nil, err
	}
	subjectName := "subject"
	if k.Operation == "$viewdefinition-export" {
		subjectName = "view"
	}
	spec := &exportSpec{}
	q := &runRequest{header: true, limit: -1}
	seen := make(map[string]int)
	for _, p := range list {
		seen[p.Name]++
		if seen[p.Name] > 1 && (slices.Contains(single, p.Name) || p.Name == "clientTrackingId") {
			return nil, outcome.Invalid("%s is given more than once", p.Name).At(p.Name)
		}
		switch p.Name {
		case subjectName:
			if len(spec.Outputs) == maxSubjects {
				return nil, outcome.Invalid("an export has at most %d of %s", maxSubjects, subjectName).At(subjectName)
			}
			o, err := s.readSubject(ctx, r, k, p.Part, len(spec.Outputs))
			if err != nil {
				return nil, err
			}
			spec.Outputs = append(spec.Outputs, o)
		case "_limit", "resource":
			return nil, outcome.Invalid("%s is no parameter of an export", p.Name).At(p.Name)
		case "clientTrackingId":
			if spec.Tracking, err = textOf(&p); err != nil {
				return nil, err
			}
		case "_format", "header", "patient", "group", "_since":
			if err := s.readPlain(q, &p, k.Base); err != nil {
				return nil, err
			}
		case "_pretty":
		default:
			return nil, outcome.RefusedParameter("%s has no parameter %q%s", k.Operation, outcome.Clip(p.Name),
				outcome.DidYouMean(p.Name, []string{subjectName, "_format", "header", "patient", "group", "_since", "clientTrackingId"})).At(outcome.Clip(p.Name))
		}
	}
	if len(spec.Outputs) == 0 {
		return nil, outcome.New(outcome.CodeRequired, "%s is missing: the views to export", subjectName).At(subjectName)
	}
	if spec.Format, err = exportFormat(q.format); err != nil {
		return nil, err
	}
	spec.Header, spec.Patients, spec.Groups, spec.Since = q.header, q.patients, q.groups, q.since
	if err := s.checkOutputs(ctx, spec.Outputs, subjectName); err != nil {
		return nil, err
	}
	// Absent patients and Groups are an error of the request.
	_, err = s.Bulk.NewReading(ctx, bulk.ReadingSpec{ResourceType: spec.Outputs[0].Resource, Patients: spec.Patients, Groups: spec.Groups}, s.Now().Add(time.Hour))
	return spec, err
}

// exportFormat returns the name of the format of a _format.
func exportFormat(text string) (string, error) {
	if text == "" {
		return "ndjson", nil
	}
	typ, _, _ := strings.Cut(strings.ReplaceAll(text, " ", "+"), ";")
	form, ok := format.Find(strings.TrimSpace(typ))
	if !ok {
		return "", outcome.RefusedParameter("_format is %q: expected ndjson, csv, json or parquet", outcome.Clip(text)).At("_format")
	}
	return form.Name, nil
}

// checkOutputs fails where two outputs have one name, or the principal has no right to an output.
func (s *Service) checkOutputs(ctx context.Context, outputs []exportOutput, subjectName string) error {
	names := make(map[string]bool)
	for _, o := range outputs {
		if names[o.Name] {
			return outcome.Invalid("two outputs have the name %s", outcome.Clip(o.Name)).At(subjectName)
		}
		names[o.Name] = true
		if err := s.checkRights(ctx, o.Resource); err != nil {
			return err
		}
	}
	return nil
}

// readSubject reads one subject with its parts.
func (s *Service) readSubject(ctx context.Context, r *http.Request, k rest.KickOff, parts []parameters.Parameter, n int) (exportOutput, error) {
	q := &runRequest{}
	name := ""
	for i := range parts {
		p := &parts[i]
		switch {
		case p.Name == "name":
			var err error
			if name, err = textOf(p); err != nil {
				return exportOutput{}, err
			}
		case slices.Contains(subjectParameters[k.Operation], p.Name):
			if err := s.readParameter(q, r, k, p); err != nil {
				return exportOutput{}, err
			}
		case p.Name == "parameters":
			return exportOutput{}, outcome.Invalid("parameters belongs to SQL queries: a view has no parameters").At("parameters")
		default:
			return exportOutput{}, outcome.RefusedParameter("a subject of %s has no part %q", k.Operation, outcome.Clip(p.Name)).At(outcome.Clip(p.Name))
		}
	}
	if q.parameter == "" {
		return exportOutput{}, outcome.New(outcome.CodeRequired, "a subject has one of %s", strings.Join(subjectParameters[k.Operation], ", ")).At(subjectParameters[k.Operation][0])
	}
	body, err := s.subjectBody(ctx, q, k.Base)
	if err != nil {
		return exportOutput{}, err
	}
	v, err := s.compile(body, q.parameter)
	if err != nil {
		return exportOutput{}, err
	}
	made := fmt.Sprintf("output-%d", n+1)
	o := exportOutput{Name: name, File: made, Resource: v.Resource, View: slices.Clone(body)}
	if o.Name == "" {
		o.Name = v.Name
	}
	if o.Name == "" {
		o.Name = made
	}
	if fileNamePattern.MatchString(o.Name) {
		o.File = o.Name
	}
	return o, nil
}

// Kind is the type of job of exports.
func (s *Service) Kind(ready func() bool) jobs.Kind {
	return jobs.Kind{Type: ExportJob, Run: s.runExport, Ready: ready}
}

// runExport works on one part of an export.
func (s *Service) runExport(ctx context.Context, t *jobs.Task) (jobs.Result, error) {
	var spec exportSpec
	var part exportPart
	var shared exportShared
	for _, in := range []struct {
		text []byte
		into any
	}{{t.Job.Spec, &spec}, {t.Spec, &part}, {t.Job.Shared, &shared}} {
		if err := json.Unmarshal(in.text, in.into); err != nil {
			return jobs.Result{}, err
		}
	}
	owned, err := bulk.AsOwner(ctx, t.Job)
	if err != nil {
		return jobs.Result{}, err
	}
	if part.Plan {
		return s.planExport(ctx, &spec)
	}
	o := &spec.Outputs[part.Output]
	v, err := s.compile(o.View, "subject")
	if err != nil {
		return jobs.Result{}, err
	}
	form, ok := format.Find(spec.Format)
	if !ok {
		return jobs.Result{}, fmt.Errorf("operate: the format %q is unknown", spec.Format)
	}
	w := &exportWriter{s: s, ctx: ctx, t: t, form: form, output: o, columns: v.Columns, options: format.Options{NoHeader: !spec.Header}}
	defer w.abort()
	reading, err := s.Bulk.NewReading(owned, bulk.ReadingSpec{ResourceType: v.Resource, Since: spec.Since, Patients: spec.Patients, Groups: spec.Groups, Terms: s.terms(v), Pacer: t.NewPacer()}, shared.Moment)
	if err != nil {
		return jobs.Result{}, err
	}
	e := v.NewEvaluator(ctx, append(slices.Clone(s.BaseURLs), t.Job.Base), shared.Moment)
	done := int64(0)
	err = readAhead(ctx, reading, s.Model, func(r fhir.Resource) error {
		if done++; done%1000 == 0 {
			t.Progress(done)
		}
		return e.Eval(r, func(row view.Row) error {
			return format.AsViewError(w.write(row), r.Type().Name+"/"+r.Header().ID.Text)
		})
	})
	s.read.Add(float64(done))
	s.rows.Add(float64(w.rows))
	var fault *view.Error
	if errors.As(err, &fault) {
		err = outcome.UnprocessableContent(outcome.CodeInvalid, "%s", fault.Error())
	}
	if err == nil {
		err = w.finish()
	}
	return jobs.Result{Files: w.files, Done: done}, err
}

// planExport fixes the moment of all outputs.
func (s *Service) planExport(ctx context.Context, spec *exportSpec) (jobs.Result, error) {
	if err := s.Bulk.CheckRoom(ctx, 1); err != nil {
		return jobs.Result{}, err
	}
	moment, err := s.Store.FixMoment(ctx, s.Settings().SnapshotWait)
	if err != nil {
		return jobs.Result{}, err
	}
	result := jobs.Result{Shared: map[string]any{"viewMoment": moment, "moment": moment}}
	for i := range spec.Outputs {
		result.Parts = append(result.Parts, jobs.Part{Stage: 1, Spec: exportPart{Output: i}})
	}
	return result, nil
}

// exportWriter writes the files of one output, each whole in its format.
type exportWriter struct {
	s       *Service
	ctx     context.Context
	t       *jobs.Task
	form    *format.Format
	output  *exportOutput
	columns []view.Column
	options format.Options

	file    bulk.Writer // nil before the first row, and between files
	buffer  *bufio.Writer
	rowsOut format.Writer
	bytes   int64 // of the file
	total   int64
	checked int64
	lines   int64 // rows of the file
	rows    int64
	files   []jobs.File
}

// checkEvery is the number of bytes between two looks at the quota.
const checkEvery = 64 << 20

// Write counts the bytes of a file.
func (w *exportWriter) Write(b []byte) (int, error) {
	w.bytes += int64(len(b))
	w.total += int64(len(b))
	if w.total > w.checked {
		if err := w.s.Bulk.CheckRoom(w.ctx, w.total); err != nil {
			return 0, err
		}
		w.checked = w.total + checkEvery
	}
	return w.buffer.Write(b)
}

func (w *exportWriter) open() error {
	var err error
	if w.file, err = w.s.Bulk.Storage.Create(w.ctx, w.path()); err != nil {
		return err
	}
	w.buffer = bufio.NewWriterSize(w.file, 128<<10)
	w.rowsOut = w.form.Open(w, w.columns, w.options)
	w.bytes, w.lines = 0, 0
	return nil
}

func (w *exportWriter) path() string {
	return fmt.Sprintf("%s-%d.%s", bulk.FilePath(w.t), len(w.files)+1, w.form.Name)
}

func (w *exportWriter) write(row view.Row) error {
	if w.file == nil {
		if err := w.open(); err != nil {
			return err
		}
	}
	w.lines++
	w.rows++
	if err := w.rowsOut.Write(row); err != nil {
		return err
	}
	if w.bytes >= w.s.Bulk.Settings().MaxFileBytes {
		return w.close()
	}
	return nil
}

// close ends a file.
func (w *exportWriter) close() error {
	path := w.path()
	err := w.rowsOut.Close()
	if err == nil {
		err = w.buffer.Flush()
	}
	if err != nil {
		return err
	}
	file := w.file
	w.file = nil
	if err := file.Close(); err != nil {
		return err
	}
	w.files = append(w.files, jobs.File{Kind: jobs.Output, Type: w.output.File, Suffix: "." + w.form.Name, Path: path, Lines: w.lines, Bytes: w.bytes})
	return nil
}

// finish ends the output, which has one file at least.
func (w *exportWriter) finish() error {
	if w.file == nil && len(w.files) > 0 {
		return nil
	}
	if w.file == nil {
		if err := w.open(); err != nil {
			return err
		}
	}
	return w.close()
}

// abort gives up a file that is not whole.
func (w *exportWriter) abort() {
	if w.file != nil {
		w.file.Abort()
	}
}

// ExportResult answers for the results of exports.
func (s *Service) ExportResult() bulk.Result {
	return bulk.Result{Send: s.sendResult, File: s.exportFile}
}

// exportFile returns the content type of a file; its reader needs r on the type of the view's resources.
func (s *Service) exportFile(ctx context.Context, j *jobs.Job, f *jobs.File) (string, error) {
	var spec exportSpec
	if err := json.Unmarshal(j.Spec, &spec); err != nil {
		return "", err
	}
	form, ok := format.Find(spec.Format)
	if !ok {
		return "", fmt.Errorf("operate: the format %q is unknown", spec.Format)
	}
	for i := range spec.Outputs {
		if spec.Outputs[i].File == f.Type {
			return form.ContentType, s.CheckAllowed(ctx, access.Read, spec.Outputs[i].Resource, "")
		}
	}
	return "", outcome.New(outcome.CodeNotFound, "job %s has no file %s", j.ID, f.Name)
}

// sendResult answers with the manifest of an export, or with its error.
func (s *Service) sendResult(x *web.Exchange, r *http.Request, j *jobs.Job, files []jobs.File, urlOf func(jobs.File) (string, error)) error {
	if j.State == jobs.Failed {
		switch code := outcome.Code(j.Code); code {
		case outcome.CodeInvalid:
			return outcome.UnprocessableContent(code, "%s", j.Failure)
		case "":
			return outcome.New(outcome.CodeException, "%s", j.Failure)
		default:
			return outcome.New(code, "%s", j.Failure)
		}
	}
	if j.State != jobs.Done {
		return outcome.New(outcome.CodeNotFound, "the export has no result yet")
	}
	var spec exportSpec
	if err := json.Unmarshal(j.Spec, &spec); err != nil {
		return err
	}
	status := j.Base + "/$job/" + j.ID
	out := []parameters.Parameter{parameters.String("exportId", j.ID)}
	if spec.Tracking != "" {
		out = append(out, parameters.String("clientTrackingId", spec.Tracking))
	}
	uri := func(name, v string) parameters.Parameter { return parameters.Datatype(name, "Uri", v) }
	at := func(name string, t time.Time) parameters.Parameter {
		return parameters.Datatype(name, "Instant", t.UTC().Format("2006-01-02T15:04:05.000Z07:00"))
	}
	out = append(out, parameters.Code("status", "completed"), uri("location", status), uri("cancelUrl", status), parameters.Code("_format", spec.Format),
		at("exportStartTime", j.Created), at("exportEndTime", j.Finished), parameters.Integer("exportDuration", int(j.Finished.Sub(j.Created)/time.Second)))
	for i := range spec.Outputs {
		o := &spec.Outputs[i]
		parts := []parameters.Parameter{parameters.String("name", o.Name)}
		for _, f := range files {
			if f.Type != o.File || f.Kind != jobs.Output {
				continue
			}
			u, err := urlOf(f)
			if err != nil {
				return err
			}
			parts = append(parts, uri("location", u))
		}
		out = append(out, parameters.Parts("output", parts...))
	}
	body, err := parameters.Write(out)
	if err != nil {
		return err
	}
	x.Header().Set("Expires", j.Expires.UTC().Format(http.TimeFormat))
	x.Send(r, http.StatusOK, "application/fhir+json; charset=utf-8", body, false)
	return nil
}

package bulk

import (
	"cmp"
	"compress/gzip"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"math"
	"net/http"
	"strconv"
	"time"

	"kiln/server/access"
	"kiln/server/jobs"
	"kiln/server/outcome"
	"kiln/server/rest"
	"kiln/server/store"
	"kiln/server/web"
)

// instant is the form of times in manifests: milliseconds, UTC.
const instant = "2006-01-02T15:04:05.000Z07:00"

// Serves reports whether an operation is one of this package's.
func (s *Service) Serves(name, typ, id string) bool {
	return name == "$import" && typ == "" && id == "" || name == "$export" && (typ == "" || typ == "Patient" && id == "" || typ == "Group" && id != "")
}

// KickOff checks a request, adds its job, and answers 202 with the status URL.
func (s *Service) KickOff(ctx context.Context, x *web.Exchange, r *http.Request, k rest.KickOff) {
	x.Route = "kick-off"
	x.LeaveFlight()
	var j *jobs.Job
	var parts []jobs.Part
	err := s.ready(ctx)
	if err == nil {
		switch k.Operation {
		case "$export":
			j, parts, err = s.exportJob(ctx, r, k)
		case "$import":
			j, parts, err = s.importJob(ctx, x, r, k)
		default:
			j, parts, err = s.searchJob(ctx, k)
		}
	}
	if err == nil {
		if err = s.addJob(ctx, x, r, k, j, parts); err != nil {
			s.dropFiles(j.ID)
		}
	}
	s.accept(x, r, j, err)
}

// Start adds the job of a kick-off of another package, and answers 202 with the status URL. make checks the
// request and makes the job.
func (s *Service) Start(ctx context.Context, x *web.Exchange, r *http.Request, k rest.KickOff, make func() (*jobs.Job, []jobs.Part, error)) {
	x.Route = "kick-off"
	x.LeaveFlight()
	var j *jobs.Job
	var parts []jobs.Part
	err := s.ready(ctx)
	if err == nil {
		j, parts, err = make()
	}
	if err == nil {
		err = s.addJob(ctx, x, r, k, j, parts)
	}
	s.accept(x, r, j, err)
}

// accept answers a kick-off.
func (s *Service) accept(x *web.Exchange, r *http.Request, j *jobs.Job, err error) {
	if err != nil {
		if e, ok := outcome.From(err); ok && e.Issues[0].Code == outcome.CodeThrottled {
			x.Header().Set("Retry-After", "10")
		}
		fail(x, r, err)
		return
	}
	x.Header().Set("Content-Location", j.Base+"/$job/"+j.ID)
	x.Header().Set("Cache-Control", "no-store")
	x.Send(r, http.StatusAccepted, "application/fhir+json; charset=utf-8",
		outcome.JSON([]outcome.Issue{{Severity: outcome.Information, Code: outcome.CodeInformational, Diagnostics: "the request is a job now; Content-Location is its status URL"}}), false)
}

// ready fails where this server cannot store results.
func (s *Service) ready(ctx context.Context) error {
	if err := s.compareStorage(ctx, true); err != nil {
		return err
	}
	if !s.shared.Load() {
		return outcome.New(outcome.CodeTransient, "bulk.directory of this server is not the folder of the other servers of its database")
	}
	return nil
}

func (s *Service) addJob(ctx context.Context, x *web.Exchange, r *http.Request, k rest.KickOff, j *jobs.Job, parts []jobs.Part) error {
	p := access.PrincipalFrom(ctx)
	address := s.Address(r).String()
	var err error

	if j.Principal, err = storedOwner(p, address); err != nil {
		return err
	}
	j.Client, j.User = clientOf(p, address), p.User()
	j.Base = k.Base
	j.Request = k.Base + r.URL.EscapedPath()
	if r.URL.RawQuery != "" {
		j.Request += "?" + r.URL.RawQuery
	}
	if err := s.Jobs.Add(ctx, j, parts...); err != nil {
		return err
	}
	if s.Audit != nil {
		s.auditJob(s.Audit.EventOf(ctx, x, r), j, "kickoff")
	}
	return nil
}

// clientOfRequest names the client of a request; without authorization its address.
func (s *Service) clientOfRequest(ctx context.Context, r *http.Request) string {
	return clientOf(access.PrincipalFrom(ctx), s.Address(r).String())
}

// clientOf names the client of a job; without authorization its address.
func clientOf(p *access.Principal, address string) string {
	if p.IsOpen() {
		return address
	}
	return cmp.Or(p.ClientID, p.Subject)
}

// job returns the job of a request. It fails with not-found for one that is cancelled, expired,
// unknown or of another owner.
func (s *Service) job(r *http.Request, adminToo bool) (*jobs.Job, error) {
	id := r.PathValue("id")
	absent := outcome.New(outcome.CodeNotFound, "there is no job %s", outcome.Clip(id))
	if len(id) > 64 {
		return nil, absent
	}
	j, err := s.Jobs.Get(r.Context(), id)
	if err != nil {
		return nil, err
	}
	p := access.PrincipalFrom(r.Context())
	switch {
	case j == nil, j.Expired, j.State == jobs.Cancelled, j.Type == "reindex", j.Type == "index-build", j.Type == "retention":
		return nil, absent
	case p.IsOpen():
		return j, nil // without authorization everybody is one client
	case adminToo && p.Admin:
		return j, nil
	case clientOf(p, "") != j.Client || p.User() != j.User:
		return nil, absent
	}
	return j, nil
}

func (s *Service) status(w http.ResponseWriter, r *http.Request) {
	x := web.ExchangeOf(w)
	x.Header().Set("Cache-Control", "no-store")
	j, err := s.job(r, true)
	if err == nil {
		if wait := s.polls.allow(j.ID, s.Settings().PollsPerMinute, s.Now()); wait > 0 {
			x.Header().Set("Retry-After", strconv.Itoa(int(math.Ceil(wait.Seconds()))))
			err = outcome.New(outcome.CodeThrottled, "the status of this job was asked for more often than jobs.polls_per_minute allows")
		}
	}
	if err != nil {
		fail(x, r, err)
		return
	}
	if _, ok := s.Results[j.Type]; ok && (j.State == jobs.Done || j.State == jobs.Failed) {
		x.Header().Set("Location", j.Base+"/$job/"+j.ID+"/"+resultName)
		x.Header().Set("Content-Length", "0")
		x.WriteHeader(http.StatusSeeOther)
		return
	}
	switch j.State {
	case jobs.Done:
		s.sendManifest(x, r, j)
	case jobs.Failed:
		s.sendFailure(x, r, j)
	default:
		x.Header().Set("X-Progress", progress(j))
		x.Header().Set("Retry-After", strconv.Itoa(retryAfter(s.Now().Sub(j.Created))))
		x.Header().Set("Content-Length", "0")
		x.WriteHeader(http.StatusAccepted)
	}
}

func progress(j *jobs.Job) string {
	switch {
	case j.State == jobs.Waiting:
		return "waiting"
	case j.Total > 0:
		return fmt.Sprintf("%d%%, %d resources", min(99, 100*j.Done/j.Total), j.Done)
	}
	return fmt.Sprintf("%d of %d parts, %d resources", j.PartsDone, j.Parts, j.Done)
}

// retryAfter is when to ask again, in seconds: the longer a job runs, the later.
func retryAfter(age time.Duration) int { return int(min(max(age.Seconds()/10, 1), 60)) }

// sendFailure answers with the reason why a job failed. The answer is 500 for every reason.
func (s *Service) sendFailure(x *web.Exchange, r *http.Request, j *jobs.Job) {
	code := outcome.Code(j.Code)
	switch code {
	case outcome.CodeTooCostly, outcome.CodeNoStore, outcome.CodeTransient:
	default:
		code = outcome.CodeException
	}
	x.Send(r, http.StatusInternalServerError, "application/fhir+json; charset=utf-8",
		outcome.JSON([]outcome.Issue{{Severity: outcome.Failure, Code: code, Diagnostics: j.Failure}}), false)
}

// manifest is the answer of a job that is done.
// Spec: https://hl7.org/fhir/uv/bulkdata/STU2/export.html#response---complete-status.
type manifest struct {
	TransactionTime     string          `json:"transactionTime"`
	Request             string          `json:"request"`
	RequiresAccessToken bool            `json:"requiresAccessToken"`
	Output              any             `json:"output"` // of manifestFile, or of importOutput
	Deleted             *[]manifestFile `json:"deleted,omitempty"`
	Error               []manifestFile  `json:"error"`
}

type manifestFile struct {
	Type     string `json:"type"`
	InputURL string `json:"inputUrl,omitempty"` // of errors of an import
	URL      string `json:"url"`
	Count    int64  `json:"count"`
}

// sharedState is the results of parts that all later parts of the job need.
type sharedState struct {
	Moment time.Time `json:"moment"`
	Since  bool      `json:"since"` // the manifest lists deletions
	// Outputs are the numbers of an import, by input.
	Outputs []importOutput `json:"outputs,omitempty"`
}

func (s *Service) sendManifest(x *web.Exchange, r *http.Request, j *jobs.Job) {
	files, err := s.Jobs.Files(r.Context(), j.ID)
	if err != nil {
		fail(x, r, err)
		return
	}
	var shared sharedState
	if err := json.Unmarshal(j.Shared, &shared); err != nil {
		fail(x, r, err)
		return
	}
	m := manifest{TransactionTime: shared.Moment.UTC().Format(instant), Request: j.Request, RequiresAccessToken: s.Authorization,
		Error: []manifestFile{}}
	output := []manifestFile{}
	if shared.Since {
		m.Deleted = &[]manifestFile{}
	}
	for _, f := range files {
		if f.Kind == jobs.Input {
			continue
		}
		u := j.Base + "/$job/" + j.ID + "/" + f.Name
		signed, err := s.Storage.SignedURL(r.Context(), f.Path, ndjson)
		if err != nil {
			fail(x, r, err)
			return
		}
		if signed != "" {
			u, m.RequiresAccessToken = signed, false
		}
		entry := manifestFile{Type: f.Type, InputURL: f.Input, URL: u, Count: f.Lines}
		switch f.Kind {
		case jobs.Output:
			output = append(output, entry)
		case jobs.Deleted:
			if m.Deleted != nil {
				*m.Deleted = append(*m.Deleted, entry)
			}
		default:
			m.Error = append(m.Error, entry)
		}
	}
	if m.Output = output; j.Type == "import" {
		m.Output = shared.Outputs
	}
	body, err := json.Marshal(m)
	if err != nil {
		fail(x, r, err)
		return
	}
	x.Header().Set("Expires", j.Expires.Format(http.TimeFormat))
	x.Send(r, http.StatusOK, "application/json", body, false)
}

// remove cancels a job that has not ended, and removes the results of one that has.
func (s *Service) remove(w http.ResponseWriter, r *http.Request) {
	x := web.ExchangeOf(w)
	x.Header().Set("Cache-Control", "no-store")
	j, err := s.job(r, true)
	if err != nil {
		fail(x, r, err)
		return
	}
	if _, err = s.Jobs.Cancel(r.Context(), j.ID); err == nil {
		err = s.Jobs.Expire(r.Context(), j.ID)
	}
	if err != nil {
		fail(x, r, err)
		return
	}
	x.Header().Set("Content-Length", "0")
	x.WriteHeader(http.StatusAccepted)
}

const ndjson = "application/fhir+ndjson"

// download sends a file of a job to the job's owner.
func (s *Service) download(w http.ResponseWriter, r *http.Request) {
	x := web.ExchangeOf(w)
	x.Header().Set("Cache-Control", "no-store")
	j, err := s.job(r, false)
	if result, ok := s.resultOf(j); ok && r.PathValue("file") == resultName {
		s.sendResult(x, r, j, result)
		return
	}
	var f *jobs.File
	if err == nil {
		f, err = s.Jobs.File(r.Context(), j.ID, r.PathValue("file"))
	}
	if err == nil && (f == nil || f.Kind == jobs.Input || j.State != jobs.Done) {
		err = outcome.New(outcome.CodeNotFound, "job %s has no file %s", j.ID, outcome.Clip(r.PathValue("file")))
	}
	contentType := ndjson
	if result, ok := s.resultOf(j); ok && err == nil {
		contentType, err = result.File(r.Context(), j, f)
	} else if err == nil && f.Kind == jobs.Output {
		err = s.CheckAllowed(r.Context(), access.Read, f.Type, "")
	}
	var content io.ReadSeekCloser
	if err == nil {
		content, err = s.Storage.Open(r.Context(), f.Path)
	}
	if err != nil {
		fail(x, r, err)
		return
	}
	defer content.Close()
	if s.Audit != nil && r.Method == http.MethodGet {
		s.auditJob(s.Audit.EventOf(r.Context(), x, r), j, "download")
	}
	h := x.Header()
	h.Set("Content-Type", contentType)
	h.Set("ETag", `"`+j.ID+"-"+f.Name+`"`)
	h.Add("Vary", "Accept-Encoding")
	if r.Header.Get("Range") == "" && web.WantsGzip(r) {
		h.Set("Content-Encoding", "gzip")
		h.Set("ETag", `"`+j.ID+"-"+f.Name+`.gz"`) // a Range counts the bytes without gzip
		x.WriteHeader(http.StatusOK)
		if r.Method == http.MethodHead {
			return
		}
		out := gzip.NewWriter(slowWriter{x})
		if _, err := io.Copy(out, content); err == nil {
			out.Close()
		}
		return
	}
	http.ServeContent(slowWriter{x}, r, "", time.Time{}, content)
}

// mostStalled is how long the client of a download may read nothing. A download that goes on may take as
// long as it likes: the server's limit for answers does not apply.
const mostStalled = 2 * time.Minute

// slowWriter lets a client read slowly.
type slowWriter struct{ http.ResponseWriter }

func (w slowWriter) Write(b []byte) (int, error) {
	// Where a connection has no deadlines, there is none to move.
	_ = http.NewResponseController(w.ResponseWriter).SetWriteDeadline(time.Now().Add(mostStalled))
	return w.ResponseWriter.Write(b)
}

// fail answers with an error; a database that cannot be reached is 503.
func fail(x *web.Exchange, r *http.Request, err error) { x.Fail(r, store.Translate(err)) }

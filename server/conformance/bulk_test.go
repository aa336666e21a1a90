package conformance

import (
	"compress/gzip"
	"encoding/json"
	"io"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"kiln/server"
)

// bulkResult is a job that is done.
type bulkResult struct {
	s        *service
	status   string // URL
	header   http.Header
	manifest struct {
		TransactionTime     string
		Request             string
		RequiresAccessToken bool
		Output              []bulkFile
		Deleted             *[]bulkFile
		Error               []bulkFile
	}
	lines map[string][]string // of output, by Type/id
	types map[string]int      // lines of output, by type
}

type bulkFile struct {
	Type, URL string
	Count     int
}

// kickOff starts an asynchronous request and returns its status URL.
func (s *service) kickOff(method, path, body string, headers ...string) string {
	s.t.Helper()
	a := s.do(method, path, body, append([]string{"Prefer", "respond-async"}, headers...)...)
	a.want(202)
	at := a.header.Get("Content-Location")
	if !strings.HasPrefix(at, "http") || !strings.Contains(at, "/$job/") {
		s.t.Fatalf("Content-Location is %q", at)
	}
	return at
}

// await polls a status URL until the job has ended.
func (s *service) await(at string) *answer {
	s.t.Helper()
	for end := time.Now().Add(time.Minute); ; {
		a := s.do("GET", at, "")
		if a.status != 202 {
			return a
		}
		if p := a.header.Get("X-Progress"); p == "" || len(p) > 100 || a.header.Get("Retry-After") == "" {
			s.t.Errorf("a job that runs has X-Progress %q and Retry-After %q", p, a.header.Get("Retry-After"))
		}
		if time.Now().After(end) {
			s.t.Fatalf("the job has not ended: %s", a.header.Get("X-Progress"))
		}
		time.Sleep(20 * time.Millisecond)
	}
}

// bulk runs an asynchronous request and fetches its files.
func (s *service) bulk(method, path, body string, headers ...string) *bulkResult {
	s.t.Helper()
	return s.result(s.kickOff(method, path, body, headers...))
}

func (s *service) result(at string) *bulkResult {
	s.t.Helper()
	a := s.await(at)
	a.want(200)
	r := &bulkResult{s: s, status: at, header: a.header, lines: map[string][]string{}, types: map[string]int{}}
	if err := json.Unmarshal(a.body, &r.manifest); err != nil {
		s.t.Fatal(err)
	}
	for _, f := range r.manifest.Output {
		file := s.do("GET", f.URL, "")
		file.want(200)
		text := string(file.body)
		if !strings.HasSuffix(text, "\n") || strings.Count(text, "\n") != f.Count {
			s.t.Errorf("%s has %d lines, want %d", f.URL, strings.Count(text, "\n"), f.Count)
		}
		for line := range strings.Lines(text) {
			var v struct{ ResourceType, ID string }
			if err := json.Unmarshal([]byte(line), &v); err != nil || v.ResourceType != f.Type {
				s.t.Fatalf("%s has the line %s: %v", f.URL, line, err)
			}
			name := v.ResourceType + "/" + v.ID
			r.lines[name] = append(r.lines[name], strings.TrimSuffix(line, "\n"))
			if len(r.lines[name]) > 1 {
				s.t.Errorf("%s comes more than once", name)
			}
			r.types[f.Type]++
		}
	}
	return r
}

// want checks which resources came.
func (r *bulkResult) want(names ...string) {
	r.s.t.Helper()
	for _, n := range names {
		if r.lines[n] == nil {
			r.s.t.Errorf("%s is missing", n)
		}
	}
	for n := range r.lines {
		if !slices.Contains(names, n) {
			r.s.t.Errorf("%s came too", n)
		}
	}
}

// deleted are the references in the files of deletions.
func (r *bulkResult) deleted() []string {
	r.s.t.Helper()
	var out []string
	if r.manifest.Deleted == nil {
		return nil
	}
	for _, f := range *r.manifest.Deleted {
		for line := range strings.Lines(string(r.s.do("GET", f.URL, "").body)) {
			var b struct {
				Type  string
				Entry []struct{ Request struct{ Method, URL string } }
			}
			if err := json.Unmarshal([]byte(line), &b); err != nil || b.Type != "transaction" {
				r.s.t.Fatalf("a line of deletions: %s", line)
			}
			for _, e := range b.Entry {
				if e.Request.Method != "DELETE" {
					r.s.t.Errorf("an entry of deletions is a %s", e.Request.Method)
				}
				out = append(out, e.Request.URL)
			}
		}
	}
	slices.Sort(out)
	return out
}

func (s *service) putAll(resources ...string) {
	s.t.Helper()
	for _, text := range resources {
		var v struct{ ResourceType, ID string }
		if err := json.Unmarshal([]byte(text), &v); err != nil {
			s.t.Fatal(err)
		}
		if a := s.do("PUT", "/"+v.ResourceType+"/"+v.ID, text); a.status != 200 && a.status != 201 {
			s.t.Fatalf("PUT %s/%s: %d %s", v.ResourceType, v.ID, a.status, a.body)
		}
	}
}

// Contract: Bulk data, Asynchronous requests; Manifest and files.
func TestBulkExportOfSystem(t *testing.T) {
	t.Parallel()
	var cfg server.Config
	s := start(t, func(c *server.Config) { cfg = *c })
	s.putAll(`{"resourceType":"Organization","id":"o","name":"O"}`, `{"resourceType":"Patient","id":"1","gender":"female"}`,
		`{"resourceType":"Observation","id":"ob","status":"final","code":{"text":"c"},"subject":{"reference":"Patient/1"}}`,
		`{"resourceType":"DocumentReference","id":"d","status":"current","content":[{"attachment":{"contentType":"text/plain","url":"Binary/b"}}]}`,
		`{"resourceType":"Binary","id":"b","contentType":"text/plain","data":"eA=="}`)
	r := s.bulk("GET", "/$export?_outputFormat=application/fhir+ndjson", "")
	r.want("Organization/o", "Patient/1", "Observation/ob", "DocumentReference/d", "Binary/b")
	if read := strings.TrimSpace(string(s.do("GET", "/Patient/1", "").body)); r.lines["Patient/1"][0] != read {
		t.Errorf("a line is %s, a read %s", r.lines["Patient/1"][0], read)
	}
	if !strings.Contains(r.lines["DocumentReference/d"][0], `"url":"`+s.base+`/Binary/b"`) {
		t.Errorf("the Attachment is not absolute: %s", r.lines["DocumentReference/d"][0])
	}
	if m := r.manifest; m.Request != s.base+"/$export?_outputFormat=application/fhir+ndjson" || m.RequiresAccessToken || m.Deleted != nil || m.Error == nil {
		t.Errorf("the manifest is %+v", m)
	}
	if _, err := http.ParseTime(r.header.Get("Expires")); err != nil || r.header.Get("Content-Type") != "application/json" {
		t.Errorf("the status has Expires %q, Content-Type %q", r.header.Get("Expires"), r.header.Get("Content-Type"))
	}
	s.get(s.root("/admin/jobs/"+r.status[strings.LastIndexByte(r.status, '/')+1:])).want(200).equal("state", "done").equal("total", "5").equal("done", "5").equal("failed", "0")
	file := r.manifest.Output[0].URL
	head := s.do("HEAD", file, "")
	if head.want(200); len(head.body) > 0 || head.header.Get("Content-Type") != "application/fhir+ndjson" || head.header.Get("Content-Length") == "" || head.header.Get("Cache-Control") != "no-store" {
		t.Errorf("HEAD has %v", head.header)
	}
	part := s.do("GET", file, "", "Range", "bytes=2-5", "Accept-Encoding", "identity")
	if part.want(206); string(part.body) != string(s.do("GET", file, "").body[2:6]) {
		t.Errorf("a range is %q", part.body)
	}
	packed := s.do("GET", file, "", "Accept-Encoding", "gzip")
	if packed.want(200); packed.header.Get("Content-Encoding") != "gzip" || packed.header.Get("ETag") == part.header.Get("ETag") {
		t.Errorf("Accept-Encoding: gzip gives %v", packed.header)
	}
	in, err := gzip.NewReader(strings.NewReader(string(packed.body)))
	if err != nil {
		t.Fatal(err)
	}
	if text, err := io.ReadAll(in); err != nil || string(text) != string(s.do("GET", file, "").body) {
		t.Errorf("unpacked: %q, %v", text, err)
	}
	if info, err := os.Stat(cfg.Bulk.Directory); err != nil || info.Mode().Perm() != 0o700 {
		t.Errorf("bulk.directory: %v, %v", info, err)
	}
	err = filepath.WalkDir(cfg.Bulk.Directory, func(path string, d os.DirEntry, err error) error {
		if err == nil && !d.IsDir() {
			if info, _ := d.Info(); info.Mode().Perm() != 0o600 {
				t.Errorf("%s has mode %s", path, info.Mode())
			}
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	s.do("DELETE", r.status, "").want(202)
	s.do("GET", r.status, "").issue(404, "not-found")
	s.do("GET", file, "").issue(404, "not-found")
	s.do("GET", "/$job/unknown", "").issue(404, "not-found")
}

// Contract: Bulk data, /metadata.
func TestBulkCapabilities(t *testing.T) {
	t.Parallel()
	s := start(t)
	text := string(s.do("GET", "/metadata", "").want(200).body)
	for _, want := range []string{"http://hl7.org/fhir/uv/bulkdata/CapabilityStatement/bulk-data", "OperationDefinition/export", "OperationDefinition/patient-export",
		"OperationDefinition/group-export"} {
		if !strings.Contains(text, want) {
			t.Errorf("/metadata has no %s", want)
		}
	}
	s.do("PUT", s.origin()+"/admin/features/bulk.export", `{"enabled": false}`, "Content-Type", "application/json").want(200)
	if strings.Contains(string(s.do("GET", "/metadata", "").body), "bulkdata") {
		t.Error("/metadata lists $export, which is off")
	}
	s.do("GET", "/$export", "").issue(501, "not-supported")
}

// Contract: Bulk data, Export, the levels.
func TestBulkExportOfPatients(t *testing.T) {
	t.Parallel()
	s := start(t)
	s.putAll(`{"resourceType":"Organization","id":"o","name":"O"}`, `{"resourceType":"Organization","id":"unused","name":"U"}`, `{"resourceType":"Practitioner","id":"p"}`,
		`{"resourceType":"Patient","id":"1","managingOrganization":{"reference":"Organization/o"}}`, `{"resourceType":"Patient","id":"2"}`, `{"resourceType":"Patient","id":"3"}`,
		`{"resourceType":"Observation","id":"of1","status":"final","code":{"text":"c"},"subject":{"reference":"Patient/1"},"performer":[{"reference":"Practitioner/p"}],"hasMember":[{"reference":"Observation/of2"}]}`,
		`{"resourceType":"Observation","id":"of2","status":"final","code":{"text":"c"},"subject":{"reference":"Patient/2"}}`,
		`{"resourceType":"Observation","id":"none","status":"final","code":{"text":"c"}}`,
		`{"resourceType":"Device","id":"of1","patient":{"reference":"Patient/1"}}`, `{"resourceType":"Device","id":"none"}`,
		`{"resourceType":"Task","id":"of1","status":"ready","intent":"order","for":{"reference":"Patient/1"}}`,
		`{"resourceType":"Provenance","id":"of1","recorded":"2026-01-01T00:00:00Z","target":[{"reference":"Observation/of1"}],"agent":[{"who":{"reference":"Practitioner/p"}}]}`,
		`{"resourceType":"Provenance","id":"later","recorded":"2026-01-02T00:00:00Z","target":[{"reference":"Observation/of1"}],"agent":[{"who":{"reference":"Practitioner/p"}}]}`,
		`{"resourceType":"Provenance","id":"none","recorded":"2026-01-01T00:00:00Z","target":[{"reference":"Organization/unused"}],"agent":[{"who":{"reference":"Practitioner/p"}}]}`,
		`{"resourceType":"Binary","id":"b","contentType":"text/plain","data":"eA==","securityContext":{"reference":"Patient/1"}}`,
		`{"resourceType":"Group","id":"inner","type":"person","actual":true,"member":[{"entity":{"reference":"Patient/1"}},{"entity":{"reference":"Group/outer"}},{"entity":{"reference":"Patient/3"},"inactive":true}]}`,
		`{"resourceType":"Group","id":"outer","type":"person","actual":true,"member":[{"entity":{"reference":"Group/inner"}}]}`,
		`{"resourceType":"Group","id":"empty","type":"person","actual":true}`)
	of1 := []string{"Patient/1", "Observation/of1", "Device/of1", "Task/of1", "Provenance/of1", "Provenance/later", "Organization/o", "Practitioner/p"}
	t.Run("Patient", func(t *testing.T) {
		s.in(t).bulk("GET", "/Patient/$export", "").want(append(of1, "Patient/2", "Patient/3", "Observation/of2", "Group/inner", "Group/outer")...)
	})
	t.Run("Group with a cycle", func(t *testing.T) {
		s.in(t).bulk("GET", "/Group/outer/$export", "").want(append(of1, "Group/inner", "Group/outer")...)
	})
	t.Run("an empty Group has nobody", func(t *testing.T) {
		s.in(t).bulk("GET", "/Group/empty/$export", "").want()
	})
	t.Run("an absent Group answers like its read", func(t *testing.T) {
		s.in(t).do("GET", "/Group/absent/$export", "").issue(404, "not-found")
	})
	t.Run("_type", func(t *testing.T) {
		s.in(t).bulk("GET", "/Group/outer/$export?_type=Observation,Organization", "").want("Observation/of1")
		s.in(t).do("GET", "/Group/outer/$export?_type=Organization", "").issue(400, "invalid")
		s.in(t).do("GET", "/$export?_type=Observaton", "").issue(400, "invalid")
	})
	t.Run("patient", func(t *testing.T) {
		s.in(t).bulk("POST", "/Patient/$export", `{"resourceType":"Parameters","parameter":[{"name":"patient","valueReference":{"reference":"Patient/2"}},{"name":"_type","valueString":"Patient,Observation"}]}`).
			want("Patient/2", "Observation/of2")
		s.in(t).bulk("GET", "/Patient/$export?patient=Patient/3", "").want("Patient/3", "Group/inner", "Group/outer")
		s.in(t).do("GET", "/Patient/$export?patient=Patient/3,Patient/9", "").issue(400, "invalid")
		s.in(t).do("GET", "/Group/outer/$export?patient=Patient/2", "").issue(400, "invalid")
		s.in(t).do("GET", "/$export?patient=Patient/2", "").issue(400, "invalid")
	})
	t.Run("includeAssociatedData", func(t *testing.T) {
		s.in(t).bulk("GET", "/$export?_type=Observation&includeAssociatedData=LatestProvenanceResources", "").
			want("Observation/of1", "Observation/of2", "Observation/none", "Provenance/later")
		s.in(t).bulk("GET", "/$export?_type=Organization&includeAssociatedData=RelevantProvenanceResources", "").
			want("Organization/o", "Organization/unused", "Provenance/none")
		s.in(t).do("GET", "/$export?includeAssociatedData=x", "").issue(400, "not-supported")
	})
	t.Run("_typeFilter", func(t *testing.T) {
		s.in(t).bulk("GET", "/$export?_type=Observation,Patient&_typeFilter="+url.QueryEscape("Observation?subject=Patient/1,Patient/9,Patient?_id=2"), "").
			want("Observation/of1", "Patient/2")
		s.in(t).bulk("GET", "/$export?_type=Observation&_typeFilter="+url.QueryEscape("Observation%3Fsubject:Patient.organization.name%3Dx")+"&_typeFilter="+url.QueryEscape("Observation?_id=none"), "").
			want("Observation/none")
		s.in(t).bulk("GET", "/$export?_type=Observation&_typeFilter="+url.QueryEscape("Observation?subject:Patient.organization.name=o"), "").
			want("Observation/of1")
		for _, bad := range []string{"Observation?famly=x", "Observation?_sort=date", "Observation?_include=*", "Patient?_id=1", "nonsense"} {
			if a := s.in(t).do("GET", "/$export?_type=Observation&_typeFilter="+url.QueryEscape(bad), ""); a.status != 400 {
				t.Errorf("_typeFilter=%s: %d", bad, a.status)
			}
		}
	})
	t.Run("_elements", func(t *testing.T) {
		r := s.in(t).bulk("GET", "/$export?_type=Observation,Patient&_elements=Observation.subject", "")
		line := r.lines["Observation/of1"][0]
		if strings.Contains(line, "performer") || !strings.Contains(line, "subject") || !strings.Contains(line, "SUBSETTED") || !strings.Contains(line, `"status"`) {
			t.Errorf("cut to subject: %s", line)
		}
		if strings.Contains(r.lines["Patient/1"][0], "SUBSETTED") {
			t.Errorf("Patient is cut too: %s", r.lines["Patient/1"][0])
		}
		s.in(t).do("GET", "/$export?_elements=Patient.nam", "").issue(400, "invalid")
	})
	t.Run("other parameters", func(t *testing.T) {
		s.in(t).do("GET", "/$export?_outputFormat=csv", "").issue(400, "not-supported")
		s.in(t).do("GET", "/$export?organizeOutputBy=Patient", "").issue(400, "not-supported")
		s.in(t).do("GET", "/$export?_sinc=2020-01-01T00:00:00Z", "").issue(400, "not-supported")
		s.in(t).do("GET", "/$export?_since=2020-01-02T00:00:00Z&_until=2020-01-01T00:00:00Z", "").issue(400, "invalid")
		s.in(t).do("GET", "/$export?_since=2020", "").issue(400, "invalid")
		r := s.in(t).bulk("GET", "/$export?_type=Device&_sinc=x&allowPartialManifests=true&_until=2999-01-01T00:00:00+01:00", "", "Prefer", "respond-async, handling=lenient")
		if r.want("Device/of1", "Device/none"); len(r.manifest.Error) != 1 || r.manifest.Error[0].Count != 1 {
			t.Errorf("the ignored parameter: %+v", r.manifest.Error)
		}
	})
}

// Contract: Bulk data, Export, _since and deleted; One moment, a chain is exact.
func TestBulkExportSince(t *testing.T) {
	t.Parallel()
	s := start(t)
	s.putAll(`{"resourceType":"Practitioner","id":"p"}`, `{"resourceType":"Patient","id":"1"}`, `{"resourceType":"Patient","id":"2"}`, `{"resourceType":"Patient","id":"3"}`,
		`{"resourceType":"Observation","id":"a","status":"final","code":{"text":"c"},"subject":{"reference":"Patient/1"},"performer":[{"reference":"Practitioner/p"}]}`,
		`{"resourceType":"Observation","id":"b","status":"final","code":{"text":"c"},"subject":{"reference":"Patient/2"}}`,
		`{"resourceType":"Observation","id":"c","status":"final","code":{"text":"c"},"subject":{"reference":"Patient/3"}}`,
		`{"resourceType":"Group","id":"g","type":"person","actual":true,"member":[{"entity":{"reference":"Patient/1"}}]}`)
	first := s.bulk("GET", "/$export", "")
	since := url.QueryEscape(first.manifest.TransactionTime)
	s.bulk("GET", "/$export?_since="+since, "").want()
	s.putAll(`{"resourceType":"Observation","id":"a","status":"amended","code":{"text":"c"},"subject":{"reference":"Patient/1"},"performer":[{"reference":"Practitioner/p"}]}`,
		`{"resourceType":"Group","id":"g","type":"person","actual":true,"member":[{"entity":{"reference":"Patient/1"}},{"entity":{"reference":"Patient/3"}}]}`)
	s.do("DELETE", "/Observation/b", "").want(204)
	s.do("DELETE", "/Patient/2", "").want(204)
	system := s.bulk("GET", "/$export?_since="+since, "")
	system.want("Observation/a", "Group/g")
	if got := system.deleted(); !slices.Equal(got, []string{"Observation/b", "Patient/2"}) {
		t.Errorf("deleted: %v", got)
	}
	patients := s.bulk("GET", "/Patient/$export?_since="+since, "")
	patients.want("Observation/a", "Practitioner/p", "Group/g")
	if got := patients.deleted(); !slices.Equal(got, []string{"Observation/b", "Patient/2"}) {
		t.Errorf("deleted of patients: %v", got)
	}
	group := s.bulk("GET", "/Group/g/$export?_since="+since, "")
	group.want("Observation/a", "Practitioner/p", "Group/g", "Patient/3", "Observation/c")
	if got := group.deleted(); len(got) > 0 {
		t.Errorf("deleted of the Group: %v", got)
	}
	s.putAll(`{"resourceType":"Patient","id":"2","active":true}`)
	again := s.bulk("GET", "/$export?_since="+since, "")
	again.want("Observation/a", "Group/g", "Patient/2")
	if got := again.deleted(); !slices.Equal(got, []string{"Observation/b"}) {
		t.Errorf("deleted after a re-creation: %v", got)
	}
}

// Contract: Bulk data, Asynchronous requests: searches and $everything.
func TestAsynchronousSearch(t *testing.T) {
	t.Parallel()
	s := start(t, func(c *server.Config) { c.Jobs.MaxPerClient, c.Jobs.PollsPerMinute, c.Search.MaxCount = 1000, 100, 3 })
	s.putAll(`{"resourceType":"Patient","id":"1"}`)
	var names []string
	for _, id := range []string{"a", "b", "c", "d", "e", "f", "g"} {
		s.putAll(`{"resourceType":"Observation","id":"` + id + `","status":"final","code":{"text":"c"},"subject":{"reference":"Patient/1"}}`)
		names = append(names, "Observation/"+id)
	}
	s.bulk("GET", "/Observation?_include=Observation:subject&_count=2&_sort=-date", "").want(append(names, "Patient/1")...)
	s.bulk("POST", "/Observation/_search", "_id=a,b", "Content-Type", "application/x-www-form-urlencoded").want("Observation/a", "Observation/b")
	s.bulk("GET", "/Patient/1/Observation?_id=c", "").want("Observation/c")
	s.bulk("GET", "/?_type=Patient", "").want("Patient/1")
	s.bulk("GET", "/Patient/1/$everything", "").want(append(names, "Patient/1")...)
	s.do("GET", "/Observation?_summary=count", "", "Prefer", "respond-async").issue(400, "invalid")
	s.do("GET", "/Observation?famly=x", "", "Prefer", "respond-async").issue(400, "not-supported")
	if r := s.bulk("GET", "/Observation?famly=x&_id=a", "", "Prefer", "respond-async, handling=lenient"); len(r.manifest.Error) != 1 {
		t.Errorf("the ignored parameter: %+v", r.manifest.Error)
	}
	s.do("GET", "/Patient/1", "", "Prefer", "respond-async").want(200)
	at := s.bulk("GET", "/Patient", "").status
	for range 100 {
		s.do("GET", at, "")
	}
	if a := s.do("GET", at, ""); a.header.Get("Retry-After") == "" {
		t.Error("429 has no Retry-After")
	} else {
		a.issue(429, "throttled")
	}
}

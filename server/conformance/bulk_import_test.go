package conformance

import (
	"bytes"
	"compress/gzip"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"kiln/server"
)

// importResult is an import that is done.
type importResult struct {
	s        *service
	status   string // URL
	manifest struct {
		TransactionTime     string
		Request             string
		RequiresAccessToken bool
		Output              []importedInput
		Error               []importError
	}
}

type importedInput struct {
	InputURL  string
	Count     int
	Extension struct{ Created, Updated, Unchanged int }
}

type importError struct {
	Type, InputURL, URL string
	Count               int
}

// startImport starts an import and returns its status URL.
func (s *service) startImport(path, contentType, body string, headers ...string) string {
	s.t.Helper()
	a := s.do("POST", path, body, append([]string{"Content-Type", contentType}, headers...)...)
	a.want(202)
	at := a.header.Get("Content-Location")
	if !strings.Contains(at, "/$job/") {
		s.t.Fatalf("Content-Location is %q", at)
	}
	return at
}

// imported awaits an import.
func (s *service) imported(at string) *importResult {
	s.t.Helper()
	a := s.await(at)
	a.want(200)
	r := &importResult{s: s, status: at}
	if err := json.Unmarshal(a.body, &r.manifest); err != nil {
		s.t.Fatal(err)
	}
	return r
}

// upload imports lines as the body of the request.
func (s *service) upload(lines string, headers ...string) *importResult {
	s.t.Helper()
	return s.imported(s.startImport("/$import?inputSource=https://source.example", "application/fhir+ndjson", lines, headers...))
}

// want checks the numbers of the only input.
func (r *importResult) want(created, updated, unchanged, failed int) {
	r.s.t.Helper()
	if len(r.manifest.Output) != 1 {
		r.s.t.Fatalf("output is %+v", r.manifest.Output)
	}
	o := r.manifest.Output[0]
	if o.Count != created+updated+unchanged || o.Extension.Created != created || o.Extension.Updated != updated || o.Extension.Unchanged != unchanged {
		r.s.t.Errorf("output is %+v, want %d created, %d updated, %d unchanged", o, created, updated, unchanged)
	}
	count := 0
	for _, e := range r.manifest.Error {
		count += e.Count
	}
	if count != failed {
		r.s.t.Errorf("%d lines failed, want %d: %v", count, failed, r.errors())
	}
}

// errors are the first diagnostics of each line of errors.
func (r *importResult) errors() []string {
	r.s.t.Helper()
	var out []string
	for _, e := range r.manifest.Error {
		for line := range strings.Lines(string(r.s.do("GET", e.URL, "").want(200).body)) {
			var o struct {
				ResourceType string
				Issue        []struct{ Code, Diagnostics string }
			}
			if err := json.Unmarshal([]byte(line), &o); err != nil || o.ResourceType != "OperationOutcome" || len(o.Issue) == 0 || e.Type != "OperationOutcome" {
				r.s.t.Fatalf("a line of errors is %s", line)
			}
			out = append(out, o.Issue[0].Diagnostics)
		}
	}
	return out
}

// files serves files as a source of imports.
func files(t *testing.T, content map[string]string) *httptest.Server {
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		text, ok := content[r.URL.Path]
		if !ok {
			http.NotFound(w, r)
			return
		}
		http.ServeContent(w, r, "", time.Time{}, strings.NewReader(text))
	}))
	t.Cleanup(srv.Close)
	return srv
}

func manifestOf(inputs ...string) string {
	var list []string
	for i := 0; i < len(inputs); i += 2 {
		list = append(list, fmt.Sprintf(`{"type":%q,"url":%q}`, inputs[i], inputs[i+1]))
	}
	return `{"inputFormat":"application/fhir+ndjson","inputSource":"https://source.example","storageDetail":{"type":"https"},"input":[` + strings.Join(list, ",") + `]}`
}

// Contract: Bulk data, Import: each line is a PUT, and the same manifest again changes nothing.
func TestImportOfManifest(t *testing.T) {
	t.Parallel()
	s := start(t)
	var packed bytes.Buffer
	z := gzip.NewWriter(&packed)
	fmt.Fprint(z, `{"resourceType":"Observation","id":"o","status":"final","code":{"text":"c"},"subject":{"reference":"Patient/absent"}}`)
	z.Close()
	content := map[string]string{
		"/p": "\xef\xbb\xbf" + `{"resourceType":"Patient","id":"1","meta":{"versionId":"7","lastUpdated":"2020-01-01T00:00:00Z"},"gender":"male"}` + "\r\n\n  \n" +
			`{"resourceType":"Patient","id":"2","meta":{"source":"urn:own"},"gender":"female"}` + "\n",
		"/o": packed.String(),
	}
	src := files(t, content)
	body := manifestOf("Patient", src.URL+"/p", "Observation", src.URL+"/o")
	r := s.imported(s.startImport("/$import", "application/json", body))
	if m := r.manifest; len(m.Output) != 2 || m.Output[0].InputURL != src.URL+"/p" || m.Output[0].Count != 2 || m.Output[0].Extension.Created != 2 || m.Output[1].Count != 1 ||
		len(m.Error) != 0 || m.Request != s.base+"/$import" || m.RequiresAccessToken || m.TransactionTime == "" {
		t.Errorf("the manifest is %+v", m)
	}
	if p := s.do("GET", "/Patient/1", "").want(200); p.str("meta.source") != "https://source.example" || p.str("meta.versionId") != "1" {
		t.Errorf("a line is stored as %s", p.body)
	}
	if p := s.do("GET", "/Patient/2", "").want(200); p.str("meta.source") != "urn:own" {
		t.Errorf("a line with a source is stored as %s", p.body)
	}
	if n := s.do("GET", "/Patient?_source=https://source.example&gender=male", "").want(200).len("entry"); n != 1 {
		t.Errorf("the search finds %d", n)
	}
	t.Run("the same manifest again changes nothing", func(t *testing.T) {
		// The order of properties and white space make no difference.
		content["/p"] = `{"gender": "male", "id":"1", "resourceType":"Patient"}` + "\n" + `{"resourceType":"Patient","id":"2","meta":{"source":"urn:own"},"gender":"other"}`
		parameters := fmt.Sprintf(`{"resourceType":"Parameters","parameter":[{"name":"inputFormat","valueCode":"ndjson"},{"name":"inputSource","valueUri":"https://source.example"},
			{"name":"storageDetail","part":[{"name":"type","valueCode":"https"}]},
			{"name":"input","part":[{"name":"type","valueCode":"Patient"},{"name":"url","valueUrl":%q}]},{"name":"input","part":[{"name":"url","valueUrl":%q}]}]}`, src.URL+"/p", src.URL+"/o")
		r := s.in(t).imported(s.in(t).startImport("/$import", "application/fhir+json", parameters))
		if o := r.manifest.Output; len(o) != 2 || o[0].Extension.Unchanged != 1 || o[0].Extension.Updated != 1 || o[1].Extension.Unchanged != 1 {
			t.Errorf("again: %+v", o)
		}
		for path, version := range map[string]string{"/Patient/1": "1", "/Patient/2": "2", "/Observation/o": "1"} {
			if p := s.in(t).do("GET", path, "").want(200); p.str("meta.versionId") != version {
				t.Errorf("%s is at version %s", path, p.str("meta.versionId"))
			}
		}
	})
	t.Run("an export can be imported", func(t *testing.T) {
		out := s.in(t).bulk("GET", "/$export", "")
		var lines string
		for _, list := range out.lines {
			lines += list[0] + "\n"
		}
		s.in(t).upload(lines).want(0, 0, 3, 0)
	})
}

// Contract: Bulk data, Import: a bad line is an error, and the rest goes on.
func TestImportErrors(t *testing.T) {
	t.Parallel()
	s := start(t, func(c *server.Config) {
		c.Server.MaxBodyBytes, c.Bulk.Import.MaxErrors, c.Jobs.MaxPerClient = 2000, 3, 100
	})
	good := func(id string) string { return `{"resourceType":"Patient","id":"` + id + `"}` + "\n" }
	long := `{"resourceType":"Patient","id":"long","name":[{"text":"` + strings.Repeat("x", 5000) + `"}]}` + "\n"
	src := files(t, map[string]string{"/p": good("p1") + `{"resourceType":"Organization","id":"o","name":"O"}` + "\n" + good("p2"), "/cut.gz": "\x1f\x8bnonsense", "/empty": ""})
	for _, tt := range []struct {
		name   string
		line   string
		reason string
	}{
		{"no JSON", "nonsense\n", "line 2: "},
		{"no id", `{"resourceType":"Patient"}` + "\n", "line 2: the resource has no id"},
		{"an unknown type", `{"resourceType":"Patiet","id":"x"}` + "\n", "line 2: "},
		{"invalid", `{"resourceType":"Patient","id":"x","gender":"nonsense"}` + "\n", "line 2: "},
		{"an unknown element", `{"resourceType":"Patient","id":"x","nonsense":1}` + "\n", "line 2: "},
		{"too long", long, "line 2: the line is larger than 2000 bytes"},
		{"refused by a hook", `{"resourceType":"Subscription","id":"x","status":"requested","reason":"r","criteria":"Patient?nonsense=1","channel":{"type":"rest-hook","endpoint":"http://127.0.0.1/"}}` + "\n", "line 2: "},
	} {
		t.Run(tt.name, func(t *testing.T) {
			id := strings.ReplaceAll(tt.name, " ", "-")
			r := s.in(t).upload(good(id+"1") + tt.line + "\n" + good(id+"2"))
			r.want(2, 0, 0, 1)
			if got := r.errors(); len(got) != 1 || !strings.HasPrefix(got[0], tt.reason) {
				t.Errorf("the error is %q, want %q", got, tt.reason)
			}
			s.in(t).do("GET", "/Patient/"+id+"2", "").want(200)
		})
	}
	t.Run("another type than the input's", func(t *testing.T) {
		r := s.in(t).imported(s.in(t).startImport("/$import", "application/json", manifestOf("Patient", src.URL+"/p")))
		if r.want(2, 0, 0, 1); r.manifest.Error[0].InputURL != src.URL+"/p" {
			t.Errorf("errors are %+v", r.manifest.Error)
		}
	})
	t.Run("a file of errors stops at max_errors, its count goes on", func(t *testing.T) {
		r := s.in(t).upload(strings.Repeat("x\n", 10) + good("after"))
		if r.want(1, 0, 0, 10); len(r.errors()) != 3 {
			t.Errorf("%d errors are listed", len(r.errors()))
		}
	})
	t.Run("an unreadable input is one OperationOutcome", func(t *testing.T) {
		r := s.in(t).imported(s.in(t).startImport("/$import", "application/json", manifestOf("Patient", src.URL+"/absent", "", src.URL+"/cut.gz", "", src.URL+"/empty")))
		m := r.manifest
		if len(m.Output) != 3 || m.Output[0].Count != 0 || len(m.Error) != 2 || m.Error[0].InputURL != src.URL+"/absent" || m.Error[0].Count != 1 || m.Error[1].InputURL != src.URL+"/cut.gz" {
			t.Fatalf("the manifest is %+v", m)
		}
		if got := r.errors(); !strings.Contains(got[0], "404") || !strings.Contains(got[1], "gzip") {
			t.Errorf("errors are %q", got)
		}
	})
	t.Run("one id in many lines", func(t *testing.T) {
		r := s.in(t).upload(strings.Repeat(good("many"), 5) + `{"resourceType":"Patient","id":"many","gender":"male"}`)
		r.want(1, 1, 4, 0)
		if p := s.in(t).do("GET", "/Patient/many", "").want(200); p.str("meta.versionId") != "2" {
			t.Errorf("version %s", p.str("meta.versionId"))
		}
	})
	t.Run("uploads as gzip", func(t *testing.T) {
		var packed bytes.Buffer
		z := gzip.NewWriter(&packed)
		fmt.Fprint(z, good("packed"))
		z.Close()
		s.in(t).upload(packed.String()).want(1, 0, 0, 0)
		s.in(t).upload(packed.String(), "Content-Encoding", "gzip").want(0, 0, 1, 0)
	})
	t.Run("parameters of a search take effect", func(t *testing.T) {
		s.in(t).upload(`{"resourceType":"SearchParameter","id":"sp","url":"http://x.example/sp","name":"sp","status":"active","description":"d","code":"own-eye","base":["Patient"],"type":"string","expression":"Patient.maritalStatus.text"}`+"\n"+
			`{"resourceType":"Patient","id":"sp","maritalStatus":{"text":"own"}}`).want(2, 0, 0, 0)
		if found := s.in(t).do("GET", "/Patient?own-eye=own", "").want(200).matches(); len(found) != 1 {
			t.Errorf("the search finds %v", found)
		}
	})
}

// Contract: Bulk data, Import: bad requests are 400 and make no job.
func TestImportRequests(t *testing.T) {
	t.Parallel()
	s := start(t, func(c *server.Config) {
		c.Bulk.Import.Sources = []string{"https://allowed.example/data/", "http://127.0.0.1/"}
	})
	with := func(change ...string) string {
		text := manifestOf("Patient", "https://allowed.example/data/p")
		for i := 0; i < len(change); i += 2 {
			if !strings.Contains(text, change[i]) {
				t.Fatalf("%s is not in %s", change[i], text)
			}
			text = strings.Replace(text, change[i], change[i+1], 1)
		}
		return text
	}
	for _, tt := range []struct{ name, body, code string }{
		{"no inputFormat", with(`"inputFormat":"application/fhir+ndjson",`, ""), "invalid"},
		{"another inputFormat", with(`"application/fhir+ndjson"`, `"text/csv"`), "not-supported"},
		{"no inputSource", with(`"inputSource":"https://source.example",`, ""), "invalid"},
		{"no url", with(`,"url":"https://allowed.example/data/p"`, ""), "invalid"},
		{"no input", with(`[{"type":"Patient","url":"https://allowed.example/data/p"}]`, "[]"), "invalid"},
		{"a URL twice", with(`}]}`, `},{"type":"Patient","url":"https://allowed.example/data/p"}]}`), "invalid"},
		{"an unknown type", with(`"Patient"`, `"Patiet"`), "invalid"},
		{"another storage", with(`{"type":"https"}`, `{"type":"azure-blob"}`), "not-supported"},
		{"a scheme that does not fit", with(`{"type":"https"}`, `{"type":"file"}`), "invalid"},
		{"a scheme that does not fit https", with(`https://allowed.example/data/p`, `file:///etc/passwd`), "invalid"},
		{"a URL that the settings exclude", with(`https://allowed.example/data/p`, `https://allowed.example/other/p`), "invalid"},
		{"another host that begins like an allowed one", with(`https://allowed.example/data/p`, `https://allowed.example.evil.example/data/p`), "invalid"},
		{"dot segments", with(`https://allowed.example/data/p`, `https://allowed.example/data/../other/p`), "invalid"},
		{"escaped dot segments", with(`https://allowed.example/data/p`, `https://allowed.example/data/%2e%2E/other/p`), "invalid"},
		{"a password", with(`https://allowed.example/data/p`, `https://u:p@allowed.example/data/p`), "invalid"},
		{"http", with(`https://allowed.example/data/p`, `http://allowed.example/data/p`), "invalid"},
		{"no URL", with(`https://allowed.example/data/p`, `data/p`), "invalid"},
		{"a file without a prefix", with(`{"type":"https"}`, `{"type":"file"}`, `https://allowed.example/data/p`, `file:///etc/passwd`), "invalid"},
		{"an object store that is not set", with(`{"type":"https"}`, `{"type":"aws-s3"}`, `https://allowed.example/data/p`, `s3://bucket/p`), "invalid"},
		{"an unknown parameter", with(`"inputFormat"`, `"mode":"fast","inputFormat"`), "not-supported"},
		{"no JSON", "nonsense", "structure"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s.in(t).do("POST", "/$import", tt.body, "Content-Type", "application/json").issue(400, tt.code)
		})
	}
	t.Run("other content types", func(t *testing.T) {
		s.in(t).do("POST", "/$import", "x", "Content-Type", "text/plain").issue(415, "not-supported")
		s.in(t).do("POST", "/$import", "x", "Content-Type", "application/fhir+ndjson", "Content-Encoding", "br").issue(415, "not-supported")
	})
	t.Run("GET", func(t *testing.T) {
		if a := s.in(t).do("GET", "/$import", ""); a.status != 405 || a.header.Get("Allow") != "POST" {
			t.Errorf("GET is %d, Allow %q", a.status, a.header.Get("Allow"))
		}
	})
	t.Run("lenient", func(t *testing.T) {
		r := s.in(t).imported(s.in(t).startImport("/$import?nonsense=1", "application/fhir+ndjson", "", "Prefer", "handling=lenient"))
		if got := r.errors(); len(got) != 1 || !strings.Contains(got[0], "nonsense") {
			t.Errorf("warnings are %q", got)
		}
		s.in(t).do("POST", "/$import?nonsense=1", "", "Content-Type", "ndjson").issue(400, "not-supported")
	})
	if list := s.do("GET", s.origin()+"/admin/jobs?type=import", "").want(200); strings.Count(string(list.body), `"id"`) != 1 {
		t.Errorf("bad requests made jobs: %s", list.body)
	}
	t.Run("off", func(t *testing.T) {
		if text := string(s.in(t).do("GET", "/metadata", "").want(200).body); !strings.Contains(text, "OperationDefinition/import") {
			t.Error("/metadata does not list import")
		}
		s.in(t).do("PUT", s.origin()+"/admin/features/bulk.import", `{"enabled": false}`, "Content-Type", "application/json").want(200)
		if text := string(s.in(t).do("GET", "/metadata", "").want(200).body); strings.Contains(text, "OperationDefinition/import") {
			t.Error("/metadata lists import, which is off")
		}
		s.in(t).do("POST", "/$import", "", "Content-Type", "ndjson").issue(501, "not-supported")
	})
}

// Contract: Bulk data, Import, Fetching.
func TestImportFetching(t *testing.T) {
	t.Parallel()
	s := start(t, func(c *server.Config) { c.Jobs.MaxPerClient = 100 })
	var mu sync.Mutex
	asked := make(map[string]int)
	lines := func(id string) string {
		var b strings.Builder
		for i := range 2000 {
			fmt.Fprintf(&b, `{"resourceType":"Patient","id":"%s%d"}`+"\n", id, i)
		}
		return b.String()
	}
	src := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		mu.Lock()
		asked[r.URL.Path]++
		n := asked[r.URL.Path]
		mu.Unlock()
		text := lines(r.URL.Path[1:])
		switch r.URL.Path {
		case "/redirect":
			http.Redirect(w, r, "/plain", http.StatusFound)
		case "/busy":
			if n == 1 {
				w.WriteHeader(503)
				return
			}
			fmt.Fprint(w, text)
		case "/cut", "/ranges": // ends in the middle, once
			if r.URL.Path == "/ranges" {
				w.Header().Set("Accept-Ranges", "bytes")
				if n > 1 {
					if r.Header.Get("Range") == "" {
						t.Error("the second request has no Range")
					}
					http.ServeContent(w, r, "", time.Time{}, strings.NewReader(text))
					return
				}
			}
			w.Header().Set("Content-Length", strconv.Itoa(len(text)))
			if n == 1 {
				text = text[:len(text)/2]
			}
			fmt.Fprint(w, text)
		case "/always-cut":
			w.Header().Set("Content-Length", "1000000")
			fmt.Fprint(w, text)
		}
	}))
	t.Cleanup(src.Close)
	for _, tt := range []struct {
		path   string
		stored int
		asked  int
		reason string
	}{
		{"/redirect", 0, 1, "redirects are not followed"},
		{"/busy", 2000, 2, ""},
		{"/cut", 2000, 2, ""},
		{"/ranges", 2000, 2, ""},
		{"/always-cut", 0, 3, "cannot be read"},
	} {
		t.Run(tt.path, func(t *testing.T) {
			t.Parallel()
			r := s.in(t).imported(s.in(t).startImport("/$import", "application/json", manifestOf("Patient", src.URL+tt.path)))
			if got := r.manifest.Output[0].Count; got != tt.stored {
				t.Errorf("%d lines are stored, want %d: %v", got, tt.stored, r.errors())
			}
			mu.Lock()
			defer mu.Unlock()
			if asked[tt.path] != tt.asked {
				t.Errorf("the source was asked %d times, want %d", asked[tt.path], tt.asked)
			}
			if got := strings.Join(r.errors(), ""); tt.reason != "" && !strings.Contains(got, tt.reason) || tt.reason == "" && got != "" {
				t.Errorf("errors are %q", got)
			}
		})
	}
}

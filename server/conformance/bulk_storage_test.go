package conformance

import (
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/johannesboyne/gofakes3"
	"github.com/johannesboyne/gofakes3/backend/s3mem"

	"kiln/server"
	"kiln/server/store/storetest"
)

// Contract: Bulk data, results in an object store: the manifest signs URLs, which need no token; s3: sources are read.
func TestBulkObjectStore(t *testing.T) {
	t.Parallel()
	backend := s3mem.New()
	if err := backend.CreateBucket("results"); err != nil {
		t.Fatal(err)
	}
	fake := httptest.NewServer(gofakes3.New(backend, gofakes3.WithLogger(gofakes3.StdLog(log.New(io.Discard, "", 0)))).Server())
	t.Cleanup(fake.Close)
	s := start(t, func(c *server.Config) {
		c.Bulk.S3 = server.BulkS3Config{Endpoint: fake.URL, Bucket: "results", Region: "us-east-1", Prefix: "kiln", AccessKey: "a", SecretKey: "s", Presign: "5m"}
		c.Bulk.Import.Sources = []string{"s3://results/in"}
	})
	var lines strings.Builder
	for i := range 9000 { // more than two parts of an object
		fmt.Fprintf(&lines, `{"resourceType":"Patient","id":"%d","name":[{"text":"%s"}]}`+"\n", i, strings.Repeat("x", 1300))
	}
	s.upload(lines.String()).want(9000, 0, 0, 0)
	at := s.kickOff("GET", "/$export", "")
	a := s.await(at).want(200)
	address := a.str("output.0.url")
	u, err := url.Parse(address)
	if err != nil || !strings.HasPrefix(address, fake.URL) || u.Query().Get("X-Amz-Signature") == "" || u.Query().Get("X-Amz-Expires") != "300" || a.at("requiresAccessToken") != false {
		t.Errorf("the manifest is %s", a.body)
	}
	count := 0
	for i := range a.len("output") {
		resp, err := http.Get(a.str(fmt.Sprintf("output.%d.url", i)))
		if err != nil {
			t.Fatal(err)
		}
		text, err := io.ReadAll(resp.Body)
		resp.Body.Close()
		if err != nil || resp.StatusCode != 200 {
			t.Fatalf("the signed URL answers %d: %v", resp.StatusCode, err)
		}
		for line := range strings.Lines(string(text)) {
			if !strings.HasPrefix(line, `{"resourceType":"Patient"`) || !strings.HasSuffix(line, "}\n") {
				t.Fatalf("a line is %.200q", line)
			}
			count++
		}
	}
	if count != 9000 {
		t.Errorf("the export has %d lines", count)
	}
	t.Run("the server's own URL serves the file too", func(t *testing.T) {
		file := s.in(t).do("GET", at+"/Patient.1.ndjson", "").want(200)
		if part := s.in(t).do("GET", at+"/Patient.1.ndjson", "", "Range", "bytes=6000000-6000009", "Accept-Encoding", "identity"); part.status != 206 || string(part.body) != string(file.body[6000000:6000010]) {
			t.Errorf("a range is %d %q", part.status, part.body)
		}
	})
	t.Run("DELETE removes the objects", func(t *testing.T) {
		s.in(t).do("DELETE", at, "").want(202)
		eventually(t, "the objects are removed", func() bool {
			list, err := backend.ListBucket("results", nil, gofakes3.ListBucketPage{})
			if err != nil {
				t.Fatal(err)
			}
			for _, o := range list.Contents {
				if strings.HasPrefix(o.Key, "kiln/"+at[strings.LastIndexByte(at, '/')+1:]) {
					return false
				}
			}
			return true
		})
	})
	t.Run("s3: sources", func(t *testing.T) {
		text := `{"resourceType":"Patient","id":"from-s3"}`
		if _, err := backend.PutObject("results", "in/p.ndjson", map[string]string{"Last-Modified": time.Now().UTC().Format(http.TimeFormat)}, strings.NewReader(text), int64(len(text)), nil); err != nil {
			t.Fatal(err)
		}
		body := strings.Replace(manifestOf("Patient", "s3://results/in/p.ndjson", "Patient", "s3://results/in/absent"), `"https"}`, `"aws-s3"}`, 1)
		r := s.in(t).imported(s.in(t).startImport("/$import", "application/json", body))
		if m := r.manifest; m.Output[0].Count != 1 || len(m.Error) != 1 || m.Error[0].InputURL != "s3://results/in/absent" {
			t.Errorf("the manifest is %+v, the errors are %q", m, r.errors())
		}
		s.in(t).do("POST", "/$import", strings.Replace(body, "s3://results/in/absent", "s3://results/kiln/x", 1), "Content-Type", "application/json").issue(400, "invalid", "bulk.import.sources")
	})
}

// Contract: Bulk data, limits: clients, quota, disk, files, guesses.
func TestBulkLimits(t *testing.T) {
	t.Parallel()
	database := storetest.New(t)
	s := startOn(t, database, func(c *server.Config) { c.Bulk.MaxFileMB, c.Jobs.MaxPerClient = 1, 2 })
	set := func(t *testing.T, key, value string) {
		t.Helper()
		category, rest, _ := strings.Cut(key, ".")
		s.in(t).do("PUT", s.origin()+"/admin/config/"+category+"/"+rest, `{"value": `+value+`}`, "Content-Type", "application/json").want(200)
	}
	var lines strings.Builder
	for i := range 40 {
		fmt.Fprintf(&lines, `{"resourceType":"Binary","id":"%d","contentType":"text/plain","data":"%s"}`+"\n", i, strings.Repeat("eHh4", 20_000))
	}
	fmt.Fprintf(&lines, `{"resourceType":"Binary","id":"large","contentType":"text/plain","data":"%s"}`+"\n", strings.Repeat("eHh4", 500_000))
	s.upload(lines.String()).want(41, 0, 0, 0)
	t.Run("bulk.max_file_mb; a larger resource stands alone", func(t *testing.T) {
		r := s.in(t).bulk("GET", "/$export?_type=Binary", "")
		alone := false
		for _, f := range r.manifest.Output {
			size := len(s.in(t).do("GET", f.URL, "").body)
			alone = alone || size > 1<<20 && f.Count == 1
			if size > 1<<20 && f.Count > 1 {
				t.Errorf("%s has %d bytes in %d lines", f.URL, size, f.Count)
			}
		}
		if len(r.manifest.Output) < 4 || !alone {
			t.Errorf("the files are %+v", r.manifest.Output)
		}
	})
	t.Run("jobs.max_per_client", func(t *testing.T) {
		set(t, "jobs.workers", "0")
		first := s.in(t).kickOff("GET", "/$export", "")
		second := s.in(t).startImport("/$import", "ndjson", `{"resourceType":"Patient","id":"late"}`)
		if a := s.in(t).do("GET", "/Patient", "", "Prefer", "respond-async"); a.status != 429 || a.header.Get("Retry-After") == "" {
			t.Errorf("a third job: %d", a.status)
		}
		s.in(t).do("POST", "/$import", "x", "Content-Type", "ndjson").issue(429, "throttled")
		s.in(t).do("DELETE", first, "").want(202)
		third := s.in(t).kickOff("GET", "/$export?_type=Patient", "")
		set(t, "jobs.workers", "2")
		s.in(t).await(second).want(200)
		s.in(t).await(third).want(200)
	})
	t.Run("bulk.quota_mb", func(t *testing.T) {
		set(t, "bulk.quota_mb", "1")
		a := s.in(t).await(s.in(t).kickOff("GET", "/$export", ""))
		a.issue(500, "too-costly", "bulk.quota_mb")
		s.in(t).do("POST", "/$import", lines.String(), "Content-Type", "ndjson").issue(400, "too-costly")
		set(t, "bulk.quota_mb", "0")
		s.in(t).await(s.in(t).kickOff("GET", "/$export", "")).want(200)
	})
	t.Run("jobs.polls_per_minute", func(t *testing.T) {
		at := s.in(t).kickOff("GET", "/$export?_type=Patient", "")
		s.in(t).await(at).want(200)
		set(t, "jobs.polls_per_minute", "1")
		if a := s.in(t).do("GET", at, ""); a.status != 429 || a.header.Get("Retry-After") == "" {
			t.Errorf("one poll too many: %d", a.status)
		}
		set(t, "jobs.polls_per_minute", "300")
	})
	t.Run("guesses of job ids", func(t *testing.T) {
		for i := range 2_000 {
			if a := s.in(t).do("GET", fmt.Sprintf("/$job/GUESS%d", i), ""); a.status != 404 {
				t.Fatalf("a guess is %d", a.status)
			}
		}
	})
	t.Run("a server with another folder runs no bulk jobs", func(t *testing.T) {
		other := startOn(t, database, func(c *server.Config) { c.Bulk.Directory = filepath.Join(t.TempDir(), "other") })
		other.do("GET", "/$export", "").issue(503, "transient", "bulk.directory")
		other.do("POST", "/$import", "", "Content-Type", "ndjson").issue(503, "transient", "bulk.directory")
	})
	t.Run("a full disk", func(t *testing.T) {
		s := start(t, func(c *server.Config) {
			c.Bulk.Directory = fullDisk(t)
		})
		s.putAll(`{"resourceType":"Patient","id":"1","name":[{"text":"` + strings.Repeat("x", 100_000) + `"}]}`)
		s.await(s.kickOff("GET", "/$export", "")).issue(500, "no-store", "bulk.directory")
		s.do("POST", "/$import", `{"resourceType":"Patient","id":"2","name":[{"text":"`+strings.Repeat("x", 100_000)+`"}]}`, "Content-Type", "ndjson").issue(500, "no-store")
		s.do("GET", "/Patient/1", "").want(200)
	})
	t.Run("long lines", func(t *testing.T) {
		set(t, "server.max_body_bytes", "100000")
		long := `{"resourceType":"Patient","id":"long","name":[{"text":"` + strings.Repeat("x", 100<<20) + `"}]}` + "\n"
		r := s.in(t).upload(long + long + `{"resourceType":"Patient","id":"short"}`)
		if r.want(1, 0, 0, 2); !strings.HasPrefix(r.errors()[0], "line 1: ") {
			t.Errorf("errors are %q", r.errors())
		}
	})
}

// Contract: Bulk data: where no server has the old bulk.directory any more, a server with another one takes over: unfinished
// jobs fail, results expire, and new jobs run.
func TestLostBulkDirectory(t *testing.T) {
	t.Parallel()
	database := storetest.New(t)
	old := startOn(t, database, func(c *server.Config) { c.Bulk.Directory = filepath.Join(t.TempDir(), "old") })
	old.create(`{"resourceType":"Patient"}`)
	ended := old.kickOff("GET", "/$export", "")
	old.await(ended).want(200)
	old.do("PUT", old.origin()+"/admin/config/jobs/workers", `0`, "Content-Type", "application/json").want(200)
	waiting := old.kickOff("GET", "/$export", "")
	other := startOn(t, database, func(c *server.Config) { c.Bulk.Directory = filepath.Join(t.TempDir(), "new") })
	other.do("GET", "/$export", "").issue(503, "transient", "bulk.directory")
	other.stop()
	old.stop()
	// As if the server had ended a minute ago.
	sql(t, onDatabase(t, database), `UPDATE server_signal SET version = version - 60 WHERE name = 'bulk'`)
	s := startOn(t, database, func(c *server.Config) { c.Bulk.Directory = filepath.Join(t.TempDir(), "new") })
	s.do("PUT", s.origin()+"/admin/config/jobs/workers", `2`, "Content-Type", "application/json").want(200)
	at := func(status string) string { return s.base + status[strings.Index(status, "/$job/"):] }
	s.await(s.kickOff("GET", "/$export", "")).want(200)
	s.do("GET", at(ended), "").issue(404, "not-found")
	s.do("GET", at(waiting), "").issue(500, "no-store", "bulk.directory")
}

// Contract: Bulk data, rights of imports.
func TestImportRights(t *testing.T) {
	t.Parallel()
	folder := t.TempDir()
	allowed, secret := filepath.Join(folder, "allowed"), filepath.Join(folder, "secret")
	for _, dir := range []string{allowed, secret} {
		if err := os.Mkdir(dir, 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, "p.ndjson"), []byte(`{"resourceType":"Patient","id":"`+filepath.Base(dir)+`"}`), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Symlink(filepath.Join(secret, "p.ndjson"), filepath.Join(allowed, "link.ndjson")); err != nil {
		t.Fatal(err)
	}
	s := withAuthorizationOn(t, storetest.New(t), func(c *server.Config) {
		c.Jobs.MaxPerClient, c.Audit.Rest, c.Bulk.Import.Sources = 1000, "writes", []string{"file://" + allowed + "/", "http://127.0.0.1"}
		c.Auth.Bootstrap.Clients = append(c.Auth.Bootstrap.Clients, map[string]any{"clientId": "root", "confidential": true, "clientSecret": clientSecret,
			"grantTypes": []any{"client_credentials"}, "scopes": []any{"admin system/*.cruds"}})
	})
	all := s.bearer(s.backendToken("backend", "system/*.cruds"))
	all.putAll(`{"resourceType":"Patient","id":"man","gender":"male"}`)
	t.Run("no token is 401", func(t *testing.T) {
		s.in(t).do("POST", "/$import", "", "Content-Type", "ndjson").issue(401, "login")
	})
	t.Run("c and u on each type, or on some", func(t *testing.T) {
		for _, tt := range []struct {
			scope, body, contentType string
			status                   int
		}{
			{"system/Patient.c", "", "ndjson", 403},
			{"system/Patient.rs", "", "ndjson", 403},
			{"system/Patient.cu", "", "ndjson", 202},
			{"system/Patient.cu", manifestOf("Patient", "http://127.0.0.1/p"), "application/json", 400}, // private networks
			{"system/Patient.cu", manifestOf("Observation", "http://127.0.0.1/p"), "application/json", 403},
		} {
			a := s.bearer(s.backendToken("backend", tt.scope)).in(t).do("POST", "/$import", tt.body, "Content-Type", tt.contentType)
			if a.status != tt.status {
				t.Errorf("%s %s: %d, want %d: %s", tt.scope, tt.body, a.status, tt.status, a.body)
			}
		}
	})
	t.Run("each line is written with the rights of the owner", func(t *testing.T) {
		women := s.bearer(s.backendToken("backend", "system/Patient.cruds?gender=female")).in(t)
		r := women.upload(`{"resourceType":"Patient","id":"woman","gender":"female"}` + "\n" + `{"resourceType":"Patient","id":"other","gender":"male"}` + "\n" +
			`{"resourceType":"Patient","id":"man","gender":"female"}` + "\n" + `{"resourceType":"Observation","id":"o","status":"final","code":{"text":"c"}}`)
		r.want(1, 0, 0, 3)
		if p := all.in(t).do("GET", "/Patient/man", "").want(200); p.str("gender") != "male" {
			t.Errorf("a hidden resource is changed: %s", p.body)
		}
		text := strings.Join(r.errors(), "\n")
		if strings.Contains(text, "exists") {
			t.Errorf("errors tell of a hidden resource: %s", text)
		}
	})
	t.Run("files need admin, and a prefix after links are resolved", func(t *testing.T) {
		body := func(path string) string {
			return strings.Replace(manifestOf("Patient", "file://"+path), `"https"}`, `"file"}`, 1)
		}
		all.in(t).do("POST", "/$import", body(allowed+"/p.ndjson"), "Content-Type", "application/json").issue(403, "forbidden", "admin")
		admin := s.bearer(s.backendToken("root", "admin system/*.cruds")).in(t)
		admin.imported(admin.startImport("/$import", "application/json", body(allowed+"/p.ndjson"))).want(1, 0, 0, 0)
		admin.do("POST", "/$import", body(secret+"/p.ndjson"), "Content-Type", "application/json").issue(400, "invalid")
		for path, reason := range map[string]string{"/link.ndjson": "bulk.import.sources", "/absent": "there is none", "/": "bulk.import.sources"} {
			r := admin.imported(admin.startImport("/$import", "application/json", body(allowed+path)))
			if got := strings.Join(r.errors(), ""); !strings.Contains(got, reason) {
				t.Errorf("%s: %q", path, got)
			}
		}
		admin.do("GET", "/Patient/secret", "").issue(404, "not-found")
	})
	t.Run("the status belongs to the owner", func(t *testing.T) {
		r := all.in(t).upload("nonsense")
		other := s.bearer(s.backendToken("operator", "system/Patient.rs")).in(t)
		other.do("GET", r.status, "").issue(404, "not-found")
		other.do("GET", r.manifest.Error[0].URL, "").issue(404, "not-found")
		if !r.manifest.RequiresAccessToken {
			t.Error("requiresAccessToken is false")
		}
	})
	t.Run("AuditEvents", func(t *testing.T) {
		all.in(t).upload(`{"resourceType":"Patient","id":"audited"}`)
		for _, what := range []string{"import-kickoff", "import-end", "import-download"} {
			eventually(t, "the AuditEvent of "+what, func() bool {
				return all.in(t).do("GET", "/AuditEvent?type=http://dicom.nema.org/resources/ontology/DCM|110107&subtype=urn:kiln:audit|"+what, "").len("entry") > 0
			})
		}
		if n := all.in(t).do("GET", "/AuditEvent?entity=Patient/audited", "").want(200).len("entry"); n > 0 {
			t.Errorf("%d AuditEvents tell of a line", n)
		}
	})
}

// fullDisk is a folder with a mark, in which no file can be written.
func fullDisk(t *testing.T) string {
	t.Helper()
	root := filepath.Join(t.TempDir(), "full")
	if err := os.Mkdir(root, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Mount("tmpfs", root, "tmpfs", 0, "size=64k"); err != nil {
		t.Skipf("a tmpfs cannot be mounted, which needs root: %v", err)
	}
	t.Cleanup(func() { _ = syscall.Unmount(root, syscall.MNT_DETACH) })
	if err := os.WriteFile(filepath.Join(root, ".kiln-bulk"), []byte("mark"), 0o600); err != nil {
		t.Fatal(err)
	}
	// Half of the pages are left: enough for folders, too little for the files of this test.
	if err := os.WriteFile(filepath.Join(root, "filler"), make([]byte, 32<<10), 0o600); err != nil {
		t.Fatal(err)
	}
	return root
}

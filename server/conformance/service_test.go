package conformance

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"hash/fnv"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"

	"kiln/server"
	"kiln/server/store/storetest"
)

// service is a server of its own, on an empty database.
type service struct {
	t    testing.TB
	base string
	stop func() // before the test ends
	// token is the header Authorization, "" for none.
	token string
}

// start runs the service with the default configuration, changed by change.
func start(t testing.TB, change ...func(*server.Config)) *service {
	t.Helper()
	return startOn(t, storetest.New(t), change...)
}

// startOn is start on a database that there is.
func startOn(t testing.TB, url string, change ...func(*server.Config)) *service {
	t.Helper()
	return startWith(t, url, server.Options{}, change...)
}

// startWith is startOn with options; version and log belong to the test.
func startWith(t testing.TB, url string, o server.Options, change ...func(*server.Config)) *service {
	t.Helper()
	o.Version, o.Logger = "test", failureLog(t)
	cfg := server.Default()
	cfg.Database.URL = url
	cfg.Log.Level = "error"
	cfg.Bulk.Directory = bulkDirectory(t, url)
	for _, c := range change {
		c(&cfg)
	}
	if o.Sandbox == nil {
		o.Sandbox = sandboxCommand()
	}
	s, err := server.New(context.Background(), cfg, o)
	if err != nil {
		t.Fatalf("start the service: %v", err)
	}
	web := httptest.NewServer(s.Handler)
	stop := sync.OnceFunc(func() {
		web.Close()
		s.Close()
	})
	t.Cleanup(stop)
	return &service{t: t, base: web.URL + "/fhir", stop: stop}
}

// bulkDirectory is the folder that the servers of a database share.
func bulkDirectory(t testing.TB, url string) string {
	h := fnv.New64a()
	h.Write([]byte(url))
	root := filepath.Join(os.TempDir(), fmt.Sprintf("kiln-bulk-%x", h.Sum64()))
	t.Cleanup(func() { os.RemoveAll(root) })
	return root
}

// failureLog keeps the first errors that a server logs, and prints them if the test fails: an answer contains only the
// request id.
func failureLog(t testing.TB) *slog.Logger {
	var lines firstLines
	t.Cleanup(func() {
		if s := lines.String(); t.Failed() && s != "" {
			t.Logf("the server's first errors:\n%s", s)
		}
	})
	return slog.New(slog.NewTextHandler(&lines, &slog.HandlerOptions{Level: slog.LevelError}))
}

// firstLines keeps the first 16 KB that are written.
type firstLines struct {
	mu  sync.Mutex
	got strings.Builder
}

func (l *firstLines) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.got.Len() < 16<<10 {
		l.got.Write(p)
	}
	return len(p), nil
}

func (l *firstLines) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.got.String()
}

// in is the same service for a subtest.
func (s *service) in(t testing.TB) *service {
	n := *s
	n.t = t
	return &n
}

// answer is a response with its body read.
type answer struct {
	t      testing.TB
	what   string
	status int
	header http.Header
	body   []byte
	json   any // nil where the body is no JSON
}

// do makes a request; headers are names and values in turn. Redirects are not
// followed.
func (s *service) do(method, path, body string, headers ...string) *answer {
	s.t.Helper()
	a, err := s.try(method, path, body, headers...)
	if err != nil {
		s.t.Fatalf("%s %s: %v", method, path, err)
	}
	return a
}

func (s *service) try(method, path, body string, headers ...string) (*answer, error) {
	url := path
	if !strings.HasPrefix(path, "http") {
		url = s.base + path
	}
	var in io.Reader
	if body != "" {
		in = strings.NewReader(body)
	}
	req, err := http.NewRequest(method, url, in)
	if err != nil {
		return nil, err
	}
	if body != "" {
		req.Header.Set("Content-Type", "application/fhir+json")
	}
	if s.token != "" {
		req.Header.Set("Authorization", s.token)
	}
	for i := 0; i+1 < len(headers); i += 2 {
		if headers[i] == "Host" {
			req.Host = headers[i+1]
			continue
		}
		req.Header.Set(headers[i], headers[i+1])
	}
	resp, err := http.DefaultTransport.RoundTrip(req)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	a := &answer{t: s.t, what: method + " " + path, status: resp.StatusCode, header: resp.Header}
	if a.body, err = io.ReadAll(resp.Body); err != nil {
		return nil, err
	}
	d := json.NewDecoder(bytes.NewReader(a.body))
	d.UseNumber()
	if d.Decode(&a.json) != nil {
		a.json = nil
	}
	return a, nil
}

func (s *service) get(path string, headers ...string) *answer {
	s.t.Helper()
	return s.do("GET", path, "", headers...)
}

func (s *service) post(path, body string, headers ...string) *answer {
	s.t.Helper()
	return s.do("POST", path, body, headers...)
}

func (s *service) put(path, body string, headers ...string) *answer {
	s.t.Helper()
	return s.do("PUT", path, body, headers...)
}

// create stores a resource and returns its id.
func (s *service) create(body string) string {
	s.t.Helper()
	var r struct{ ResourceType string }
	if err := json.Unmarshal([]byte(body), &r); err != nil {
		s.t.Fatalf("test body: %v", err)
	}
	return s.post("/"+r.ResourceType, body).want(201).str("id")
}

// want fails the test when the status is another one.
func (a *answer) want(status int) *answer {
	a.t.Helper()
	if a.status != status {
		a.t.Fatalf("%s: status %d, want %d\n%s", a.what, a.status, status, clip(a.body))
	}
	return a
}

// issue fails the test when the answer is no OperationOutcome with this status
// and code, or its text lacks one of the words.
func (a *answer) issue(status int, code string, words ...string) *answer {
	a.t.Helper()
	a.want(status)
	if got := a.str("resourceType"); got != "OperationOutcome" {
		a.t.Fatalf("%s: the body is %q, want an OperationOutcome\n%s", a.what, got, clip(a.body))
	}
	if got := a.str("issue.0.code"); got != code {
		a.t.Errorf("%s: issue code %q, want %q\n%s", a.what, got, code, clip(a.body))
	}
	for _, w := range words {
		if !strings.Contains(string(a.body), w) {
			a.t.Errorf("%s: the outcome does not say %q\n%s", a.what, w, clip(a.body))
		}
	}
	return a
}

// at returns the value at a path such as entry.0.resource.id, nil when absent.
func (a *answer) at(path string) any {
	v := a.json
	for part := range strings.SplitSeq(path, ".") {
		switch x := v.(type) {
		case map[string]any:
			v = x[part]
		case []any:
			i, err := strconv.Atoi(part)
			if err != nil || i >= len(x) {
				return nil
			}
			v = x[i]
		default:
			return nil
		}
	}
	return v
}

// str is at as text; "" when absent.
func (a *answer) str(path string) string {
	switch v := a.at(path).(type) {
	case nil:
		return ""
	case string:
		return v
	default:
		return fmt.Sprint(v)
	}
}

// equal fails the test when the value at path is another one.
func (a *answer) equal(path, want string) *answer {
	a.t.Helper()
	if got := a.str(path); got != want {
		a.t.Errorf("%s: %s is %q, want %q\n%s", a.what, path, got, want, clip(a.body))
	}
	return a
}

// has fails the test when a header has another value.
func (a *answer) has(header, want string) *answer {
	a.t.Helper()
	if got := a.header.Get(header); got != want {
		a.t.Errorf("%s: header %s is %q, want %q", a.what, header, got, want)
	}
	return a
}

// len is the length of the array at path.
func (a *answer) len(path string) int {
	list, _ := a.at(path).([]any)
	return len(list)
}

// link is the URL of a Bundle's link, "" when there is none.
func (a *answer) link(relation string) string {
	for i := range a.len("link") {
		if a.str(fmt.Sprintf("link.%d.relation", i)) == relation {
			return a.str(fmt.Sprintf("link.%d.url", i))
		}
	}
	return ""
}

// ids are the ids of a Bundle's resources.
func (a *answer) ids() []string {
	var out []string
	for i := range a.len("entry") {
		out = append(out, a.str(fmt.Sprintf("entry.%d.resource.id", i)))
	}
	return out
}

func clip(b []byte) string {
	if len(b) > 1500 {
		return string(b[:1500]) + "…"
	}
	return string(b)
}

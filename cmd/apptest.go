package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/spf13/cobra"

	"kiln/server"
)

// testCase is one case of a *.test.json: stored resources, requests and expected answers.
type testCase struct {
	Name string `json:"name"`
	// Secrets of the App, and stand-ins for the services that its urls name as ${env:NAME}.
	Secrets  map[string]string       `json:"secrets"`
	Services map[string][]testAnswer `json:"services"`
	// Resources are stored before the App is deployed.
	Resources []json.RawMessage `json:"resources"`
	testStep
	Steps []testStep `json:"steps"`
}

// testStep is a request with the expected answer.
type testStep struct {
	Request *testRequest `json:"request"`
	Expect  testExpected `json:"expect"`
	// Eventually repeats the request until the answer is as expected, for 10 s at most:
	// events are handed over after the write.
	Eventually bool `json:"eventually"`
}

type testRequest struct {
	Method  string            `json:"method"`
	Path    string            `json:"path"`
	Headers map[string]string `json:"headers"`
	Body    json.RawMessage   `json:"body"`
}

// testExpected is a part of the answer: objects may have more members, arrays are as long
// as expected, "*" is anything.
type testExpected struct {
	Status int             `json:"status"`
	Body   json.RawMessage `json:"body"`
	// Received are requests that stand-ins got, by name.
	Received map[string][]json.RawMessage `json:"received"`
}

// testAnswer is the answer of a stand-in to requests for a path.
type testAnswer struct {
	Path   string          `json:"path"` // "" is every one
	Status int             `json:"status"`
	Body   json.RawMessage `json:"body"`
}

// standIn stands in for a service.
type standIn struct {
	*httptest.Server
	mu       sync.Mutex
	received []json.RawMessage
}

func newStandIn(answers []testAnswer) *standIn {
	s := new(standIn)
	s.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(io.LimitReader(r.Body, 16<<20))
		if !json.Valid(body) {
			body, _ = json.Marshal(string(body))
		}
		headers := make(map[string]string)
		for name := range r.Header {
			headers[name] = r.Header.Get(name)
		}
		got, _ := json.Marshal(map[string]any{"method": r.Method, "path": r.URL.RequestURI(), "headers": headers, "body": json.RawMessage(body)})
		s.mu.Lock()
		s.received = append(s.received, got)
		s.mu.Unlock()
		i := slices.IndexFunc(answers, func(a testAnswer) bool { return a.Path == "" || a.Path == r.URL.Path })
		if i < 0 {
			http.NotFound(w, r)
			return
		}
		w.Header().Set("Content-Type", "application/json")
		if answers[i].Status != 0 {
			w.WriteHeader(answers[i].Status)
		}
		_, _ = w.Write(answers[i].Body)
	}))
	return s
}

// appTest is `kiln app test`.
func appTest() *cobra.Command {
	var databaseURL string
	c := &cobra.Command{
		Example: "  kiln app test docs/apps/risk",
		Use:     "test [DIR]", Short: "Run the test cases of an App (*.test.json) on a temporary server", Args: cobra.MaximumNArgs(1),
		Long: `Run the cases of an App's *.test.json files against a server that is started for them,
on a temporary database. With --database-url, use an existing empty database; it keeps
the stored resources.`,
		RunE: func(c *cobra.Command, args []string) error {
			dir := appFolder(args)
			files, err := filepath.Glob(filepath.Join(dir, "*.test.json"))
			if err != nil {
				return err
			}
			if len(files) == 0 {
				return fmt.Errorf("%s has no *.test.json", dir)
			}
			t, err := newAppTester(c.Context(), dir, databaseURL)
			if err != nil {
				return err
			}
			defer t.close()
			failed, ran := 0, 0
			for _, file := range files {
				cases, err := readCases(file)
				if err != nil {
					return err
				}
				for _, one := range cases {
					ran++
					err := t.run(c.Context(), one)
					if err == nil {
						fmt.Fprintf(c.OutOrStdout(), "ok    %s: %s\n", filepath.Base(file), one.Name)
						continue
					}
					failed++
					fmt.Fprintf(c.OutOrStdout(), "FAIL  %s: %s\n      %s\n", filepath.Base(file), one.Name, strings.ReplaceAll(err.Error(), "\n", "\n      "))
				}
			}
			if failed > 0 {
				return fmt.Errorf("%d of %d cases failed", failed, ran)
			}
			fmt.Fprintf(c.OutOrStdout(), "%d cases, all as expected\n", ran)
			return nil
		},
	}
	c.Flags().StringVar(&databaseURL, "database-url", "", "an empty database to use (default a private PostgreSQL that is thrown away)")
	return c
}

// readCases reads one case, or an array of them.
func readCases(file string) ([]testCase, error) {
	b, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	d := json.NewDecoder(bytes.NewReader(b))
	d.DisallowUnknownFields()
	var cases []testCase
	if bytes.HasPrefix(bytes.TrimSpace(b), []byte("[")) {
		err = d.Decode(&cases)
	} else {
		cases = make([]testCase, 1)
		err = d.Decode(&cases[0])
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %w", file, err)
	}
	for i := range cases {
		if cases[i].Request != nil {
			cases[i].Steps = append([]testStep{cases[i].testStep}, cases[i].Steps...)
		}
		if len(cases[i].Steps) == 0 {
			return nil, fmt.Errorf("%s: the case %q asks nothing: it needs a request or steps", file, cases[i].Name)
		}
	}
	return cases, nil
}

// appTester is a server for the cases of an App.
type appTester struct {
	dir    string
	base   string
	client *http.Client
	close  func()
}

func newAppTester(ctx context.Context, dir, databaseURL string) (_ *appTester, err error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	var closers []func()
	end := func() {
		for _, f := range slices.Backward(closers) {
			f()
		}
	}
	defer func() {
		if err != nil {
			end()
		}
	}()
	cfg := server.Default()
	cfg.Database.URL = databaseURL
	cfg.Apps.Sandbox.AllowFetch = true
	if databaseURL == "" {
		data, err := os.MkdirTemp("", "kiln-app-test-")
		if err != nil {
			return nil, err
		}
		closers = append(closers, func() { os.RemoveAll(data) })
		cfg.Database.DataDir = data
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	closers = append(closers, func() { l.Close() })
	cfg.Server.Listen = l.Addr().String()
	s, err := server.New(ctx, cfg, server.Options{Version: softwareVersion(), Sandbox: []string{self, "sandbox-worker"}, Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		return nil, err
	}
	closers = append(closers, s.Close)
	web := &http.Server{Handler: s.Handler, ReadHeaderTimeout: time.Minute}
	go func() { _ = web.Serve(l) }()
	closers = append(closers, func() { web.Close() })
	return &appTester{dir: dir, base: "http://" + cfg.Server.Listen, client: &http.Client{Timeout: time.Minute}, close: end}, nil
}

// do makes a request.
func (t *appTester) do(ctx context.Context, q testRequest) (status int, body []byte, err error) {
	method := q.Method
	if method == "" {
		if method = http.MethodGet; len(q.Body) > 0 {
			method = http.MethodPost
		}
	}
	req, err := http.NewRequestWithContext(ctx, method, t.base+"/"+strings.TrimPrefix(q.Path, "/"), bytes.NewReader(q.Body))
	if err != nil {
		return 0, nil, err
	}
	if len(q.Body) > 0 {
		req.Header.Set("Content-Type", "application/fhir+json")
		if strings.HasPrefix(q.Path, "/admin/") {
			req.Header.Set("Content-Type", "application/json")
		}
	}
	for name, value := range q.Headers {
		req.Header.Set(name, value)
	}
	resp, err := t.client.Do(req)
	if err != nil {
		return 0, nil, err
	}
	defer resp.Body.Close()
	body, err = io.ReadAll(resp.Body)
	return resp.StatusCode, body, err
}

// must makes a request that has to succeed.
func (t *appTester) must(ctx context.Context, q testRequest) error {
	status, body, err := t.do(ctx, q)
	if err == nil && status >= 300 {
		err = fmt.Errorf("%s %s: %d %s", q.Method, q.Path, status, bytes.TrimSpace(body))
	}
	return err
}

// run deploys the App as a case wants it, and goes through the steps.
func (t *appTester) run(ctx context.Context, one testCase) error {
	services := make(map[string]*standIn)
	for name, answers := range one.Services {
		s := newStandIn(answers)
		defer s.Close()
		services[name] = s
	}
	p, err := readProject(t.dir, func(name string) (string, bool) {
		if s := services[name]; s != nil {
			return s.URL, true
		}
		return os.LookupEnv(name)
	})
	if err != nil {
		return err
	}
	for _, r := range one.Resources {
		var head struct{ ResourceType, ID string }
		if err := json.Unmarshal(r, &head); err != nil || head.ID == "" {
			return errors.New("a resource of the case has no id")
		}
		if err := t.must(ctx, testRequest{Method: http.MethodPut, Path: "/" + head.ResourceType + "/" + head.ID, Body: r}); err != nil {
			return err
		}
	}
	p.fields["status"] = "active"
	body, err := p.body()
	if err != nil {
		return err
	}
	if err := t.must(ctx, testRequest{Method: http.MethodPut, Path: "/App/" + p.id, Body: body}); err != nil {
		return err
	}
	for _, name := range slices.Sorted(maps.Keys(one.Secrets)) {
		value, _ := json.Marshal(map[string]string{"value": one.Secrets[name]})
		if err := t.must(ctx, testRequest{Method: http.MethodPut, Path: "/admin/apps/" + p.id + "/secrets/" + name, Body: value}); err != nil {
			return err
		}
	}
	for i, step := range one.Steps {
		if err := t.step(ctx, step, services); err != nil {
			return fmt.Errorf("step %d: %w", i+1, err)
		}
	}
	return nil
}

// step makes the request of a step and compares.
func (t *appTester) step(ctx context.Context, step testStep, services map[string]*standIn) error {
	deadline := time.Now().Add(10 * time.Second)
	for {
		err := t.once(ctx, step, services)
		if err == nil || !step.Eventually || time.Now().After(deadline) {
			return err
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(50 * time.Millisecond):
		}
	}
}

func (t *appTester) once(ctx context.Context, step testStep, services map[string]*standIn) error {
	if step.Request != nil {
		status, body, err := t.do(ctx, *step.Request)
		if err != nil {
			return err
		}
		if want := step.Expect.Status; want != 0 && status != want {
			return fmt.Errorf("the status is %d, not %d: %s", status, want, bytes.TrimSpace(body))
		}
		if len(step.Expect.Body) > 0 {
			if err := matches("body", step.Expect.Body, body); err != nil {
				return fmt.Errorf("%w\nthe answer is %s", err, bytes.TrimSpace(body))
			}
		}
	}
	for name, want := range step.Expect.Received {
		s := services[name]
		if s == nil {
			return fmt.Errorf("there is no service %q", name)
		}
		s.mu.Lock()
		got := slices.Clone(s.received)
		s.mu.Unlock()
		if len(got) != len(want) {
			return fmt.Errorf("%s got %d requests, not %d", name, len(got), len(want))
		}
		for i := range want {
			if err := matches(fmt.Sprintf("received.%s[%d]", name, i), want[i], got[i]); err != nil {
				return err
			}
		}
	}
	return nil
}

// matches compares JSON with the expected JSON.
func matches(at string, want, got []byte) error {
	decode := func(b []byte) (v any, err error) {
		d := json.NewDecoder(bytes.NewReader(b))
		d.UseNumber()
		return v, d.Decode(&v)
	}
	w, err := decode(want)
	if err != nil {
		return fmt.Errorf("%s: expect is no JSON: %w", at, err)
	}
	g, err := decode(got)
	if err != nil {
		return fmt.Errorf("%s is no JSON", at)
	}
	return matchesValue(at, w, g)
}

func matchesValue(at string, want, got any) error {
	switch w := want.(type) {
	case map[string]any:
		g, ok := got.(map[string]any)
		if !ok {
			return fmt.Errorf("%s is %v, not an object", at, got)
		}
		for _, name := range slices.Sorted(maps.Keys(w)) {
			value, ok := g[name]
			if !ok {
				return fmt.Errorf("%s.%s is missing", at, name)
			}
			if err := matchesValue(at+"."+name, w[name], value); err != nil {
				return err
			}
		}
		return nil
	case []any:
		g, ok := got.([]any)
		if !ok || len(g) != len(w) {
			return fmt.Errorf("%s is %v, not an array of %d", at, got, len(w))
		}
		for i := range w {
			if err := matchesValue(fmt.Sprintf("%s[%d]", at, i), w[i], g[i]); err != nil {
				return err
			}
		}
		return nil
	}
	if want != "*" && want != got {
		return fmt.Errorf("%s is %v, not %v", at, got, want)
	}
	return nil
}

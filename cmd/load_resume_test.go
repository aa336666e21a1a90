package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"kiln/server"
	"kiln/server/store/storetest"
)

// TestMain lets a test run this program as kiln, so that it can be killed.
func TestMain(m *testing.M) {
	// The processes of scripts have no environment.
	if os.Getenv("RUN_AS_KILN") != "" || len(os.Args) > 1 && os.Args[1] == "sandbox-worker" {
		os.Unsetenv("RUN_AS_KILN")
		main()
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// realServer is a server on an empty database, behind a handler that a test puts in
// front of it.
func realServer(t *testing.T, front func(next http.Handler) http.Handler) (base string) {
	t.Helper()
	cfg := server.Default()
	cfg.Database.URL = storetest.New(t)
	s, err := server.New(t.Context(), cfg, server.Options{Version: "test", Sandbox: []string{os.Args[0], "sandbox-worker"}, Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	web := httptest.NewServer(front(s.Handler))
	t.Cleanup(func() { web.Close(); s.Close() })
	return web.URL + "/fhir"
}

// total is how many resources of a type a server has, versions that came after the
// first one counted.
func total(t *testing.T, base, typ string) int {
	t.Helper()
	resp, err := http.Get(base + "/" + typ + "/_history?_count=0")
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	var b struct{ Total int }
	if err := json.NewDecoder(resp.Body).Decode(&b); err != nil || resp.StatusCode != 200 {
		t.Fatalf("history of %s: %d, %v", typ, resp.StatusCode, err)
	}
	return b.Total
}

// loadCommand is kiln load with its files in dir.
func loadCommand(dir, base string, more ...string) []string {
	return append([]string{"load", "--server", base, "--settle", "2s", "--state", filepath.Join(dir, "state"), "--errors", filepath.Join(dir, "errors")}, more...)
}

func runCommand(t *testing.T, args ...string) (stdout string, err error) {
	t.Helper()
	c := root()
	var out bytes.Buffer
	c.SetOut(&out)
	c.SetErr(io.Discard)
	c.SetArgs(args)
	err = c.ExecuteContext(context.Background())
	return out.String(), err
}

// transaction is a patient with two observations, without any identifier.
func transaction(n int) string {
	obs := func(code string) string {
		return fmt.Sprintf(`{"resource":{"resourceType":"Observation","status":"final","code":{"text":"%s"},"subject":{"reference":"urn:uuid:%08d-0000-4000-8000-000000000000"},"valueInteger":%d},"request":{"method":"POST","url":"Observation"}}`, code, n, n)
	}
	return fmt.Sprintf(`{"resourceType":"Bundle","type":"transaction","entry":[
		{"fullUrl":"urn:uuid:%08d-0000-4000-8000-000000000000","resource":{"resourceType":"Patient","name":[{"family":"Family%d"}]},"request":{"method":"POST","url":"Patient"}},%s,%s]}`,
		n, n, obs("a"), obs("b"))
}

// corpus writes files of every kind: n transactions, 30 lines without ids, a batch
// and single resources, one of them with an id.
func corpus(t *testing.T, n int) (dir string, want map[string]int) {
	t.Helper()
	dir = filepath.Join(t.TempDir(), "data")
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	for i := range n {
		write(t, filepath.Join(dir, fmt.Sprintf("t%03d.json", i)), []byte(transaction(i)))
	}
	var lines strings.Builder
	for i := range 30 {
		fmt.Fprintf(&lines, `{"resourceType":"Basic","code":{"text":"same for three"},"identifier":[{"value":"%d"}]}`+"\n", i/3)
	}
	write(t, filepath.Join(dir, "basic.ndjson"), []byte(lines.String()))
	write(t, filepath.Join(dir, "batch.json"), []byte(`{"resourceType":"Bundle","type":"batch","entry":[
		{"resource":{"resourceType":"Basic","code":{"text":"of a batch"}},"request":{"method":"POST","url":"Basic"}},
		{"resource":{"resourceType":"Basic","id":"chosen","code":{"text":"of a batch"}},"request":{"method":"PUT","url":"Basic/chosen"}}]}`))
	write(t, filepath.Join(dir, "one.json"), []byte(`{"resourceType":"Basic","code":{"text":"alone"}}`))
	write(t, filepath.Join(dir, "put.json"), []byte(`{"resourceType":"Basic","id":"put","code":{"text":"alone"}}`))
	return dir, map[string]int{"Patient": n, "Observation": 2 * n, "Basic": 34}
}

func checkTotals(t *testing.T, base string, want map[string]int) {
	t.Helper()
	for typ, n := range want {
		if got := total(t, base, typ); got != n {
			t.Errorf("%d versions of %s are stored, want %d", got, typ, n)
		}
	}
}

// Connections that break, before or after the server has done its work, cost
// nothing and store nothing twice.
func TestLoadLooksUpWhatHasNoAnswer(t *testing.T) {
	t.Parallel()
	dir, want := corpus(t, 12)
	var n atomic.Int64
	base := realServer(t, func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.Method == http.MethodGet {
				next.ServeHTTP(w, r)
				return
			}
			switch n.Add(1) % 3 {
			case 0: // stored, and nobody hears of it
				next.ServeHTTP(httptest.NewRecorder(), r)
				panic(http.ErrAbortHandler)
			case 1: // lost on the way
				panic(http.ErrAbortHandler)
			}
			next.ServeHTTP(w, r)
		})
	})
	for try := 1; ; try++ {
		_, err := runCommand(t, loadCommand(t.TempDir(), base, "--state", filepath.Join(dir, "../state"), "--parallel", "3", "--json", dir)...)
		if err == nil {
			break
		}
		if try == 10 {
			t.Fatalf("it never ends: %v", err)
		}
	}
	checkTotals(t, base, want)
}

// A resource that another item stored is not taken for one that was lost on the way,
// though both say the same and the answer to the other is still to come.
func TestLoadTakesNoOthersResource(t *testing.T) {
	t.Parallel()
	const same = `"code":{"text":"the same"}}`
	for _, tt := range []struct{ name, other string }{
		{"of a create", `{"resourceType":"Basic",` + same},
		{"of an id that was chosen", `{"resourceType":"Basic","id":"chosen",` + same},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			var creates atomic.Int64
			stored := make(chan bool, 2)
			base := realServer(t, func(next http.Handler) http.Handler {
				return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
					if r.Method == http.MethodPost && creates.Add(1) == 1 {
						<-stored
						panic(http.ErrAbortHandler)
					}
					next.ServeHTTP(w, r)
					if r.Method != http.MethodGet {
						stored <- true
						time.Sleep(300 * time.Millisecond) // the answer comes late
					}
				})
			})
			data := filepath.Join(dir, "data")
			if err := os.Mkdir(data, 0o700); err != nil {
				t.Fatal(err)
			}
			write(t, filepath.Join(data, "a.json"), []byte(`{"resourceType":"Basic",`+same))
			write(t, filepath.Join(data, "b.json"), []byte(tt.other))
			if out, err := runCommand(t, loadCommand(dir, base, "--parallel", "2", data)...); err != nil {
				t.Fatalf("%s, %v", out, err)
			}
			checkTotals(t, base, map[string]int{"Basic": 2})
		})
	}
}

// Entries of a batch that were refused are sent again alone.
func TestLoadSendsOnlyWhatWasRefused(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	base := realServer(t, func(next http.Handler) http.Handler { return next })
	file := write(t, filepath.Join(dir, "x.ndjson"), []byte(`{"resourceType":"Basic","code":{"text":"good"}}
{"resourceType":"Basic"}
{"resourceType":"Basic","code":{"text":"good too"}}
`))
	for range 2 {
		if _, err := runCommand(t, loadCommand(dir, base, file)...); err == nil || !strings.Contains(err.Error(), "1 failed") {
			t.Fatalf("error %v, want 1 failed", err)
		}
		checkTotals(t, base, map[string]int{"Basic": 2})
	}
}

// kill -9 and Ctrl-C in the middle of a load: run again, it stores the rest, once. After
// Ctrl-C no request begins, and the answers of those under way are waited for.
func TestLoadKilledAndResumed(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name   string
		signal syscall.Signal
		says   string
	}{{"kill -9", syscall.SIGKILL, ""}, {"Ctrl-C", syscall.SIGINT, "interrupted"}} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			dir, want := corpus(t, 40)
			reached, signalled := make(chan struct{}), make(chan struct{})
			var n atomic.Int64
			base := realServer(t, func(next http.Handler) http.Handler {
				return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
					if r.Method == http.MethodPost {
						if i := n.Add(1); i == 15 {
							close(reached)
						} else if i > 15 {
							<-signalled // however slow the machine, the load is not done before
						}
					}
					next.ServeHTTP(w, r)
				})
			})
			state := t.TempDir()
			const parallel = 4
			args := loadCommand(state, base, "--parallel", fmt.Sprint(parallel), dir)
			c := exec.Command(os.Args[0], args...)
			c.Env = append(os.Environ(), "RUN_AS_KILN=1")
			said := new(sharedBuffer)
			c.Stderr = said
			if err := c.Start(); err != nil {
				t.Fatal(err)
			}
			<-reached
			err := c.Process.Signal(tt.signal)
			for begin := time.Now(); tt.signal == syscall.SIGINT && !strings.Contains(said.String(), "stopping: waiting for "); time.Sleep(time.Millisecond) {
				if time.Since(begin) > time.Minute {
					t.Errorf("it does not say that it stops: %s", said.String())
					break
				}
			}
			close(signalled)
			if err != nil {
				t.Fatal(err)
			}
			if err := c.Wait(); err == nil {
				t.Error("it ended well")
			}
			if !strings.Contains(said.String(), tt.says) {
				t.Errorf("it said %q, want %q", said.String(), tt.says)
			}
			if sent := n.Load(); sent > 15+parallel {
				t.Errorf("%d requests were sent, 15 of them before the signal and %d at most under way", sent, parallel)
			}
			if out, err := runCommand(t, args...); err != nil {
				t.Fatalf("again: %s, %v", out, err)
			}
			checkTotals(t, base, want)
			if _, err := os.Stat(filepath.Join(state, "state")); !os.IsNotExist(err) {
				t.Error("the state file outlives a load that is done")
			}
		})
	}
}

// An interrupted load continues at another server of the same database. A server of another
// database refuses it: the acknowledged resources would be missing there.
func TestLoadGoesOnAtAnotherServer(t *testing.T) {
	t.Parallel()
	dir, want := corpus(t, 12)
	var n atomic.Int64
	first := realServer(t, func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.Method == http.MethodPost && n.Add(1) > 6 {
				w.WriteHeader(http.StatusUnauthorized) // it ends the load
				return
			}
			next.ServeHTTP(w, r)
		})
	})
	at, err := url.Parse(strings.TrimSuffix(first, "/fhir"))
	if err != nil {
		t.Fatal(err)
	}
	second := httptest.NewServer(httputil.NewSingleHostReverseProxy(at))
	defer second.Close()
	other := realServer(t, func(next http.Handler) http.Handler { return next })
	state := t.TempDir()
	if _, err := runCommand(t, loadCommand(state, first, dir)...); err == nil {
		t.Fatal("the load was not broken off")
	}
	if _, err := runCommand(t, loadCommand(state, other, dir)...); err == nil || !strings.Contains(err.Error(), "--state") || !strings.Contains(err.Error(), first) {
		t.Errorf("at a server of another database: %v", err)
	}
	checkTotals(t, other, map[string]int{"Patient": 0})
	n.Store(-1000)
	if out, err := runCommand(t, loadCommand(state, second.URL+"/fhir", dir)...); err != nil {
		t.Fatalf("at another server of the database: %s, %v", out, err)
	}
	checkTotals(t, first, want)
}

// A byte order mark before the JSON of a file is no part of it.
func TestLoadSkipsAByteOrderMark(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	base := realServer(t, func(next http.Handler) http.Handler { return next })
	one := write(t, filepath.Join(dir, "x.json"), []byte("\ufeff"+`{"resourceType":"Basic","code":{"text":"one"}}`))
	two := write(t, filepath.Join(dir, "x.ndjson"), []byte("\ufeff"+`{"resourceType":"Basic","code":{"text":"two"}}`+"\r\n"))
	if out, err := runCommand(t, loadCommand(dir, base, one, two)...); err != nil {
		t.Fatalf("%s: %v", out, err)
	}
	checkTotals(t, base, map[string]int{"Basic": 2})
}

// A broken archive costs its own file only, a searchset is unpacked, and a Bundle
// that asks for nothing is refused by name.
func TestLoadOddFiles(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	base := realServer(t, func(next http.Handler) http.Handler { return next })
	data := filepath.Join(dir, "data")
	if err := os.Mkdir(data, 0o700); err != nil {
		t.Fatal(err)
	}
	write(t, filepath.Join(data, "broken.tar.gz"), []byte("this is no archive"))
	write(t, filepath.Join(data, "broken.tar"), bytes.Repeat([]byte("x"), 2000))
	write(t, filepath.Join(data, "broken.json.gz"), []byte{0x1f, 0x8b, 8, 0})
	write(t, filepath.Join(data, "found.json"), []byte(`{"resourceType":"Bundle","type":"searchset","total":2,"entry":[
		{"resource":{"resourceType":"Patient","id":"a"},"search":{"mode":"match"}},{"resource":{"resourceType":"Organization","id":"o","name":"O"},"search":{"mode":"include"}},
		{"resource":{"resourceType":"OperationOutcome","issue":[{"severity":"warning","code":"informational"}]},"search":{"mode":"outcome"}}]}`))
	write(t, filepath.Join(data, "past.json"), []byte(`{"resourceType":"Bundle","type":"history","entry":[]}`))
	write(t, filepath.Join(data, "t.json"), []byte(transaction(1)))
	out, err := runCommand(t, loadCommand(dir, base, "--json", data)...)
	var r loadResult
	if jerr := json.Unmarshal([]byte(out), &r); jerr != nil {
		t.Fatalf("%q: %v", out, jerr)
	}
	if err == nil || r.Failed != 4 || r.Resources != 5 {
		t.Errorf("error %v, result %+v; want 4 failed and 5 resources", err, r)
	}
	told, _ := os.ReadFile(filepath.Join(dir, "errors"))
	for _, want := range []string{"broken.tar.gz", "broken.tar\"", "broken.json.gz", `Bundle of type \"history\" cannot be loaded`} {
		if !strings.Contains(string(told), want) {
			t.Errorf("the error file has no %s:\n%s", want, told)
		}
	}
	checkTotals(t, base, map[string]int{"Patient": 2, "Organization": 1, "Observation": 2})
}

func TestLoadIsRefusedAtOnce(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	file := write(t, filepath.Join(dir, "a.json"), []byte(`{"resourceType":"Patient"}`))
	gone := httptest.NewServer(nil)
	gone.Close()
	locked := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Authorization") != "Bearer secret" {
			w.WriteHeader(http.StatusUnauthorized)
			return
		}
		w.WriteHeader(http.StatusCreated)
	}))
	defer locked.Close()
	for _, tt := range []struct {
		name string
		args []string
		want string
	}{
		{"--parallel 0", []string{"--parallel", "0"}, "--parallel is 0: expected 1 to 256"},
		{"--parallel below 0", []string{"--parallel", "-2"}, "--parallel is -2"},
		{"no server", []string{"--server", gone.URL}, "no server answers at " + gone.URL + " (connect: connection refused): start one with kiln serve"},
		{"a server that is no URL", []string{"--server", "localhost:8080"}, `--server is "localhost:8080"`},
		{"no token", []string{"--server", locked.URL}, "name one with --token"},
		{"no such file", []string{filepath.Join(dir, "none.json")}, "none.json"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			begin := time.Now()
			_, err := runCommand(t, append(loadCommand(dir, locked.URL, file), tt.args...)...)
			if err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("error %v, want %q", err, tt.want)
			}
			if took := time.Since(begin); took > 5*time.Second {
				t.Errorf("it took %v", took)
			}
		})
	}
	if _, err := runCommand(t, loadCommand(dir, locked.URL, "--token", "secret", file)...); err != nil {
		t.Errorf("with a token: %v", err)
	}
}

func TestSameContent(t *testing.T) {
	t.Parallel()
	for i, tt := range []struct {
		sent, stored string
		want         bool
	}{
		{`{"a":1.50}`, `{"id":"x","meta":{"versionId":"1","lastUpdated":"now"},"a":1.50}`, true},
		{`{"a":1.50}`, `{"a":1.5}`, false},
		{`{"meta":{"tag":[{"code":"t"}]}}`, `{"meta":{"versionId":"1","tag":[{"code":"t"}]}}`, true},
		{`{"meta":{"tag":[{"code":"t"}]}}`, `{"meta":{"versionId":"1"}}`, false},
		{`{"r":{"reference":"urn:uuid:1"}}`, `{"r":{"reference":"Patient/1"}}`, true},
		{`{"r":{"reference":"Patient?identifier=a"}}`, `{"r":{"reference":"Patient/1"}}`, true},
		{`{"r":{"reference":"Patient/2"}}`, `{"r":{"reference":"Patient/1"}}`, false},
		{`{"l":[1,2]}`, `{"l":[2,1]}`, false},
		{`{"a":1}`, `{"a":1,"b":2}`, false},
		{`{"a":"Why?"}`, `{"a":"Because"}`, false},
	} {
		if got := sameContent(contentOf([]byte(tt.sent)), contentOf([]byte(tt.stored))); got != tt.want {
			t.Errorf("%d: %s and %s: %s", i, tt.sent, tt.stored, strconv.FormatBool(got))
		}
	}
}

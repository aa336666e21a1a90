package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"kiln/server/store/storetest"
)

// bulkServer is one server of several on a database, as a process.
type bulkServer struct {
	t        *testing.T
	database string
	folder   string
	address  string
	cmd      *exec.Cmd
	ended    chan struct{}
	log      *sharedBuffer
}

func startBulkServer(t *testing.T, database, folder string) *bulkServer {
	t.Helper()
	s := &bulkServer{t: t, database: database, folder: folder, address: freeAddress(t)}
	s.start()
	t.Cleanup(func() { s.kill() })
	return s
}

func (s *bulkServer) start() {
	s.t.Helper()
	s.cmd = exec.Command(os.Args[0], "serve")
	s.cmd.Dir = s.t.TempDir()
	s.cmd.Env = append(os.Environ(), "RUN_AS_KILN=1", "KILN_DATABASE__URL="+s.database, "KILN_SERVER__LISTEN="+s.address, "KILN_BULK__DIRECTORY="+s.folder,
		"KILN_JOBS__LEASE=1s", "KILN_JOBS__MAX_PER_CLIENT=100", "KILN_JOBS__MAX_ATTEMPTS=100", "KILN_JOBS__WORKERS=1", "KILN_SERVER__DRAIN_SECONDS=1")
	s.log = &sharedBuffer{}
	s.cmd.Stdout, s.cmd.Stderr = s.log, s.log
	if err := s.cmd.Start(); err != nil {
		s.t.Fatal(err)
	}
	ended, c := make(chan struct{}), s.cmd
	s.ended = ended
	go func() { _ = c.Wait(); close(ended) }()
	for deadline := time.Now().Add(time.Minute); ; {
		if resp, err := http.Get("http://" + s.address + "/health/ready"); err == nil {
			resp.Body.Close()
			if resp.StatusCode == 200 {
				return
			}
		}
		select {
		case <-ended:
			s.t.Fatalf("the server ended: %s", s.log.String())
		case <-time.After(20 * time.Millisecond):
		}
		if time.Now().After(deadline) {
			s.t.Fatalf("the server is not ready: %s", s.log.String())
		}
	}
}

// signal sends a signal, and for SIGKILL and SIGTERM waits for the end.
func (s *bulkServer) signal(what syscall.Signal) {
	_ = s.cmd.Process.Signal(what)
	if what == syscall.SIGKILL || what == syscall.SIGTERM {
		<-s.ended
	}
}

func (s *bulkServer) kill() {
	_ = s.cmd.Process.Signal(syscall.SIGCONT)
	s.signal(syscall.SIGKILL)
}

// ask makes a request of the server, with a deadline.
func (s *bulkServer) ask(method, path, contentType, body string) (status int, header http.Header, answer string) {
	s.t.Helper()
	if !strings.HasPrefix(path, "http") {
		path = "http://" + s.address + path
	}
	ctx, cancel := context.WithTimeout(s.t.Context(), 20*time.Second)
	defer cancel()
	r, err := http.NewRequestWithContext(ctx, method, path, strings.NewReader(body))
	if err != nil {
		s.t.Fatal(err)
	}
	if contentType != "" {
		r.Header.Set("Content-Type", contentType)
	}
	r.Header.Set("Prefer", "respond-async")
	resp, err := http.DefaultClient.Do(r)
	if err != nil {
		s.t.Fatal(err)
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		s.t.Fatal(err)
	}
	return resp.StatusCode, resp.Header, string(text)
}

// end awaits the end of a job, and returns its manifest.
func (s *bulkServer) end(status string) string {
	s.t.Helper()
	status = status[strings.Index(status, "/$job/"):]
	for deadline := time.Now().Add(90 * time.Second); ; time.Sleep(50 * time.Millisecond) {
		code, _, text := s.ask("GET", status, "", "")
		if code == 200 {
			return text
		}
		if code != 202 && code != 503 && code != 429 { // throttled after many polls
			s.t.Fatalf("the job ended as %d: %s\n%s", code, text, s.log.String())
		}
		if time.Now().After(deadline) {
			_, _, list := s.ask("GET", "/admin/jobs", "", "")
			s.t.Fatalf("the job has not ended: %s\n%s", list, s.log.String())
		}
	}
}

// job waits until a part of a job is under way on the holder, and has stored something.
func awaitJob(t *testing.T, database, job, condition string) {
	t.Helper()
	ctx := t.Context()
	conn, err := pgx.Connect(ctx, database)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(context.WithoutCancel(ctx))
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(5 * time.Millisecond) {
		var ok bool
		if err := conn.QueryRow(ctx, `SELECT EXISTS (SELECT FROM job_part p WHERE p.job = $1 AND `+condition+`)`, job).Scan(&ok); err != nil {
			t.Fatal(err)
		}
		if ok {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("the job %s never had a part with %s", job, condition)
		}
	}
}

// Bulk data, crashes: a server that works on an import or an export is killed, frozen past its lease, or
// stopped, or PostgreSQL kills its connections. Another server goes on within the lease and 5 s. Each job ends once,
// each file is whole, and no line makes two versions. KILN_TEST_BULK_KILLS sets the number of rounds.
func TestBulkJobsOutliveServers(t *testing.T) {
	t.Parallel()
	rounds := 4
	if text := os.Getenv("KILN_TEST_BULK_KILLS"); text != "" {
		if _, err := fmt.Sscan(text, &rounds); err != nil {
			t.Fatal(err)
		}
	}
	database, folder := storetest.New(t), filepath.Join(t.TempDir(), "bulk")
	a, b := startBulkServer(t, database, folder), startBulkServer(t, database, folder)
	const lines = 12_000
	total := 0
	for round := range rounds {
		var text strings.Builder
		for i := range lines {
			// Two lines of one id in different batches: one that is stored twice would show as a version.
			fmt.Fprintf(&text, `{"resourceType":"Observation","id":"r%d-%d","status":"final","code":{"text":"line %d of %d %s"}}`+"\n", round, i, i, round, strings.Repeat("x", 800))
			if i == 5000 {
				fmt.Fprintf(&text, "nonsense\n")
			}
		}
		code, header, answer := a.ask("POST", "/$import", "application/fhir+ndjson", text.String())
		if code != 202 {
			t.Fatalf("the kick-off is %d: %s", code, answer)
		}
		status := header.Get("Content-Location")
		job := status[strings.LastIndexByte(status, '/')+1:]
		awaitJob(t, database, job, "p.done > 500")
		victim, other := a, b
		switch round % 4 {
		case 0: // a crash
			victim.signal(syscall.SIGKILL)
		case 1: // frozen behind its lease; it wakes up while the other one works
			victim.signal(syscall.SIGSTOP)
			awaitJob(t, database, job, "p.attempts > 0 OR NOT EXISTS (SELECT FROM job_part q WHERE q.job = p.job AND q.state <> 'done')")
			victim.signal(syscall.SIGCONT)
		case 2: // a clean stop hands the parts back at once
			victim.signal(syscall.SIGTERM)
		case 3: // PostgreSQL ends all connections
			conn, err := pgx.Connect(t.Context(), database)
			if err != nil {
				t.Fatal(err)
			}
			if _, err := conn.Exec(t.Context(), "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()"); err != nil {
				t.Fatal(err)
			}
			conn.Close(t.Context())
		}
		began := time.Now()
		manifest := other.end(status)
		t.Logf("round %d: the job ended %s after the failure", round, time.Since(began).Round(time.Millisecond))
		var m struct {
			Output []importOutputEntry
			Error  []struct{ Count int }
		}
		if err := json.Unmarshal([]byte(manifest), &m); err != nil {
			t.Fatal(err)
		}
		if len(m.Output) != 1 || m.Output[0].Extension.Created != lines || m.Output[0].Count != lines || len(m.Error) != 1 || m.Error[0].Count != 1 {
			t.Errorf("round %d: the manifest is %s", round, manifest)
		}
		total += lines
		if round%4 == 0 || round%4 == 2 {
			victim.start()
		}
	}
	conn, err := pgx.Connect(t.Context(), database)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(context.WithoutCancel(t.Context()))
	var stored, versions int
	if err := conn.QueryRow(t.Context(), "SELECT count(*), max(version) FROM resource WHERE id LIKE 'r%-%'").Scan(&stored, &versions); err != nil {
		t.Fatal(err)
	}
	if stored != total || versions != 1 {
		t.Errorf("%d resources are stored, want %d; the highest version is %d", stored, total, versions)
	}

	// An export whose server dies, too.
	_, header, _ := a.ask("GET", "/$export?_type=Observation", "", "")
	status := header.Get("Content-Location")
	awaitJob(t, database, status[strings.LastIndexByte(status, '/')+1:], "p.stage = 1 AND p.state IN ('running', 'done')")
	a.signal(syscall.SIGKILL)
	var m struct {
		Output []struct {
			URL   string
			Count int
		}
	}
	if err := json.Unmarshal([]byte(b.end(status)), &m); err != nil {
		t.Fatal(err)
	}
	seen := make(map[string]bool)
	for _, f := range m.Output {
		_, _, text := b.ask("GET", f.URL[strings.Index(f.URL, "/$job/"):], "", "")
		if strings.Count(text, "\n") != f.Count {
			t.Errorf("%s has %d lines, want %d", f.URL, strings.Count(text, "\n"), f.Count)
		}
		for line := range strings.Lines(text) {
			var v struct{ ID string }
			if err := json.Unmarshal([]byte(line), &v); err != nil || seen[v.ID] {
				t.Fatalf("a line is %q: %v", line, err)
			}
			seen[v.ID] = true
		}
	}
	if len(seen) != total {
		t.Errorf("the export has %d resources, want %d", len(seen), total)
	}
}

type importOutputEntry struct {
	Count     int
	Extension struct{ Created, Updated, Unchanged int }
}

package conformance

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"kiln/server"
	"kiln/server/postgres"
)

// A database that hangs costs no request more than database.timeout_seconds: 503
// with an OperationOutcome. When it answers again, so does the service.
func TestDatabaseHangs(t *testing.T) {
	t.Parallel()
	const seconds = 3
	if os.Getenv("TEST_DATABASE_URL") == "" {
		t.Skip("no tests on PostgreSQL are wanted")
	}
	dir, err := os.MkdirTemp("", "kiln-hang-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	database, err := postgres.Start(context.Background(), postgres.Options{DataDir: dir})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := database.Stop(); err != nil {
			t.Error(err)
		}
	})
	s := startOn(t, database.URL, func(c *server.Config) { c.Database.TimeoutSeconds = seconds })
	id := s.create(`{"resourceType":"Patient","name":[{"family":"Chalmers"}]}`)

	all := processes(t, dir)
	signal := func(sig syscall.Signal) {
		for _, pid := range all {
			syscall.Kill(pid, sig) // one that has ended hangs no more
		}
	}
	signal(syscall.SIGSTOP)
	defer signal(syscall.SIGCONT)
	var done sync.WaitGroup
	requests := []struct{ method, path, body string }{
		{"GET", "/Patient/" + id, ""},
		{"GET", "/Patient/" + id + "/_history", ""},
		{"GET", "/Patient?name=chal", ""},
		{"GET", "/Patient?_has:Observation:subject:code=x&_sort=-birthdate", ""},
		{"GET", "/Patient/" + id + "/$everything", ""},
		{"POST", "/Patient", `{"resourceType":"Patient"}`},
		{"PUT", "/Patient/" + id, fmt.Sprintf(`{"resourceType":"Patient","id":%q,"active":true}`, id)},
		{"PUT", "/Patient?name=chal", `{"resourceType":"Patient","active":true}`},
		{"PATCH", "/Patient/" + id, ""},
		{"DELETE", "/Patient/" + id, ""},
		{"POST", "/", bundle("transaction", entry("POST", "Patient", "", `{"resourceType":"Patient"}`, ""))},
		{"POST", "/", bundle("transaction", entry("GET", "Patient?name=x", "", "", ""))},
		{"GET", "/_history", ""},
		{"GET", "/$packages", ""},
		{"GET", "/$reindex", ""},
		{"GET", "/ValueSet/$expand?url=http://hl7.org/fhir/ValueSet/administrative-gender", ""},
		{"GET", "/Patient/$events-history", ""},
		{"GET", "/admin/db/stats", ""},
		{"GET", "/admin/servers", ""},
		{"GET", "/health", ""},
		{"GET", "/health/ready", ""},
	}
	// The first ones find connections that hang, the others a database that is known
	// to hang, and more of them than there are connections.
	for round := range 5 {
		for _, q := range requests {
			done.Go(func() {
				began := time.Now()
				headers := []string{}
				body := q.body
				if q.method == "PATCH" {
					body, headers = `[{"op":"add","path":"/active","value":true}]`, []string{"Content-Type", "application/json-patch+json"}
				}
				a, err := s.try(q.method, q.path, body, headers...)
				if err != nil {
					t.Errorf("%s %s: %v", q.method, q.path, err)
					return
				}
				// A busy machine may be late to send and to read: a second for both.
				if took := time.Since(began); took > (seconds+1)*time.Second {
					t.Errorf("round %d: %s %s took %v, database.timeout_seconds is %d", round, q.method, q.path, took, seconds)
				}
				if a.status != 503 || a.str("resourceType") != "OperationOutcome" {
					t.Errorf("round %d: %s %s: %d, want 503 with an OperationOutcome\n%s", round, q.method, q.path, a.status, clip(a.body))
				}
			})
		}
		if round == 2 {
			done.Wait()
		}
	}
	done.Wait()
	signal(syscall.SIGCONT)
	for deadline := time.Now().Add(30 * time.Second); ; time.Sleep(50 * time.Millisecond) {
		a, err := s.try("GET", "/Patient?name=chal", "")
		if err == nil && a.status == 200 {
			break
		}
		if time.Now().After(deadline) {
			t.Fatalf("the service does not come back: %v %v", a, err)
		}
	}
	s.post("/Patient", `{"resourceType":"Patient"}`).want(201)
}

// processes are those of the PostgreSQL in dir.
func processes(t *testing.T, dir string) []int {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(dir, "postgres", "data", "postmaster.pid"))
	if err != nil {
		t.Fatal(err)
	}
	line, _, _ := strings.Cut(string(text), "\n")
	main, err := strconv.Atoi(strings.TrimSpace(line))
	if err != nil {
		t.Fatal(err)
	}
	out := []int{main}
	stats, err := filepath.Glob("/proc/[0-9]*/stat")
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range stats {
		stat, err := os.ReadFile(file)
		if err != nil {
			continue // it has ended
		}
		_, rest, _ := strings.Cut(string(stat), ") ")
		if f := strings.Fields(rest); len(f) > 1 && f[1] == strconv.Itoa(main) {
			if pid, err := strconv.Atoi(filepath.Base(filepath.Dir(file))); err == nil {
				out = append(out, pid)
			}
		}
	}
	return out
}

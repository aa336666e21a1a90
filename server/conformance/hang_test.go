package conformance

import (
	"context"
	"encoding/base64"
	"fmt"
	"net/url"
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
	database, signal := ownDatabase(t)
	s := startOn(t, database, func(c *server.Config) { c.Database.TimeoutSeconds = seconds })
	id := s.create(`{"resourceType":"Patient","name":[{"family":"Chalmers"}]}`)

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

// ownDatabase is a PostgreSQL of the test's own, whose processes get a signal by the
// function that it returns.
func ownDatabase(t *testing.T) (url string, signal func(syscall.Signal)) {
	t.Helper()
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
	return database.URL, func(sig syscall.Signal) {
		t.Helper()
		// A process that begins meanwhile is found by the next look.
		reached := make(map[int]bool)
		for before := -1; before < len(reached); {
			before = len(reached)
			for _, pid := range processes(t, dir) {
				if !reached[pid] {
					syscall.Kill(pid, sig) // one that has ended hangs no more
					reached[pid] = true
				}
			}
		}
	}
}

// The same holds for the authorization server: a token endpoint says
// temporarily_unavailable, and never that a grant, a token or a client is bad; pages say
// so to people.
func TestDatabaseHangsUnderAuthorization(t *testing.T) {
	t.Parallel()
	const seconds = 3
	database, signal := ownDatabase(t)
	s := withAuthorizationOn(t, database, func(c *server.Config) { c.Database.TimeoutSeconds = seconds })
	operator := s.backendToken("operator", "admin")
	signal(syscall.SIGSTOP)
	defer signal(syscall.SIGCONT)
	basic := "Basic " + base64.StdEncoding.EncodeToString([]byte("backend:"+url.QueryEscape(clientSecret)))
	var done sync.WaitGroup
	for range 12 { // more than there are connections
		for _, q := range []struct{ method, path, form, authorization, want string }{
			{"POST", "/auth/token", "grant_type=client_credentials&scope=system/*.rs", basic, `"temporarily_unavailable"`},
			{"POST", "/auth/token", "grant_type=refresh_token&refresh_token=x.y&client_id=app", "", `"temporarily_unavailable"`},
			{"POST", "/auth/revoke", "token=x", basic, `"temporarily_unavailable"`},
			{"POST", "/auth/introspect", "token=x", basic, `"temporarily_unavailable"`},
			{"GET", "/auth/authorize?client_id=app&redirect_uri=" + url.QueryEscape(appRedirect), "", "", "does not answer"},
			{"GET", "/admin/clients", "", "Bearer " + operator, `"OperationOutcome"`},
		} {
			done.Go(func() {
				began := time.Now()
				a, err := s.try(q.method, s.origin()+q.path, q.form, "Content-Type", "application/x-www-form-urlencoded", "Authorization", q.authorization)
				if err != nil {
					t.Errorf("%s %s: %v", q.method, q.path, err)
					return
				}
				if took := time.Since(began); took > (seconds+1)*time.Second {
					t.Errorf("%s %s took %v, database.timeout_seconds is %d", q.method, q.path, took, seconds)
				}
				if a.status != 503 || a.header.Get("Retry-After") == "" || !strings.Contains(string(a.body), q.want) {
					t.Errorf("%s %s: %d %v, want 503 with %s and Retry-After\n%s", q.method, q.path, a.status, a.header, q.want, clip(a.body))
				}
			})
		}
	}
	done.Wait()
	signal(syscall.SIGCONT)
	for deadline := time.Now().Add(30 * time.Second); ; time.Sleep(50 * time.Millisecond) {
		a, err := s.try("POST", s.origin()+"/auth/token", "grant_type=client_credentials&scope=system/*.rs", "Content-Type", "application/x-www-form-urlencoded", "Authorization", basic)
		if err == nil && a.status == 200 {
			break
		}
		if time.Now().After(deadline) {
			t.Fatalf("the authorization server does not come back: %v %v", a, err)
		}
	}
}

// processes returns the processes of the PostgreSQL in dir.
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

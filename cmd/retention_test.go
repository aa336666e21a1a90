package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"kiln/server/store/storetest"
)

// retentionServer is a server process without authorization.
type retentionServer struct {
	t    *testing.T
	base string
	cmd  *exec.Cmd
}

func startRetentionServer(t *testing.T, environment ...string) *retentionServer {
	t.Helper()
	address := freeAddress(t)
	s := &retentionServer{t: t, base: "http://" + address, cmd: exec.Command(os.Args[0], "serve")}
	s.cmd.Dir, s.cmd.Env = t.TempDir(), append(append(os.Environ(), "RUN_AS_KILN=1", "KILN_SERVER__LISTEN="+address, "KILN_JOBS__LEASE=1s"), environment...)
	var said bytes.Buffer
	s.cmd.Stdout, s.cmd.Stderr = &said, &said
	if err := s.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan struct{})
	go func() { _ = s.cmd.Wait(); close(ended) }()
	t.Cleanup(func() { _ = s.cmd.Process.Kill(); <-ended })
	s.await("the server", func() bool {
		select {
		case <-ended:
			t.Fatalf("the server ended: %s", said.String())
		default:
		}
		resp, err := http.Get(s.base + "/health/ready")
		if err != nil {
			return false
		}
		resp.Body.Close()
		return resp.StatusCode == 200
	})
	return s
}

func (s *retentionServer) await(what string, done func() bool) {
	s.t.Helper()
	s.awaitWithin(time.Minute, what, done)
}

func (s *retentionServer) awaitWithin(most time.Duration, what string, done func() bool) {
	s.t.Helper()
	for deadline := time.Now().Add(most); !done(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			s.t.Fatalf("%s does not come", what)
		}
	}
}

func (s *retentionServer) send(method, path, body string) (int, map[string]any) {
	s.t.Helper()
	r, err := http.NewRequest(method, s.base+path, strings.NewReader(body))
	if err != nil {
		s.t.Fatal(err)
	}
	if r.Header.Set("Content-Type", "application/fhir+json"); strings.HasPrefix(path, "/admin") {
		r.Header.Set("Content-Type", "application/json")
	}
	resp, err := http.DefaultClient.Do(r)
	if err != nil {
		s.t.Fatal(err)
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		s.t.Fatal(err)
	}
	var out map[string]any
	_ = json.Unmarshal(text, &out) // a delete has no body
	return resp.StatusCode, out
}

// storeAuditEvents stores n AuditEvents.
func (s *retentionServer) storeAuditEvents(n int) {
	s.t.Helper()
	const each = 500
	for from := 0; from < n; from += each {
		var b strings.Builder
		for i := from; i < min(from+each, n); i++ {
			fmt.Fprintf(&b, `,{"resource":{"resourceType":"AuditEvent","type":{"system":"http://terminology.hl7.org/CodeSystem/audit-event-type","code":"rest"},"recorded":"2020-01-01T00:00:00Z",
				"agent":[{"requestor":true,"name":"n%d"}],"source":{"observer":{"display":"elsewhere"}}},"request":{"method":"POST","url":"AuditEvent"}}`, i)
		}
		if status, out := s.send("POST", "/fhir", `{"resourceType":"Bundle","type":"transaction","entry":[`+b.String()[1:]+`]}`); status != 200 {
			s.t.Fatalf("store AuditEvents: %d %v", status, out)
		}
	}
}

// Contract, Operations: Retention: AuditEvents and superseded versions go by a job that is audited and
// survives kill -9 exactly; what is younger stays, and so does the current version.
func TestRetention(t *testing.T) {
	t.Parallel()
	url := storetest.New(t)
	environment := []string{"KILN_DATABASE__URL=" + url, "KILN_AUDIT__RETENTION_DAYS=30", "KILN_FHIR__HISTORY_RETENTION_DAYS=30"}
	s := startRetentionServer(t, environment...)
	const old, young = 3000, 200
	s.storeAuditEvents(old + young)
	for _, id := range []string{"superseded", "superseded", "superseded", "deleted", "deleted", "changed", "changed"} {
		if status, out := s.send("PUT", "/fhir/Patient/"+id, `{"resourceType":"Patient","id":"`+id+`","gender":"`+map[bool]string{true: "male", false: "female"}[time.Now().UnixNano()%2 == 0]+`"}`); status/100 != 2 {
			t.Fatalf("%d %v", status, out)
		}
	}
	if status, _ := s.send("DELETE", "/fhir/Patient/deleted", ""); status/100 != 2 {
		t.Fatal(status)
	}
	conn, err := pgx.Connect(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(t.Context())
	for _, sql := range []string{
		fmt.Sprintf(`UPDATE resource SET last_updated = last_updated - interval '40 days' WHERE rid IN (
			SELECT r.rid FROM resource r JOIN resource_type t USING (typ) WHERE t.name = 'AuditEvent' ORDER BY r.rid LIMIT %d)`, old),
		`UPDATE resource_history SET last_updated = last_updated - interval '60 days'`,
		`UPDATE resource SET last_updated = last_updated - interval '40 days' WHERE id = 'superseded'`,
	} {
		if _, err := conn.Exec(t.Context(), sql); err != nil {
			t.Fatal(err)
		}
	}
	count := func(sql string) (n int) {
		t.Helper()
		if err := conn.QueryRow(t.Context(), sql).Scan(&n); err != nil {
			t.Fatal(err)
		}
		return n
	}
	const events = `SELECT count(*) FROM resource r JOIN resource_type t USING (typ) WHERE t.name = 'AuditEvent' AND r.last_updated < now() - interval '30 days'`
	if out, err := runKiln(t, nil, "admin", "retention", "run", "--server", s.base); err != nil || !strings.Contains(out, `"type": "retention"`) {
		t.Fatalf("%v %s", err, out)
	}
	if status, out := s.send("POST", "/admin/retention", ""); status != 409 {
		t.Errorf("a second job: %d %v", status, out)
	}
	// kill -9 in the middle, twice; another server goes on.
	for range 2 {
		before := count(events)
		s.await("some of the work", func() bool { return count(events) < before-250 })
		if count(events) == 0 {
			t.Fatal("the job ended before the server was killed: the test proves nothing")
		}
		if err := s.cmd.Process.Kill(); err != nil {
			t.Fatal(err)
		}
		s = startRetentionServer(t, environment...)
	}
	job := func() map[string]any {
		resp, err := http.Get(s.base + "/admin/jobs?type=retention")
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		var list []map[string]any
		if err := json.NewDecoder(resp.Body).Decode(&list); err != nil || len(list) != 1 {
			t.Fatalf("the jobs are %v, %v", list, err)
		}
		return list[0]
	}
	s.await("the end of the job", func() bool { return job()["finished"] != nil })
	// 3,000 AuditEvents; among the versions of Patients: two of superseded, three of deleted, one of changed.
	if j := job(); j["state"] != "done" || j["done"] != float64(old+6) || j["total"] != float64(old+6) {
		t.Errorf("the job is %v", j)
	}
	if n := count(events); n != 0 {
		t.Errorf("%d old AuditEvents are left", n)
	}
	if n := count(`SELECT count(*) FROM resource_history h JOIN resource_type t USING (typ) WHERE t.name = 'AuditEvent'`); n != 0 {
		t.Errorf("%d versions of removed AuditEvents are left", n)
	}
	if _, out := s.send("GET", "/fhir/AuditEvent?_summary=count&_lastUpdated=gt2000-01-01&source-name=x", ""); out["resourceType"] == nil {
		t.Errorf("a search: %v", out)
	}
	if n := count(`SELECT count(*) FROM resource r JOIN resource_type t USING (typ) WHERE t.name = 'AuditEvent' AND convert_from(resource_body(r.body)::bytea, 'UTF8') LIKE '%"elsewhere"%'`); n != young {
		t.Errorf("%d young AuditEvents, want %d", n, young)
	}
	for path, want := range map[string]int{
		"/fhir/Patient/superseded": 200, "/fhir/Patient/superseded/_history/3": 200, "/fhir/Patient/superseded/_history/2": 404, "/fhir/Patient/superseded/_history/1": 404,
		"/fhir/Patient/deleted": 410, "/fhir/Patient/deleted/_history/1": 404,
		"/fhir/Patient/changed/_history/2": 200, "/fhir/Patient/changed/_history/1": 200,
	} {
		if status, out := s.send("GET", path, ""); status != want {
			t.Errorf("%s: %d, want %d: %v", path, status, want, out)
		}
	}
	// The start and the end are AuditEvents.
	var texts []string
	s.await("the AuditEvents of the job", func() bool {
		texts = nil
		_, bundle := s.send("GET", "/fhir/AuditEvent?subtype=retention-start,retention-end&_count=50", "")
		entries, _ := bundle["entry"].([]any)
		for _, e := range entries {
			text, _ := e.(map[string]any)["resource"].(map[string]any)["outcomeDesc"].(string)
			texts = append(texts, text)
		}
		return len(texts) >= 2
	})
	if all := strings.Join(texts, "\n"); !strings.Contains(all, fmt.Sprintf("done, %d AuditEvents and 4 versions removed", old)) || !strings.Contains(all, "an administrator asked for it") {
		t.Errorf("the AuditEvents say %s", all)
	}
}

// Contract, Operations: Retention: 0 keeps everything.
func TestRetentionIsOffByDefault(t *testing.T) {
	t.Parallel()
	s := startRetentionServer(t, "KILN_DATABASE__URL="+storetest.New(t))
	if status, out := s.send("POST", "/admin/retention", ""); status != 422 || !strings.Contains(fmt.Sprint(out), "audit.retention_days") {
		t.Errorf("%d %v", status, out)
	}
	for key, value := range map[string]string{"audit/retention_days": "-1", "fhir/history_retention_days": "400000"} {
		if status, out := s.send("PUT", "/admin/config/"+key, value); status != 400 {
			t.Errorf("%s = %s: %d %v", key, value, status, out)
		}
	}
	if status, out := s.send("PUT", "/admin/config/audit/retention_days", "30"); status != 200 {
		t.Fatalf("%d %v", status, out)
	}
	if status, out := s.send("POST", "/admin/retention", ""); status != 202 {
		t.Errorf("after the setting: %d %v", status, out)
	}
}

package conformance

import (
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"kiln/server"
	"kiln/server/store"
	"kiln/server/store/storetest"
)

// health is the answer of GET /health as far as it is about replicas.
type health struct {
	Status   string
	Database struct {
		Primary  string
		Replicas []struct {
			Name, State string
			LagSeconds  float64 `json:"lag_seconds"`
		}
	}
}

func (s *service) health() (h health) {
	a, err := s.try("GET", "/health", "")
	if err == nil {
		_ = json.Unmarshal(a.body, &h)
	}
	return h
}

// awaitState waits until a replica has a state, and fails if that takes longer than the time in which servers notice.
func awaitState(t *testing.T, s *service, n int, state string) {
	t.Helper()
	began := time.Now()
	eventually(t, fmt.Sprintf("replica-%d is %s", n, state), func() bool {
		h := s.health()
		return len(h.Database.Replicas) >= n && h.Database.Replicas[n-1].State == state
	})
	if took := time.Since(began); took > 4*time.Second { // 2 s, and as much for a busy machine
		t.Errorf("replica-%d was %s after %v", n, state, took)
	}
}

// alternate listens where a PostgreSQL would, and connects its clients to several in turn.
func alternate(t *testing.T, list ...*storetest.Instance) (url string) {
	t.Helper()
	dir, err := os.MkdirTemp("", "kiln-balancer-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	l, err := net.Listen("unix", filepath.Join(dir, ".s.PGSQL.5432"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	go func() {
		for n := 0; ; n++ {
			in, err := l.Accept()
			if err != nil {
				return
			}
			out, err := net.Dial("unix", filepath.Join(list[n%len(list)].Dir(), ".s.PGSQL.5432"))
			if err != nil {
				in.Close()
				continue
			}
			for _, pair := range [][2]net.Conn{{in, out}, {out, in}} {
				go func() {
					_, _ = io.Copy(pair[0], pair[1])
					pair[0].Close()
					pair[1].Close()
				}()
			}
		}
	}()
	return strings.Replace(list[0].URL(), list[0].Dir(), dir, 1)
}

// TestStatesOfReplicas has a PostgreSQL for each state of a replica. Only streaming ones serve.
// Contract, The front door: a standby that lags, is unreachable, belongs to another database or has another schema serves nobody.
func TestStatesOfReplicas(t *testing.T) {
	t.Parallel()
	primary := storetest.NewCluster(t)
	standby := primary.Standby("standby")
	otherPrimary := storetest.NewCluster(t)
	foreign := otherPrimary.Standby("foreign")
	first := startOn(t, primary.URL(), func(*server.Config) {}) // indexes
	id := first.create(`{"resourceType":"Patient"}`)
	first.stop()
	startOn(t, otherPrimary.URL(), func(*server.Config) {}).stop()
	standby.Follows(primary)
	nowhere := strings.Replace(primary.URL(), primary.Dir(), "/nowhere", 1)
	s := startOn(t, primary.URL(), func(c *server.Config) {
		c.Database.ReadMaxLagSeconds, c.Database.ReadWaitMS = 1, 1000 // a busy machine may be late
		c.Database.ReadURLs = []string{primary.URL(), standby.URL(), foreign.URL(), alternate(t, standby, primary), nowhere}
	})
	for n, state := range []string{"primary", "streaming", "foreign", "several", "unreachable"} {
		awaitState(t, s, n+1, state)
	}
	// Without position: whose own read comes from replica-2 alone.
	serves := func(want string) {
		t.Helper()
		for range 10 {
			if got := source(t, s.get("/Patient/"+id).want(200)); got != want {
				t.Errorf("a read comes from %q, want %q", got, want)
			}
		}
	}
	serves("replica-2")
	if h := s.health(); h.Status != "ok" {
		t.Errorf("with lost replicas the health is %q", h.Status)
	}

	// Another schema.
	primary.Exec("kiln", "INSERT INTO goose_db_version (version_id, is_applied) VALUES (99999, true)")
	awaitState(t, s, 2, "schema")
	serves("primary")
	primary.Exec("kiln", "DELETE FROM goose_db_version WHERE version_id = 99999")
	awaitState(t, s, 2, "streaming")
	serves("replica-2")

	// Behind.
	standby.Exec("kiln", "SELECT pg_wal_replay_pause()")
	standby.Await("SELECT pg_get_wal_replay_pause_state() = 'paused'")
	began := time.Now()
	s.create(`{"resourceType":"Patient"}`)
	awaitState(t, s, 2, "lagging")
	if lag, most := s.health().Database.Replicas[1].LagSeconds, time.Since(began).Seconds(); lag <= 1 || lag > most {
		t.Errorf("the lag is %v s, want more than 1 and at most %v", lag, most)
	}
	serves("primary")
	// Of an epoch before the primary's.
	if _, err := store.StartEpoch(t.Context(), primary.URL()); err != nil {
		t.Fatal(err)
	}
	awaitState(t, s, 2, "foreign")
	standby.Exec("kiln", "SELECT pg_wal_replay_resume()")
	awaitState(t, s, 2, "streaming")
	serves("replica-2")
	eventually(t, "the lag beside an idle primary is 0", func() bool { return s.health().Database.Replicas[1].LagSeconds == 0 })

	// One that hangs costs a request the wait for a position and one repetition, and one that is back serves.
	standby.Signal(syscall.SIGSTOP)
	began = time.Now()
	a := s.get("/Patient/" + id).want(200)
	if took := time.Since(began); a.header.Get("X-Kiln-Source") != "primary" || took > 3*time.Second {
		t.Errorf("beside a replica that hangs a read takes %v and comes from %q", took, a.header.Get("X-Kiln-Source"))
	}
	awaitState(t, s, 2, "unreachable")
	standby.Signal(syscall.SIGCONT)
	awaitState(t, s, 2, "streaming")
	standby.Stop()
	awaitState(t, s, 2, "unreachable")
	serves("primary")
	standby.Start()
	awaitState(t, s, 2, "streaming")
	serves("replica-2")
	a = s.atRoot().get("/admin/db/stats").want(200)
	for n, state := range []string{"primary", "streaming", "foreign", "several", "unreachable"} {
		at := fmt.Sprintf("replicas.%d.", n)
		a.equal(at+"name", fmt.Sprintf("replica-%d", n+1)).equal(at+"state", state)
		if reason := a.str(at + "reason"); (reason == "") != (state == "streaming") || a.str(at+"host") == "" || a.str(at+"reads") == "" || a.str(at+"fallbacks") == "" || a.str(at+"lag_bytes") == "" {
			t.Errorf("the statistics of a replica: %v", a.at(fmt.Sprintf("replicas.%d", n)))
		}
	}
	metrics := string(s.atRoot().get("/metrics").want(200).body)
	for _, line := range []string{`service_database_replica_up{replica="replica-2"} 1`, `service_database_replica_up{replica="replica-3"} 0`, `service_database_replica_lag_seconds{replica="replica-2"}`,
		`service_database_reads_total{source="replica-2"}`, `service_database_reads_total{source="primary"}`, `service_database_fallbacks_total{reason="state"}`,
		`service_database_position_wait_seconds_count`, `service_database_epoch 2`} {
		if !strings.Contains(metrics, line) {
			t.Errorf("the metrics lack %s", line)
		}
	}
}

// lostPrimary reads until the primary is known to be lost: nobody gets another status than 200 and 503 meanwhile.
func lostPrimary(t *testing.T, s, health *service, path string) {
	t.Helper()
	eventually(t, "reads go on without the primary", func() bool {
		began := time.Now()
		a := s.get(path)
		if took := time.Since(began); took > 5*time.Second {
			t.Errorf("a read took %v", took)
		}
		if a.status != 200 && (a.status != 503 || a.header.Get("Retry-After") == "") {
			t.Errorf("a read without the primary: %d %s", a.status, a.body)
		}
		return a.status == 200 && health.health().Database.Primary == "lost"
	})
}

// TestReadsWithoutAPrimary stops the primary: reads go on for a time, then they are 503.
// Contract, The front door: without a primary reads go on from standbys for `database.read_without_primary_seconds`.
func TestReadsWithoutAPrimary(t *testing.T) {
	t.Parallel()
	const seconds = 6
	s, primary, standby := replicated(t, func(c *server.Config) {
		c.Database.ReadWithoutPrimarySeconds, c.Database.TimeoutSeconds = seconds, 3
	})
	created := s.post("/Patient", `{"resourceType":"Patient","name":[{"family":"Chalmers"}]}`).want(201)
	id := created.str("id")
	stream := s.stream(s.server() + "/notifications/events")
	defer stream.close()
	standby.Follows(primary)
	primary.Stop()
	stopped := time.Now()
	lostPrimary(t, s, s, "/Patient/"+id)
	for _, path := range []string{"/Patient/" + id, "/Patient/" + id + "/_history", "/Patient?family=chalmers", "/Patient/" + id + "/$everything", "/_history", "/?_type=Patient,Observation"} {
		a := s.do("GET", path, "", "X-Kiln-Position", created.header.Get("X-Kiln-Position")).want(200)
		if got := source(t, a); got != "replica-1" {
			t.Errorf("without the primary %s comes from %q", path, got)
		}
	}
	s.get("/health/ready").want(200).equal("status", "degraded").equal("database.primary", "lost")
	for _, q := range [][3]string{{"POST", "/Patient", `{"resourceType":"Patient"}`}, {"PUT", "/Patient/" + id, `{"resourceType":"Patient","id":"` + id + `"}`}, {"DELETE", "/Patient/" + id, ""}, {"GET", "/ValueSet/$expand?url=http://example.org/none", ""}} {
		began := time.Now()
		a := s.do(q[0], q[1], q[2])
		if took := time.Since(began); q[0] != "GET" && (a.status != 503 || a.header.Get("Retry-After") == "" || a.str("issue.0.code") != "transient") || a.status == 500 || took > 4*time.Second {
			t.Errorf("without the primary %s %s takes %v: %d %s", q[0], q[1], took, a.status, a.body)
		}
	}
	a := s.do("GET", "/Patient/"+id, "", "Cache-Control", "no-cache").want(503)
	if a.header.Get("Retry-After") == "" {
		t.Error("503 without Retry-After")
	}
	eventually(t, "reads are refused", func() bool { return s.get("/Patient/"+id).status == 503 && s.get("/health/ready").status == 503 })
	if took := time.Since(stopped); took < seconds*time.Second-time.Second || took > seconds*time.Second+4*time.Second {
		t.Errorf("reads went on for %v, want %d s", took, seconds)
	}
	if stream.ended() {
		t.Error("the stream has ended")
	}
	primary.Start()
	eventually(t, "the primary serves again", func() bool { return s.health().Status == "ok" })
	later := s.create(`{"resourceType":"Patient"}`)
	for {
		if _, resource := eventOf(t, stream.next()); strings.Contains(resource, later) {
			break
		}
	}
}

// TestPositionsAcrossAPromotion has a primary lose its last write. Its position is refused, and so is the link of a page that
// showed it; an earlier one holds. The server's user may not read PostgreSQL's files.
func TestPositionsAcrossAPromotion(t *testing.T) {
	t.Parallel()
	primary := storetest.NewCluster(t)
	standby := primary.Standby("standby")
	primary.Exec("kiln", `CREATE ROLE app LOGIN; ALTER SCHEMA public OWNER TO app; GRANT ALL ON ALL TABLES IN SCHEMA public TO app; GRANT ALL ON ALL SEQUENCES IN SCHEMA public TO app`)
	as := func(url string) string { return strings.Replace(url, "user=postgres", "user=app", 1) }
	s := startOn(t, as(storetest.URLOf(primary, standby)), func(c *server.Config) {
		c.Database.ReadURLs = []string{as(primary.URL()), as(standby.URL())}
	})
	awaitState(t, s, 2, "streaming")
	kept := s.post("/Patient", `{"resourceType":"Patient"}`).want(201)
	id := kept.str("id")
	s.create(`{"resourceType":"Patient"}`)
	standby.Follows(primary)
	standby.CutOff()
	lost := s.put("/Patient/"+id, `{"resourceType":"Patient","id":"`+id+`","active":true}`).want(200)
	page := s.do("GET", "/Patient?_count=1", "", "Cache-Control", "no-cache").want(200).link("next")
	primary.Stop()
	standby.Promote()
	eventually(t, "a write on the new primary", func() bool {
		a, err := s.try("POST", "/Patient", `{"resourceType":"Patient"}`)
		return err == nil && a.status == 201
	})
	const header = "X-Kiln-Position"
	s.do("GET", "/Patient/"+id, "", header, lost.header.Get(header)).issue(409, "conflict", header, "lost")
	s.do("PUT", "/Patient/"+id, `{"resourceType":"Patient","id":"`+id+`"}`, header, lost.header.Get(header)).issue(409, "conflict")
	a := s.do("GET", "/Patient/"+id, "", "Cookie", "kiln_position="+lost.header.Get(header)).want(200).equal("meta.versionId", "1")
	if c := a.header.Get("Set-Cookie"); !strings.HasPrefix(c, "kiln_position=") || strings.Contains(c, lost.header.Get(header)) {
		t.Errorf("the cookie of a lost write is replaced by %q", c)
	}
	s.get("/Patient/"+id).want(200).equal("meta.versionId", "1") // by caller
	s.do("GET", "/Patient/"+id, "", header, kept.header.Get(header)).want(200).equal("meta.versionId", "1")
	s.get(page[strings.LastIndex(page, "/Patient"):]).issue(409, "conflict", "_position")
	// Also while the old primary is back as a standby of the new one? It has to be made one by pg_rewind; as it is, it is not used.
	primary.Start()
	awaitState(t, s, 1, "primary")
	for range 5 {
		s.get("/Patient/"+id).want(200).equal("meta.versionId", "1")
	}
}

// TestCancelledQueriesGoToThePrimary has replay cancel queries of the replica: they are answered by the primary.
func TestCancelledQueriesGoToThePrimary(t *testing.T) {
	t.Parallel()
	primary := storetest.NewCluster(t)
	standby := primary.Standby("standby")
	s := startOn(t, primary.URL(), func(c *server.Config) { c.Database.ReadURLs = []string{standby.URL()} })
	for i := range 200 {
		s.create(fmt.Sprintf(`{"resourceType":"Patient","name":[{"family":"Family%d"}],"birthDate":"19%02d-01-01"}`, i%7, i%100))
	}
	standby.Follows(primary)
	// From here on replay also cancels the statements of a connection that begins.
	standby.Exec("kiln", "ALTER SYSTEM SET max_standby_streaming_delay = 0")
	standby.Exec("kiln", "SELECT pg_reload_conf()")
	awaitReplica(t, s, "streaming")
	var stop atomic.Bool
	var reading sync.WaitGroup
	defer reading.Wait()
	defer stop.Store(true)
	batch := `{"resourceType":"Bundle","type":"batch","entry":[{"request":{"method":"GET","url":"Patient?_sort=birthdate&_count=100"}},{"request":{"method":"GET","url":"Patient?name:contains=amily3"}}]}`
	for n := range 4 {
		reading.Go(func() {
			for !stop.Load() {
				method, path, body := "GET", "/Patient?name:contains=amily3&_sort=-birthdate", ""
				if n%2 == 1 {
					method, path, body = "POST", "/", batch
				}
				a, err := s.try(method, path, body)
				if err != nil || a.status != 200 || strings.Contains(string(a.body), `"status":"409`) || strings.Contains(string(a.body), `"status":"5`) {
					t.Errorf("a search on a replica whose queries are cancelled: %v %+v", err, a)
					return
				}
			}
		})
	}
	eventually(t, "a query was cancelled", func() bool {
		primary.Exec("kiln", "BEGIN; LOCK TABLE resource IN ACCESS EXCLUSIVE MODE; COMMIT")
		metrics := string(s.atRoot().get("/metrics").want(200).body)
		_, rest, _ := strings.Cut(metrics, `service_database_fallbacks_total{reason="conflict"} `)
		return t.Failed() || rest != "" && rest[0] != '0'
	})
}

// TestReadsDoNotGoBack has a standby show a commit that waits for another, synchronous standby on the primary. A read that saw
// it is not followed by one that does not.
func TestReadsDoNotGoBack(t *testing.T) {
	t.Parallel()
	s, primary, standby := replicated(t, func(c *server.Config) { c.Database.TimeoutSeconds = 3 })
	created := s.post("/Patient", `{"resourceType":"Patient"}`).want(201)
	id, before := created.str("id"), created.header.Get("X-Kiln-Position")
	standby.Follows(primary)
	primary.Exec("kiln", "ALTER SYSTEM SET synchronous_standby_names = 'absent'")
	primary.Exec("kiln", "SELECT pg_reload_conf()")
	primary.Await("SELECT current_setting('synchronous_standby_names') = 'absent'")
	written := make(chan *answer, 1)
	go func() {
		a, err := s.try("PUT", "/Patient/"+id, `{"resourceType":"Patient","id":"`+id+`","active":true}`)
		if err != nil {
			t.Error(err)
		}
		written <- a
	}()
	var position string
	eventually(t, "the replica shows the commit", func() bool {
		a := s.do("GET", "/Patient/"+id, "", "X-Kiln-Position", before).want(200)
		position = a.header.Get("X-Kiln-Position")
		return a.str("meta.versionId") == "2" && a.header.Get("X-Kiln-Source") == "replica-1"
	})
	// Another client's read of the primary does not show it yet, and need not.
	s.do("GET", "/Patient/"+id, "", "Cache-Control", "no-cache", "X-Kiln-Position", before).want(200).equal("meta.versionId", "1").has("X-Kiln-Source", "primary")
	for _, how := range [][]string{{"X-Kiln-Position", position}, {"Cookie", "kiln_position=" + position}, nil} {
		a := s.do("GET", "/Patient/"+id, "", append(how, "Cache-Control", "no-cache")...)
		if a.status != 503 && (a.status != 200 || a.str("meta.versionId") != "2") {
			t.Errorf("a read that had seen version 2 goes back with %v: %d %s", how, a.status, a.body)
		}
	}
	if a := <-written; a != nil && a.status != 503 {
		t.Errorf("a write without its synchronous standby: %d", a.status)
	}
	primary.Exec("kiln", "ALTER SYSTEM RESET synchronous_standby_names")
	primary.Exec("kiln", "SELECT pg_reload_conf()")
	eventually(t, "the primary shows the commit", func() bool {
		a := s.do("GET", "/Patient/"+id, "", "Cache-Control", "no-cache", "X-Kiln-Position", position)
		return a.status == http.StatusOK && a.str("meta.versionId") == "2"
	})
}

// TestWithoutReplicas: nothing of positions is there without standbys.
func TestWithoutReplicas(t *testing.T) {
	t.Parallel()
	s := start(t)
	a := s.post("/Patient", `{"resourceType":"Patient"}`).want(201)
	for _, a := range []*answer{a, s.get("/Patient/" + a.str("id")).want(200), s.do("GET", "/Patient", "", "X-Kiln-Position", "!").want(200)} {
		for _, name := range []string{"X-Kiln-Position", "X-Kiln-Source", "Set-Cookie"} {
			a.has(name, "")
		}
		if strings.Contains(string(a.body), "_position") {
			t.Errorf("a link has a position: %s", a.body)
		}
	}
	var h struct{ Database map[string]json.RawMessage }
	if err := json.Unmarshal(s.get("/health").want(200).body, &h); err != nil || string(h.Database["replicas"]) != "[]" {
		t.Errorf("replicas are %s, %v", h.Database["replicas"], err)
	}
}

package conformance

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"kiln/server"
	"kiln/server/store/storetest"
)

// replicated starts a primary with a standby, and a service on them.
func replicated(t *testing.T, change func(*server.Config)) (s *service, primary, standby *storetest.Instance) {
	t.Helper()
	primary = storetest.NewCluster(t)
	standby = primary.Standby("standby")
	first := startOn(t, primary.URL(), func(*server.Config) {}) // migrates
	first.get("/Patient").want(200)
	standby.Follows(primary)
	s = startOn(t, primary.URL(), func(c *server.Config) {
		c.Database.ReadURLs, c.Database.ReadWaitMS = []string{standby.URL()}, 1000 // a busy machine may be late
		if change != nil {
			change(c)
		}
	})
	awaitReplica(t, s, "streaming")
	return s, primary, standby
}

// awaitReplica waits until the first replica has a state.
func awaitReplica(t *testing.T, s *service, state string) {
	t.Helper()
	for deadline := time.Now().Add(20 * time.Second); ; {
		a, err := s.try("GET", "/health", "")
		if err == nil && strings.Contains(string(a.body), `"name":"replica-1","state":"`+state+`"`) {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("the replica is not %s: %s", state, a.body)
		}
		time.Sleep(20 * time.Millisecond)
	}
}

// source returns who has answered, after checking that the answer has a position.
func source(t *testing.T, a *answer) string {
	t.Helper()
	if a.header.Get("X-Kiln-Position") == "" {
		t.Errorf("no position: %v", a.header)
	}
	return a.header.Get("X-Kiln-Source")
}

// TestReadsOnAReplica reads what it has written: the replica answers every form of read, and the primary where the client asks
// for it, or the replica is not up.
func TestReadsOnAReplica(t *testing.T) {
	t.Parallel()
	s, primary, standby := replicated(t, nil)
	created := s.post("/Patient", `{"resourceType":"Patient","id":"p","active":true,"name":[{"family":"Chalmers"}]}`).want(201)
	id := created.str("id")
	if created.header.Get("X-Kiln-Source") != "" || created.header.Get("X-Kiln-Position") == "" {
		t.Errorf("a create answers with %v", created.header)
	}
	cookie := created.header.Get("Set-Cookie")
	if !strings.HasPrefix(cookie, "kiln_position=") || !strings.Contains(cookie, "; Path=/; HttpOnly; SameSite=Lax; Max-Age=300") {
		t.Errorf("the cookie of a create is %q", cookie)
	}
	standby.Follows(primary)
	for _, path := range []string{"/Patient/" + id, "/Patient/" + id + "/_history/1", "/Patient/" + id + "/_history", "/Patient/_history",
		"/Patient?family=chalmers", "/Patient?family=chalmers&_summary=count", "/Patient?name:contains=halm", "/Patient/" + id + "/$everything", "/Patient/" + id + "/Observation"} {
		a := s.get(path).want(200)
		if got := source(t, a); got != "replica-1" {
			t.Errorf("%s comes from %q", path, got)
		}
		if a.header.Get("Set-Cookie") != "" {
			t.Errorf("%s sets a cookie that the request did not have", path)
		}
	}
	if got := source(t, s.get("/Patient/nobody").want(404)); got != "replica-1" {
		t.Errorf("a 404 comes from %q", got)
	}
	batch := s.post("/", `{"resourceType":"Bundle","type":"batch","entry":[{"request":{"method":"GET","url":"Patient/`+id+`"}},{"request":{"method":"GET","url":"Patient?active=true"}}]}`).want(200)
	if got := source(t, batch); got != "replica-1" {
		t.Errorf("a batch of reads comes from %q", got)
	}
	fresh := s.do("GET", "/Patient/"+id, "", "Cache-Control", "no-cache").want(200)
	if got := source(t, fresh); got != "primary" {
		t.Errorf("no-cache comes from %q", got)
	}

	standby.Exec("kiln", "SELECT pg_wal_replay_pause()")
	standby.Await("SELECT pg_get_wal_replay_pause_state() = 'paused'")
	s.put("/Patient/"+id, `{"resourceType":"Patient","id":"`+id+`","active":false}`).want(200)
	a := s.get("/Patient/" + id).want(200)
	if got := source(t, a); got != "primary" || a.str("meta.versionId") != "2" {
		t.Errorf("a read after an own write comes from %q, with version %s", got, a.str("meta.versionId"))
	}
	other := s.do("GET", "/Patient/"+id, "", "X-Kiln-Position", created.header.Get("X-Kiln-Position")).want(200)
	if got := source(t, other); got != "replica-1" || other.str("meta.versionId") != "1" {
		t.Errorf("a read with an older position comes from %q, with version %s", got, other.str("meta.versionId"))
	}
	standby.Exec("kiln", "SELECT pg_wal_replay_resume()")

	standby.Stop()
	a = s.get("/Patient/" + id).want(200)
	if got := source(t, a); got != "primary" {
		t.Errorf("without the standby a read comes from %q", got)
	}
	awaitReplica(t, s, "unreachable")
	standby.Start()
	awaitReplica(t, s, "streaming")
}

// TestPositionsThatAreRefused sends positions of no database.
func TestPositionsThatAreRefused(t *testing.T) {
	t.Parallel()
	s, _, _ := replicated(t, nil)
	id := s.post("/Patient", `{"resourceType":"Patient"}`).want(201).str("id")
	a := s.do("GET", "/Patient/"+id, "", "X-Kiln-Position", "!").want(400)
	if !strings.Contains(string(a.body), "X-Kiln-Position") || !strings.Contains(string(a.body), `"invalid"`) {
		t.Errorf("a malformed position: %s", a.body)
	}
	present := s.get("/Patient/" + id).header.Get("X-Kiln-Position")
	epoch, _, _ := strings.Cut(present, ".")
	for _, lost := range []string{epoch + ".zzzzzzzzzzz", "1a2b3c4d5e6f.1"} {
		a = s.do("GET", "/Patient/"+id, "", "X-Kiln-Position", present+", "+lost).want(409)
		if !strings.Contains(string(a.body), `"conflict"`) {
			t.Errorf("a lost position: %s", a.body)
		}
		a = s.do("GET", "/Patient/"+id, "", "Cookie", "kiln_position="+lost).want(200)
		if c := a.header.Get("Set-Cookie"); !strings.HasPrefix(c, "kiln_position="+epoch+".") {
			t.Errorf("a lost cookie is replaced by %q", c)
		}
	}
	s.do("GET", "/Patient/"+id, "", "Cookie", "kiln_position=!").want(200)
}

// TestPageLinksHavePositions follows the links of a search and of a history.
func TestPageLinksHavePositions(t *testing.T) {
	t.Parallel()
	s, _, _ := replicated(t, nil)
	for i := range 5 {
		s.post("/Patient", fmt.Sprintf(`{"resourceType":"Patient","birthDate":"200%d-01-01"}`, i)).want(201)
	}
	for _, path := range []string{"/Patient?_count=2&_sort=birthdate", "/Patient/_history?_count=2"} {
		seen := 0
		for pages := 0; path != ""; pages++ {
			var b struct {
				Total int
				Link  []struct{ Relation, URL string }
				Entry []json.RawMessage
			}
			if err := json.Unmarshal(s.get(path).want(http.StatusOK).body, &b); err != nil || b.Total != 5 {
				t.Fatalf("%s: total %d, %v", path, b.Total, err)
			}
			seen += len(b.Entry)
			path = ""
			for _, l := range b.Link {
				if l.Relation == "next" {
					if !strings.Contains(l.URL, "_position=") {
						t.Errorf("the link %s has no position", l.URL)
					}
					path = l.URL[strings.LastIndex(l.URL, "/Patient"):]
				}
			}
		}
		if seen != 5 {
			t.Errorf("%d entries on all pages, want 5", seen)
		}
	}
}

// TestNewPartsOnAReplica announces parts of the index between two searches of a replica, and fills one. The second search
// asks it.
func TestNewPartsOnAReplica(t *testing.T) {
	t.Parallel()
	s, primary, standby := replicated(t, nil)
	const observation = `{"resourceType":"Observation","status":"final","code":{"text":"c"},"effectiveDateTime":"2020-05-05"}`
	s.create(observation)
	search := func(want string) {
		t.Helper()
		standby.Follows(primary)
		a := s.get("/Observation?date=ge2020").want(200).equal("total", want)
		if got := source(t, a); got != "replica-1" {
			t.Errorf("the search was answered by %q", got)
		}
	}
	search("1")
	primary.Exec("kiln", "UPDATE rid_next SET next = 7 << 20, usable = 8 << 20, announced = 8 << 20 WHERE typ = (SELECT typ FROM resource_type WHERE name = 'Observation')")
	startOn(t, primary.URL(), func(*server.Config) {}).create(observation) // s has surrogates of before
	search("2")
}

// TestReadsBesideAFullReplica has searches take all connections that they may have on a replica. Reads by id go on there.
func TestReadsBesideAFullReplica(t *testing.T) {
	t.Parallel()
	s, primary, standby := replicated(t, func(c *server.Config) { c.Database.ReadMaxConnections = 8 })
	id := s.create(`{"resourceType":"Patient"}`)
	standby.Follows(primary)
	s.get("/Patient/"+id).want(200).has("X-Kiln-Source", "replica-1")
	conn, err := pgx.Connect(t.Context(), primary.URL())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(context.Background())
	if _, err := conn.Exec(t.Context(), "BEGIN; LOCK TABLE index_string IN ACCESS EXCLUSIVE MODE"); err != nil {
		t.Fatal(err)
	}
	standby.Await("SELECT EXISTS (SELECT FROM pg_locks WHERE mode = 'AccessExclusiveLock' AND relation = 'index_string'::regclass)")
	var searching sync.WaitGroup
	for range 8 {
		searching.Go(func() {
			if a, err := s.try("GET", "/Patient?name:contains=halm", ""); err != nil || a.status != 200 {
				t.Errorf("a search that has waited: %v %+v", err, a)
			}
		})
	}
	waiting := "FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND query LIKE '%index_string%'"
	standby.Await("SELECT count(*) >= 5 " + waiting)
	primary.Await("SELECT EXISTS (SELECT " + waiting + ")") // a search that found no connection of the standby
	s.get("/Patient/"+id).want(200).has("X-Kiln-Source", "replica-1")
	if _, err := conn.Exec(t.Context(), "ROLLBACK"); err != nil {
		t.Error(err)
	}
	searching.Wait()
}

package conformance

import (
	"encoding/base64"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"kiln/server"
	"kiln/server/store/storetest"
)

// events are AuditEvents, at least as many as are wanted; they come soon. (The
// searches for them are recorded as well.)
func (s *service) events(query string, want int) *answer {
	s.t.Helper()
	for deadline := time.Now().Add(patience); ; time.Sleep(20 * time.Millisecond) {
		a := s.get("/AuditEvent?_sort=_lastUpdated&" + query)
		if a.len("entry") >= want && want > 0 || time.Now().After(deadline) {
			if got := a.len("entry"); got < want {
				s.t.Fatalf("%d AuditEvents for %s, want %d\n%s", got, query, want, clip(a.body))
			}
			return a
		}
		if want == 0 && time.Until(deadline) < patience-500*time.Millisecond {
			if got := a.len("entry"); got != 0 {
				s.t.Fatalf("%d AuditEvents for %s, want none\n%s", got, query, clip(a.body))
			}
			return a
		}
	}
}

// Operations, Audit: writes are recorded with themselves, reads with all, by the
// BALP patterns.
// Contract, Operations: audit: AuditEvent for each REST interaction by the BALP patterns, committed with the
// write it tells of; can't be changed or deleted through REST.
func TestAudit(t *testing.T) {
	t.Parallel()
	s := start(t, func(c *server.Config) { c.Audit.Rest = "all" })
	patient := s.create(`{"resourceType":"Patient","active":true}`)
	s.post("/Observation", `{"resourceType":"Observation","id":"x","status":"final","code":{"text":"c"},"subject":{"reference":"Patient/`+patient+`"}}`,
		"X-Request-Id", "req-7", "X-Purpose-Of-Use", "TREAT").want(201)
	t.Run("a write has its event at once, with who, what, patient, outcome, request id and purpose", func(t *testing.T) {
		a := s.in(t).get("/AuditEvent?subtype=create&patient=Patient/" + patient).want(200)
		if a.len("entry") != 2 {
			t.Fatalf("%d events, want 2\n%s", a.len("entry"), clip(a.body))
		}
		i := 0
		if a.str("entry.0.resource.entity.0.what.reference") == "Patient/"+patient {
			i = 1
		}
		at := fmt.Sprintf("entry.%d.resource.", i)
		a.equal(at+"type.code", "rest").equal(at+"subtype.0.code", "create").equal(at+"action", "C").equal(at+"outcome", "0").
			equal(at+"entity.0.role.code", "4").equal(at+"entity.1.what.reference", "Patient/"+patient).equal(at+"entity.1.role.code", "1").
			equal(at+"entity.2.what.identifier.value", "req-7").equal(at+"purposeOfEvent.0.coding.0.code", "TREAT").
			equal(at+"agent.0.type.coding.0.code", "110153").equal(at+"agent.1.type.coding.0.code", "110152").equal(at+"agent.0.network.address", "127.0.0.1")
	})
	t.Run("a read, a search with its query, a failure", func(t *testing.T) {
		s := s.in(t)
		s.get("/Patient/" + patient).want(200)
		s.events("subtype=read&action=R&patient=Patient/"+patient, 1)
		s.get("/Patient?name=nobody").want(200)
		want := base64.StdEncoding.EncodeToString([]byte("/Patient?name=nobody"))
		for deadline := time.Now().Add(patience); !strings.Contains(string(s.events("subtype=search-type&entity-role=24&_count=100", 1).body), want); {
			if time.Now().After(deadline) {
				t.Fatal("no event has the query")
			}
		}
		s.post("/Patient", `{"resourceType":"Patient","birthDate":"x"}`).want(422)
		s.events("subtype=create&outcome=4", 1)
	})
	t.Run("a transaction records each of its writes, and none when it fails", func(t *testing.T) {
		s := s.in(t)
		put := func(id, more string) string {
			return entry("PUT", "Basic/"+id, "", `{"resourceType":"Basic","id":"`+id+`","code":{"text":"c"}}`, more)
		}
		s.post("/", bundle("transaction", put("a", ""), put("b", ""))).want(200)
		s.events("subtype=update&entity=Basic/a", 1)
		s.events("subtype=update&entity=Basic/b", 1)
		s.post("/", bundle("transaction", put("c", ""), put("a", `,"ifMatch":"W/\"9\""`))).want(409)
		if n := s.get("/AuditEvent?entity=Basic/c").len("entry"); n != 0 {
			t.Errorf("%d events of a write that was undone", n)
		}
	})
	t.Run("AuditEvents can be neither changed nor deleted", func(t *testing.T) {
		s := s.in(t)
		id := s.get("/AuditEvent?subtype=create").str("entry.0.resource.id")
		s.do("DELETE", "/AuditEvent/"+id, "").issue(405, "not-supported", "AuditEvent")
		s.put("/AuditEvent/"+id, `{"resourceType":"AuditEvent","id":"`+id+`"}`).want(405)
		s.do("PATCH", "/AuditEvent/"+id, `[]`, "Content-Type", "application/json-patch+json").want(405)
		s.do("DELETE", "/AuditEvent?subtype=create", "").want(405)
		s.post("/", bundle("transaction", entry("DELETE", "AuditEvent/"+id, "", ""))).want(405)
		s.post("/", bundle("batch", entry("DELETE", "AuditEvent/"+id, "", ""))).want(200).equal("entry.0.response.status", "405 Method Not Allowed")
		s.get("/AuditEvent/" + id).want(200)
	})
	t.Run("what an administrator changes", func(t *testing.T) {
		s := s.in(t)
		s.do("PUT", s.root("/admin/config/search/default_count"), `7`, "X-Request-Id", "admin-1").want(200)
		a := s.events("subtype=configure", 1)
		a.equal("entry.0.resource.outcomeDesc", "configuration search.default_count: 7")
	})
}

// Contract, Operations: audit: `audit.rest`: `off`, `writes`, `all`; none lost at a clean end.
func TestAuditModes(t *testing.T) {
	t.Parallel()
	t.Run("writes", func(t *testing.T) {
		t.Parallel()
		s := start(t, func(c *server.Config) { c.Audit.Rest = "writes" })
		id := s.create(`{"resourceType":"Patient"}`)
		s.get("/Patient/" + id).want(200)
		for range 2 { // a search is none, by POST neither
			s.do("POST", "/Patient/_search", "_id="+id, "Content-Type", "application/x-www-form-urlencoded").want(200)
			s.do("POST", "/_search", "_id="+id, "Content-Type", "application/x-www-form-urlencoded").want(200)
		}
		s.create(`{"resourceType":"Patient"}`)
		s.events("subtype=create", 2)
		s.events("subtype=read", 0)
		s.events("action=E", 0)
	})
	t.Run("off", func(t *testing.T) {
		t.Parallel()
		s := start(t)
		s.create(`{"resourceType":"Patient"}`)
		s.events("", 0)
	})
	t.Run("nothing is lost at a clean end", func(t *testing.T) {
		t.Parallel()
		url := ""
		s := start(t, func(c *server.Config) { c.Audit.Rest, url = "all", c.Database.URL })
		for range 100 {
			s.get("/Patient/x").want(404)
		}
		s.stop()
		again := startOn(t, url)
		if n := again.get("/AuditEvent?subtype=read&_summary=count").str("total"); n != "100" {
			t.Errorf("%s events of 100 reads", n)
		}
	})
}

// Operations, Audit: reads in groups off the request path, none lost at a clean end. Many
// reads at a time are kept together first, and made AuditEvents when there is time: each
// becomes one, with its patient.
func TestAuditOfManyReads(t *testing.T) {
	t.Parallel()
	url := storetest.New(t)
	s := startOn(t, url, func(c *server.Config) { c.Audit.Rest = "all" })
	s.stores(`{"resourceType":"Patient","id":"p"}`, `{"resourceType":"Observation","id":"o","status":"final","code":{"text":"c"},"subject":{"reference":"Patient/p"}}`)
	const each, readers = 250, 12
	var all sync.WaitGroup
	for range readers {
		all.Go(func() {
			for range each {
				if a, err := s.try("GET", "/Observation/o", ""); err != nil || a.status != 200 {
					t.Errorf("read: %v %v", a, err)
					return
				}
			}
		})
	}
	all.Wait()
	s.stop()
	again := startOn(t, url)
	want := strconv.Itoa(each * readers)
	eventually(t, want+" AuditEvents of "+want+" reads", func() bool {
		return again.get("/AuditEvent?subtype=read&patient=Patient/p&_summary=count").want(200).str("total") == want
	})
}

// Other servers make AuditEvents of the pending events of a server that has ended, each once.
func TestAuditThatWasKept(t *testing.T) {
	t.Parallel()
	url := storetest.New(t)
	first := startOn(t, url, func(c *server.Config) { c.Audit.Rest = "writes" })
	first.stores(`{"resourceType":"Patient","id":"p"}`, `{"resourceType":"Observation","id":"o","status":"final","code":{"text":"c"},"subject":{"reference":"Patient/p"}}`)
	second := startOn(t, url)
	conn, err := pgx.Connect(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(t.Context())
	const groups = 40
	for i := range groups {
		kept := fmt.Sprintf(`[{"t":1700000000000,"e":{"i":"read","a":"R","o":"0","r":"Observation/o","v":1,"x":"req-%d"}},
			{"b":{"resourceType":"AuditEvent","type":{"system":"urn:x","code":"whole"},"recorded":"2024-01-01T00:00:00Z","outcome":"0","agent":[{"requestor":true}],"source":{"observer":{"display":"x"}}}}]`, i)
		if _, err := conn.Exec(t.Context(), "INSERT INTO audit_pending (events) VALUES ($1)", []byte(kept)); err != nil {
			t.Fatal(err)
		}
	}
	want := strconv.Itoa(groups)
	eventually(t, "AuditEvents of every kept event", func() bool {
		var left int
		return conn.QueryRow(t.Context(), "SELECT count(*) FROM audit_pending").Scan(&left) == nil && left == 0
	})
	second.get("/AuditEvent?subtype=read&patient=Patient/p&_summary=count").want(200).equal("total", want)
	second.get("/AuditEvent?type=urn:x|whole&_summary=count").want(200).equal("total", want)
	a := first.get("/AuditEvent?subtype=read&_count=1").want(200)
	a.equal("entry.0.resource.recorded", "2023-11-14T22:13:20.000Z")
}

// Contract, Operations: audit: AuditEvent for each write, committed with the write it tells
// of: once a write is answered, a search on any server finds its AuditEvent, one, with the
// patient; after a server that ended in the middle too.
func TestAuditOfManyWrites(t *testing.T) {
	t.Parallel()
	url := storetest.New(t)
	writes := func(c *server.Config) { c.Audit.Rest = "writes" }
	one, two := startOn(t, url, writes), startOn(t, url, writes)
	one.stores(`{"resourceType":"Patient","id":"p"}`)
	const each, writers = 12, 8
	var all sync.WaitGroup
	for w := range writers {
		all.Go(func() {
			for i := range each {
				id := fmt.Sprintf("w%d-%d", w, i)
				body := `{"resourceType":"Observation","id":"` + id + `","status":"final","code":{"text":"c"},"subject":{"reference":"Patient/p"}}`
				if a, err := one.try("PUT", "/Observation/"+id, body); err != nil || a.status != 201 {
					t.Errorf("write: %v %v", a, err)
					return
				}
				a, err := two.try("GET", "/AuditEvent?subtype=update&patient=Patient/p&entity=Observation/"+id, "")
				if err != nil || a.status != 200 || a.total() != "1" {
					t.Errorf("%s is answered, and the other server finds: %v %v", id, a, err)
					return
				}
			}
		})
	}
	all.Wait()
	total := func(s *service, query string) string {
		return s.get("/AuditEvent?_summary=count&" + query).want(200).total()
	}
	if got := total(one, "subtype=update&entity:missing=false"); got != strconv.Itoa(each*writers+1) {
		t.Errorf("%s AuditEvents of %d updates", got, each*writers+1)
	}
	one.do("PATCH", "/Observation/w0-0", `[{"op":"add","path":"/language","value":"en"}]`, "Content-Type", "application/json-patch+json").want(200)
	one.do("DELETE", "/Observation/w0-1", "").want(204)
	var entries []string
	for i := range 40 {
		entries = append(entries, entry("POST", "Observation", "", fmt.Sprintf(`{"resourceType":"Observation","status":"final","code":{"text":"t%d"},"subject":{"reference":"Patient/p"}}`, i)))
	}
	one.post("/", bundle("transaction", entries...)).want(200)
	one.stop()
	for query, want := range map[string]string{"subtype=patch&entity=Observation/w0-0": "1", "subtype=delete&entity=Observation/w0-1": "1", "subtype=create": "40"} {
		if got := total(two, query+"&patient=Patient/p"); got != want {
			t.Errorf("%s AuditEvents with the patient for %s, want %s", got, query, want)
		}
	}
	// What else could find them waits too.
	two.put("/Observation/last", `{"resourceType":"Observation","id":"last","status":"final","code":{"text":"c"},"subject":{"reference":"Patient/p"}}`).want(201)
	if got := two.get("/Observation?_id=last&_revinclude=AuditEvent:entity").want(200).named("include"); len(got) != 1 {
		t.Errorf("_revinclude: %v", got)
	}
}

// Contract, Operations: audit: `writes` by default with authorization on, `off` without.
func TestAuditByDefault(t *testing.T) {
	t.Parallel()
	s := withAuthorization(t)
	app := s.bearer(s.backendToken("backend", "system/*.cruds"))
	app.post("/Patient", `{"resourceType":"Patient"}`).want(201)
	app.get("/Patient/a").want(200)
	a := app.get("/AuditEvent?subtype=create&entity-role=4").want(200).equal("total", "1")
	a.equal("entry.0.resource.agent.0.who.identifier.value", "backend").equal("entry.0.resource.agent.0.requestor", "true")
	app.get("/AuditEvent?subtype=read").want(200).equal("total", "0")
}

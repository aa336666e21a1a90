package conformance

import (
	"encoding/base64"
	"fmt"
	"strings"
	"testing"
	"time"

	"kiln/server"
)

// events are AuditEvents, at least as many as are wanted; they come soon. (The
// searches for them are recorded as well.)
func (s *service) events(query string, want int) *answer {
	s.t.Helper()
	for deadline := time.Now().Add(5 * time.Second); ; time.Sleep(20 * time.Millisecond) {
		a := s.get("/AuditEvent?_sort=_lastUpdated&" + query)
		if a.len("entry") >= want && want > 0 || time.Now().After(deadline) {
			if got := a.len("entry"); got < want {
				s.t.Fatalf("%d AuditEvents for %s, want %d\n%s", got, query, want, clip(a.body))
			}
			return a
		}
		if want == 0 && time.Until(deadline) < 4500*time.Millisecond {
			if got := a.len("entry"); got != 0 {
				s.t.Fatalf("%d AuditEvents for %s, want none\n%s", got, query, clip(a.body))
			}
			return a
		}
	}
}

// Operations, Audit: writes are recorded with themselves, reads with all, by the
// BALP patterns.
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
		for deadline := time.Now().Add(5 * time.Second); !strings.Contains(string(s.events("subtype=search-type&entity-role=24&_count=100", 1).body), want); {
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

func TestAuditModes(t *testing.T) {
	t.Parallel()
	t.Run("writes", func(t *testing.T) {
		t.Parallel()
		s := start(t, func(c *server.Config) { c.Audit.Rest = "writes" })
		id := s.create(`{"resourceType":"Patient"}`)
		s.get("/Patient/" + id).want(200)
		s.events("subtype=create", 1)
		s.events("subtype=read", 0)
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

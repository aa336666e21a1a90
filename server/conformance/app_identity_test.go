package conformance

import (
	"fmt"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"

	"kiln/server"
)

// The contract, Apps section 5: a pending delivery belongs to its subscription by identity, not by position.
func TestPendingEventsFollowTheirSubscription(t *testing.T) {
	first, second := newReceiver(t), newReceiver(t)
	var healthy atomic.Bool
	first.says(func(_ delivery, w http.ResponseWriter) {
		if !healthy.Load() {
			w.WriteHeader(500)
		}
	})
	s := start(t)
	sub := func(name, typ, url string) string {
		return fmt.Sprintf(`{%s"resourceType":%q,"events":["create"],"handler":{"type":"webhook","url":%q,"retryPolicy":{"maxRetries":20,"backoffSeconds":[1]}}}`, name, typ, url)
	}
	whole := func(subs ...string) string {
		return `{"resourceType":"App","id":"w","name":"w","status":"active","version":"1.0.0","subscriptions":[` + strings.Join(subs, ",") + `]}`
	}
	a, b := sub("", "Patient", first.url), sub("", "Group", second.url)
	s.put("/App/w", whole(a, b)).want(201)
	s.put("/Patient/p", `{"resourceType":"Patient","id":"p"}`).want(201)
	was := first.next()
	s.put("/App/w", whole(b, a)).want(200) // another order
	healthy.Store(true)
	if d := first.next(); d.json["id"] != was.json["id"] || d.json["subscription"] != was.json["subscription"] {
		t.Errorf("the next attempt is %s", d.body)
	}
	s.put("/Group/g", `{"resourceType":"Group","id":"g","type":"person","actual":true}`).want(201)
	if d := second.next(); d.json["resourceId"] != "g" {
		t.Errorf("the other subscription got %s", d.body)
	}
	// A subscription that is gone leaves a dead letter with the reason.
	healthy.Store(false)
	s.put("/Patient/q", `{"resourceType":"Patient","id":"q"}`).want(201)
	for first.next().json["resourceId"] != "q" {
	}
	s.put("/App/w", whole(b)).want(200)
	comes(t, "the dead letter", func() bool {
		list := s.deliveries("?subscription=App/w/0&status=failed")
		return len(list) == 1 && strings.Contains(lastError(list[0]), "no longer has this subscription")
	})
	// One with a name keeps its events whatever else of it changes.
	healthy.Store(false)
	s.put("/App/w", whole(b, sub(`"name":"mine",`, "Patient", first.url))).want(200)
	s.put("/Patient/r", `{"resourceType":"Patient","id":"r"}`).want(201)
	for first.next().json["resourceId"] != "r" {
	}
	s.put("/App/w", whole(sub(`"name":"mine",`, "Patient", second.url), b)).want(200)
	if d := second.next(); d.json["resourceId"] != "r" {
		t.Errorf("the changed subscription got %s", d.body)
	}
	s.put("/App/w", whole(sub(`"name":"mine",`, "Patient", first.url), sub(`"name":"mine",`, "Group", first.url))).issue(422, "invalid", "mine")
}

// The contract, Apps section 5: every write of an App is recorded with the App as agent.
func TestWritesOfAppsAreRecorded(t *testing.T) {
	for _, mode := range []string{"off", "writes"} {
		t.Run(mode, func(t *testing.T) {
			s := start(t, func(c *server.Config) { c.Audit.Rest = mode })
			s.put("/App/w", `{"resourceType":"App","id":"w","name":"w","status":"active","version":"1.0.0","operations":[
				{"type":"execute","resourceType":"Patient","name":"note","handler":`+script(`async (c) => { const b = await fhir.create({resourceType: "Basic", code: {text: "o"}}); await fhir.update({...b, code: {text: "p"}}); await fhir.delete("Basic", b.id); return {id: b.id} }`)+`}],
				"subscriptions":[{"resourceType":"Patient","events":["create"],"handler":`+script(`async (c) => { await fhir.create({resourceType: "Basic", code: {text: "e"}, subject: {reference: "Patient/" + c.resourceId}}) }`)+`}]}`).want(201)
			id := s.post("/Patient/$note", "").want(200).str("id")
			for _, action := range []string{"C", "U", "D"} {
				found := s.get("/AuditEvent?entity=Basic/"+id+"&action="+action).want(200).equal("total", "1")
				if !strings.Contains(string(found.body), `"reference":"App/w"`) {
					t.Errorf("%s of an operation: %s", action, found.body)
				}
			}
			s.put("/Patient/p", `{"resourceType":"Patient","id":"p"}`).want(201)
			var written string
			comes(t, "what the event wrote", func() bool {
				written = s.get("/Basic?subject=Patient/p").want(200).str("entry.0.resource.id")
				return written != ""
			})
			found := s.get("/AuditEvent?entity=Basic/"+written).want(200).equal("total", "1").equal("entry.0.resource.action", "C").equal("entry.0.resource.outcome", "0")
			if !strings.Contains(string(found.body), `"reference":"App/w"`) || !strings.Contains(string(found.body), `"reference":"Patient/p"`) {
				t.Errorf("of an event: %s", found.body)
			}
			// A dry run writes nothing and records nothing.
			before := s.get("/AuditEvent?agent=App/w&subtype=create&_summary=count").want(200).str("total")
			s.admin("POST", "/admin/apps/w/replay", `{"subscription":0,"since":"2020-01-01T00:00:00Z"}`).want(200).equal("events.0.writes.0.function", "create")
			s.get("/AuditEvent?agent=App/w&subtype=create&_summary=count").want(200).equal("total", before)
		})
	}
}

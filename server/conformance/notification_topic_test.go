package conformance

import (
	"fmt"
	"strings"
	"testing"

	"kiln/server"
)

const backportIG = "http://hl7.org/fhir/uv/subscriptions-backport/StructureDefinition/"

// backportSubscription is in the Backport IG's form, with whole resources.
func backportSubscription(topic, endpoint string) string {
	return fmt.Sprintf(`{"resourceType":"Subscription","status":"requested","reason":"r","criteria":%q,"channel":{"type":"rest-hook","endpoint":%q,"payload":"application/fhir+json",
		"_payload":{"extension":[{"url":"%sbackport-payload-content","valueCode":"full-resource"}]}}}`, topic, endpoint, backportIG)
}

// Contract, Notifications 2: a SubscriptionTopic that could not be carried out is a 422 in the words of
// a search when it is written, not when somebody subscribes.
func TestTopicsAreChecked(t *testing.T) {
	t.Parallel()
	s := start(t)
	topic := func(rest string) string {
		return `{"resourceType":"SubscriptionTopic","url":"http://example.org/t","status":"active",` + rest + `}`
	}
	for _, c := range []struct{ rest, code, want string }{
		{`"resourceTrigger":[{"resource":"Nope"}]`, "not-supported", `no resource type \"Nope\"`},
		{`"resourceTrigger":[{"resource":"Encounter","queryCriteria":{"current":"foo=1"}}]`, "not-supported", `unknown search parameter \"foo\"`},
		{`"resourceTrigger":[{"resource":"Encounter","queryCriteria":{"previous":"date=never"}}]`, "invalid", "parameter date"},
		{`"resourceTrigger":[{"resource":"Encounter","fhirPathCriteria":"((("}]`, "invalid", "column 4"},
		{`"resourceTrigger":[{"resource":"Encounter","supportedInteraction":["read"]}]`, "invalid", "no event"},
		{`"resourceTrigger":[{"resource":"Encounter"}],"notificationShape":[{"resource":"Encounter","include":["nonsense"]}]`, "invalid", "nonsense"},
		{`"resourceTrigger":[{"resource":"Encounter"}],"notificationShape":[{"resource":"Nope"}]`, "not-supported", "Nope"},
	} {
		s.post("/SubscriptionTopic", topic(c.rest)).issue(422, c.code)
		if a := s.post("/SubscriptionTopic", topic(c.rest)); !strings.Contains(string(a.body), c.want) || !strings.Contains(a.str("issue.0.expression.0"), "SubscriptionTopic.") {
			t.Errorf("%s: %s, want %q", c.rest, a.body, c.want)
		}
	}
	s.put("/SubscriptionTopic/x", strings.Replace(topic(`"resourceTrigger":[{"resource":"Encounter"}]`), `{`, `{"id":"x",`, 1)).want(201)
	s.do("PATCH", "/SubscriptionTopic/x", `[{"op":"replace","path":"/resourceTrigger/0/resource","value":"Nope"}]`, "Content-Type", "application/json-patch+json").issue(422, "not-supported")
	s.do("PATCH", "/SubscriptionTopic/x", `[{"op":"replace","path":"/status","value":"retired"}]`, "Content-Type", "application/json-patch+json").want(200)
	s.post("/", `{"resourceType":"Bundle","type":"transaction","entry":[{"resource":`+topic(`"resourceTrigger":[{"resource":"Nope"}]`)+
		`,"request":{"method":"POST","url":"SubscriptionTopic"}}]}`).issue(422, "not-supported", "Nope")
	s.post("/SubscriptionTopic", strings.Replace(topic(`"resourceTrigger":[{"resource":"Nope"}]`), "active", "retired", 1)).want(201)
}

// Contract, Notifications 2, access: resources added by a topic's notificationShape must be readable by the owner. The
// Bundle is FHIR: its fullUrls are absolute, also without server.base_url.
func TestShapeIsForTheOwner(t *testing.T) {
	t.Parallel()
	s := authorized(t, notifying, func(c *server.Config) { c.Notifications.Webhook.AllowPrivateNetworks = "true" })
	admin := s.as(claims{Subject: "root", Client: "root", Scope: "admin system/*.cruds"})
	admin.post("/SubscriptionTopic", `{"resourceType":"SubscriptionTopic","url":"http://example.org/shape","status":"active","resourceTrigger":[{"resource":"Encounter"}],
		"notificationShape":[{"resource":"Encounter","include":["Encounter:patient"],"revInclude":["Observation:encounter"]}]}`).want(201)
	admin.put("/Patient/p", `{"resourceType":"Patient","id":"p","name":[{"family":"Hidden"}]}`).want(201)
	narrow, wide := newReceiver(t), newReceiver(t)
	for r, scope := range map[*receiver]string{narrow: "system/Subscription.cr system/Encounter.rs", wide: "system/*.cruds"} {
		id := s.as(claims{Subject: scope, Client: scope, Scope: scope}).post("/Subscription", backportSubscription("http://example.org/shape", r.url)).want(201).str("id")
		r.any()
		admin.awaitStatus(id, "active")
	}
	admin.put("/Encounter/e", `{"resourceType":"Encounter","id":"e","status":"planned","class":{"code":"AMB"},"subject":{"reference":"Patient/p"}}`).want(201)
	for r, want := range map[*receiver]int{narrow: 2, wide: 3} {
		d := r.next()
		list, _ := d.json["entry"].([]any)
		if len(list) != want || strings.Contains(string(d.body), "Hidden") != (want == 3) {
			t.Errorf("%d entries, want %d: %s", len(list), want, d.body)
		}
		for _, e := range list {
			if at, _ := e.(map[string]any)["fullUrl"].(string); !strings.HasPrefix(at, "http://") && !strings.HasPrefix(at, "urn:uuid:") {
				t.Errorf("fullUrl %q is not absolute", at)
			}
		}
		admin.post("/Bundle/$validate", string(d.body)).want(200)
		if a := admin.post("/Bundle/$validate", string(d.body)); strings.Contains(string(a.body), `"severity": "error"`) || strings.Contains(string(a.body), `"severity":"error"`) {
			t.Errorf("the Bundle is no FHIR: %s", a.body)
		}
	}
}

// Contract, Notifications 5 and 6: a cursor of events that have not been is of another database, and is
// refused instead of waiting for ever.
func TestCursorOfAnotherDatabase(t *testing.T) {
	t.Parallel()
	s := start(t, notifying)
	e := s.stream("/Patient/$events")
	s.do("POST", "/Patient", patient("one")).want(201)
	last := e.next().id
	s.stream("/Patient/$events", "Last-Event-ID", last)
	for _, c := range []string{"f" + last[1:], "AAAB" + last[4:]} {
		s.do("GET", "/Patient/$events", "", "Last-Event-ID", c).issue(410, "deleted", "")
		w := s.socket("")
		w.send(`{"type":"subscribe","resourceType":"Patient","since":"` + c + `"}`)
		if m := w.json(); m["type"] != "error" || m["code"] != "deleted" {
			t.Errorf("%v", m)
		}
	}
}

// Contract, Notifications 4 and 6: $events-history and $test answer in the requested format, and reject unsupported
// requests before they act.
func TestNotificationOperationsNegotiate(t *testing.T) {
	t.Parallel()
	s, r := start(t, quick), newReceiver(t)
	id := s.subscribe(subscription("Patient?", r.url))
	r.any()
	for path, method := range map[string]string{"/Patient/$events-history": "GET", "/Subscription/" + id + "/$test": "POST"} {
		s.do(method, path, "", "Accept", "application/fhir+xml").issue(406, "not-supported")
		s.do(method, path+"?_format=xml", "").issue(406, "not-supported")
		s.do(method, path, "", "Accept", "application/json").want(200).has("Content-Type", "application/json; charset=utf-8")
		s.do(method, path, "").want(200).has("Content-Type", "application/fhir+json; charset=utf-8")
	}
	if len(r.got) != 2 {
		t.Errorf("%d tests were sent, want 2", len(r.got))
	}
}

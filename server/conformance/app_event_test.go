package conformance

import (
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"kiln/server"
)

// eventApp is an active App with one subscription: filter and handler are JSON, filter may
// be "".
func eventApp(id, typ, events, filter, handler string) string {
	if filter != "" {
		filter = `,"filter":` + filter
	}
	return fmt.Sprintf(`{"resourceType":"App","id":%q,"name":%q,"status":"active","version":"1.0.0","subscriptions":[{"resourceType":%q,"events":[%s]%s,"handler":%s}]}`,
		id, id, typ, events, filter, handler)
}

// script is a javascript handler.
func script(code string, more ...string) string {
	text, _ := json.Marshal(code)
	return `{"type":"javascript","code":` + string(text) + strings.Join(more, "") + `}`
}

// comes waits until f returns true.
func comes(t testing.TB, what string, f func() bool) {
	t.Helper()
	for deadline := time.Now().Add(patience); !f(); {
		if time.Now().After(deadline) {
			t.Fatalf("%s did not come", what)
		}
		time.Sleep(20 * time.Millisecond)
	}
}

// invocations are the entries of an App's log.
func (s *service) invocations(app, query string) []map[string]any {
	s.t.Helper()
	var out []map[string]any
	list, _ := s.get("/App/" + app + "/$log" + query).want(200).at("invocations").([]any)
	for _, one := range list {
		out = append(out, one.(map[string]any))
	}
	return out
}

// The contract, Apps section 5: webhook handlers get the Notification message and the App,
// signed as webhooks of Subscriptions are.
func TestAppEventsByWebhook(t *testing.T) {
	r := newReceiver(t)
	s := start(t, func(c *server.Config) { c.Notifications.Webhook.SigningSecret = "sssh" })
	s.put("/App/w", eventApp("w", "Observation", `"create","update","delete"`, `{"status":"final","value":{"gt":100}}`,
		`{"type":"webhook","url":"`+r.url+`/w","headers":{"X-Own":"${secret:KEY}"}}`)).want(201)
	s.do("PUT", strings.TrimSuffix(s.base, "/fhir")+"/admin/apps/w/secrets/KEY", `{"value":"the key"}`, "Content-Type", "application/json").want(204)
	observation := func(id, status string, value int) string {
		return fmt.Sprintf(`{"resourceType":"Observation","id":%q,"status":%q,"code":{"text":"x"},"valueQuantity":{"value":%d}}`, id, status, value)
	}
	s.put("/Observation/low", observation("low", "final", 99)).want(201)
	s.put("/Observation/a", observation("a", "final", 120)).want(201)
	d := r.next()
	for path, want := range map[string]string{"event": "create", "resourceType": "Observation", "resourceId": "a", "versionId": "1", "subscription": "App/w/0"} {
		if got := fmt.Sprint(d.json[path]); got != want {
			t.Errorf("%s is %q, want %q", path, got, want)
		}
	}
	if app, _ := d.json["app"].(map[string]any); app["id"] != "w" || app["version"] != "1.0.0" {
		t.Errorf("app is %v", d.json["app"])
	}
	if d.json["resource"] == nil || d.header.Get("X-Notification-Id") != d.json["id"] || d.header.Get("X-Subscription-Id") != "App/w/0" || d.header.Get("X-Own") != "the key" ||
		!strings.HasPrefix(d.header.Get("X-Signature"), "sha256=") || d.header.Get("Webhook-Signature") == "" {
		t.Errorf("the message is %v %s", d.header, d.body)
	}
	s.put("/Observation/a", observation("a", "final", 130)).want(200)
	if d := r.next(); d.json["event"] != "update" || d.json["versionId"] != "2" {
		t.Errorf("the update is %s", d.body)
	}
	s.put("/Observation/a", observation("a", "amended", 130)).want(200) // does not pass
	s.put("/Observation/a", observation("a", "final", 131)).want(200)
	if d := r.next(); d.json["versionId"] != "4" {
		t.Errorf("the next is %s", d.body)
	}
	s.do("DELETE", "/Observation/a", "").want(204)
	if d := r.next(); d.json["event"] != "delete" || d.json["versionId"] != "5" || d.json["resource"] != nil {
		t.Errorf("the deletion is %s", d.body)
	}
	// The log and the AuditEvents equal those of Subscriptions.
	comes(t, "the delivery", func() bool {
		return s.get(strings.TrimSuffix(s.base, "/fhir")+"/admin/notifications/deliveries?subscription=App/w/0&status=delivered").want(200).str("deliveries.0.event") == "delete"
	})
	comes(t, "the AuditEvent", func() bool {
		return s.get("/AuditEvent?entity=App/w&subtype=notification").want(200).str("total") != "0"
	})
	// An App that is not active is told nothing.
	s.put("/App/w", strings.Replace(eventApp("w", "Observation", `"create"`, "", `{"type":"webhook","url":"`+r.url+`/w"}`), `"active"`, `"inactive"`, 1)).want(200)
	s.put("/Observation/b", observation("b", "final", 120)).want(201)
	s.put("/App/w", eventApp("w", "Patient", `"create"`, "", `{"type":"http","url":"`+r.url+`/w","method":"PUT"}`)).want(200)
	s.put("/Patient/p", `{"resourceType":"Patient","id":"p"}`).want(201)
	if d := r.next(); d.json["resourceId"] != "p" {
		t.Errorf("after the change came %s", d.body)
	}
}

// The contract, Apps section 5: retryPolicy, dead letters and redelivery.
func TestAppEventsAreRetried(t *testing.T) {
	r := newReceiver(t)
	var calls atomic.Int32
	r.says(func(_ delivery, w http.ResponseWriter) {
		if calls.Add(1) <= 3 {
			w.WriteHeader(500)
		}
	})
	s := start(t)
	s.put("/App/w", eventApp("w", "Patient", `"create"`, "", `{"type":"webhook","url":"`+r.url+`","retryPolicy":{"maxRetries":2,"backoffSeconds":[0]}}`)).want(201)
	s.put("/Patient/p", `{"resourceType":"Patient","id":"p"}`).want(201)
	first := r.next()
	for range 2 {
		if d := r.next(); d.header.Get("X-Notification-Id") != first.header.Get("X-Notification-Id") {
			t.Error("another attempt has another id")
		}
	}
	admin := strings.TrimSuffix(s.base, "/fhir") + "/admin/notifications/"
	comes(t, "the dead letter", func() bool {
		return s.get(admin+"deliveries?subscription=App/w/0&status=failed").want(200).len("deliveries") == 1
	})
	comes(t, "the line of the dead letter", func() bool {
		return strings.Contains(fmt.Sprint(s.invocations("w", "?level=error")), "given up after 3 attempts")
	})
	// Each run is one invocation: the last one tells that it was given up.
	runs := s.invocations("w", "")
	if len(runs) != 3 {
		t.Errorf("%d invocations of 3 attempts: %v", len(runs), runs)
	}
	for i, run := range runs {
		if last := strings.Contains(fmt.Sprint(run), "given up"); last != (i == 0) || run["outcome"] != "error" || run["durationMs"] == json.Number("0") {
			t.Errorf("invocation %d, newest first: %v", i, run)
		}
	}
	if a := s.do("POST", admin+"dead-letters/redeliver?subscription=App/w/0", ""); a.status >= 300 {
		t.Fatalf("redeliver: %d %s", a.status, a.body)
	}
	if d := r.next(); d.header.Get("X-Notification-Id") != first.header.Get("X-Notification-Id") {
		t.Error("the redelivery has another id")
	}
}

// The contract, Apps section 5: javascript and internal handlers get the context with event
// and previous, and may write.
func TestAppEventsInJavaScript(t *testing.T) {
	s := start(t)
	s.put("/App/j", eventApp("j", "Patient", `"create","update","delete"`, "", script(`async (c) => {
		console.log(c.event, c.resourceId, c.versionId);
		await fhir.create({resourceType: "Basic", code: {text: [c.event, c.resource ? c.resource.gender : "none", c.previous ? c.previous.gender : "none", c.app.id].join(" ")}});
	}`))).want(201)
	s.put("/Patient/p", `{"resourceType":"Patient","id":"p","gender":"female"}`).want(201)
	s.put("/Patient/p", `{"resourceType":"Patient","id":"p","gender":"other"}`).want(200)
	s.do("DELETE", "/Patient/p", "").want(204)
	for _, text := range []string{"create female none j", "update other female j", "delete none other j"} {
		comes(t, text, func() bool {
			return s.get("/Basic?code:text="+strings.ReplaceAll(text, " ", "%20")).want(200).str("total") == "1"
		})
	}
	comes(t, "the log", func() bool { return len(s.invocations("j", "")) == 3 })
	log := s.invocations("j", "")
	if last := log[0]; last["subscription"] != "App/j/0" || last["outcome"] != "ok" || last["resourceId"] != "p" || last["lines"].([]any)[0].(map[string]any)["text"] != "delete p 3" {
		t.Errorf("the log is %v", log)
	}

	// internal, with parameters in the url.
	s.put("/App/i", eventApp("i", "Patient", `"create"`, "", `{"type":"internal","url":"internal:notify?recipients=anna&message=a+new+patient"}`)).want(201)
	s.put("/Patient/q", `{"resourceType":"Patient","id":"q"}`).want(201)
	comes(t, "the internal handler", func() bool {
		log := s.invocations("i", "")
		return len(log) == 1 && log[0]["outcome"] == "ok" && fmt.Sprint(log[0]["status"]) == "202"
	})
}

// The contract, Apps section 5: an App's own writes do not call it again, unless recursive;
// a chain of Apps is cut at depth 8 and told in the log.
func TestAppEventsDoNotRunInCircles(t *testing.T) {
	s := start(t)
	enrich := `async (c) => { await fhir.update({...c.resource, active: true, meta: undefined, name: [...(c.resource.name || []), {family: c.app.id}]}) }`
	s.put("/App/once", eventApp("once", "Patient", `"create","update"`, "", script(enrich))).want(201)
	s.put("/Patient/p", `{"resourceType":"Patient","id":"p"}`).want(201)
	comes(t, "the enrichment", func() bool { return s.get("/Patient/p").want(200).str("active") == "true" })
	// Another event behind it shows that the first one ended there.
	s.put("/Patient/q", `{"resourceType":"Patient","id":"q"}`).want(201)
	comes(t, "the second enrichment", func() bool { return s.get("/Patient/q").want(200).str("active") == "true" })
	s.get("/Patient/p").want(200).equal("meta.versionId", "2")
	s.do("DELETE", "/App/once", "").want(204)

	for _, id := range []string{"ping", "pong"} {
		s.put("/App/"+id, eventApp(id, "Group", `"create","update"`, "",
			script(`async (c) => { await fhir.update({...c.resource, meta: undefined, quantity: (c.resource.quantity || 0) + 1}) }`))).want(201)
	}
	s.put("/Group/g", `{"resourceType":"Group","id":"g","type":"person","actual":true}`).want(201)
	comes(t, "the cut", func() bool {
		return strings.Contains(fmt.Sprint(s.invocations("ping", "?level=error"), s.invocations("pong", "?level=error")), "chain is cut")
	})
	s.do("DELETE", "/App/ping", "").want(204)
	s.do("DELETE", "/App/pong", "").want(204)

	s.put("/App/again", eventApp("again", "Group", `"create","update"`, "",
		script(`async (c) => { await fhir.update({...c.resource, meta: undefined, quantity: (c.resource.quantity || 0) + 1}) }`, `,"recursive":true`))).want(201)
	s.put("/Group/h", `{"resourceType":"Group","id":"h","type":"person","actual":true}`).want(201)
	comes(t, "the cut of a recursive App", func() bool {
		// The end of the chain of Group/g may reach it too.
		return slices.ContainsFunc(s.invocations("again", "?level=error"), func(i map[string]any) bool {
			return i["resourceId"] == "h" && strings.Contains(fmt.Sprint(i), "chain is cut")
		})
	})
	s.get("/Group/h").want(200).equal("meta.versionId", "9")
}

// The contract, Apps section 1: rejected subscriptions.
func TestAppSubscriptionsAreChecked(t *testing.T) {
	s := start(t)
	hook := `{"type":"webhook","url":"http://127.0.0.1:9/"}`
	for _, c := range []struct{ typ, events, filter, handler, word string }{
		{"Patent", `"create"`, "", hook, "Patent"},
		{"Patient", `"made"`, "", hook, "made"},
		{"Patient", ``, "", hook, "event"},
		{"Patient", `"create"`, `{"colour":"red"}`, hook, "colour"},
		{"Patient", `"create"`, `{"birthDate":{"near":"2020"}}`, hook, "near"},
		{"Patient", `"create"`, "", `{"type":"webhook"}`, "url"},
		{"Patient", `"create"`, "", `{"type":"webhook","url":"http://127.0.0.1:9/","auth":"caller"}`, "caller"},
		{"Patient", `"create"`, "", `{"type":"webhook","url":"http://127.0.0.1:9/","retryPolicy":{"maxRetries":100}}`, "maxRetries"},
		{"Patient", `"create"`, "", `{"type":"webhook","url":"http://127.0.0.1:9/","retryPolicy":{"backoffSeconds":[-1]}}`, "backoffSeconds"},
		{"Patient", `"create"`, "", script("(c) => {\n  return ]"), "line 2"},
		{"Patient", `"create"`, "", `{"type":"internal","url":"internal:nothing"}`, "internal:notify"},
		{"Patient", `"create"`, "", script("() => 1", `,"allowHosts":["http://x"]`), "allowHosts"},
	} {
		if a := s.put("/App/a", eventApp("a", c.typ, c.events, c.filter, c.handler)); a.status != 422 && a.status != 400 || !strings.Contains(string(a.body), c.word) {
			t.Errorf("%s %s %s %s: %d %s, want 422 with %q", c.typ, c.events, c.filter, c.handler, a.status, a.body, c.word)
		}
	}
	for _, name := range []string{"notify", "events", "validate"} {
		s.put("/App/a", app("a", "draft", "execute", "Patient", name, "() => 1")).issue(422, "invalid", "server itself")
	}
	off := start(t, func(c *server.Config) { c.Notifications.Enabled = false })
	off.put("/App/a", eventApp("a", "Patient", `"create"`, "", hook)).issue(422, "invalid", "notifications.enabled")
}

// The contract, Apps section 5, and the specification, Events: vread events reach an App that asks for
// them, where notifications.vread is on, and pass its filter like others.
func TestAppEventsOfReads(t *testing.T) {
	t.Parallel()
	r := newReceiver(t)
	s := start(t, func(c *server.Config) { c.Notifications.VRead = true })
	s.put("/App/v", eventApp("v", "Patient", `"vread"`, `{"active":true}`, `{"type":"webhook","url":"`+r.url+`"}`)).want(201)
	s.put("/Patient/no", `{"resourceType":"Patient","id":"no","active":false}`).want(201)
	s.put("/Patient/yes", `{"resourceType":"Patient","id":"yes","active":true}`).want(201)
	for _, id := range []string{"no", "yes", "yes"} {
		s.get("/Patient/" + id + "/_history/1").want(200)
	}
	var ids []any
	for range 2 {
		d := r.next()
		if d.json["event"] != "vread" || d.json["resourceId"] != "yes" || d.json["versionId"] != "1" || d.json["subscription"] != "App/v/0" {
			t.Errorf("%s", d.body)
		}
		ids = append(ids, d.json["id"])
	}
	if ids[0] == ids[1] {
		t.Error("two reads have one notification id")
	}
}

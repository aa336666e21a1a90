package conformance

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/gorilla/websocket"

	"kiln/server"
	"kiln/server/store/storetest"
)

// notifying allows endpoints of tests beside authorization.
func notifying(c *server.Config) {
	quick(c)
	c.Notifications.Webhook.AllowPrivateNetworks = "true"
}

// Contract, Notifications 4: the values of channel.header are masked on read for everyone but
// the owner, on every way to read.
func TestHeadersAreMasked(t *testing.T) {
	t.Parallel()
	s := authorized(t, notifying)
	owner := s.as(claims{Subject: "one", Client: "one", Scope: "system/*.cruds"})
	other := s.as(claims{Subject: "two", Client: "two", Scope: "system/*.cruds admin"})
	r := newReceiver(t)
	const header = `,"header":["Authorization: Bearer hush-hush","X-Two: hush-hush"]`
	id := owner.do("POST", "/Subscription", subscription("Patient?", r.url, header)).want(201).str("id")
	r.any()
	owner.awaitStatus(id, "active")
	stream := other.stream("/Subscription/$events", "Authorization", other.token)
	owner.do("PATCH", "/Subscription/"+id, `[{"op":"replace","path":"/reason","value":"again"}]`, "Content-Type", "application/json-patch+json").want(200)
	if ev := stream.next(); strings.Contains(ev.data, "hush-hush") || !strings.Contains(ev.data, "********") {
		t.Errorf("$events: %s", ev.data)
	}
	for _, path := range []string{
		"/Subscription/" + id, "/Subscription/" + id + "/_history", "/Subscription/" + id + "/_history/1", "/Subscription?_id=" + id,
		"/Subscription?_id=" + id + "&_elements=channel", "/Subscription/_history", "/_history", "/Subscription/$events-history",
	} {
		if a := other.do("GET", path, "").want(200); strings.Contains(string(a.body), "hush-hush") || !strings.Contains(string(a.body), "X-Two: ********") {
			t.Errorf("GET %s by another: %s", path, a.body)
		}
		if a := owner.do("GET", path, "").want(200); !strings.Contains(string(a.body), "hush-hush") && path != "/Subscription/$events-history" {
			t.Errorf("GET %s by the owner: %s", path, a.body)
		}
	}
	granular := s.as(claims{Subject: "three", Client: "three", Scope: "system/Subscription.rs?status=active"})
	if a := granular.do("GET", "/Subscription/"+id, "").want(200); strings.Contains(string(a.body), "hush-hush") {
		t.Errorf("a read under a condition: %s", a.body)
	}
	batch := `{"resourceType":"Bundle","type":"batch","entry":[{"request":{"method":"GET","url":"Subscription/` + id + `"}},
		{"request":{"method":"GET","url":"Subscription?_id=` + id + `"}},{"request":{"method":"GET","url":"Subscription/` + id + `/$status"}}]}`
	if a := other.do("POST", "/", batch).want(200); strings.Contains(string(a.body), "hush-hush") || !strings.Contains(string(a.body), "query-status") {
		t.Errorf("batch: %s", a.body)
	}
	// A masked resource is sent back: this may switch the subscription off, and do nothing else.
	m := other.do("GET", "/Subscription/"+id, "").json.(map[string]any)
	put := func(s *service, change func(m map[string]any)) *answer {
		change(m)
		b, _ := json.Marshal(m)
		return s.do("PUT", "/Subscription/"+id, string(b))
	}
	put(other, func(m map[string]any) {
		m["reason"] = "mine now"
		m["channel"].(map[string]any)["endpoint"] = r.url + "/mine"
	}).issue(422, "forbidden", "header")
	other.do("PATCH", "/Subscription/"+id, `[{"op":"replace","path":"/channel/endpoint","value":"`+r.url+`/mine"}]`, "Content-Type", "application/json-patch+json").issue(422, "forbidden", "header")
	put(other, func(m map[string]any) {
		m["status"] = "off"
		m["channel"].(map[string]any)["endpoint"] = r.url
	}).want(200)
	if a := owner.do("GET", "/Subscription/"+id, "").want(200); a.str("status") != "off" || !strings.Contains(string(a.body), "hush-hush") {
		t.Errorf("after another switched it off: %s", a.body)
	}
	// A new owner does not see earlier values.
	other.do("PUT", "/Subscription/"+id, strings.Replace(subscription("Patient?", r.url, `,"header":["X-New: own"]`), `"status"`, `"id":"`+id+`","status"`, 1)).want(200)
	if a := other.do("GET", "/Subscription/"+id+"/_history", "").want(200); strings.Contains(string(a.body), "hush-hush") || !strings.Contains(string(a.body), "X-New: own") {
		t.Errorf("history for the new owner: %s", a.body)
	}
	if a := owner.do("GET", "/Subscription/"+id, "").want(200); strings.Contains(string(a.body), "X-New: own") {
		t.Errorf("for the owner before: %s", a.body)
	}
}

// Contract, Notifications 4: what channel.header holds is neither copied, tested nor found by anyone but
// the owner.
func TestHeadersAreNoOracle(t *testing.T) {
	t.Parallel()
	s := authorized(t, notifying)
	owner := s.as(claims{Subject: "one", Client: "one", Scope: "system/*.cruds"})
	other := s.as(claims{Subject: "two", Client: "two", Scope: "system/*.cruds admin"})
	r := newReceiver(t)
	id := owner.post("/Subscription", strings.Replace(subscription("Patient?", r.url, `,"header":["X-Key: hush-hush","X-Key: other"]`), `"active"`, `"off"`, 1)).want(201).str("id")
	path := "/Subscription/" + id
	type patch struct{ contentType, body string }
	operations := func(list string) patch { return patch{"application/json-patch+json", list} }
	parameters := func(path, value string) patch {
		return patch{"application/fhir+json", `{"resourceType":"Parameters","parameter":[{"name":"operation","part":[{"name":"type","valueCode":"replace"},
			{"name":"path","valueString":"` + path + `"},{"name":"value",` + value + `}]}]}`}
	}
	entry := func(kind string, p patch) string {
		resource := p.body
		if p.contentType != "application/fhir+json" {
			resource = `{"resourceType":"Binary","contentType":"` + p.contentType + `","data":"` + base64.StdEncoding.EncodeToString([]byte(p.body)) + `"}`
		}
		return `{"resourceType":"Bundle","type":"` + kind + `","entry":[{"resource":` + resource + `,"request":{"method":"PATCH","url":"Subscription/` + id + `"}}]}`
	}
	for _, p := range []patch{
		operations(`[{"op":"copy","from":"/channel/header/0","path":"/reason"}]`),
		operations(`[{"op":"test","path":"/channel/header/0","value":"X-Key: hush-hush"}]`),
		operations(`[{"op":"test","path":"/channel/header/0","value":"X-Key: wrong"}]`),
		parameters("Subscription.where(channel.header.first() = 'X-Key: hush-hush').reason", `"valueString":"found"`),
	} {
		want := 422
		if strings.Contains(p.body, "copy") {
			want = 200
		}
		other.do("PATCH", path, p.body, "Content-Type", p.contentType).want(want)
		other.do("PATCH", "/Subscription?_id="+id, p.body, "Content-Type", p.contentType).want(want)
		other.do("POST", "/", entry("transaction", p))
		if a := other.do("POST", "/", entry("batch", p)).want(200); !strings.HasPrefix(a.str("entry.0.response.status"), fmt.Sprint(want)) {
			t.Errorf("%s in a batch: %s", p.body, a.body)
		}
		if a := other.get(path).want(200); strings.Contains(string(a.body), "hush-hush") || strings.Contains(string(a.body), "found") {
			t.Fatalf("after %s: %s", p.body, a.body)
		}
	}
	owner.do("PATCH", path, `[{"op":"test","path":"/channel/header/0","value":"X-Key: hush-hush"},{"op":"test","path":"/channel/header/1","value":"X-Key: other"}]`,
		"Content-Type", "application/json-patch+json").want(200)

	// A client that sends a header in full becomes the owner, with any value.
	guess := owner.post("/Subscription", strings.Replace(subscription("Patient?", r.url, `,"header":["X-Key: guessed"]`), `"active"`, `"off"`, 1)).want(201)
	other.put("/Subscription/"+guess.str("id"), string(guess.body)).want(200)
	if a := owner.get("/Subscription/" + guess.str("id")).want(200); strings.Contains(string(a.body), "guessed") {
		t.Errorf("it was guessed, and is its owner's still: %s", a.body)
	}

	// No search finds it, also by a parameter that is made for it, and no expression of a topic.
	other.post("/SearchParameter", `{"resourceType":"SearchParameter","url":"http://example.org/header","name":"header","status":"active","description":"d","code":"header",
		"base":["Subscription"],"type":"string","expression":"Subscription.channel.header"}`).want(201)
	owner.do("PATCH", path, `[{"op":"replace","path":"/reason","value":"indexed anew"}]`, "Content-Type", "application/json-patch+json").want(200)
	for _, query := range []string{"/Subscription?_content=hush", "/?_type=Subscription&_content=hush", "/?_content=hush", "/Subscription?header:contains=hush"} {
		for _, by := range []*service{owner, other} {
			if a := by.get(query).want(200); fmt.Sprint(a.at("total")) != "0" {
				t.Errorf("%s: %s", query, a.body)
			}
		}
	}
	other.get("/Subscription?_content=indexed").want(200).equal("total", "1")
	other.post("/SubscriptionTopic", `{"resourceType":"SubscriptionTopic","url":"http://example.org/headers","status":"active","resourceTrigger":[{"resource":"Subscription",
		"fhirPathCriteria":"(%previous | %current).channel.header.where(contains('hush')).exists()"},{"resource":"Patient"}]}`).want(201)
	topical := other.subscribe(`{"resourceType":"Subscription","status":"requested","topic":"http://example.org/headers","channel":{"type":"websocket"}}`)
	owner.do("PATCH", path, `[{"op":"replace","path":"/reason","value":"again"}]`, "Content-Type", "application/json-patch+json").want(200)
	owner.post("/Patient", patient("last")).want(201)
	soon(t, "the event of the Patient", func() bool {
		return other.get("/Subscription/"+topical+"/$status").str("eventsSinceSubscriptionStart") != "0"
	})
	if n := other.get("/Subscription/" + topical + "/$status").str("eventsSinceSubscriptionStart"); n != "1" {
		t.Errorf("%s events, want that of the Patient alone", n)
	}
}

// Contract, Notifications 2, Access: writing a Subscription needs c or u on Subscription and s and
// r on the type of the criteria; an event is delivered only if the owner may read the resource.
func TestSubscriptionNeedsScopes(t *testing.T) {
	t.Parallel()
	s := authorized(t, notifying)
	twoPatients(s.as(systemClient("system/*.cruds")))
	r := newReceiver(t)
	for _, c := range []struct {
		scope  string
		status int
	}{
		{"system/Subscription.c system/Observation.rs", 201}, {"system/Subscription.c system/Observation.r", 403},
		{"system/Subscription.c system/Observation.s", 403}, {"system/Subscription.r system/Observation.rs", 403}, {"system/Observation.rs", 403},
	} {
		if a := s.as(systemClient(c.scope)).do("POST", "/Subscription", subscription("Observation?", r.url)); a.status != c.status {
			t.Errorf("%s: %d, want %d: %s", c.scope, a.status, c.status, a.body)
		}
	}
	// A patient's application hears of that patient alone, by webhook, socket, stream and history.
	app := patientApp("a", "patient/Observation.rs patient/Subscription.cruds user/Subscription.cruds")
	a := s.as(app)
	own := newReceiver(t)
	a.do("POST", "/Subscription", subscription("Observation?", own.url)).want(201)
	own.any()
	stream := a.stream("/Observation/$events", "Authorization", a.token)
	conn, _, err := websocket.DefaultDialer.Dial(strings.Replace(s.server(), "http", "ws", 1)+"/notifications/ws?token="+strings.TrimPrefix(app.token(), "Bearer "), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	w := &ws{t, conn}
	w.send(`{"type":"subscribe","resourceType":"Observation"}`)
	w.json()
	w.send(`{"type":"subscribe","resourceType":"Condition","ref":1}`)
	if m := w.json(); m["type"] != "error" || m["code"] != "forbidden" || fmt.Sprint(m["ref"]) != "1" {
		t.Errorf("a type outside of the scopes: %v", m)
	}
	back := s.as(systemClient("system/*.cruds"))
	awaited := func(patient string) string {
		return back.do("POST", "/Observation", `{"resourceType":"Observation","status":"final","code":{"text":"x"},"subject":{"reference":"Patient/`+patient+`"}}`).want(201).str("id")
	}
	awaited("b")
	id := awaited("a")
	if d := own.next(); d.json["resourceId"] != id {
		t.Errorf("webhook %s, want Observation/%s", d.body, id)
	}
	if ev := stream.next(); !strings.Contains(ev.data, id) {
		t.Errorf("stream %s", ev.data)
	}
	if m := w.json(); m["resourceId"] != id {
		t.Errorf("socket %v", m)
	}
	h := a.do("GET", "/Observation/$events-history", "").want(200)
	if strings.Contains(string(h.body), "Patient/b") || !strings.Contains(string(h.body), id) {
		t.Errorf("history %s", h.body)
	}
	// bind: what may not be read is absent.
	w.send("bind nothing-there")
	if m := w.json(); m["type"] != "error" || m["code"] != "not-found" {
		t.Errorf("bind: %v", m)
	}
}

// Contract, Notifications 2 and 5, Access: a revoked client's and a disabled user's subscriptions
// go off and nothing more is delivered; sockets close with 4401 and streams end. A token that
// has expired leaves a Subscription alone, and ends a socket.
func TestNotificationsEndWithAccess(t *testing.T) {
	t.Parallel()
	database := storetest.New(t)
	s := withAuthorizationOn(t, database, notifying, func(c *server.Config) {
		c.Auth.Bootstrap.Clients = append(c.Auth.Bootstrap.Clients, map[string]any{"clientId": "leaving", "name": "Leaving", "confidential": true, "clientSecret": clientSecret,
			"grantTypes": []any{"client_credentials"}, "scopes": []any{"system/*.cruds"}},
			map[string]any{"clientId": "brief", "name": "Brief", "confidential": true, "clientSecret": clientSecret,
				"grantTypes": []any{"client_credentials"}, "scopes": []any{"system/*.cruds"}, "accessTokenLifetime": "3s"})
	})
	staying := s.bearer(s.backendToken("backend", "system/*.cruds"))
	admin := s.bearer(s.backendToken("operator", "admin"))
	token := s.backendToken("leaving", "system/*.cruds")
	leaving := s.bearer(token)
	kept, ended := newReceiver(t), newReceiver(t)
	keptID := staying.subscribe(subscription("Patient?", kept.url))
	endedID := leaving.subscribe(subscription("Patient?", ended.url))
	quietID := leaving.subscribe(`{"resourceType":"Subscription","status":"requested","reason":"r","criteria":"Device?","channel":{"type":"websocket"}}`)
	dial := func(token string) *websocket.Conn {
		conn, _, err := websocket.DefaultDialer.Dial(strings.Replace(s.server(), "http", "ws", 1)+"/notifications/ws?token="+token, nil)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { conn.Close() })
		return conn
	}
	closes := func(conn *websocket.Conn, what string) {
		t.Helper()
		for {
			_ = conn.SetReadDeadline(time.Now().Add(patience))
			if _, _, err := conn.ReadMessage(); err != nil {
				if !websocket.IsCloseError(err, 4401) {
					t.Errorf("%s: %v, want 4401", what, err)
				}
				return
			}
		}
	}
	socket := dial(token)
	stream := leaving.stream("/Patient/$events", "Authorization", leaving.token)
	brief := s.backendToken("brief", "system/*.cruds")
	briefReceiver := newReceiver(t)
	briefID := s.bearer(brief).subscribe(subscription("Patient?", briefReceiver.url))
	briefSocket := dial(brief)

	admin.do("DELETE", s.server()+"/admin/clients/leaving", "")
	closes(socket, "the client is revoked")
	soon(t, "the end of the stream", stream.ended)
	staying.awaitStatus(endedID, "off")
	staying.awaitStatus(quietID, "off") // nothing was sent to it, and nothing was to be
	if m := staying.do("GET", "/Subscription/"+endedID, "").json.(map[string]any); !strings.Contains(fmt.Sprint(m["error"]), "revoked") {
		t.Errorf("the reason is %v", m["error"])
	}
	closes(briefSocket, "the token has expired")
	staying.do("POST", "/Patient", patient("after")).want(201)
	kept.next()
	if d := briefReceiver.next(); !strings.Contains(string(d.body), "after") {
		t.Errorf("after the token has expired: %s", d.body)
	}
	for len(ended.got) > 0 {
		if d := <-ended.got; d.json["resourceType"] != "SubscriptionStatus" {
			t.Errorf("delivered to a revoked client: %s", d.body)
		}
	}
	staying.awaitStatus(keptID, "active")
	staying.awaitStatus(briefID, "active")
	if _, resp, err := websocket.DefaultDialer.Dial(strings.Replace(s.server(), "http", "ws", 1)+"/notifications/ws", nil); err == nil || resp.StatusCode != http.StatusUnauthorized {
		t.Errorf("a socket without a token: %v", resp)
	}
}

// Contract, Specification and Notifications: the operations are in the CapabilityStatement, with
// definitions that can be read.
func TestNotificationOperationsAreListed(t *testing.T) {
	t.Parallel()
	s := start(t)
	c := s.do("GET", "/metadata", "").want(200)
	listed := make(map[string]map[string]string)
	for _, r := range c.at("rest.0.resource").([]any) {
		m := r.(map[string]any)
		ops, _ := m["operation"].([]any)
		of := make(map[string]string)
		for _, o := range ops {
			of[o.(map[string]any)["name"].(string)] = o.(map[string]any)["definition"].(string)
		}
		listed[m["type"].(string)] = of
	}
	for typ, names := range map[string][]string{"Subscription": {"status", "secret", "test", "events", "events-history", "notify"}, "Patient": {"events", "events-history", "notify"}} {
		for _, name := range names {
			canonical := listed[typ][name]
			if canonical == "" {
				t.Errorf("%s has no operation %s: %v", typ, name, listed[typ])
				continue
			}
			d := s.do("GET", "/OperationDefinition"+canonical[strings.LastIndex(canonical, "/"):], "").want(200)
			if d.str("code") != name || d.str("url") != canonical {
				t.Errorf("%s: %s", canonical, d.body)
			}
		}
	}
	// $status by POST, on both levels, and in a batch; the rest is a request of its own.
	id := s.subscribe(`{"resourceType":"Subscription","status":"requested","reason":"r","criteria":"Device?","channel":{"type":"websocket"}}`)
	if got := s.do("POST", "/Subscription/"+id+"/$status", `{"resourceType":"Parameters"}`).want(200); got.str("type") != "query-status" || got.str("status") != "active" {
		t.Errorf("POST $status: %s", got.body)
	}
	got := s.do("POST", "/Subscription/$status", `{"resourceType":"Parameters","parameter":[{"name":"id","valueString":"`+id+`"},{"name":"status","valueCode":"active"}]}`).want(200)
	if got.str("type") != "searchset" || fmt.Sprint(got.at("total")) != "1" || !strings.HasSuffix(got.str("entry.0.resource.parameter.0.valueReference.reference"), "/Subscription/"+id) {
		t.Errorf("POST $status on the type: %s", got.body)
	}
	if got := s.do("GET", "/Subscription/$status?status=error", "").want(200); fmt.Sprint(got.at("total")) != "0" {
		t.Errorf("$status?status=error: %s", got.body)
	}
	if link := s.do("GET", "/Subscription/$status?id="+id, "").str("link.0.url"); !strings.HasPrefix(link, "http") {
		t.Errorf("self is %q", link)
	}
	s.do("GET", "/Subscription/"+id+"/$secret", "").want(405)
	s.do("POST", "/Patient/$events", `{}`).want(405)
	s.do("GET", "/Subscription/none/$status", "").want(404)
}

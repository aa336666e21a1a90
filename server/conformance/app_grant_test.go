package conformance

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"kiln/server"
	"kiln/server/store/storetest"
)

// admin is a path outside FHIR, with a JSON body.
func (s *service) admin(method, path, body string) *answer {
	s.t.Helper()
	return s.do(method, s.origin()+path, body, "Content-Type", "application/json")
}

// The contract, Apps sections 1 and 3: an App has a client of its own, without scopes until an administrator grants
// some. It gets no events of resources that it may not see.
func TestAppGrants(t *testing.T) {
	tokens := make(chan string, 10)
	handler := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		tokens <- r.Header.Get("Authorization")
		fmt.Fprint(w, `1`)
	}))
	defer handler.Close()
	s := withAuthorization(t, func(c *server.Config) { c.Notifications.Webhook.AllowPrivateNetworks = "true" })
	operator := s.bearer(s.backendToken("operator", "admin system/Patient.rs"))
	backend := s.bearer(s.backendToken("backend", "system/*.cruds"))

	// Creating, changing and deleting Apps needs an admin token.
	backend.put("/App/x", app("x", "draft")).want(403)
	backend.do("DELETE", "/App/x", "").want(403)
	backend.get("/App/x/$log").want(403)
	s.put("/App/x", app("x", "draft")).want(401)
	backend.admin("POST", "/admin/apps/x/grants", `{"scopes":["system/*.rs"]}`).want(403)
	backend.admin("PUT", "/admin/apps/x/secrets/K", `{"value":"v"}`).want(403)
	backend.admin("POST", "/admin/apps/x/replay", `{"subscription":0,"since":"2020"}`).want(403)

	whole := func(status string) string {
		code, _ := json.Marshal(`async () => { const out = []; for (const t of ["Patient", "Observation"]) { try { out.push((await fhir.search(t)).total) } catch (e) { out.push(e.status) } } return out }`)
		return fmt.Sprintf(`{"resourceType":"App","id":"g","name":"g","status":%q,"version":"1.0.0","operations":[
			{"type":"execute","resourceType":"Patient","name":"mine","affectsState":false,"handler":{"type":"javascript","auth":"app","code":%s}},
			{"type":"execute","resourceType":"Patient","name":"yours","affectsState":false,"handler":{"type":"javascript","code":%s}},
			{"type":"execute","resourceType":"Patient","name":"call","affectsState":false,"handler":{"type":"http","auth":"app","url":%q}}],
			"subscriptions":[{"resourceType":"Observation","events":["create"],"handler":{"type":"webhook","auth":"app","url":%q}},
				{"resourceType":"Condition","events":["create"],"handler":{"type":"webhook","url":%q}}]}`, status, code, code, handler.URL, handler.URL, handler.URL)
	}
	operator.put("/App/g", whole("active")).issue(422, "invalid", "no grant", "/admin/apps/g/grants")
	operator.put("/App/g", whole("draft")).want(201)
	operator.admin("GET", "/admin/clients/app-g", "").want(200).equal("clientId", "app-g").equal("confidential", "true")
	operator.put("/App/g", whole("active")).issue(422, "invalid", "no grant")
	operator.admin("POST", "/admin/apps/g/grants", `{"scopes":["user/*.rs"]}`).want(400)
	operator.admin("POST", "/admin/apps/none/grants", `{"scopes":["system/*.rs"]}`).want(404)
	operator.admin("POST", "/admin/apps/g/grants", `{"scopes":["system/Observation.cruds"]}`).want(200).equal("client", "app-g").equal("scopes.0", "system/Observation.cruds")
	operator.put("/App/g", whole("active")).want(200)

	// auth app: with its own rights alone; none: with the caller's.
	if a := backend.post("/Patient/$mine", "").want(200); string(a.body) == "" || a.str("0") != "403" || a.str("1") == "403" {
		t.Errorf("$mine: %s", a.body)
	}
	reader := s.bearer(s.backendToken("backend", "system/Patient.rs"))
	if a := reader.post("/Patient/$yours", "").want(200); a.str("0") == "403" || a.str("1") != "403" {
		t.Errorf("$yours: %s", a.body)
	}
	reader.post("/Patient/$call", "").want(200)
	token, ok := strings.CutPrefix(<-tokens, "Bearer ")
	if !ok {
		t.Fatal("the handler got no token")
	}
	its := s.bearer(token)
	its.get("/Patient/a").want(403)
	id := its.create(`{"resourceType":"Observation","status":"final","code":{"text":"x"}}`)
	its.get("/Observation/" + id).want(200)
	if found := backend.get("/AuditEvent?entity=Observation/"+id+"&action=C").want(200).equal("total", "1"); !strings.Contains(string(found.body), `"reference":"App/g"`) {
		t.Errorf("what the handler wrote is recorded as %s", found.body)
	}

	// Its own writes with that token do not call it, writes of others do. It gets no events of hidden resources.
	backend.create(`{"resourceType":"Condition","subject":{"reference":"Patient/a"}}`)
	backend.create(`{"resourceType":"Observation","status":"final","code":{"text":"y"}}`)
	if got := <-tokens; got != "Bearer "+token {
		t.Errorf("the event bears %q", got)
	}
	comes(t, "what became of the Condition", func() bool {
		return strings.Contains(string(operator.admin("GET", "/admin/notifications/deliveries?subscription=App/g/1", "").want(200).body), "withheld")
	})
	if len(tokens) > 0 {
		t.Error("the App is told of more than it may see, or of its own doing")
	}

	// A grant that is taken back, and a client that is disabled, hold at once.
	operator.admin("POST", "/admin/apps/g/grants", `{"scopes":[]}`).want(200)
	backend.post("/Patient/$mine", "").issue(403, "forbidden", "no grant")
	backend.post("/Patient/$call", "").want(403)
	operator.admin("POST", "/admin/apps/g/grants", `{"scopes":["system/*.rs"]}`).want(200)
	backend.post("/Patient/$mine", "").want(200)
	operator.do("PATCH", s.origin()+"/admin/clients/app-g", `{"active":false}`, "Content-Type", "application/merge-patch+json").want(200)
	backend.post("/Patient/$mine", "").want(403)

	// The client ends with its App.
	operator.do("DELETE", "/App/g", "").want(204)
	operator.admin("GET", "/admin/clients/app-g", "").want(404)
}

// The contract, Apps section 5, rights: an App is told of neither a version before that it may not see, nor
// what channel.header of somebody's Subscription holds.
func TestAppEventsHideWhatTheAppMayNotSee(t *testing.T) {
	s := withAuthorization(t)
	operator := s.bearer(s.backendToken("operator", "admin system/*.cruds"))
	backend := s.bearer(s.backendToken("backend", "system/*.cruds"))
	whole := func(status string) string {
		code, _ := json.Marshal(`async (c) => { console.log(c.resourceId, JSON.stringify(c.previous), JSON.stringify(c.resource)) }`)
		of := func(typ string) string {
			return `{"resourceType":"` + typ + `","events":["create","update"],"handler":{"type":"javascript","code":` + string(code) + `}}`
		}
		return `{"resourceType":"App","id":"h","name":"h","status":"` + status + `","version":"1.0.0","subscriptions":[` + of("Observation") + "," + of("Subscription") + `]}`
	}
	operator.put("/App/h", whole("draft")).want(201)
	operator.admin("POST", "/admin/apps/h/grants", `{"scopes":["system/Observation.rs?status=final","system/Subscription.rs"]}`).want(200)
	operator.put("/App/h", whole("active")).want(200)
	for _, o := range [][2]string{{"preliminary", "alpha"}, {"final", "beta"}, {"final", "gamma"}} {
		backend.put("/Observation/o", `{"resourceType":"Observation","id":"o","status":"`+o[0]+`","code":{"text":"x"},"valueString":"`+o[1]+`"}`)
	}
	backend.post("/Subscription", `{"resourceType":"Subscription","status":"off","reason":"r","criteria":"Patient?","channel":{"type":"websocket","header":["X-Key: hush-hush"]}}`).want(201)
	var log string
	comes(t, "what the App is told", func() bool {
		log = fmt.Sprint(operator.invocations("h", ""))
		return strings.Contains(log, "X-Key") && strings.Contains(log, "gamma")
	})
	// The second version is told of as it is, without the first, and then as the one before the third.
	if strings.Contains(log, "alpha") || strings.Count(log, "beta") != 2 || strings.Contains(log, "hush-hush") {
		t.Errorf("the App is told %s", log)
	}
}

// The contract, Apps section 3: secrets are filled in, never answered, and sealed in the
// database.
func TestAppSecrets(t *testing.T) {
	headers := make(chan http.Header, 10)
	handler := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		headers <- r.Header
		fmt.Fprint(w, `1`)
	}))
	defer handler.Close()
	database := storetest.New(t)
	s := startOn(t, database, func(c *server.Config) { c.Auth.Signing.EncryptionKey = "a key of the operators, 0123456789abcdef" })
	s.put("/App/s", remoteApp("s", "execute", "call", `{"type":"http","url":"`+handler.URL+`","headers":{"X-Key":"k=${secret:KEY}"}}`)).want(201)
	s.post("/Patient/$call", "").issue(502, "exception", "KEY")
	s.admin("PUT", "/admin/apps/s/secrets/KEY", `{"value":"sesame"}`).want(204)
	s.post("/Patient/$call", "").want(200)
	if got := (<-headers).Get("X-Key"); got != "k=sesame" {
		t.Errorf("the header is %q", got)
	}
	if a := s.admin("GET", "/admin/apps/s/secrets", "").want(200); a.str("secrets.0.name") != "KEY" || strings.Contains(string(a.body), "sesame") {
		t.Errorf("the secrets are %s", a.body)
	}
	for _, path := range []string{"/App/s", "/App/s/_history", "/App/s/$log", "/AuditEvent"} {
		if a := s.get(path).want(200); strings.Contains(string(a.body), "sesame") {
			t.Errorf("%s tells the secret", path)
		}
	}
	conn, err := pgx.Connect(t.Context(), database)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(t.Context())
	var value []byte
	var sealed bool
	if err := conn.QueryRow(t.Context(), "SELECT value, sealed FROM app_secret").Scan(&value, &sealed); err != nil || !sealed || strings.Contains(string(value), "sesame") {
		t.Errorf("the database has %q, %t, %v", value, sealed, err)
	}
	s.admin("PUT", "/admin/apps/s/secrets/KEY", `{"value":"open"}`).want(204)
	s.post("/Patient/$call", "").want(200)
	if got := (<-headers).Get("X-Key"); got != "k=open" {
		t.Errorf("the header is %q", got)
	}
	for path, body := range map[string]string{"/admin/apps/s/secrets/a%20b": `{"value":"x"}`, "/admin/apps/s/secrets/K": `{"value":""}`, "/admin/apps/s/secrets/L": `{"value":"a\nb"}`, "/admin/apps/s/secrets/M": `[]`} {
		if a := s.admin("PUT", path, body); a.status != 400 {
			t.Errorf("PUT %s %s: %d %s", path, body, a.status, a.body)
		}
	}
	s.admin("PUT", "/admin/apps/none/secrets/K", `{"value":"x"}`).want(404)
	s.admin("DELETE", "/admin/apps/s/secrets/KEY", "").want(204)
	s.admin("DELETE", "/admin/apps/s/secrets/KEY", "").want(404)
	s.post("/Patient/$call", "").want(502)
	// A new App under an old id has none of the secrets.
	s.admin("PUT", "/admin/apps/s/secrets/KEY", `{"value":"old"}`).want(204)
	s.do("DELETE", "/App/s", "").want(204)
	s.put("/App/s", remoteApp("s", "execute", "call", `{"type":"http","url":"`+handler.URL+`","headers":{"X-Key":"${secret:KEY}"}}`)).want(201)
	s.post("/Patient/$call", "").want(502)
}

// The contract, Apps section 3: fetch, only where it is allowed and of the hosts named.
func TestAppFetch(t *testing.T) {
	handler := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		w.Header().Set("X-Answer", "yes")
		if r.URL.Path == "/away" {
			http.Redirect(w, r, "http://127.0.0.1:1/", http.StatusFound)
			return
		}
		fmt.Fprintf(w, `{"method":%q,"body":%q,"key":%q}`, r.Method, body, r.Header.Get("X-Key"))
	}))
	defer handler.Close()
	host := strings.TrimPrefix(handler.URL, "http://")
	fetching := func(code string) string {
		text, _ := json.Marshal(code)
		return fmt.Sprintf(`{"resourceType":"App","id":"f","name":"f","status":"active","operations":[{"type":"execute","resourceType":"Patient","name":"f","handler":{"type":"javascript","allowHosts":[%q],"code":%s}}]}`, host, text)
	}
	s := start(t, func(c *server.Config) { c.Apps.Sandbox.AllowFetch = true })
	for i, c := range []struct{ code, want string }{
		{`async () => { const r = await fetch("` + handler.URL + `/x", {method: "POST", headers: {"X-Key": "k"}, body: JSON.stringify({a: 1})}); return [r.status, r.ok, r.headers.get("x-answer"), await r.json()] }`, `"yes",{"method":"POST","body":"{\"a\":1}","key":"k"}`},
		{`async () => (await fetch("` + handler.URL + `")).text()`, `GET`},
		{`async () => { try { await fetch("http://example.org/") } catch (e) { return e.message } }`, `allowHosts`},
		{`async () => { try { await fetch("http://localhost:1/") } catch (e) { return e.message } }`, `allowHosts`},
		{`async () => { try { await fetch("file:///etc/passwd") } catch (e) { return e.message } }`, `http or https`},
		{`async () => { try { await fetch("` + handler.URL + `", {headers: {Host: "x"}}) } catch (e) { return e.message } }`, `Host`},
		{`async () => (await fetch("` + handler.URL + `/away")).status`, `302`},
	} {
		s.put("/App/f", fetching(c.code)).want([]int{201, 200, 200, 200, 200, 200, 200}[i])
		if a := s.post("/Patient/$f", "").want(200); !strings.Contains(string(a.body), c.want) {
			t.Errorf("%s: %s, want %s", c.code, a.body, c.want)
		}
	}
	off := start(t)
	off.put("/App/f", fetching(`() => typeof fetch`)).want(201)
	if a := off.post("/Patient/$f", "").want(200); !strings.Contains(string(a.body), "undefined") {
		t.Errorf("with fetch off it is %s", a.body)
	}
	// Addresses of the server's own network are rejected in every App.
	guarded := start(t, func(c *server.Config) {
		c.Apps.Sandbox.AllowFetch = true
		c.Notifications.Webhook.AllowPrivateNetworks = "false"
	})
	guarded.put("/App/f", fetching(`async () => { try { await fetch("`+handler.URL+`") } catch (e) { return [e.status, e.message] } }`)).want(201)
	guarded.post("/Patient/$f", "").want(200).equal("0", "403")
}

// The contract, Apps sections 3 and 6: the log, the feature flags, internal handlers.
func TestAppLog(t *testing.T) {
	s := start(t)
	s.put("/Patient/p", `{"resourceType":"Patient","id":"p"}`).want(201)
	s.put("/App/l", app("l", "active",
		"execute", "Patient", "quiet", "() => 1",
		"execute", "Patient", "loud", "() => { console.log('said'); console.warn('warned', {a: 1}); return 2 }",
		"execute", "Patient", "broken", "() => { throw new Error('no') }")).want(201)
	s.post("/Patient/p/$quiet", "", "X-Request-Id", "r-7").want(200)
	s.post("/Patient/p/$loud", "").want(200)
	s.post("/Patient/p/$broken", "").want(422)
	a := s.get("/App/l/$log").want(200).has("Content-Type", "application/json").
		equal("invocations.0.operation", "broken").equal("invocations.0.outcome", "error").equal("invocations.0.status", "422").
		equal("invocations.1.operation", "loud").equal("invocations.1.lines.1.level", "warn").equal("invocations.1.lines.1.text", `warned {"a":1}`).
		equal("invocations.2.operation", "quiet").equal("invocations.2.outcome", "ok").equal("invocations.2.requestId", "r-7").
		equal("invocations.2.resourceType", "Patient").equal("invocations.2.resourceId", "p").equal("invocations.2.status", "200")
	if a.len("invocations") != 3 || a.len("invocations.2.lines") != 0 || a.str("invocations.0.durationMs") == "" || a.str("invocations.0.id") == "" {
		t.Errorf("the log is %s", a.body)
	}
	if n := s.get("/App/l/$log?level=warn").want(200).len("invocations"); n != 2 {
		t.Errorf("%d runs have warned", n)
	}
	first := s.get("/App/l/$log?_count=2").want(200)
	if rest := s.get(first.str("next")).want(200); first.len("invocations") != 2 || rest.len("invocations") != 1 || rest.str("invocations.0.operation") != "quiet" {
		t.Errorf("the pages are %s and %s", first.body, rest.body)
	}
	if n := s.get("/App/l/$log?_since=" + a.str("invocations.1.at")).want(200).len("invocations"); n != 2 {
		t.Errorf("%d runs since the second", n)
	}
	s.get("/App/l/$log?_count=0").want(400)
	s.get("/App/l/$log?level=shout").want(400)
	s.get("/App/l/$log?colour=red").want(400)
	s.get("/App/none/$log").want(404)
	s.post("/App/l/$log", "").want(405)

	// The feature flags hold at once.
	s.admin("PUT", "/admin/features/apps.javascript", `{"enabled":false}`).want(200)
	s.post("/Patient/p/$quiet", "").issue(404, "not-supported", "apps.javascript")
	s.admin("PUT", "/admin/features/apps.javascript", `{"enabled":true}`).want(200)
	s.admin("PUT", "/admin/features/apps", `{"enabled":false}`).want(200)
	s.post("/Patient/p/$quiet", "").want(404)
	if strings.Contains(string(s.get("/metadata").want(200).body), "app-Patient-quiet") {
		t.Error("the capability statement lists what is off")
	}
	s.admin("PUT", "/admin/features/apps", `{"enabled":true}`).want(200)
	s.post("/Patient/p/$quiet", "").want(200)

	s.put("/Observation/o", `{"resourceType":"Observation","id":"o","status":"final","code":{"text":"x"},"subject":{"reference":"Patient/p"}}`).want(201)
	s.put("/App/i", `{"resourceType":"App","id":"i","name":"i","status":"active","operations":[
		{"type":"read","resourceType":"Patient","name":"overview","handler":{"type":"internal","url":"internal:summary"}},
		{"type":"execute","resourceType":"Patient","name":"tell","handler":{"type":"internal","url":"internal:notify"}}]}`).want(201)
	s.get("/Patient/p/$overview").want(200).equal("patient", "Patient/p").equal("types.0.type", "Observation").equal("types.0.count", "1")
	s.post("/Patient/p/$tell", `{"parameters":{"recipients":["anna"],"message":"hello"}}`).want(202).equal("recipients", "1")
	s.post("/Patient/p/$tell", `{"parameters":{"message":"hello"}}`).want(400)
}

package conformance

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"kiln/server"
)

// The contract, Apps section 3: the context is the same for all handlers.
func TestAppContext(t *testing.T) {
	t.Parallel()
	s := authorized(t, notifying)
	operator := s.as(claims{Subject: "root", Client: "root", Scope: "admin system/*.cruds"})
	operator.put("/Patient/p", `{"resourceType":"Patient","id":"p"}`).want(201)
	operator.put("/App/c", app("c", "active", "execute", "Patient", "tell", "(c) => ({context: {...c, raw: undefined}})", "search", "Patient", "ask", "(c) => ({context: {...c, raw: undefined}})",
		"write", "Patient", "keep", "(c) => ({context: {...c, raw: undefined}})")).want(201)
	caller := s.as(claims{Subject: "anna", Client: "the-app", Scope: "user/*.cruds", User: "Practitioner/7", Roles: []string{"nurse"}})
	a := caller.do("POST", "/Patient/p/$tell", `{"resourceType":"Parameters","parameter":[{"name":"n","valueInteger":1},{"name":"n","valueInteger":2},{"name":"g","part":[{"name":"x","valueCode":"y"}]}]}`,
		"X-Request-Id", "r-9").want(200)
	for path, want := range map[string]string{
		"operation": "tell", "type": "execute", "resourceType": "Patient", "resourceId": "p", "resource.id": "p", "parameters.n.1": "2", "parameters.g.x": "y",
		"rawParameters.resourceType": "Parameters", "rawParameters.parameter.2.part.0.valueCode": "y", "user.id": "anna", "user.fhirUser": "Practitioner/7", "user.roles.0": "nurse",
		"client": "the-app", "app.id": "c", "app.version": "1.0.0", "requestId": "r-9",
	} {
		if got := a.str("context." + path); got != want {
			t.Errorf("%s is %q, want %q in %s", path, got, want, a.body)
		}
	}
	if a := caller.get("/Patient/$ask?one=1&many=a&many=b").want(200); a.str("context.query.one") != "1" || a.str("context.query.many.1") != "b" || a.str("context.type") != "search" || a.at("context.resource") != nil {
		t.Errorf("%s", a.body)
	}
	if a := caller.post("/Patient/$keep", `{"resourceType":"Patient","gender":"other"}`).want(200); a.str("context.resource.gender") != "other" || a.str("context.type") != "write" {
		t.Errorf("%s", a.body)
	}
}

// The contract, Apps section 3: X-User-Id of an http handler; of internal:notify, recipients that the url
// does not fix are for administrators.
func TestNotifyOfAnAppIsForAdministrators(t *testing.T) {
	t.Parallel()
	s := authorized(t, notifying)
	headers := make(chan http.Header, 1)
	handler := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		headers <- r.Header
		fmt.Fprint(w, `1`)
	}))
	t.Cleanup(handler.Close)
	operator := s.as(claims{Subject: "root", Client: "root", Scope: "admin system/*.cruds"})
	operator.put("/Patient/p", `{"resourceType":"Patient","id":"p"}`).want(201)
	operator.put("/App/open", remoteApp("open", "execute", "tell", `{"type":"internal","url":"internal:notify"}`)).want(201)
	operator.put("/App/fixed", remoteApp("fixed", "execute", "tell-anna", `{"type":"internal","url":"internal:notify?recipients=anna"}`)).want(201)
	operator.put("/App/http", remoteApp("http", "execute", "call", `{"type":"http","url":"`+handler.URL+`"}`)).want(201)
	caller := s.as(claims{Subject: "bert", Client: "the-app", Scope: "user/*.cruds"})
	body := `{"parameters":{"recipients":["anna"],"message":"look"}}`
	caller.post("/Patient/p/$tell", body).issue(403, "forbidden", "administrator")
	operator.post("/Patient/p/$tell", body).want(202)
	caller.post("/Patient/p/$tell-anna", `{"parameters":{"recipients":["root"],"message":"to anna alone"}}`).want(202).equal("recipients", "1")
	anna := s.as(claims{Subject: "anna", Client: "the-app", Scope: "user/*.rs"})
	stream := anna.stream("/notifications/events", "Authorization", anna.token)
	for _, want := range []string{"look", "to anna alone"} {
		if ev := stream.next(); ev.name != "notify" || !strings.Contains(ev.data, want) {
			t.Errorf("%+v, want %q", ev, want)
		}
	}
	caller.post("/Patient/p/$call", "").want(200)
	if got := (<-headers).Get("X-User-Id"); got != "bert" {
		t.Errorf("X-User-Id is %q", got)
	}
}

// The contract, Apps section 3: the functions of a script, each once; an error is an OperationOutcomeError; null is
// 204; decimals are numbers, and raw contains their exact text.
func TestAppFunctions(t *testing.T) {
	t.Parallel()
	s := start(t)
	s.put("/Patient/p", `{"resourceType":"Patient","id":"p","name":[{"family":"Kin"}]}`).want(201)
	s.put("/App/f", app("f", "active", "execute", "Patient", "all", `async (c) => {
		const made = await fhir.create({resourceType: "Basic", code: {text: "one"}});
		const changed = await fhir.update({...made, code: {text: "two"}});
		const patched = await fhir.patch("Basic", made.id, [{op: "replace", path: "/code/text", value: "three"}]);
		const again = await fhir.read("Basic", made.id);
		const byText = await fhir.search("Patient", "family=kin&_count=1"), byObject = await fhir.search("Patient", {family: ["kin"]});
		const bundle = await fhir.transaction({resourceType: "Bundle", type: "transaction", entry: [{request: {method: "GET", url: "Basic/" + made.id}}]});
		const below = await fhir.operation("Patient/p/$below", {method: "POST", parameters: {x: 2}});
		await fhir.delete("Basic", made.id);
		let gone; try { await fhir.read("Basic", made.id) } catch (e) { gone = [e instanceof OperationOutcomeError, e.status] }
		console.log("a"); console.warn("b"); console.error("c");
		return [changed.code.text, patched.code.text, again.meta.versionId, byText.resourceType, byText.total, byObject.total, bundle.entry[0].resource.id === made.id, below.x, gone,
			fhirpath("name.family", c.resource), crypto.randomUUID().length, typeof c.parameters.dose, c.parameters.dose];
	}`, "execute", "Patient", "below", "(c) => ({x: c.parameters.x + 1})", "execute", "Patient", "none", "async () => null")).want(201)
	a := s.post("/Patient/p/$all", `{"parameters":{"dose":1.10}}`).want(200)
	if got := strings.TrimSpace(string(a.body)); got != `["two","three","3","Bundle",1,1,true,3,[true,410],["Kin"],36,"number",1.1]` {
		t.Errorf("%s", got)
	}
	s.post("/Patient/p/$none", "").want(204)
	comes(t, "the log", func() bool { return len(s.invocations("f", "?level=error")) == 1 })
}

// The contract, Apps sections 1 and 2: rules of names and numbers; standard interactions and transactions.
func TestAppNamesAndNumbers(t *testing.T) {
	t.Parallel()
	s := start(t, func(c *server.Config) { c.Apps.MaxOperations = 2 })
	one := func(name string) string { return app("a", "draft", "execute", "Patient", name, "() => 1") }
	for _, name := range []string{"1st", "a_b", "a.b", "a b", "ä", "", strings.Repeat("x", 65)} {
		s.put("/App/a", one(name)).want(422)
	}
	for i, name := range []string{"A-9", strings.Repeat("x", 64)} {
		s.put("/App/a", one(name)).want([]int{201, 200}[i])
	}
	s.put("/App/b", app("b", "draft", "execute", "Patient", "a", "() => 1", "execute", "Patient", "b", "() => 1", "execute", "Patient", "c", "() => 1")).issue(422, "invalid", "at most 2")
	s.put("/App/b", app("b", "active", "execute", "Patient", "same", "() => 'patient'", "execute", "Observation", "same", "() => 'observation'")).want(201)
	s.put("/App/retired", app("retired", "retired", "execute", "Patient", "z", "() => 1")).want(422)
	if a := s.post("/Observation/$same", "").want(200); !strings.Contains(string(a.body), "observation") {
		t.Errorf("%s", a.body)
	}
	s.post("/", bundle("batch", entry("POST", "Patient/$same", "", ""))).want(200).equal("entry.0.response.status", "404 Not Found")
	if a := s.post("/", bundle("transaction", entry("POST", "Patient/$same", "", ""))); a.status/100 != 4 {
		t.Errorf("in a transaction: %d %s", a.status, a.body)
	}
	if a := s.get("/App?status=active").want(200); fmt.Sprint(a.at("total")) != "1" || a.str("entry.0.resource.id") != "b" {
		t.Errorf("%s", a.body)
	}
}

// The contract, Apps section 5: without a retryPolicy an event is handed over again after 10 s, as
// apps.webhook_max_retries says; a handler that does not answer within apps.webhook_timeout_seconds has
// failed.
func TestAppEventsWithoutPolicy(t *testing.T) {
	t.Parallel()
	s, r := start(t, func(c *server.Config) { c.Apps.WebhookTimeoutSeconds = 1 }), newReceiver(t)
	release := make(chan struct{})
	defer close(release)
	r.says(func(delivery, http.ResponseWriter) { <-release })
	s.put("/App/w", eventApp("w", "Patient", `"create"`, "", `{"type":"webhook","url":"`+r.url+`"}`)).want(201)
	s.put("/Patient/p", `{"resourceType":"Patient","id":"p"}`).want(201)
	soon(t, "an attempt that failed", func() bool {
		list := s.deliveries("?status=pending&subscription=App/w/0")
		if len(list) != 1 || lastError(list[0]) == "" {
			return false
		}
		first := list[0]["attempts"].([]any)[0].(map[string]any)
		at, err := time.Parse(time.RFC3339, first["at"].(string))
		next, err2 := time.Parse(time.RFC3339, fmt.Sprint(list[0]["nextAttemptAt"]))
		if err != nil || err2 != nil || !strings.Contains(lastError(list[0]), "1s") {
			t.Fatalf("%v", list[0])
		}
		if wait := next.Sub(at); wait < 10*time.Second {
			t.Errorf("the next attempt is %s after the first, want 10 s at least", wait)
		}
		return true
	})
}

// While hostile scripts run, the requests of others are answered. The log has the times of both; the limits allow for
// a busy machine.
func TestHostileScriptsSlowNobody(t *testing.T) {
	t.Parallel()
	s := start(t, func(c *server.Config) { c.Apps.Sandbox.MaxExecutionMS = 200 })
	s.put("/Patient/p", `{"resourceType":"Patient","id":"p"}`).want(201)
	scripts := []string{"() => { while (true) {} }", "() => { const a = []; for (;;) a.push(new Array(1000).fill(1)) }", "async () => { while (true) await null }",
		"() => { let s = 'x'; for (;;) s += s }", "() => /^(?=((a+)+)$)\\1b/.test('a'.repeat(40) + '!')"}
	var operations []string
	for i, code := range scripts {
		operations = append(operations, "execute", "Patient", fmt.Sprint("h", i), code)
	}
	s.put("/App/h", app("h", "active", operations...)).want(201)
	reads := func(done func(i int) bool) []time.Duration {
		var took []time.Duration
		for i := 0; !done(i); i++ {
			start := time.Now()
			s.get("/Patient/p").want(200)
			took = append(took, time.Since(start))
		}
		slices.Sort(took)
		return took
	}
	alone := reads(func(i int) bool { return i == 300 })
	var hostile sync.WaitGroup
	ended := make(chan struct{})
	for i := range 4 {
		hostile.Go(func() {
			for n := range 5 {
				a, err := s.try("POST", fmt.Sprint("/Patient/$h", (i+n)%len(scripts)), "")
				if err != nil {
					t.Errorf("a hostile script: %v", err)
				} else if a.status != 422 {
					t.Errorf("a hostile script: %d %s", a.status, a.body)
				}
			}
		})
	}
	go func() { hostile.Wait(); close(ended) }()
	beside := reads(func(i int) bool {
		select {
		case <-ended:
			return i >= 100
		default:
			return false
		}
	})
	p99 := func(list []time.Duration) time.Duration { return list[len(list)*99/100] }
	t.Logf("p99 of %d reads alone %s, of %d beside 20 hostile scripts %s", len(alone), p99(alone), len(beside), p99(beside))
	if p99(beside) > 20*p99(alone)+time.Second {
		t.Errorf("p99 of a read is %s beside hostile scripts, %s alone", p99(beside), p99(alone))
	}
}

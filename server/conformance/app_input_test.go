package conformance

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"testing"
)

// The contract, Apps section 3: the context has the same members for all handlers; absent ones are null, but
// parameters and query are always objects.
func TestAppContextIsWhole(t *testing.T) {
	t.Parallel()
	s := start(t)
	s.put("/Patient/p", `{"resourceType":"Patient","id":"p"}`).want(201)
	const tell = "(c) => [Object.keys(c).sort().join(), c.parameters.none, c.query.none, c.user.roles.length, c.raw.resource]"
	s.put("/App/w", app("w", "active", "execute", "Patient", "tell", tell, "read", "Patient", "show", tell, "search", "Patient", "ask", tell,
		"execute", "Patient", "same", "(c) => c", "execute", "Patient", "some", "(c) => ({resourceType: c.resourceType, resourceId: c.resourceId})")).want(201)
	const members = "app,client,operation,parameters,patient,query,raw,requestId,resource,resourceId,resourceType,type,user"
	for name, a := range map[string]*answer{
		"execute without a body": s.post("/Patient/$tell", ""), "execute with {}": s.post("/Patient/$tell", `{}`), "execute with null": s.post("/Patient/$tell", `{"parameters":null}`),
		"read": s.get("/Patient/p/$show"), "search": s.get("/Patient/$ask"),
	} {
		if a.want(200); a.at("0") != members {
			t.Errorf("%s: the members are %v, want %s", name, a.at("0"), members)
		}
	}
	// The context names a resourceType, and is no resource.
	s.post("/Patient/p/$same", "").want(200).equal("resourceId", "p").equal("resource.id", "p").has("Content-Type", "application/json")
	s.post("/Patient/p/$some", "").want(200).equal("resourceId", "p").has("Content-Type", "application/json")
}

// The contract, Apps sections 2 and 3: FHIR Parameters are checked to be that; context.raw.parameters is
// the text of the parameters.
func TestAppParametersAreChecked(t *testing.T) {
	t.Parallel()
	s := start(t)
	s.put("/App/r", app("r", "active", "execute", "Patient", "raw", "(c) => [c.raw.parameters, c.parameters]")).want(201)
	for body, want := range map[string]string{
		`{"resourceType":"Parameters","parameter":[{"name":"x","valueFoo":1}]}`:             "valueFoo",
		`{"resourceType":"Parameters","parameter":[{"valueInteger":1}]}`:                    "name is required",
		`{"resourceType":"Parameters","parameter":[{"name":"x","valueInteger":"1"}]}`:       "valueInteger",
		`{"resourceType":"Parameters","parameter":[{"name":"x","valueDate":"yesterday"}]}`:  "yesterday",
		`{"resourceType":"Parameters","parameter":[{"name":"r","resource":{"id":"none"}}]}`: "resourceType",
	} {
		if a := s.post("/Patient/$raw", body); a.status != 422 && a.status != 400 || !strings.Contains(string(a.body), want) {
			t.Errorf("%s: %d %s, want %q", body, a.status, a.body, want)
		}
	}
	for _, body := range []string{`nonsense`, `[1]`, `5`, `{"parameters":`} {
		s.post("/Patient/$raw", body).issue(400, "structure")
	}
	if a := s.post("/Patient/$raw", `{"parameters": {"dose": 1.10}}`).want(200); a.at("0") != `{"dose": 1.10}` {
		t.Errorf("the raw parameters are %s", a.body)
	}
}

// The contract, Apps section 3: throw new OperationOutcomeError(status, code, text) chooses; the answer
// is FHIR, also where the script chose no code of FHIR's.
func TestAppErrorsAreFHIR(t *testing.T) {
	t.Parallel()
	s := start(t)
	codes := map[string]string{
		"OperationOutcomeError(409, 'conflict', 'mine')": "409 conflict mine", "OperationOutcomeError(404)": "404 not-found without a message",
		"OperationOutcomeError(599, 'bogus', 'mine')": "599 exception mine", "OperationOutcomeError(418, 'teapot', 'tea')": "418 invalid tea",
		"OperationOutcomeError(403, undefined, 'no')": "403 forbidden no", "OperationOutcomeError(401, '', 'no')": "401 login no", "OperationOutcomeError(429, 5, 'no')": "429 throttled no",
	}
	i := 0
	for code, want := range codes {
		id := "e" + string(rune('a'+i))
		i++
		s.put("/App/"+id, app(id, "active", "execute", "Patient", id, "() => { throw new "+code+" }")).want(201)
		a := s.post("/Patient/$"+id, "")
		w := strings.SplitN(want, " ", 3)
		if got := a.str("issue.0.code"); strconv.Itoa(a.status) != w[0] || got != w[1] || !strings.Contains(string(a.body), w[2]) {
			t.Errorf("%s: %d %s, want %s", code, a.status, a.body, want)
		}
		s.post("/OperationOutcome/$validate", string(a.body)).want(200)
	}
}

// The contract, Apps section 3: fhir.operation takes an object of parameters for the server's own
// operations too; fhir.search needs a type.
func TestAppCallsOperationsWithPlainParameters(t *testing.T) {
	t.Parallel()
	s := start(t)
	s.put("/App/f", app("f", "active",
		"execute", "Patient", "list", "async () => (await fhir.operation('ValueSet/$expand', {parameters: {url: 'http://hl7.org/fhir/ValueSet/administrative-gender', count: 2}})).expansion.contains.length",
		"execute", "Patient", "all", "async () => (await fhir.search('', {})).total",
	)).want(201)
	if a := s.post("/Patient/$list", "").want(200); string(a.body) != "2\n" {
		t.Errorf("%s, want 2 codes", a.body)
	}
	s.post("/Patient/$all", "").issue(400, "invalid", "needs a type")
}

// The contract, Apps section 6: the log's next is null on the last page; 3: an answer that is not UTF-8 is
// nonsense.
func TestAppLogEndsAndAnswersAreText(t *testing.T) {
	t.Parallel()
	s := start(t)
	handler := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		w.Write([]byte("{\"a\":\"\xff\"}"))
	}))
	t.Cleanup(handler.Close)
	s.put("/App/h", remoteApp("h", "execute", "latin", `{"type":"http","url":"`+handler.URL+`"}`)).want(201)
	for range 2 {
		s.post("/Patient/$latin", "").issue(502, "exception", "not JSON")
	}
	soon(t, "the log", func() bool { return s.get("/App/h/$log").want(200).len("invocations") == 2 })
	page := s.get("/App/h/$log?_count=1").want(200)
	next := page.str("next")
	if next == "" || page.len("invocations") != 1 {
		t.Fatalf("%s", page.body)
	}
	if a := s.get(next).want(200); a.len("invocations") != 1 || !strings.Contains(string(a.body), `"next":null`) {
		t.Errorf("%s", a.body)
	}
}

// The contract, Apps section 1: the Apps that are active after a transaction count. One may take the name of an
// operation that another drops in it.
func TestOperationMovesBetweenApps(t *testing.T) {
	t.Parallel()
	s := start(t)
	s.put("/Patient/p", `{"resourceType":"Patient","id":"p"}`).want(201)
	of := func(id, name string) string {
		return app(id, "active", "execute", "Patient", name, `() => "`+id+`"`)
	}
	s.put("/App/one", of("one", "here")).want(201)
	s.put("/App/two", of("two", "there")).want(201)
	put := func(id, name string) string { return entry("PUT", "App/"+id, "", of(id, name)) }
	patch := func(id, name string) string {
		return `{"request":{"method":"PATCH","url":"App/` + id + `"},"resource":{"resourceType":"Parameters","parameter":[{"name":"operation","part":[{"name":"type","valueCode":"replace"},` +
			`{"name":"path","valueString":"App.operations[0].name"},{"name":"value","valueString":"` + name + `"}]}]}}`
	}
	says := func(name, want string) {
		t.Helper()
		if a := s.post("/Patient/p/$"+name, ""); want == "" && a.status != 404 || want != "" && !strings.Contains(string(a.body), want) {
			t.Errorf("$%s: %d %s, want %q", name, a.status, a.body, want)
		}
	}
	s.post("/", bundle("transaction", put("one", "there"), put("two", "here"))).want(200)
	says("here", "two")
	says("there", "one")
	s.post("/", bundle("transaction", put("one", "here"))).issue(422, "invalid", "App/two")
	s.post("/", bundle("transaction", put("one", "here"), put("two", "here"))).issue(422, "invalid", "same Bundle")
	s.post("/", bundle("transaction", put("two", "new"), patch("one", "new"))).issue(422, "invalid", "same Bundle")
	s.post("/", bundle("transaction", put("two", "new"), patch("one", "here"))).want(200)
	says("here", "one")
	says("new", "two")
	says("there", "")
	s.post("/", bundle("transaction", `{"request":{"method":"DELETE","url":"App/one"}}`, put("two", "here"))).want(200)
	says("here", "two")
}

// The contract, Apps section 3: a script gets FHIR: links and the fullUrls of Bundles are absolute, also without
// server.base_url.
func TestBundlesOfScriptsHaveAbsoluteLinks(t *testing.T) {
	t.Parallel()
	s := start(t)
	s.put("/Patient/p", `{"resourceType":"Patient","id":"p"}`).want(201)
	s.put("/App/links", app("links", "active", "execute", "Patient", "links", `async () => {
		const found = await fhir.search("Patient", {_id: "p"})
		const batch = await fhir.transaction({resourceType: "Bundle", type: "batch", entry: [{request: {method: "GET", url: "Patient/p"}}]})
		return [found.link[0].url, found.entry[0].fullUrl, batch.entry[0].fullUrl]
	}`)).want(201)
	var urls []string
	if err := json.Unmarshal(s.post("/Patient/p/$links", "").want(200).body, &urls); err != nil {
		t.Fatal(err)
	}
	for i, want := range []string{"/Patient?_id=p", "/Patient/p", "/Patient/p"} {
		if !strings.HasPrefix(urls[i], "http://127.0.0.1:") || !strings.HasSuffix(urls[i], want) {
			t.Errorf("%s, want …%s", urls[i], want)
		}
	}
}

// The contract, Specification, AuditEvent: the App is an agent of the AuditEvents of its operations, and
// they are found by it.
func TestAuditEventsAreFoundByApp(t *testing.T) {
	t.Parallel()
	s := start(t)
	s.put("/Patient/p", `{"resourceType":"Patient","id":"p"}`).want(201)
	s.put("/App/f", app("f", "active", "execute", "Patient", "one", "() => 1")).want(201)
	s.put("/App/g", app("g", "active", "execute", "Patient", "two", "() => 2")).want(201)
	s.post("/Patient/p/$one", "").want(200)
	s.post("/Patient/p/$two", "").want(200)
	soon(t, "the AuditEvent", func() bool { return s.get("/AuditEvent?agent=App/f").want(200).str("total") == "1" })
	s.get("/AuditEvent?agent=App/f&entity=Patient/p&action=E&outcome=0").want(200).equal("total", "1")
	s.get("/AuditEvent?agent:App=g").want(200).equal("total", "1")
	s.get("/AuditEvent?agent=App/none").want(200).equal("total", "0")
	s.get("/AuditEvent?agent=Encounter/p").issue(400, "invalid")
	s.do("GET", "/Patient?general-practitioner=App/probe", "").want(400) // where no software stands
}

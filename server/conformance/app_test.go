package conformance

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"

	"kiln/server"
)

// app is an App with operations written as type, resource type, name and code in turn.
func app(id, status string, operations ...string) string {
	var list []string
	for i := 0; i < len(operations); i += 4 {
		code, _ := json.Marshal(operations[i+3])
		list = append(list, fmt.Sprintf(`{"type":%q,"resourceType":%q,"name":%q,"handler":{"type":"javascript","code":%s}}`, operations[i], operations[i+1], operations[i+2], code))
	}
	return fmt.Sprintf(`{"resourceType":"App","id":%q,"name":%q,"status":%q,"version":"1.0.0","operations":[%s]}`, id, id, status, strings.Join(list, ","))
}

// The contract, Apps section 1: life and checks.
func TestAppLife(t *testing.T) {
	s := start(t)
	echo := []string{"execute", "Patient", "echo", "(c) => c.parameters"}
	s.put("/App/a", app("a", "inactive", echo...)).issue(422, "invalid", "draft or active")
	s.put("/App/a", app("a", "draft", echo...)).want(201)
	s.put("/App/a", app("a", "inactive", echo...)).issue(422, "invalid", "draft", "active", "retired")
	s.post("/Patient/$echo", `{"parameters":{"x":1}}`).issue(404, "not-supported", "$echo")
	s.put("/App/a", app("a", "active", echo...)).want(200)
	s.post("/Patient/$echo", `{"parameters":{"x":1}}`).want(200).equal("x", "1").has("Content-Type", "application/json")
	s.put("/App/b", app("b", "active", echo...)).issue(422, "invalid", "App/a", "$echo")
	s.put("/App/b", app("b", "draft", echo...)).want(201)
	s.put("/App/a", app("a", "draft", echo...)).issue(422, "invalid", "inactive", "retired")
	s.do("PATCH", "/App/a", `[{"op":"replace","path":"/status","value":"draft"}]`, "Content-Type", "application/json-patch+json").issue(422, "invalid", "inactive")
	s.put("/App/a", app("a", "inactive", echo...)).want(200)
	s.post("/Patient/$echo", "").want(404)
	s.put("/App/b", app("b", "active", echo...)).want(200)
	s.put("/App/a", app("a", "active", echo...)).issue(422, "invalid", "App/b")
	s.put("/App/a", app("a", "retired", echo...)).want(200)
	s.put("/App/a", app("a", "active", echo...)).issue(422, "invalid", "only be deleted")
	s.do("DELETE", "/App/a", "").want(204)
	s.do("DELETE", "/App/b", "").want(204)
	s.post("/Patient/$echo", "").want(404)
	for _, c := range []struct{ body, word string }{
		{app("c", "draft", "execute", "Patient", "$x", "() => 1"), "without $"},
		{app("c", "draft", "execute", "Patient", "everything", "() => 1"), "server itself"},
		{app("c", "draft", "execute", "Patent", "x", "() => 1"), "Patent"},
		{app("c", "draft", "execute", "Patient", "x", "() => {\n  return ]"), "line 2"},
		{app("c", "draft", "execute", "Patient", "x", "() => 1", "read", "Patient", "x", "() => 1"), "two operations"},
		{strings.Replace(app("c", "draft", echo...), `,"code":"(c) =\u003e c.parameters"`, "", 1), "needs code"},
	} {
		s.put("/App/c", c.body).issue(422, "invalid", c.word)
	}
	if body := app("c", "draft", append(echo, echo...)...); !strings.Contains(body, "echo") {
		t.Fatal("no case")
	}
}

// A change is effective at once, on every server.
func TestAppsOnEveryServer(t *testing.T) {
	a, b := pair(t)
	a.put("/App/a", app("a", "active", "search", "Patient", "hello", "(c) => ({hello: c.query.name})")).want(201)
	b.get("/Patient/$hello?name=x").want(200).equal("hello", "x")
	if body := string(b.get("/metadata").want(200).body); !strings.Contains(body, "http://kiln/fhir/OperationDefinition/app-Patient-hello") {
		t.Error("the capability statement does not list $hello")
	}
	b.get("/OperationDefinition/app-Patient-hello").want(200).equal("code", "hello").equal("type", "true").equal("affectsState", "false").equal("meta.tag.0.code", "")
	// A client finds it by the canonical in the capability statement, as it finds FHIR's.
	byURL := "/OperationDefinition?url=http://kiln/fhir/OperationDefinition/app-Patient-hello"
	b.get(byURL).want(200).equal("total", "1").equal("entry.0.resource.id", "app-Patient-hello").equal("entry.0.search.mode", "match").equal("entry.0.resource.meta.tag.0.code", "")
	b.get(byURL+"&status=active&code=hello").want(200).equal("total", "1")
	b.get(byURL+"&status=draft").want(200).equal("total", "0").equal("entry.0.resource.id", "")
	b.get(byURL+"&_summary=count").want(200).equal("total", "1").equal("entry.0.resource.id", "")
	b.get(byURL+"&_elements=code").want(200).equal("entry.0.resource.code", "hello").equal("entry.0.resource.affectsState", "").equal("entry.0.resource.meta.tag.0.code", "SUBSETTED")
	b.get("/OperationDefinition?url=http://hl7.org/fhir/OperationDefinition/Patient-everything").want(200).equal("entry.0.resource.id", "Patient-everything")
	b.get("/StructureDefinition?url=http://hl7.org/fhir/StructureDefinition/Patient").want(200).equal("entry.0.resource.id", "Patient").equal("entry.0.resource.meta.tag.0.code", "SUBSETTED")
	b.get("/StructureDefinition?url=http://hl7.org/fhir/OperationDefinition/Patient-everything").want(200).equal("total", "0")
	b.put("/OperationDefinition/app-Patient-hello", `{"resourceType":"OperationDefinition","id":"app-Patient-hello","url":"http://kiln/fhir/OperationDefinition/app-Patient-hello","name":"own","status":"draft","kind":"operation","code":"hello","system":false,"type":true,"instance":false}`).want(201)
	b.get(byURL).want(200).equal("total", "1").equal("entry.0.resource.name", "own")
	b.do("DELETE", "/OperationDefinition/app-Patient-hello", "").want(204)
	b.do("DELETE", "/App/a", "").want(204)
	a.get("/Patient/$hello").want(404)
	a.get(byURL).want(200).equal("total", "0")
	a.get("/OperationDefinition/app-Patient-hello").want(410) // the one that was stored is deleted
}

// The contract, Apps sections 2 and 3: forms of calls, and the functions of a script.
func TestAppJavaScript(t *testing.T) {
	s := start(t, func(c *server.Config) { c.Apps.Sandbox.MaxExecutionMS = 500 })
	s.put("/Patient/p", `{"resourceType":"Patient","id":"p","birthDate":"1970-01-01","name":[{"family":"Kin"}]}`).want(201)
	s.put("/App/a", app("a", "active",
		"read", "Patient", "view", "(c) => ({family: c.resource.name[0].family, id: c.resourceId, operation: c.operation, type: c.type, app: c.app.id})",
		"search", "Patient", "find", "async (c) => (await fhir.search('Patient', {family: c.query.family})).total",
		"write", "Patient", "admit", "async (c) => fhir.create({...c.resource, active: true})",
		"execute", "Patient", "score", "async (c) => ({resourceType: 'Parameters', parameter: [{name: 'score', valueInteger: c.parameters.a + c.parameters.list.length + c.parameters.group.b}]})",
		"execute", "Patient", "raw", "(c) => c.raw.parameters",
		"execute", "Patient", "nothing", "() => undefined",
		"execute", "Patient", "fails", "() => {\n  throw new Error('no such dose')\n}",
		"execute", "Patient", "busy", "() => { throw new OperationOutcomeError(409, 'conflict', 'busy') }",
		"execute", "Patient", "loops", "() => { while (true) {} }",
		"execute", "Patient", "getter", "() => ({get total() { while (true) {} }})",
		"execute", "Patient", "bomb", "() => { const a = []; for (;;) a.push(new Array(1000).fill(1)) }",
		"execute", "Patient", "missing", "async () => fhir.read('Patient', 'none')",
		"read", "Patient", "sneaky", "async () => fhir.create({resourceType: 'Patient'})",
		"execute", "Patient", "nonsense", "() => ({resourceType: 'Patient', colour: 1})",
		"execute", "Patient", "again", "async () => fhir.operation('Patient/$again')",
		"execute", "Patient", "path", "(c) => fhirpath('name.family', c.resource)",
	)).want(201)

	s.get("/Patient/p/$view").want(200).equal("family", "Kin").equal("id", "p").equal("operation", "view").equal("type", "read").equal("app", "a")
	s.get("/Patient/none/$view").want(404)
	s.post("/Patient/p/$view", "").issue(405, "not-supported", "GET instance")
	if a := s.get("/Patient/$find?family=Kin").want(200); string(a.body) != "1\n" {
		t.Errorf("$find: %s", a.body)
	}
	if a := s.post("/Patient/$find", "family=Kin", "Content-Type", "application/x-www-form-urlencoded").want(200); string(a.body) != "1\n" {
		t.Errorf("$find by a form: %s", a.body)
	}
	s.post("/Patient/$admit", `{"resourceType":"Patient","name":[{"family":"New"}]}`).want(200).equal("resourceType", "Patient").equal("active", "true").
		has("Content-Type", "application/fhir+json; charset=utf-8")
	s.put("/Patient/p/$admit", `{"resourceType":"Patient","id":"p"}`).want(200)
	s.put("/Patient/p/$admit", `{"resourceType":"Patient","id":"q"}`).issue(400, "invalid", "q")
	s.post("/Patient/$admit", `{"resourceType":"Observation"}`).want(400)
	parameters := `{"resourceType":"Parameters","parameter":[{"name":"a","valueInteger":1},{"name":"list","valueCode":"x"},{"name":"list","valueCode":"y"},{"name":"group","part":[{"name":"b","valueInteger":4}]}]}`
	s.post("/Patient/p/$score", parameters).want(200).equal("parameter.0.valueInteger", "7")
	s.post("/Patient/$score", `{"parameters":{"a":1,"list":[1],"group":{"b":2}}}`).want(200).equal("parameter.0.valueInteger", "4")
	s.post("/Patient/$score", `{"a":1}`).issue(400, "invalid", "parameters")
	if a := s.post("/Patient/$raw", `{"parameters":{"dose":1.10}}`).want(200); !strings.Contains(string(a.body), "1.10") {
		t.Errorf("the exact text is %s", a.body)
	}
	s.post("/Patient/p/$nothing", "").want(204)
	s.post("/Patient/p/$fails", "").issue(422, "invalid", "no such dose", "line 2")
	s.post("/Patient/p/$busy", "").issue(409, "conflict", "busy")
	s.post("/Patient/p/$loops", "").issue(422, "too-costly", "max_execution_ms")
	s.post("/Patient/p/$getter", "").issue(422, "too-costly", "max_execution_ms")
	s.post("/Patient/p/$bomb", "").issue(422, "too-costly")
	s.post("/Patient/p/$missing", "").issue(404, "not-found", "Patient/none")
	s.get("/Patient/p/$sneaky").issue(403, "forbidden", "fhir.create")
	s.post("/Patient/p/$nonsense", "").issue(422, "invalid", "colour")
	s.post("/Patient/$again", "").issue(422, "too-costly", "8 deep")
	s.post("/Patient/p/$path", "").want(200).equal("0", "Kin")
	s.post("/Patient/p/$scor", "").issue(404, "not-supported", "$score")
	s.post("/Observation/$score", "").want(404)
	s.post("/", bundle("batch", entry("POST", "Patient/$score", "", ""))).want(200).equal("entry.0.response.status", "404 Not Found")

	t.Run("each operation is an AuditEvent", func(t *testing.T) {
		a := s.in(t).get("/AuditEvent?entity=Patient/p&action=E&_count=1").want(200)
		if a.str("total") == "0" || a.str("entry.0.resource.agent.1.who.reference") != "App/a" || a.str("entry.0.resource.entity.0.role.code") != "4" {
			t.Errorf("the events are %s", clip(a.body))
		}
	})
}

// Contract, Apps 2: how each type of operation is called; Allow names the methods that the target
// supports, for every method that is refused, and OPTIONS does. RFC 9110 §15.5.6, §10.2.1.
func TestAppOperationsAllow(t *testing.T) {
	t.Parallel()
	s := start(t)
	const code = `() => ({})`
	s.put("/App/a", app("a", "active", "read", "Patient", "r", code, "search", "Patient", "s", code, "write", "Patient", "w", code, "execute", "Patient", "e", code)).want(201)
	s.put("/Patient/p", `{"resourceType":"Patient","id":"p"}`).want(201)
	for path, want := range map[string]string{
		"/Patient/p/$r": "GET, HEAD", "/Patient/$s": "GET, HEAD, POST", "/Patient/p/$w": "PUT", "/Patient/$w": "POST", "/Patient/p/$e": "POST", "/Patient/$e": "POST",
	} {
		allowed := strings.Split(want, ", ")
		for _, method := range []string{"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE"} {
			a := s.do(method, path, `{"resourceType":"Patient","id":"p"}`)
			if slices.Contains(allowed, method) {
				if a.status == 405 || a.status == 404 {
					t.Errorf("%s %s: %d %s", method, path, a.status, a.body)
				}
			} else if got := a.header.Get("Allow"); a.status != 405 || got != want {
				t.Errorf("%s %s: %d, Allow is %q, want 405 and %q", method, path, a.status, got, want)
			}
		}
		if got := s.do("OPTIONS", path, "").want(204).header.Get("Allow"); got != want+", OPTIONS" {
			t.Errorf("OPTIONS %s: Allow is %q, want %q", path, got, want+", OPTIONS")
		}
	}
	// On a level that the operation is not called on no method is allowed.
	for _, path := range []string{"/Patient/$r", "/Patient/p/$s"} {
		if a := s.get(path).want(405); a.header.Get("Allow") != "" {
			t.Errorf("GET %s: Allow is %q", path, a.header.Get("Allow"))
		}
	}
}

package conformance

import (
	"encoding/base64"
	"encoding/json"
	"net/url"
	"strings"
	"testing"
	"time"

	"kiln/server"
)

// withRequest are the AuditEvents of a request by its id, at least as many as are wanted.
func (s *service) withRequest(id string, want int) []map[string]any {
	s.t.Helper()
	for deadline := time.Now().Add(patience); ; time.Sleep(20 * time.Millisecond) {
		var out []map[string]any
		a := s.get("/AuditEvent?_sort=-_lastUpdated&_count=100").want(200)
		entries, _ := a.at("entry").([]any) // absent before the first event is written
		for _, e := range entries {
			event := e.(map[string]any)["resource"].(map[string]any)
			entities, _ := event["entity"].([]any)
			for _, n := range entities {
				entity := n.(map[string]any)
				if what, ok := entity["what"].(map[string]any); ok && entity["type"] != nil && entity["type"].(map[string]any)["code"] == "XrequestId" &&
					what["identifier"].(map[string]any)["value"] == id {
					out = append(out, event)
				}
			}
		}
		if len(out) >= want {
			return out
		}
		if time.Now().After(deadline) {
			s.t.Fatalf("%d AuditEvents of the request %s, want %d\n%s", len(out), id, want, clip(a.body))
		}
	}
}

// told is what AuditEvents say was done: interaction, action, outcome.
func told(events []map[string]any) map[string]int {
	out := make(map[string]int)
	for _, e := range events {
		subtype := e["subtype"].([]any)[0].(map[string]any)
		out[subtype["code"].(string)+" "+e["action"].(string)+" "+e["outcome"].(string)]++
	}
	return out
}

// Contract, Operations: audit: AuditEvent for each REST interaction by the BALP patterns: each entry of a
// bundle as well, requests that fail, requests without a token.
func TestAuditOfRequests(t *testing.T) {
	t.Parallel()
	s := withAuthorization(t, func(c *server.Config) { c.Audit.Rest = "all" })
	all := s.bearer(s.backendToken("backend", "system/*.cruds"))
	check := func(id string, want ...string) []map[string]any {
		t.Helper()
		events := all.withRequest(id, len(want))
		got := told(events)
		for _, w := range want {
			if got[w]--; got[w] < 0 {
				t.Errorf("request %s: no AuditEvent %q among %v", id, w, told(events))
			}
		}
		if len(events) != len(want) {
			t.Errorf("request %s: AuditEvents %v, want %q", id, told(events), want)
		}
		return events
	}
	observation := `{"resourceType":"Observation","status":"final","code":{"text":"c"},"subject":{"reference":"Patient/a"}}`
	all.post("/", bundle("batch", entry("GET", "Patient/a", "", ""), entry("GET", "Patient/nobody", "", ""), entry("GET", "Observation?code=x", "", ""),
		entry("GET", "Patient/a/_history", "", ""), entry("GET", "Patient/a/$everything", "", ""), entry("POST", "Observation", "", observation),
		entry("POST", "Observation", "", `{"resourceType":"Observation"}`), entry("DELETE", "Patient/nobody", "", "")), "X-Request-Id", "batch-1").want(200)
	for _, e := range check("batch-1", "read R 0", "read R 4", "search-type E 0", "history-instance R 0", "operation E 0", "create C 0", "create C 4", "delete D 0") {
		if told([]map[string]any{e})["read R 0"] == 1 && !strings.Contains(string(marshal(t, e)), `"reference":"Patient/a"`) {
			t.Errorf("the read of a batch names no patient: %s", marshal(t, e))
		}
	}
	all.post("/", bundle("transaction", entry("GET", "Patient/a", "", ""), entry("POST", "Observation", "", observation)), "X-Request-Id", "transaction-1").want(200)
	check("transaction-1", "read R 0", "create C 0")
	all.post("/", bundle("transaction", entry("POST", "Observation", "", `{"resourceType":"Observation"}`)), "X-Request-Id", "transaction-2").want(422)
	check("transaction-2", "transaction E 4")
	all.post("/", `{"resourceType":"Bundle","type":"collection"}`, "X-Request-Id", "bundle-1").want(400)
	check("bundle-1", "batch E 4")
	all.do("HEAD", "/Patient/a", "", "X-Request-Id", "head-1").want(200)
	check("head-1", "read R 0")
	all.get("/Patient/a/Observation", "X-Request-Id", "compartment-1").want(200)
	check("compartment-1", "search E 0")
	// The parameters and the patient of a search by POST are recorded too.
	all.post("/Observation/_search?_count=5", "patient=a&code=x%7Cy", "X-Request-Id", "form-1", "Content-Type", "application/x-www-form-urlencoded").want(200)
	for _, e := range check("form-1", "search-type E 0") {
		asked := base64.StdEncoding.EncodeToString([]byte("/Observation/_search?_count=5&patient=a&code=x%7Cy"))
		if text := string(marshal(t, e)); !strings.Contains(text, `"query":"`+asked+`"`) || !strings.Contains(text, `"reference":"Patient/a"`) {
			t.Errorf("the AuditEvent of a search by POST: %s", text)
		}
	}
	all.post("/Nothing", `{}`, "X-Request-Id", "unknown-1").want(404)
	check("unknown-1", "create C 4")
	s.get("/Patient/a", "X-Request-Id", "nobody-1").want(401)
	s.bearer("nonsense").put("/Patient/a", `{}`, "X-Request-Id", "nobody-2").want(401)
	check("nobody-1", "read R 4")
	check("nobody-2", "update U 4")
}

// marshal is a value as JSON.
func marshal(t *testing.T, v any) []byte {
	t.Helper()
	b, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// Contract, Authorization 4: hidden resources are absent, DELETE of a hidden id answers as for an absent one: also in
// the AuditEvents of the patient's own requests.
func TestAuditOfHiddenDeletion(t *testing.T) {
	t.Parallel()
	s := withAuthorization(t, func(c *server.Config) { c.Audit.Rest = "writes" })
	anna := s.person("anna")
	anna.visit("scope", "launch/patient patient/*.rs patient/Observation.cruds")
	anna.login()
	anna.allow()
	app := s.bearer(anna.tokens().str("access_token"))
	app.do("DELETE", "/Observation/obs-b", "", "X-Request-Id", "hidden-1").want(204)
	app.do("DELETE", "/Observation/nobody", "", "X-Request-Id", "absent-1").want(204)
	app.post("/", bundle("batch", entry("DELETE", "Observation/obs-b", "", "")), "X-Request-Id", "hidden-2").want(200)
	app.post("/", bundle("transaction", entry("DELETE", "Observation/obs-b", "", "")), "X-Request-Id", "hidden-3").want(200)
	all := s.bearer(s.backendToken("backend", "system/*.cruds"))
	all.get("/Observation/obs-b").want(200)
	for _, id := range []string{"hidden-1", "absent-1", "hidden-2", "hidden-3"} {
		events := all.withRequest(id, 1)
		if len(events) != 1 || told(events)["delete D 0"] != 1 {
			t.Errorf("request %s: AuditEvents %v, want one of a deletion", id, told(events))
		}
		if text := string(marshal(t, events)); strings.Contains(text, "Patient/b") {
			t.Errorf("the AuditEvent of %s tells whose the hidden resource is: %s", id, text)
		}
	}
}

// Contract, Operations: audit, and Authorization 5: acts of the authorization server and of administrators are recorded
// with the id of the request, the agent, and the change.
func TestAuditOfAdministration(t *testing.T) {
	t.Parallel()
	s := withAuthorization(t)
	all := s.bearer(s.backendToken("backend", "system/*.cruds"))
	admin := s.bearer(s.backendToken("operator", "admin"))
	admin.post(s.origin()+"/admin/clients", `{"clientId":"made-here","confidential":true,"scopes":["system/*.rs"]}`, append([]string{"Content-Type", "application/json", "X-Request-Id"}, "client-1")...).want(201)
	admin.post(s.origin()+"/admin/users", `{"username":"nurse","password":"`+userPassword+`"}`, append([]string{"Content-Type", "application/json", "X-Request-Id"}, "user-1")...).want(201)
	admin.post(s.origin()+"/admin/policies", `{"name":"night","effect":"deny","active":false,"priority":1}`, append([]string{"Content-Type", "application/json", "X-Request-Id"}, "policy-1")...).want(201)
	admin.do("DELETE", s.origin()+"/admin/policies/night", "", "X-Request-Id", "policy-2").want(204)
	s.form("/auth/token", url.Values{"grant_type": {"client_credentials"}, "client_id": {"backend"}, "client_secret": {"wrong"}}, "X-Request-Id", "token-1").want(401)
	for id, want := range map[string]string{"client-1": "made-here", "user-1": "nurse", "policy-1": "policy night: created", "policy-2": "policy night: deleted", "token-1": "backend"} {
		events := all.withRequest(id, 1)
		text := string(marshal(t, events))
		if len(events) != 1 || !strings.Contains(text, want) || id != "token-1" && !strings.Contains(text, "operator") {
			t.Errorf("request %s: want one AuditEvent that names %q: %s", id, want, text)
		}
	}
}

// Contract, Operations: AuditEvents can't be changed or deleted through REST: the CapabilityStatement says so.
// CORS: rest.security.cors is what server.allowed_origins says.
func TestCapabilitiesOfAuditAndCORS(t *testing.T) {
	t.Parallel()
	s := start(t)
	a := s.get("/metadata").want(200).equal("rest.0.security.cors", "true")
	found := false
	for i, r := range a.at("rest.0.resource").([]any) {
		if r.(map[string]any)["type"] != "AuditEvent" {
			continue
		}
		found = true
		for _, n := range r.(map[string]any)["interaction"].([]any) {
			if code := n.(map[string]any)["code"]; code == "update" || code == "patch" || code == "delete" {
				t.Errorf("AuditEvent lists the interaction %s", code)
			}
		}
		if r.(map[string]any)["updateCreate"] != false || r.(map[string]any)["conditionalUpdate"] != false || r.(map[string]any)["conditionalDelete"] != "not-supported" {
			t.Errorf("resource %d: %v", i, r.(map[string]any)["updateCreate"])
		}
	}
	if !found {
		t.Error("no AuditEvent among the resources")
	}
	s.do("PUT", s.root("/admin/config/server/allowed_origins"), `{"value":[]}`, "Content-Type", "application/json").want(200)
	s.get("/metadata").want(200).equal("rest.0.security.cors", "false")
}

// Contract, Authorization 2: one is `/admin/clients/{clientId}`: an id that is a URL is percent-encoded.
// What /admin does not have is not-found, and no resource type.
func TestAdminPaths(t *testing.T) {
	t.Parallel()
	s := withAuthorization(t)
	admin := s.bearer(s.backendToken("operator", "admin"))
	id := "https://app.example.org/smart"
	a := admin.post(s.origin()+"/admin/clients", `{"clientId":"`+id+`","confidential":true,"scopes":["system/*.rs"]}`, "Content-Type", "application/json").want(201)
	for _, path := range []string{a.header.Get("Location"), "/admin/clients/" + url.PathEscape(id), "/fhir/admin/clients/" + url.PathEscape(id), "/admin/clients/" + url.PathEscape(id) + "/"} {
		admin.get(s.origin()+path).want(200).equal("clientId", id)
	}
	admin.get(s.origin()+"/admin/nothing").issue(404, "not-found", "/admin/nothing")
	s.get(s.origin() + "/debug/pprof").want(401)
	s.get(s.origin() + "/debug/pprof/").want(401)
}

// Contract, Operations: `PUT /admin/config/{category}/{key}`: checked like the file. An issuer over http that
// is not on this machine is refused at start, and so in the database: no server could start with it.
func TestConfigurationOfIssuer(t *testing.T) {
	t.Parallel()
	s := withAuthorization(t)
	admin := s.bearer(s.backendToken("operator", "admin"))
	put := func(key, value string) *answer {
		return admin.do("PUT", s.origin()+"/admin/config/"+key, `{"value":"`+value+`"}`, "Content-Type", "application/json")
	}
	put("auth/issuer", "http://fhir.example.org").issue(400, "invalid", "auth.allow_http")
	put("server/base_url", "http://fhir.example.org/fhir").issue(400, "invalid", "auth.allow_http")
	put("auth/issuer", "https://fhir.example.org").want(200).equal("restart_required", "true")
	put("server/base_url", "http://fhir.example.org/fhir").want(200).equal("restart_required", "true")
}

// Contract, Authorization 4: well formed but not allowed: left out of the grant; nothing left: `invalid_scope`.
// A scope about no resource type or search parameter of this server gives nothing, and is not granted.
func TestScopesAboutNothing(t *testing.T) {
	t.Parallel()
	s := withAuthorization(t)
	ask := func(scope string) *answer {
		basic := "Basic " + base64.StdEncoding.EncodeToString([]byte("backend:"+url.QueryEscape(clientSecret)))
		return s.form("/auth/token", url.Values{"grant_type": {"client_credentials"}, "scope": {scope}}, "Authorization", basic)
	}
	for _, scope := range []string{"system/Nothing.rs", "system/Observation.rs?nothing=1", "system/Observation.rs?category", "system/Observation.rs?_count=1", "system/*.rs?nothing=1"} {
		ask(scope).want(400).equal("error", "invalid_scope")
		ask(scope+" system/Patient.rs").want(200).equal("scope", "system/Patient.rs")
	}
	for _, scope := range []string{"system/App.rs", "system/Observation.rs?category=laboratory", "system/*.rs?_id=x", "system/*.rs?patient=Patient/a"} {
		ask(scope).want(200).equal("scope", scope)
	}
}

package conformance

import (
	"context"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"html"
	"maps"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	"kiln/server"
	"kiln/server/store/storetest"
)

// The parts of an authorization request that do not matter.
const (
	appRedirect  = "https://app.example.org/cb"
	appState     = "b2c1f3c4-9b1e-4a57-8d35-6f0c6d3f2a11"
	appVerifier  = "dBjftJeZ4CVP-mB92K27uhbUJU1p1r_wW1gFWFOEjXk-0123"
	userPassword = "correct horse battery"
	clientSecret = "a secret that is long enough, 0123456789"
)

// withAuthorization starts a server with its own authorization server, on a database that holds
// the records of two patients, with clients and users from the configuration.
func withAuthorization(t testing.TB, change ...func(*server.Config)) *service {
	t.Helper()
	database := storetest.New(t)
	open := startOn(t, database)
	twoPatients(open)
	for _, body := range []string{
		`{"resourceType":"Encounter","id":"enc-a","status":"finished","class":{"code":"AMB"},"type":[{"text":"Check-up"}],"subject":{"reference":"Patient/a"},"period":{"start":"2024-01-01"}}`,
		`{"resourceType":"Encounter","id":"enc-b","status":"finished","class":{"code":"AMB"},"subject":{"reference":"Patient/b"}}`,
	} {
		var head struct{ ID string }
		_ = json.Unmarshal([]byte(body), &head)
		open.put("/Encounter/"+head.ID, body).want(201)
	}
	open.stop()
	return withAuthorizationOn(t, database, change...)
}

// withAuthorizationOn is withAuthorization on a database that has its records.
func withAuthorizationOn(t testing.TB, database string, change ...func(*server.Config)) *service {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	cfg := server.Default()
	cfg.Database.URL, cfg.Server.Listen, cfg.Log.Level = database, l.Addr().String(), "error"
	cfg.Auth.Enabled = true
	cfg.Bulk.Directory = bulkDirectory(t, database)
	cfg.Auth.Signing.Algorithm = "ES384" // made in no time
	cfg.Auth.RateLimiting.Auth, cfg.Auth.RateLimiting.Token = 0, 0
	cfg.Auth.Bootstrap.Clients = []map[string]any{
		{"clientId": "app", "name": "Growth Chart", "redirectUris": []any{appRedirect},
			"scopes": []any{"openid fhirUser launch launch/patient launch/encounter offline_access patient/*.rs patient/Observation.cruds user/*.rs"}},
		{"clientId": "backend", "name": "Backend", "confidential": true, "clientSecret": clientSecret, "mayIntrospect": true,
			"grantTypes": []any{"client_credentials"}, "scopes": []any{"system/*.cruds launch/context"}},
		{"clientId": "operator", "name": "Operator", "confidential": true, "clientSecret": clientSecret,
			"grantTypes": []any{"client_credentials"}, "scopes": []any{"admin system/Patient.rs"}},
	}
	cfg.Auth.Bootstrap.Users = []map[string]any{
		{"username": "doctor", "password": userPassword, "name": "Dr. Grace Doctor", "fhirUser": "Practitioner/dr"},
		{"username": "anna", "password": userPassword, "name": "Anna", "fhirUser": "Patient/a"},
	}
	for _, c := range change {
		c(&cfg)
	}
	s, err := server.New(context.Background(), cfg, server.Options{Version: "test", Sandbox: sandboxCommand(), Logger: failureLog(t)})
	if err != nil {
		t.Fatalf("start the service: %v", err)
	}
	web := &httptest.Server{Listener: l, Config: &http.Server{Handler: s.Handler}}
	web.Start()
	stop := sync.OnceFunc(func() {
		web.Close()
		s.Close()
	})
	t.Cleanup(stop)
	return &service{t: t, base: web.URL + "/fhir", stop: stop}
}

// origin is the service outside FHIR.
func (s *service) origin() string { return strings.TrimSuffix(s.base, "/fhir") }

// bearer is the service with an access token.
func (s *service) bearer(token string) *service {
	n := *s
	n.token = "Bearer " + token
	return &n
}

// form posts a form.
func (s *service) form(path string, v url.Values, headers ...string) *answer {
	s.t.Helper()
	return s.do("POST", s.origin()+path, v.Encode(), append([]string{"Content-Type", "application/x-www-form-urlencoded"}, headers...)...)
}

// backendToken is a token by client credentials.
func (s *service) backendToken(client, scope string) string {
	s.t.Helper()
	basic := "Basic " + base64.StdEncoding.EncodeToString([]byte(client+":"+url.QueryEscape(clientSecret)))
	return s.form("/auth/token", url.Values{"grant_type": {"client_credentials"}, "scope": {scope}}, "Authorization", basic).want(200).str("access_token")
}

// person is somebody with a browser that follows no redirect.
type person struct {
	*service
	name    string
	cookies map[string]string
	page    *answer
}

func (s *service) person(name string) *person {
	return &person{service: s, name: name, cookies: make(map[string]string)}
}

func (p *person) show(a *answer) {
	for _, c := range (&http.Response{Header: a.header}).Cookies() {
		if p.cookies[c.Name] = c.Value; c.MaxAge < 0 {
			delete(p.cookies, c.Name)
		}
	}
	p.page = a
}

func (p *person) cookie() string {
	var all []string
	for _, name := range slices.Sorted(maps.Keys(p.cookies)) {
		all = append(all, name+"="+p.cookies[name])
	}
	return strings.Join(all, "; ")
}

// visit opens the authorization request of an app.
func (p *person) visit(changes ...string) {
	p.t.Helper()
	sum := sha256.Sum256([]byte(appVerifier))
	v := url.Values{"response_type": {"code"}, "client_id": {"app"}, "redirect_uri": {appRedirect}, "state": {appState}, "aud": {p.base},
		"scope": {"openid fhirUser launch/patient offline_access patient/*.rs"}, "code_challenge_method": {"S256"},
		"code_challenge": {base64.RawURLEncoding.EncodeToString(sum[:])}}
	for i := 0; i+1 < len(changes); i += 2 {
		v.Set(changes[i], changes[i+1])
	}
	p.show(p.do("GET", p.origin()+"/auth/authorize?"+v.Encode(), "", "Cookie", p.cookie()))
}

// submit sends the page's form with an action and more fields.
func (p *person) submit(action string, fields ...string) {
	p.t.Helper()
	if !slices.Contains(p.page.inputs("action"), action) {
		p.t.Fatalf("the page has no button %s: %d %s\n%s", action, p.page.status, p.page.header.Get("Location"), clip(p.page.body))
	}
	v := url.Values{"session_id": p.page.inputs("session_id")[:1], "csrf_token": p.page.inputs("csrf_token")[:1], "action": {action}}
	for i := 0; i+1 < len(fields); i += 2 {
		v.Add(fields[i], fields[i+1])
	}
	p.show(p.form("/auth/authorize", v, "Cookie", p.cookie()))
}

func (p *person) login() { p.submit("login", "username", p.name, "password", userPassword) }

// allow consents to all that is asked for.
func (p *person) allow() {
	p.t.Helper()
	var fields []string
	for _, scope := range p.page.inputs("scope") {
		fields = append(fields, "scope", scope)
	}
	p.submit("authorize", fields...)
}

// tokens takes the code to which the browser was sent to the token endpoint.
func (p *person) tokens() *answer {
	p.t.Helper()
	to, err := url.Parse(p.page.header.Get("Location"))
	if err != nil || p.page.status/100 != 3 || to.Query().Get("code") == "" {
		p.t.Fatalf("no code: %d %q\n%s", p.page.status, p.page.header.Get("Location"), clip(p.page.body))
	}
	if q := to.Query(); q.Get("state") != appState || q.Get("iss") != p.origin() || !strings.HasPrefix(to.String(), appRedirect+"?") {
		p.t.Errorf("sent to %s", to)
	}
	return p.form("/auth/token", url.Values{"grant_type": {"authorization_code"}, "code": {to.Query().Get("code")}, "redirect_uri": {appRedirect},
		"client_id": {"app"}, "code_verifier": {appVerifier}}).want(200).has("Cache-Control", "no-store").equal("token_type", "Bearer")
}

var (
	controlTag = regexp.MustCompile(`<(?:input|button)[^>]*>`)
	attribute  = regexp.MustCompile(`([a-z_-]+)="([^"]*)"`)
)

// inputs are the values of the form fields of a name.
func (a *answer) inputs(name string) []string {
	var out []string
	for _, tag := range controlTag.FindAllString(string(a.body), -1) {
		attrs := make(map[string]string)
		for _, m := range attribute.FindAllStringSubmatch(tag, -1) {
			attrs[m[1]] = html.UnescapeString(m[2])
		}
		if attrs["name"] == name {
			out = append(out, attrs["value"])
		}
	}
	return out
}

// Authorization, Endpoints: a Practitioner chooses a patient; the app reaches that
// one's record until its tokens end.
// Contract, Authorization 3: the patient picker, the token answer; 4: user/ and patient/.
func TestAuthorizationOfAPractitioner(t *testing.T) {
	t.Parallel()
	s := withAuthorization(t)
	p := s.person("doctor")
	p.visit()
	p.login()

	// The picker searches, and shows only patients that the user may see.
	if got := p.page.inputs("patient"); !slices.Equal(slices.Sorted(slices.Values(got)), []string{"a", "b"}) {
		t.Fatalf("the picker shows %q\n%s", got, clip(p.page.body))
	}
	for _, tt := range []struct {
		q, birthdate string
		want         []string
	}{{"secret-b", "", []string{"b"}}, {"secret-a", "", []string{"a"}}, {"nobody", "", nil}, {"", "1900-01-01", nil}} {
		p.submit("search", "q", tt.q, "birthdate", tt.birthdate)
		if got := p.page.want(200).inputs("patient"); !slices.Equal(got, tt.want) {
			t.Errorf("search %q %q: %q, want %q", tt.q, tt.birthdate, got, tt.want)
		}
	}
	p.submit("search", "q", "secret-a")
	p.submit("select_patient", "patient", "a")
	p.allow()
	tokens := p.tokens().equal("patient", "a").equal("scope", "openid fhirUser launch/patient offline_access patient/*.rs")
	if tokens.str("refresh_token") == "" || tokens.str("id_token") == "" {
		t.Errorf("tokens: %s", clip(tokens.body))
	}
	app := s.bearer(tokens.str("access_token"))
	reaches(t, app)

	t.Run("userinfo", func(t *testing.T) {
		app.in(t).get(s.origin()+"/auth/userinfo").want(200).equal("sub", "doctor").equal("fhirUser", "Practitioner/dr")
	})
	t.Run("introspection by a client that may", func(t *testing.T) {
		basic := "Basic " + base64.StdEncoding.EncodeToString([]byte("backend:"+url.QueryEscape(clientSecret)))
		s.in(t).form("/auth/introspect", url.Values{"token": {tokens.str("access_token")}}, "Authorization", basic).
			want(200).equal("active", "true").equal("client_id", "app").equal("patient", "a").equal("sub", "doctor")
		if a := s.in(t).form("/auth/introspect", url.Values{"token": {"x"}}, "Authorization", basic).want(200); strings.TrimSpace(string(a.body)) != `{"active":false}` {
			t.Errorf("an unknown token: %s", a.body)
		}
		s.in(t).form("/auth/introspect", url.Values{"token": {"x"}}).want(401)
	})
	// Refresh rotates; the patient stays.
	refresh := func(token string) *answer {
		return s.form("/auth/token", url.Values{"grant_type": {"refresh_token"}, "refresh_token": {token}, "client_id": {"app"}})
	}
	next := refresh(tokens.str("refresh_token")).want(200).equal("patient", "a")
	refresh(tokens.str("refresh_token")).want(400).equal("error", "invalid_grant")
	app = s.bearer(next.str("access_token"))
	app.get("/Patient/a").want(200)
	app.get("/Patient/b").want(404)
	// Revoking the refresh token ends the access tokens, at once on this server.
	s.form("/auth/revoke", url.Values{"token": {next.str("refresh_token")}, "client_id": {"app"}}).want(200)
	app.get("/Patient/a").issue(401, "login")
	refresh(next.str("refresh_token")).want(400).equal("error", "invalid_grant")

	// Signed in still: consent is remembered, the picker is not. Logout ends both.
	p.visit()
	p.submit("select_patient", "patient", "b")
	second := p.tokens().equal("patient", "b").str("access_token")
	s.bearer(second).get("/Patient/b").want(200)
	s.bearer(second).get("/Patient/a").want(404)
	out := s.form("/auth/logout", url.Values{"token": {second}}, "Cookie", p.cookie()).want(200).equal("success", "true")
	if !strings.Contains(out.header.Get("Set-Cookie"), "oauth_session=;") {
		t.Errorf("logout sets %q", out.header.Get("Set-Cookie"))
	}
	s.bearer(second).get("/Patient/b").issue(401, "login")
	p.visit()
	if !slices.Contains(p.page.inputs("action"), "login") {
		t.Error("after logout there is no login page")
	}
}

// Authorization, Endpoints: a user who is a patient is not asked which.
// Contract, Authorization 3: a user whose fhirUser is a Patient gets that one without asking; 4: **user/**.
func TestAuthorizationOfAPatientUser(t *testing.T) {
	t.Parallel()
	s := withAuthorization(t)
	p := s.person("anna")
	p.visit()
	p.login()
	p.allow()
	app := s.bearer(p.tokens().equal("patient", "a").str("access_token"))
	reaches(t, app)

	// user/ of a patient reaches the same record.
	p = s.person("anna")
	p.visit("scope", "user/*.rs")
	p.login()
	p.allow()
	app = s.bearer(p.tokens().equal("scope", "user/*.rs").str("access_token"))
	reaches(t, app)
	app.get(s.origin() + "/auth/userinfo").want(403)

	// A scope that writes: inside 201, outside 403, before and after.
	p = s.person("anna")
	p.visit("scope", "launch/patient patient/Observation.cruds")
	p.login()
	p.allow()
	app = s.bearer(p.tokens().str("access_token"))
	of := func(patient, id string) string {
		body := `{"resourceType":"Observation","status":"final","code":{"text":"x"},"subject":{"reference":"Patient/` + patient + `"}`
		if id != "" {
			body += `,"id":"` + id + `"`
		}
		return body + "}"
	}
	id := app.post("/Observation", of("a", "")).want(201).str("id")
	app.post("/Observation", of("b", "")).issue(403, "forbidden")
	app.put("/Observation/"+id, of("b", id)).issue(403, "forbidden")
	app.put("/Observation/obs-b", of("a", "obs-b")).issue(403, "forbidden")
	app.do("DELETE", "/Observation/obs-b", "").want(app.do("DELETE", "/Observation/obs-z", "").status)
	s.bearer(s.backendToken("backend", "system/*.cruds")).get("/Observation/obs-b").want(200).equal("subject.reference", "Patient/b")
	lacks(app.get("/Condition"), "patient/Condition.s")
	lacks(app.get("/Patient/a"), "patient/Patient.r")
	app.do("DELETE", "/Observation/"+id, "").want(204)
}

// reaches holds a token of patient a's that may read and search against the records.
func reaches(t *testing.T, app *service) {
	t.Helper()
	for path, want := range map[string][]string{
		"/Observation": {"obs-a", "vital-a"}, "/Observation?subject=Patient/b": nil, "/Patient": {"a"}, "/Condition?_total=accurate": {"cond-a"},
		"/Encounter": {"enc-a"}, "/Practitioner": {"dr"}, "/Patient?_has:Observation:subject:_id=obs-b": nil, "/Observation?subject:Patient.name=secret-b": nil,
	} {
		a := app.get(path).want(200)
		if got := slices.Sorted(slices.Values(a.ids())); !slices.Equal(got, want) {
			t.Errorf("GET %s: %q, want %q", path, got, want)
		}
		a.equal("total", fmt.Sprint(len(want)))
	}
	app.get("/Observation/obs-a").want(200)
	for _, path := range []string{"/Patient/%s", "/Observation/obs-%s", "/Observation/obs-%s/_history", "/Encounter/enc-%s"} {
		hidden, absent := app.get(strings.ReplaceAll(path, "%s", "b")), app.get(strings.ReplaceAll(path, "%s", "z"))
		hidden.issue(404, "not-found")
		if strings.ReplaceAll(string(hidden.body), "-b", "-z") != string(absent.body) && strings.ReplaceAll(string(hidden.body), "/b", "/z") != string(absent.body) {
			t.Errorf("hidden: %s\nabsent: %s", hidden.body, absent.body)
		}
	}
	lacks(app.post("/Observation", `{"resourceType":"Observation","status":"final","code":{"text":"x"},"subject":{"reference":"Patient/a"}}`), "Observation.c")
	lacks(app.do("DELETE", "/Observation/obs-a", ""), "Observation.d")
	app.get(app.origin() + "/admin/clients").want(403)
	app.get(app.origin() + "/metrics").want(403)
}

// lacks expects the answer to a token whose scopes do not do. RFC 6750 §3.1.
func lacks(a *answer, scope string) {
	a.t.Helper()
	a.issue(403, "forbidden", scope)
	if h := a.header.Get("WWW-Authenticate"); !strings.HasPrefix(h, "Bearer") || !strings.Contains(h, `error="insufficient_scope"`) || !strings.Contains(h, scope) {
		a.t.Errorf("%s: WWW-Authenticate is %q, want insufficient_scope and %s", a.what, h, scope)
	}
}

// Authorization, Endpoints: a launch from an EHR says which patient and encounter.
// Contract, Authorization 3: `POST /auth/launch`.
func TestAuthorizationOfALaunch(t *testing.T) {
	t.Parallel()
	s := withAuthorization(t)
	ehr := s.bearer(s.backendToken("backend", "launch/context"))
	launch := ehr.post(s.origin()+"/auth/launch", `{"patient":"Patient/a","encounter":"enc-a","client_id":"app","user":"doctor","intent":"reconcile","needPatientBanner":false}`,
		"Content-Type", "application/json").want(201).equal("expiresIn", "300").str("launch")
	visit := func(p *person) {
		p.visit("scope", "openid fhirUser launch patient/*.rs", "launch", launch)
	}
	p := s.person("doctor")
	visit(p)
	p.login()
	p.allow()
	tokens := p.tokens().equal("patient", "a").equal("encounter", "enc-a").equal("intent", "reconcile").equal("need_patient_banner", "false")
	reaches(t, s.bearer(tokens.str("access_token")))
	// It is used up.
	visit(p)
	if to := p.page.header.Get("Location"); !strings.Contains(to, "error=invalid_request") && !strings.Contains(to, "error=access_denied") {
		t.Errorf("the launch a second time: %d %s", p.page.status, to)
	}
	s.bearer(s.backendToken("backend", "system/*.rs")).post(s.origin()+"/auth/launch", `{"patient":"a"}`, "Content-Type", "application/json").want(403)
	s.post(s.origin()+"/auth/launch", `{"patient":"a"}`, "Content-Type", "application/json").want(401)
}

// Authorization, Shape: which paths want a token, and which an admin's.
// Contract, Authorization 1: every path but `/metadata`, `/.well-known/*`, `/health*`, `/auth/*` needs a
// token; 3: discovery also under `/fhir`; 4: the scope `admin` alone reads no patient's data.
func TestAuthorizationOfPaths(t *testing.T) {
	t.Parallel()
	s := withAuthorization(t)
	for _, path := range []string{"/fhir/metadata", "/.well-known/smart-configuration", "/fhir/.well-known/smart-configuration", "/.well-known/openid-configuration",
		"/.well-known/oauth-authorization-server", "/.well-known/jwks.json", "/fhir/.well-known/jwks.json", "/health", "/health/live", "/health/ready"} {
		s.get(s.origin() + path).want(200)
	}
	for _, path := range []string{"/fhir/Patient", "/fhir/Patient/a", "/fhir/_history", "/fhir/Patient/a/$everything"} {
		a := s.get(s.origin()+path).issue(401, "login")
		if h := a.header.Get("WWW-Authenticate"); !strings.HasPrefix(h, "Bearer") {
			t.Errorf("%s: WWW-Authenticate is %q", path, h)
		}
		s.bearer("x.y.z").get(s.origin()+path).issue(401, "login")
	}
	plain, admin := s.bearer(s.backendToken("backend", "system/*.cruds")), s.bearer(s.backendToken("operator", "admin"))
	for _, path := range []string{"/metrics", "/admin/clients", "/admin/users", "/admin/policies", "/admin/clients/app", "/admin/users/doctor"} {
		s.get(s.origin() + path).want(401)
		scope := "admin"
		if path == "/metrics" {
			scope = "metrics"
		}
		lacks(plain.get(s.origin()+path), scope)
		admin.get(s.origin() + path).want(200)
	}
	lacks(admin.get("/Patient/a"), "Patient.r") // the scope admin alone reads no patient's data
	// An API key has no user: the missing scope is a system scope.
	key := admin.post(s.origin()+"/admin/apikeys", `{"name":"feed","scope":"system/Patient.rs"}`, "Content-Type", "application/json").want(201).str("key")
	lacks(s.bearer(key).get("/Observation"), "system/Observation.s")
	// No token would help with a path or a method that there is not.
	for _, path := range []string{"/auth/nowhere", "/.well-known/nowhere", "/health/nowhere"} {
		s.get(s.origin() + path).want(404)
	}
	s.get(s.origin()+"/auth/token").want(405).has("Allow", "POST")
	s.do("DELETE", s.origin()+"/.well-known/jwks.json", "").want(405)
	admin.do("PATCH", s.origin()+"/admin/clients/backend", `{"active":false}`, "Content-Type", "application/json").want(200)
	plain.get("/Patient/a").issue(401, "login")
	// Clients of the configuration are made once: changes stay.
	admin.get(s.origin()+"/admin/clients/backend").want(200).equal("active", "false")
}

// Authorization, Clients: a client's allowedOrigins count for its tokens on the token
// endpoint, userinfo and FHIR paths.
// Contract, Authorization 2: `allowedOrigins`; 3: CORS on token, userinfo and FHIR paths.
// Contract, Operations: CORS: a client's `allowedOrigins` count for its tokens.
func TestAuthorizationOfOrigins(t *testing.T) {
	t.Parallel()
	s := withAuthorization(t, func(c *server.Config) {
		c.Auth.Bootstrap.Clients = append(c.Auth.Bootstrap.Clients, map[string]any{"clientId": "page", "confidential": true, "clientSecret": clientSecret,
			"grantTypes": []any{"client_credentials"}, "scopes": []any{"system/Patient.rs"}, "allowedOrigins": []any{"https://page.example.org"}})
	})
	page, backend := s.bearer(s.backendToken("page", "system/Patient.rs")), s.bearer(s.backendToken("backend", "system/*.rs"))
	for _, path := range []string{"/fhir/Patient", "/fhir/Patient/a", "/fhir/Observation", "/auth/userinfo"} {
		own := page.get(s.origin()+path, "Origin", "https://page.example.org").has("Access-Control-Allow-Origin", "https://page.example.org")
		if !slices.Contains(own.header.Values("Vary"), "Origin") || own.header.Get("Access-Control-Expose-Headers") == "" {
			t.Errorf("%s: %v", path, own.header)
		}
		page.get(s.origin()+path, "Origin", "https://other.example.org").has("Access-Control-Allow-Origin", "")
		backend.get(s.origin()+path, "Origin", "https://other.example.org").has("Access-Control-Allow-Origin", "*")
	}
	// An origin is the whole of it: scheme, host and port.
	for _, origin := range []string{"https://page.example.org.evil.example", "http://page.example.org", "https://page.example.org:8443", "null"} {
		page.get("/Patient/a", "Origin", origin).want(200).has("Access-Control-Allow-Origin", "")
	}
	// Other origins count for the tokens that there are.
	admin := s.bearer(s.backendToken("operator", "admin"))
	for _, origins := range []string{`["https://new.example.org"]`, `["https://newer.example.org"]`} {
		admin.do("PATCH", s.origin()+"/admin/clients/page", `{"allowedOrigins":`+origins+`}`, "Content-Type", "application/merge-patch+json").want(200)
		page.get("/Patient/a", "Origin", strings.Trim(origins, `[]"`)).want(200).has("Access-Control-Allow-Origin", strings.Trim(origins, `[]"`))
		page.get("/Patient/a", "Origin", "https://page.example.org").want(200).has("Access-Control-Allow-Origin", "")
	}
}

// Administration, Configuration: the keys of auth that are not read at start alone take
// effect on every server, without a restart.
// Contract, Authorization 2: registration where it is on; 5: `auth.policy.default_deny`,
// `auth.audit.log_access_decisions`.
// Contract, Operations: flags: `auth.dynamic_registration`.
func TestAuthorizationAtRunTime(t *testing.T) {
	t.Parallel()
	s := withAuthorization(t)
	admin, app := s.bearer(s.backendToken("operator", "admin")), s.bearer(s.backendToken("backend", "system/*.cruds"))
	set := func(path, body string) {
		t.Helper()
		admin.do("PUT", s.origin()+"/admin/"+path, body, "Content-Type", "application/json").want(200).equal("restart_required", "false")
	}

	// auth.policy.default_deny
	app.get("/Patient/a").want(200)
	set("config/auth/policy.default_deny", `{"value": true}`)
	app.get("/Patient/a").issue(403, "forbidden", "default_deny")
	admin.do("DELETE", s.origin()+"/admin/config/auth/policy.default_deny", "").want(200)
	app.get("/Patient/a").want(200)

	// auth.smart.dynamic_registration_enabled, by its flag
	register := func() *answer {
		return s.post(s.origin()+"/auth/register", `{"redirect_uris":["https://app.example.org/cb"],"token_endpoint_auth_method":"none","scope":"patient/*.rs"}`, "Content-Type", "application/json")
	}
	endpoint := func() (discovery, capability bool) {
		return strings.Contains(string(s.get(s.origin()+"/.well-known/smart-configuration").want(200).body), `"registration_endpoint"`),
			strings.Contains(string(s.get("/metadata").want(200).body), s.origin()+"/auth/register")
	}
	for _, on := range []bool{false, true, false} {
		admin.do("PUT", s.origin()+"/admin/features/auth.dynamic_registration", `{"enabled": `+strconv.FormatBool(on)+`}`, "Content-Type", "application/json").want(200)
		want := 404
		if on {
			want = 201
		}
		register().want(want)
		if discovery, capability := endpoint(); discovery != on || capability != on {
			t.Errorf("registration %v: discovery lists it %v, the capability statement %v", on, discovery, capability)
		}
	}

	// auth.audit.log_access_decisions
	decisions := func() string { return app.get("/AuditEvent?type=rest&entity=Patient/a&_count=0").want(200).total() }
	before := decisions()
	set("config/auth/audit.log_access_decisions", `{"value": true}`)
	eventually(t, "the AuditEvent of a decision", func() bool { app.get("/Patient/a").want(200); return decisions() != before })
}

// Contract, Operations (PUT /admin/config): the keys of auth take effect at once on every server of the database. A
// change on one of two servers is visible on the other.
func TestAuthorizationConfigurationOnTwoServers(t *testing.T) {
	t.Parallel()
	database := storetest.New(t)
	a := withAuthorizationOn(t, database)
	b := withAuthorizationOn(t, database, func(c *server.Config) { c.Auth.Issuer, c.Server.BaseURL = a.origin(), a.base })
	admin := a.bearer(a.backendToken("operator", "admin"))
	put := func(key, value string) func() {
		t.Helper()
		path := a.origin() + "/admin/config/auth/" + key
		admin.do("PUT", path, `{"value": `+value+`}`, "Content-Type", "application/json").want(200).equal("restart_required", "false").equal("source", "database")
		return func() { admin.do("DELETE", path, "").want(200).equal("source", "default") }
	}
	basic := "Basic " + base64.StdEncoding.EncodeToString([]byte("backend:"+url.QueryEscape(clientSecret)))
	grant := func() *answer {
		return b.form("/auth/token", url.Values{"grant_type": {"client_credentials"}, "scope": {"system/Patient.rs system/Observation.rs"}}, "Authorization", basic)
	}
	discovery := func() string { return string(b.get(b.origin() + "/.well-known/smart-configuration").want(200).body) }
	for _, tt := range []struct {
		key, value string
		seen       func() bool
	}{
		{"oauth.access_token_lifetime", `"90s"`, func() bool { n, _ := strconv.Atoi(grant().want(200).str("expires_in")); return n > 80 && n <= 90 }},
		{"oauth.grant_types", `["authorization_code", "refresh_token"]`, func() bool { return grant().str("error") == "unsupported_grant_type" }},
		{"smart.launch_ehr_enabled", `false`, func() bool { return !strings.Contains(discovery(), "launch-ehr") }},
		{"smart.launch_standalone_enabled", `false`, func() bool { return !strings.Contains(discovery(), "launch-standalone") }},
		{"smart.public_clients_allowed", `false`, func() bool { return !strings.Contains(discovery(), "client-public") }},
		{"smart.openid_enabled", `false`, func() bool { return b.get(b.origin()+"/.well-known/openid-configuration").status == 404 }},
		{"smart.supported_scopes", `["system/Patient.rs"]`, func() bool { return grant().want(200).str("scope") == "system/Patient.rs" }},
		{"signing.algorithm", `"ES256"`, func() bool {
			head, _, _ := strings.Cut(grant().want(200).str("access_token"), ".")
			text, _ := base64.RawURLEncoding.DecodeString(head)
			return strings.Contains(string(text), `"ES256"`)
		}},
		{"federation.providers", `[{"name": "Hospital", "issuer": "https://id.example.org", "client_id": "kiln"}]`, func() bool {
			p := b.person("doctor")
			p.visit("aud", a.base)
			return strings.Contains(string(p.page.body), "Sign in with Hospital")
		}},
	} {
		if tt.seen() {
			t.Fatalf("auth.%s: seen before it is set", tt.key)
		}
		back := put(tt.key, tt.value)
		eventually(t, "auth."+tt.key+" on the other server", tt.seen)
		back()
		eventually(t, "auth."+tt.key+" taken back on the other server", func() bool { return !tt.seen() })
	}
	put("federation.trusted_issuers", `[{"issuer": "https://id.example.org", "jwks_uri": "https://id.example.org/jwks"}]`)()
	put("oauth.refresh_token_lifetime", `"2d"`)()
	put("signing.key_rotation_days", `30`)()
	put("allow_private_networks", `true`)()
	put("allow_http", `true`)()
	// Bootstrap makes absent users.
	put("bootstrap.users", `[{"username": "late", "password": "correct horse battery"}]`)()
	eventually(t, "the user of auth.bootstrap.users", func() bool { return admin.get(a.origin()+"/admin/users/late").status == 200 })
	for key, value := range map[string]string{
		"oauth.access_token_lifetime": `"soon"`, "oauth.grant_types": `["password"]`, "signing.algorithm": `"none"`, "smart.supported_scopes": `["patient/x"]`,
		"federation.providers": `[{"name": "x"}]`, "federation.trusted_issuers": `[{}]`, "rate_limiting.max_failed_attempts": `0`, "signing.encryption_key": `"a passphrase"`,
	} {
		if got := admin.do("PUT", a.origin()+"/admin/config/auth/"+key, `{"value": `+value+`}`, "Content-Type", "application/json").status; got != 400 && got != 422 {
			t.Errorf("auth.%s = %s: %d", key, value, got)
		}
	}

	// Contract, Authorization 2: lockout by the settings in force. One failure locks the name from its address, on either
	// server, for the configured time.
	locked := func(s *service, password string) *answer {
		t.Helper()
		p := s.person("doctor")
		p.visit("aud", a.base)
		p.submit("login", "username", "doctor", "password", password)
		return p.page
	}
	put("rate_limiting.max_failed_attempts", `1`)
	put("rate_limiting.lockout_duration", `"20m"`)
	eventually(t, "both settings on the other server", func() bool {
		return strings.Contains(string(admin.get(b.origin()+"/admin/config/auth").want(200).body), `"20m"`)
	})
	if got := locked(a, "wrong password").status; got != 401 {
		t.Errorf("the first failure: %d", got)
	}
	again := locked(b, userPassword)
	if wait, _ := strconv.Atoi(again.header.Get("Retry-After")); again.status != 429 || wait <= 300 || wait > 1200 {
		t.Errorf("after one failure on the other server: %d, Retry-After %q", again.status, again.header.Get("Retry-After"))
	}
}

// Contract, Operations (PUT /admin/config): which keys wait for the next start.
func TestConfigurationThatWaitsForAStart(t *testing.T) {
	t.Parallel()
	s := start(t)
	list, _ := s.get(s.server() + "/admin/config").want(200).json.([]any)
	if len(list) < 50 {
		t.Fatalf("%d keys", len(list))
	}
	for _, e := range list {
		m := e.(map[string]any)
		key := m["key"].(string)
		// Besides the page's keys: server.base_url, which affects the index and the issuer; a pool size; the key that
		// encrypts secrets in the database.
		waits := strings.HasPrefix(key, "database.") || strings.HasPrefix(key, "bulk.s3.") || slices.Contains([]string{"server.listen", "auth.enabled", "auth.issuer", "fhir.version",
			"server.base_url", "bulk.directory", "apps.sandbox.workers", "auth.signing.encryption_key", "views.sql.database_url"}, key)
		if m["restart_required"] != waits {
			t.Errorf("%s: restart_required is %v, want %v", key, m["restart_required"], waits)
		}
	}
}

// Contract, Authorization 3: CapabilityStatement: `rest.security` with service
// `SMART-on-FHIR` and the `oauth-uris` extension, equal to discovery.
func TestCapabilityStatementNamesTheEndpoints(t *testing.T) {
	t.Parallel()
	s := withAuthorization(t)
	discovery := s.get(s.origin() + "/.well-known/smart-configuration").want(200)
	a := s.get("/metadata").want(200).equal("rest.0.security.service.0.coding.0.code", "SMART-on-FHIR")
	uris := map[string]string{}
	for i := range a.len("rest.0.security.extension.0.extension") {
		at := fmt.Sprintf("rest.0.security.extension.0.extension.%d.", i)
		uris[a.str(at+"url")] = a.str(at + "valueUri")
	}
	a.equal("rest.0.security.extension.0.url", "http://fhir-registry.smarthealthit.org/StructureDefinition/oauth-uris")
	for name, field := range map[string]string{"authorize": "authorization_endpoint", "token": "token_endpoint", "revoke": "revocation_endpoint", "introspect": "introspection_endpoint"} {
		if want := discovery.str(field); want == "" || uris[name] != want {
			t.Errorf("%s is %q, discovery says %q", name, uris[name], want)
		}
	}
	// The statement satisfies the validator of this server.
	if v := start(t).post("/CapabilityStatement/$validate", string(a.body)).want(200); strings.Contains(string(v.body), `"severity": "error"`) {
		t.Errorf("$validate of /metadata: %s", clip(v.body))
	}
}

// Contract, Authorization 5: `POST /admin/token/explain`: who, which scope or policy allows
// or denies, the condition in FHIR's words.
func TestExplainEndpoint(t *testing.T) {
	t.Parallel()
	s := withAuthorization(t)
	admin, token := s.bearer(s.backendToken("operator", "admin")), s.backendToken("backend", "system/Observation.rs")
	ask := func(body string) *answer {
		t.Helper()
		return admin.post(s.origin()+"/admin/token/explain", body, "Content-Type", "application/json")
	}
	ask(`{"token":"`+token+`","method":"GET","path":"/Observation/obs-a"}`).want(200).equal("active", "true").equal("client", "backend").
		equal("decision.allowed", "true").equal("decision.decisions.0.by.0", "system/Observation.rs")
	ask(`{"token":"`+token+`","method":"DELETE","path":"/Observation/obs-a"}`).want(200).equal("decision.allowed", "false").equal("decision.decisions.0.scope", "system/Observation.d")
	admin.put(s.origin()+"/admin/policies/lab", `{"effect":"deny","condition":"Observation?category=laboratory"}`, "Content-Type", "application/json").want(201)
	a := ask(`{"token":"`+token+`","method":"GET","path":"/Observation/obs-a"}`).want(200).equal("decision.decisions.0.decision", "conditional").
		equal("decision.decisions.0.condition", "not Observation?category=laboratory")
	if !strings.Contains(string(a.body), "deny by lab") {
		t.Errorf("the policy is not named: %s", a.body)
	}
	ask(`{"token":"x"}`).want(200).equal("active", "false")
	ask(`{}`).want(400)
	ask(`{"token":"x","method":"GET"}`).want(400)
	s.post(s.origin()+"/admin/token/explain", `{"token":"x"}`, "Content-Type", "application/json").want(401)
	lacks(s.bearer(token).post(s.origin()+"/admin/token/explain", `{"token":"x"}`, "Content-Type", "application/json"), "admin")
}

// Contract, Authorization 5: `POST /admin/token/explain` agrees with the server: it denies exactly the requests that
// are answered with 403.
func TestExplainAsAnswered(t *testing.T) {
	t.Parallel()
	s := withAuthorization(t)
	admin := s.bearer(s.backendToken("operator", "admin"))
	seed := s.bearer(s.backendToken("backend", "system/*.cruds"))
	seed.put("/Patient/p1", `{"resourceType":"Patient","id":"p1"}`).want(201)
	seed.put("/Observation/o1", `{"resourceType":"Observation","id":"o1","status":"final","code":{"text":"x"},"subject":{"reference":"Patient/p1"}}`).want(201)
	observation := `{"resourceType":"Observation","id":"new","status":"final","code":{"text":"x"},"subject":{"reference":"Patient/p1"}}`
	for _, tt := range []struct {
		scope, method, path, body string
		status                    int
	}{
		{"system/Patient.r", "GET", "/Patient/$events-history", "", 403},
		{"system/Patient.rs", "GET", "/Patient/$events-history", "", 200},
		{"system/Patient.r", "GET", "/Patient/$events", "", 403},
		{"system/Patient.rs", "GET", "/Subscription/zz/$status", "", 403},
		{"system/Subscription.r", "GET", "/Subscription/zz/$status", "", 404},
		{"system/Subscription.r", "POST", "/Subscription/zz/$secret", "{}", 403},
		{"system/*.cruds", "POST", "/Patient/p1/$notify", "{}", 403},
		{"system/*.cruds", "GET", "/$packages", "", 403},
		{"admin", "GET", "/_history", "", 403},
		{"admin", "GET", "/?_count=1", "", 403},
		{"system/Observation.s", "GET", "/_history", "", 200},
		{"system/Observation.s", "GET", "/?_type=Observation,Patient", "", 403},
		{"system/Observation.s", "GET", "/Patient/p1/*", "", 200},
		{"system/Patient.r", "GET", "/Patient/p1/*", "", 403},
		{"system/Patient.r", "GET", "/Patient/p1/Observation", "", 403},
		{"system/Patient.s", "GET", "/Patient/p1/_history", "", 403},
		{"system/Patient.r", "GET", "/Patient/_history", "", 403},
		{"system/Observation.u", "PUT", "/Observation/new", observation, 403},
		{"system/Observation.u", "PUT", "/Observation/o1", strings.Replace(observation, "new", "o1", 1), 200},
		{"system/Observation.c", "PUT", "/Observation/o1", strings.Replace(observation, "new", "o1", 1), 403},
		{"system/Observation.c", "PUT", "/Observation/new", observation, 201},
		{"system/Patient.r", "POST", "/Patient/_search", "", 403},
		{"system/Patient.r", "GET", "/Patient/p1/$meta", "", 200},
		{"system/Patient.s", "GET", "/Patient/p1/$meta", "", 403},
		{"system/Patient.r", "GET", "/Patient/$meta", "", 403},
		{"system/Patient.rs", "GET", "/Patient/p1/$everything", "", 200},
	} {
		client := "backend"
		if tt.scope == "admin" {
			client = "operator"
		}
		token := s.backendToken(client, tt.scope)
		ask, err := json.Marshal(map[string]string{"token": token, "method": tt.method, "path": tt.path})
		if err != nil {
			t.Fatal(err)
		}
		said := admin.post(s.origin()+"/admin/token/explain", string(ask), "Content-Type", "application/json").want(200)
		if want := strconv.FormatBool(tt.status != 403); said.str("decision.allowed") != want || !strings.Contains(string(said.body), `"decisions":[`) {
			t.Errorf("%s: %s %s: explained as %s, want allowed %s", tt.scope, tt.method, tt.path, said.body, want)
		}
		s.bearer(token).do(tt.method, tt.path, tt.body).want(tt.status)
	}
	for _, tt := range []struct{ method, path string }{
		{"PATCH", "/Patient"}, {"POST", "/Patient/p1"}, {"GET", "/Patient/_search"}, {"DELETE", "/Patient/p1/_history"}, {"PUT", "/"},
	} {
		admin.post(s.origin()+"/admin/token/explain", `{"token":"`+s.backendToken("backend", "system/*.cruds")+`","method":"`+tt.method+`","path":"`+tt.path+`"}`, "Content-Type", "application/json").want(404)
	}
	token := s.backendToken("backend", "system/Patient.r")
	for _, path := range []string{"/Patient/$nonsense", "/fhirPatient/p1", "/Patient/p1/nonsense"} {
		admin.post(s.origin()+"/admin/token/explain", `{"token":"`+token+`","method":"GET","path":"`+path+`"}`, "Content-Type", "application/json").want(404)
		s.bearer(token).get(path).want(404)
	}
	admin.post(s.origin()+"/admin/token/explain", `{"token":"`+token+`"}`, "Content-Type", "application/json").want(200).
		equal("decision.decisions.0.interaction", "read").equal("decision.decisions.0.decision", "allow").equal("decision.decisions.0.by.0", "system/Patient.r")
}

// Contract, Authorization 5: `POST /admin/token/explain` says what the request would answer: a hidden resource
// answers as an absent one.
func TestExplainSaysTheAnswer(t *testing.T) {
	t.Parallel()
	s := withAuthorization(t)
	all, admin := s.bearer(s.backendToken("backend", "system/*.cruds")), s.bearer(s.backendToken("operator", "admin"))
	all.do("DELETE", "/Condition/cond-a", "").want(204)
	all.do("DELETE", "/Condition/cond-b", "").want(204)
	all.put("/Patient/a", `{"resourceType":"Patient","id":"a"}`).want(200)
	observation := func(id, patient string) string {
		return `{"resourceType":"Observation","id":"` + id + `","status":"final","code":{"text":"x"},"subject":{"reference":"Patient/` + patient + `"}}`
	}
	p := s.person("anna")
	p.visit("scope", "launch/patient patient/*.rs patient/Observation.cruds")
	p.login()
	p.allow()
	token := p.tokens().str("access_token")
	app := s.bearer(token)
	for _, tt := range []struct {
		method, path, body string
		status             int
		allowed            bool
	}{
		{"GET", "/Patient/a", "", 200, true},
		{"GET", "/Patient/b", "", 404, false},
		{"HEAD", "/Patient/b", "", 404, false},
		{"GET", "/Patient/nowhere", "", 404, true},
		{"GET", "/Observation/obs-b", "", 404, false},
		{"GET", "/Patient/a/_history/1", "", 200, true},
		{"GET", "/Patient/a/_history/9", "", 404, true},
		{"GET", "/Patient/b/_history/1", "", 404, false},
		{"GET", "/Patient/b/_history", "", 404, false},
		{"GET", "/Condition/cond-a", "", 410, true},
		{"GET", "/Condition/cond-b", "", 404, false},
		{"GET", "/Patient/b/$everything", "", 404, false},
		{"GET", "/Patient/b/$meta", "", 404, false},
		{"GET", "/Organization/org", "", 200, true},
		{"DELETE", "/Organization/org", "", 403, false},
		{"DELETE", "/Observation/obs-b", "", 204, false},
		{"PUT", "/Observation/obs-b", observation("obs-b", "a"), 403, false},
		{"PATCH", "/Observation/obs-b", `[]`, 404, false},
		{"DELETE", "/Observation/nowhere", "", 204, true},
		{"PATCH", "/Observation/nowhere", `[]`, 404, true},
		{"PUT", "/Observation/fresh", observation("fresh", "a"), 201, true},
		{"PUT", "/Observation/obs-a", observation("obs-a", "a"), 200, true},
		{"PATCH", "/Observation/obs-a", `[]`, 200, true},
		{"DELETE", "/Observation/obs-a", "", 204, true},
	} {
		ask, _ := json.Marshal(map[string]string{"token": token, "method": tt.method, "path": tt.path})
		admin.post(s.origin()+"/admin/token/explain", string(ask), "Content-Type", "application/json").want(200).
			equal("decision.allowed", strconv.FormatBool(tt.allowed)).equal("decision.status", strconv.Itoa(tt.status))
		var header []string
		if tt.method == "PATCH" {
			header = []string{"Content-Type", "application/json-patch+json"}
		}
		app.do(tt.method, tt.path, tt.body, header...).want(tt.status)
	}
}

// Contract, Authorization 5: `auth.audit.*`: `log_successful_auth`, `log_failed_auth`,
// `log_token_operations`: AuditEvents with DICOM's codes, each kind where its switch is on.
func TestAuditOfSignIns(t *testing.T) {
	t.Parallel()
	for _, on := range []string{"log_successful_auth", "log_failed_auth", "log_token_operations", ""} {
		t.Run("only "+on, func(t *testing.T) {
			t.Parallel()
			database := ""
			s := withAuthorization(t, func(c *server.Config) {
				database = c.Database.URL
				c.Auth.Audit.LogSuccessfulAuth, c.Auth.Audit.LogFailedAuth, c.Auth.Audit.LogTokenOperations = on == "log_successful_auth", on == "log_failed_auth", on == "log_token_operations"
			})
			p := s.person("doctor")
			p.visit("scope", "openid user/*.rs")
			p.submit("login", "username", "doctor", "password", "not the password")
			p.login()
			p.allow()
			token := p.tokens().str("access_token")
			s.form("/auth/revoke", url.Values{"token": {token}, "client_id": {"app"}}).want(200)
			s.stop() // nothing is lost at a clean end
			again := startOn(t, database)
			count := func(query string) string { return again.get("/AuditEvent?_summary=count&" + query).want(200).total() }
			for query, want := range map[string]string{
				"subtype=110122&outcome=0": "log_successful_auth", "subtype=110122&outcome=4": "log_failed_auth",
				"subtype=110114&outcome=0": "log_token_operations", "subtype=110123&action=D": "log_token_operations",
			} {
				wanted := "0"
				if want == on {
					wanted = "1"
				}
				if got := count("type=http://dicom.nema.org/resources/ontology/DCM|110114&" + query); got != wanted {
					t.Errorf("%s AuditEvents for %s, want %s", got, query, wanted)
				}
			}
		})
	}
}

// Contract, Authorization 2: a client that could never get a token, and scopes that no resource can match, are refused
// with the reason when they are registered.
func TestUnusableClientsAreRefused(t *testing.T) {
	t.Parallel()
	s := withAuthorization(t, func(c *server.Config) { c.Auth.Smart.DynamicRegistrationEnabled = true })
	admin := s.bearer(s.backendToken("operator", "admin"))
	for _, tt := range []struct{ name, client, says string }{
		{"no redirect URI", `"scopes":["patient/*.rs"]`, "redirectUris is empty"},
		{"no redirect URI, confidential", `"confidential":true,"grantTypes":["authorization_code"],"scopes":["patient/*.rs"]`, "redirectUris is empty"},
		{"no scope", `"redirectUris":["https://app.test/cb"]`, "scopes is empty"},
		{"no scope of a service", `"confidential":true,"grantTypes":["client_credentials"]`, "scopes is empty"},
		{"only scopes of a service, for a person", `"redirectUris":["https://app.test/cb"],"scopes":["system/*.rs"]`, "need patient/ or user/ scopes"},
		{"only scopes of a person, for a service", `"confidential":true,"grantTypes":["client_credentials"],"scopes":["patient/*.rs openid"]`, "need system/ scopes"},
		{"scopes that give no data", `"redirectUris":["https://app.test/cb"],"scopes":["launch/patient offline_access"]`, "need patient/ or user/ scopes"},
		{"refresh_token alone", `"redirectUris":["https://app.test/cb"],"grantTypes":["refresh_token"],"scopes":["patient/*.rs"]`, "grantTypes is refresh_token"},
		{"an unknown type", `"redirectUris":["https://app.test/cb"],"scopes":["patient/*.rs","patient/Patiens.rs"]`, "patient/Patiens.rs"},
		{"an unknown search parameter", `"redirectUris":["https://app.test/cb"],"scopes":["patient/Observation.rs?colour=red"]`, "colour"},
		{"a search that cannot be asked of one resource", `"redirectUris":["https://app.test/cb"],"scopes":["patient/Observation.rs?_count=1"]`, "_count"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			admin.in(t).post(s.origin()+"/admin/clients", `{"name":"x",`+tt.client+`}`, "Content-Type", "application/json").issue(400, "invalid", tt.says)
		})
	}
	register := func(body string) *answer {
		return s.post(s.origin()+"/auth/register", body, "Content-Type", "application/json")
	}
	for body, says := range map[string]string{
		`{"redirect_uris":["https://app.test/cb"]}`:                                                  "scopes is empty",
		`{"redirect_uris":["https://app.test/cb"],"scope":"system/*.rs admin"}`:                      "scopes is empty",
		`{"redirect_uris":["https://app.test/cb"],"scope":"patient/Patiens.rs"}`:                     "no resource can match",
		`{"redirect_uris":["https://app.test/cb"],"scope":"offline_access"}`:                         "need patient/",
		`{"redirect_uris":["https://app.test/cb"],"grant_types":["refresh_token"],"scope":"openid"}`: "grantTypes is refresh_token",
	} {
		a := register(body).want(400).equal("error", "invalid_client_metadata")
		if !strings.Contains(a.str("error_description"), says) {
			t.Errorf("%s: %s, want %s", body, a.body, says)
		}
	}
	// A client that only introspects needs neither. A stored client can be changed in other fields.
	admin.post(s.origin()+"/admin/clients", `{"clientId":"gateway","confidential":true,"mayIntrospect":true}`, "Content-Type", "application/json").want(201)
	admin.do("PATCH", s.origin()+"/admin/clients/app", `{"scopes":[]}`, "Content-Type", "application/merge-patch+json").issue(400, "invalid", "scopes is empty")
	admin.do("PATCH", s.origin()+"/admin/clients/app", `{"active":false}`, "Content-Type", "application/merge-patch+json").want(200)
}

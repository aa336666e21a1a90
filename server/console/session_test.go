package console_test

import (
	"net/http"
	"net/url"
	"regexp"
	"strings"
	"testing"
	"time"

	"kiln/server"
	"kiln/server/store/storetest"
)

var requestID = regexp.MustCompile(`Request id: [0-9a-f]+`)

// signedUp is a server with authorization on a database that has the records of two patients.
func signedUp(t *testing.T, change ...func(*server.Config)) (s *site, database string) {
	t.Helper()
	database = storetest.New(t)
	open := start(t, database)
	open.records()
	open.stop()
	return start(t, database, append([]func(*server.Config){withAuthorization}, change...)...), database
}

// A sign-in by code and PKCE, a session that works on every server and ends everywhere, and what each person gets.
func TestSessions(t *testing.T) {
	t.Parallel()
	s, database := signedUp(t)
	other := start(t, database, withAuthorization)

	// Without a session.
	v := s.visitor()
	v.get("/?_format=html").want(200).has("Open the console", `role="status"`, "Ready")
	v.get("/console/capabilities").want(200).has("Resource types")
	away := v.get("/console/Patient/a").want(http.StatusSeeOther)
	q, err := url.Parse(away.location)
	if err != nil || q.Path != "/auth/authorize" || q.Query().Get("client_id") != "kiln-console" || q.Query().Get("code_challenge_method") != "S256" || q.Query().Get("scope") != "openid fhirUser user/*.cruds admin" {
		t.Fatalf("a page without a session leads to %s", away.location)
	}
	if strings.Contains(away.location, "Patient") {
		t.Errorf("the address of the sign-in names the page: %s", away.location)
	}
	v.follow(away.location).has("Kiln console").lacks("The data goes to") // it stays on this server
	v.do(http.MethodPost, "/console/Patient/a/delete", url.Values{"csrf_token": {"x"}}).want(http.StatusUnauthorized).has("<h1>Sign in again</h1>")

	// The client is built in: nobody else redeems its codes.
	refused := v.do(http.MethodPost, "/auth/token", url.Values{"grant_type": {"authorization_code"}, "code": {"x"}, "redirect_uri": {s.base + "/console/callback"}, "client_id": {"kiln-console"}, "code_verifier": {strings.Repeat("v", 43)}})
	if refused.status != http.StatusUnauthorized || !strings.Contains(refused.body, "invalid_client") {
		t.Errorf("the token endpoint answers the console %d %s", refused.status, refused.body)
	}

	// The doctor.
	first := v.signIn("doctor", "/console/Patient/a").want(200).has("<h1>Patient/a</h1>", "Dr. Grace Doctor", "Sign out", ">Account</a>").lacks(">Settings</a>", ">Jobs</a>", ">Access</a>")
	if c := first.header.Get("Cache-Control"); c != "no-store" {
		t.Errorf("Cache-Control %q", c)
	}
	v.get("/console").want(200).has("My data").lacks("Traffic", "Storage")
	for _, path := range []string{"/console/jobs", "/console/settings", "/console/access/users", "/console/subscriptions", "/console/definitions", "/console/searches", "/console/audit", "/console/apps", "/console/live", "/console/views", "/console/views/x"} {
		v.get(path).want(http.StatusForbidden).has("<h1>Not allowed</h1>", "admin")
	}
	// Another server knows the session.
	elsewhere := other.visitor()
	base, _ := url.Parse(s.base + "/console")
	there, _ := url.Parse(other.base + "/console")
	jar := v.client.Jar.Cookies(base)
	elsewhere.client.Jar.SetCookies(there, jar)
	elsewhere.get("/console/Patient/b").want(200).has("<h1>Patient/b</h1>")

	// The patient sees one record, and no trace of the other.
	anna := s.visitor()
	anna.signIn("anna", "/console").want(200).has("My data", "Patient/a")
	hidden := anna.get("/console/Patient/b").want(404)
	absent := anna.get("/console/Patient/none").want(404)
	strip := func(p *page) string {
		return strings.NewReplacer("Patient/b", "X", "Patient/none", "X").Replace(requestID.ReplaceAllString(p.body, ""))
	}
	if strip(hidden) != strip(absent) {
		t.Errorf("a hidden resource differs from an absent one:\n%s\n%s", hidden.body, absent.body)
	}
	anna.get("/console/resources/Patient").want(200).has("1 result").lacks("mrn-b")
	anna.get("/console/resources/Observation").want(200).has("8 results")
	counts := anna.get("/console/resources").want(200)
	if !strings.Contains(counts.body, `<a href="/console/resources/Observation">Observation</a></th><td class="number">8</td>`) {
		t.Error("the counts are not those of the person")
	}
	anna.get("/console/Practitioner/dr/references").want(200).lacks("Patient/b", ">2<")

	// A callback belongs to the browser that began the sign-in.
	stranger := s.visitor()
	begun := v.s.visitor()
	p := begun.get("/console").want(303)
	p = begun.get(p.location).want(200)
	p = begun.do(http.MethodPost, "/auth/authorize", url.Values{"session_id": {p.hidden("session_id")}, "csrf_token": {p.hidden("csrf_token")}, "action": {"login"}, "username": {"doctor"}, "password": {password}}).want(303)
	stranger.get(p.location).want(http.StatusForbidden)
	begun.get(p.location).want(303)
	stranger.get("/console").want(303)

	// Forms.
	form := url.Values{"csrf_token": {v.get("/console/Patient/b/delete").want(200).hidden("csrf_token")}}
	v.do(http.MethodPost, "/console/Patient/b/delete", url.Values{"csrf_token": {"wrong"}}).want(http.StatusForbidden)
	v.do(http.MethodPost, "/console/Patient/b/delete", form, "Origin", "https://evil.example").want(http.StatusForbidden)
	v.do(http.MethodPost, "/console/Patient/b/delete", form, "Sec-Fetch-Site", "cross-site").want(http.StatusForbidden)
	v.do(http.MethodPost, "/console/Patient/b/delete", form, "Origin", "null").want(http.StatusForbidden)
	anna.do(http.MethodPost, "/console/Patient/b/delete", form).want(http.StatusForbidden)
	v.get("/console/Patient/b").want(200)

	// Sign out ends the session on every server, and the sign-in.
	out := v.post("/console/sign-out", url.Values{}).want(303)
	v.follow(out.location).want(200).has("<h1>Signed out</h1>", `<a href="/console">Sign in again</a>`)
	v.get("/console").want(303)
	elsewhere.get("/console").want(303)

	// A disabled user is out within a second.
	admin := s.visitor()
	admin.signIn("admin", "/console").want(200).has("Traffic", "Storage", "Backups")
	token := admin.get("/console/fhirpath").hidden("csrf_token")
	sent := admin.do(http.MethodPost, "/console/requests", url.Values{"csrf_token": {token}, "method": {"PATCH"}, "path": {"/admin/users/anna"}, "body": {`{"active":false}`}, "headers": {"Content-Type: application/json"}}).want(303)
	admin.get(sent.location).want(200).has("200 OK", "curl -X PATCH", "$TOKEN", "Sent requests")
	for deadline := time.Now().Add(time.Second); anna.get("/console").status != 303; {
		if time.Now().After(deadline) {
			t.Fatal("a disabled user is signed in after a second")
		}
	}
	// The client cannot be changed.
	sent = admin.do(http.MethodPost, "/console/requests", url.Values{"csrf_token": {token}, "method": {"DELETE"}, "path": {"/admin/clients/kiln-console"}}).want(303)
	admin.get(sent.location).want(200).has("409 Conflict")
}

// A session ends when nobody has used it for a while, and some time after the sign-in.
func TestSessionTimes(t *testing.T) {
	t.Parallel()
	s, _ := signedUp(t, func(c *server.Config) { c.Console.IdleTimeout, c.Console.SessionLifetime = "2s", "5s" })
	v := s.visitor()
	began := time.Now()
	v.signIn("doctor", "/console").want(200)
	for time.Since(began) < 3500*time.Millisecond { // pages keep it
		v.get("/console/fhirpath").want(200)
		time.Sleep(200 * time.Millisecond)
	}
	for v.get("/console/fhirpath").status == 200 {
		if time.Since(began) > 7*time.Second {
			t.Fatal("a session outlives its lifetime")
		}
		time.Sleep(100 * time.Millisecond)
	}
	v = s.visitor()
	v.signIn("doctor", "/console").want(200)
	for deadline := time.Now().Add(4 * time.Second); v.get("/console", "X-Kiln-Live", "1").status != 303; time.Sleep(300 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("live views extend a session")
		}
	}
}

// Without authorization other names than loopback are refused: a page of another site could have given one.
func TestHostWithoutAuthorization(t *testing.T) {
	t.Parallel()
	s := start(t, "", func(c *server.Config) { c.Server.BaseURL = "http://fhir.example.org/fhir" })
	v := s.visitor()
	v.get("/console").want(200).has("Authorization is off")
	v.get("/console", "Host", "localhost:8080").want(200)
	v.get("/console", "Host", "fhir.example.org").want(200)
	v.get("/console", "Host", "evil.example").want(http.StatusMisdirectedRequest)
	v.get("/?_format=html", "Host", "evil.example").want(http.StatusMisdirectedRequest)
}

// Browsers get pages for FHIR addresses, programs what they got before.
func TestFHIRAddresses(t *testing.T) {
	t.Parallel()
	s := start(t, "")
	s.records()
	v := s.visitor()
	for _, tt := range []struct{ path, want string }{
		{"/Patient/a", "/console/Patient/a"}, {"/fhir/Patient/a", "/console/Patient/a"}, {"/Patient/a/_history", "/console/Patient/a/history"}, {"/Patient/a/_history/2", "/console/Patient/a/history/2"},
		{"/metadata", "/console/capabilities"}, {"/Patient?name=ashford", "/console/search/"}, {"/Patient/a/$everything", "/console/requests/"}, {"/_history", "/console/requests/"}, {"/Patient/a?_format=html", "/console/Patient/a"},
	} {
		p := v.get(tt.path).want(303)
		if !strings.HasPrefix(p.location, tt.want) || strings.Contains(p.location, "ashford") || !strings.Contains(strings.Join(p.header.Values("Vary"), ","), "Accept") {
			t.Errorf("%s leads to %s, want %s; Vary %v", tt.path, p.location, tt.want, p.header.Values("Vary"))
		}
		v.get(p.location).want(200)
	}
	v.get("/").want(200).has("Open the console")
	for _, tt := range []struct{ name, path, accept string }{
		{"a program", "/Patient/a", "application/fhir+json"}, {"a wildcard", "/Patient/a", "*/*"}, {"FHIR preferred", "/Patient/a", "text/html;q=0.5, application/fhir+json"},
		{"equal", "/Patient/a", "text/html, application/fhir+json"}, {"_format", "/Patient/a?_format=json", "text/html"},
	} {
		if p := v.get(tt.path, "Accept", tt.accept); p.status != 200 || !strings.Contains(p.header.Get("Content-Type"), "json") {
			t.Errorf("%s: %d %s", tt.name, p.status, p.header.Get("Content-Type"))
		}
	}
	if p := v.get("/Patient/a", "Authorization", "Bearer x", "Accept", "text/html, application/json;q=0.5"); p.location != "" {
		t.Errorf("a request with a token is sent to %s", p.location)
	}
	if p := v.do(http.MethodPost, "/Patient/_search", url.Values{}, "Accept", "text/html, application/json;q=0.5"); p.location != "" || p.status != 200 {
		t.Errorf("a POST is answered %d %s", p.status, p.location)
	}
}

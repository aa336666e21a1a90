package oauth_test

import (
	"bytes"
	"crypto/x509"
	"encoding/json"
	"log/slog"
	"net/http"
	"net/url"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"kiln/oauth"
)

// Cookies, tokens of forms, headers of pages.
// Contract, Authorization 3: forms: hidden `session_id`, `csrf_token`, `action`; one checkbox each, unticked
// is not granted; `oauth_session`; strict CSP with `form-action`, `frame-ancestors`, no-store.
func TestForms(t *testing.T) {
	t.Parallel()
	s := start(t)
	s.app()
	b := newBrowser(t)
	login := s.authorize(b, s.request())
	h := login.header
	csp := h.Get("Content-Security-Policy")
	for _, want := range []string{"default-src 'none'", "form-action 'self' https://app.example.org", "frame-ancestors 'none'"} {
		if !strings.Contains(csp, want) {
			t.Errorf("Content-Security-Policy %q lacks %q", csp, want)
		}
	}
	if strings.Contains(string(login.body), "<script") || strings.Contains(csp, "unsafe") || h.Get("Cache-Control") != "no-store" || h.Get("X-Frame-Options") != "DENY" {
		t.Errorf("headers %v", h)
	}
	if !strings.Contains(string(login.body), "<bdi>Growth &lt;Chart&gt;</bdi>") {
		t.Error("the client's name is not escaped, or its direction changes the text beside it")
	}
	cookie := h.Get("Set-Cookie")
	for _, want := range []string{"oauth_session=", "Path=/auth", "Max-Age=600", "HttpOnly", "SameSite=Lax"} {
		if !strings.Contains(cookie, want) {
			t.Errorf("cookie %q lacks %q", cookie, want)
		}
	}
	if strings.Contains(cookie, "Secure") {
		t.Errorf("cookie %q: Secure on http", cookie)
	}
	good := login.form(t, "login", "username", "doctor", "password", password)
	change := func(name, value string) url.Values {
		v := url.Values{}
		for n, x := range good {
			v[n] = x
		}
		if v.Set(name, value); value == "" {
			v.Del(name)
		}
		return v
	}
	for name, tt := range map[string]struct {
		browser *browser
		form    url.Values
	}{
		"another browser":       {newBrowser(t), good},
		"no csrf_token":         {b, change("csrf_token", "")},
		"another csrf_token":    {b, change("csrf_token", "x")},
		"another session_id":    {b, change("session_id", "x")},
		"another's cookie":      {&browser{t: t, cookies: map[string]string{"oauth_session": strings.Repeat("x", 43)}, header: http.Header{}}, good},
		"a cookie that is none": {&browser{t: t, cookies: map[string]string{"oauth_session": "'"}, header: http.Header{}}, good},
		"two cookies":           {&browser{t: t, cookies: map[string]string{}, header: http.Header{"Cookie": {"oauth_session=" + b.cookies["oauth_session"] + "; oauth_session=" + strings.Repeat("x", 43)}}}, good},
		"from another site":     {&browser{t: t, cookies: b.cookies, header: http.Header{"Sec-Fetch-Site": {"cross-site"}}}, good},
	} {
		if a := s.submit(tt.browser, tt.form); a.status < 400 || a.header.Get("Location") != "" {
			t.Errorf("%s: %d", name, a.status)
		}
	}
	before := b.cookies["oauth_session"]
	consent := s.consent(b, s.submit(b, good))
	if consent.status != 200 || len(consent.field("scope")) != 5 || b.cookies["oauth_session"] == before {
		t.Fatalf("consent: %d %v; the cookie must be another after the sign-in", consent.status, consent.field("scope"))
	}
	// More than was shown is not granted; unticked is not granted.
	v := consent.form(t, "authorize", "scope", "admin")
	if a := s.submit(b, v); !strings.Contains(a.header.Get("Location"), "error=invalid_request") {
		t.Errorf("granting what was not asked for: %d %s", a.status, a.header.Get("Location"))
	}
	b = newBrowser(t)
	consent = s.consent(b, s.submit(b, s.authorize(b, s.request()).form(t, "login", "username", "doctor", "password", password)))
	a := s.submit(b, consent.form(t, "authorize", "scope", "patient/*.rs", "scope", "openid"))
	if tokens := s.exchange(s.walk(b, a, "doctor").Get("code")); tokens.text("scope") != "openid patient/*.rs" {
		t.Errorf("unticked scopes: %s", tokens.body)
	}
	// Deny, on either page; ending a flow ends it.
	b = newBrowser(t)
	login = s.authorize(b, s.request())
	a = s.submit(b, login.form(t, "deny"))
	u, _ := url.Parse(a.header.Get("Location"))
	if u.Query().Get("error") != "access_denied" || u.Query().Get("state") != state {
		t.Errorf("deny: %s", a.header.Get("Location"))
	}
	s.pass(2 * time.Minute)
	if a := s.submit(b, login.form(t, "deny")); a.status != 400 {
		t.Errorf("after the end: %d", a.status)
	}
}

// The policy of a page names where its form may lead in words that a policy has.
// Contract, Authorization 3: strict CSP: `form-action` must allow the client's redirect origin.
func TestFormActionOfRedirects(t *testing.T) {
	t.Parallel()
	s := start(t)
	s.app()
	s.client(map[string]any{"clientId": "many", "redirectUris": []string{"http://[::1]/cb", "http://127.0.0.1/cb", "com.example.app:/cb"}, "scopes": []string{appScopes}})
	for redirect, want := range map[string]string{
		"http://[::1]:5000/cb": "http:", "http://127.0.0.1:5000/cb": "http://127.0.0.1:5000", "com.example.app:/cb": "com.example.app:",
	} {
		a := s.authorize(newBrowser(t), s.request("client_id", "many", "redirect_uri", redirect))
		if csp := a.header.Get("Content-Security-Policy"); a.status != 200 || !strings.Contains(csp, "; form-action 'self' "+want+";") {
			t.Errorf("%s: %d %s, want %s", redirect, a.status, csp, want)
		}
	}
}

// Five failures lock the name from that address; unknown names alike; the lock ends.
// Contract, Authorization 2: user: five failures lock that name from that address for five minutes; unknown
// names alike.
func TestLockout(t *testing.T) {
	t.Parallel()
	s := start(t)
	s.app()
	for _, name := range []string{"doctor", "nobody"} {
		b := newBrowser(t)
		page := s.authorize(b, s.request())
		for i := range 5 {
			page = s.submit(b, page.form(t, "login", "username", name, "password", "wrong password"))
			if page.status != 401 || !strings.Contains(string(page.body), "name or the password is wrong") {
				t.Fatalf("%s, failure %d: %d", name, i+1, page.status)
			}
		}
		locked := s.submit(b, page.form(t, "login", "username", name, "password", password))
		if locked.status != 429 || locked.header.Get("Retry-After") == "" {
			t.Errorf("%s: %d after five failures, want 429 and Retry-After", name, locked.status)
		}
		s.pass(5*time.Minute + time.Second)
		if name == "doctor" {
			if a := s.submit(b, locked.form(t, "login", "username", name, "password", password)); a.status != 200 {
				t.Errorf("after five minutes: %d", a.status)
			}
		}
	}
}

// A remembered consent skips the page, never the picker; prompt, max_age, login_hint.
// Contract, Authorization 3: a remembered consent skips the consent page, never the picker; `prompt`,
// `max_age`, `login_hint`.
// Contract, Authorization 2: client: `trusted` has no consent screen.
func TestConsentAndPrompt(t *testing.T) {
	t.Parallel()
	s := start(t)
	s.app()
	b := newBrowser(t)
	page := s.authorize(b, s.request("login_hint", "doctor"))
	if page.field("username")[0] != "doctor" {
		t.Error("login_hint is not in the form")
	}
	if q := s.walk(b, page, "doctor"); q.Get("code") == "" {
		t.Fatalf("%v", q)
	}
	actions := func(a *answer) string { return strings.Join(a.field("action"), " ") }
	if a := s.authorize(b, s.request()); !strings.Contains(actions(a), "select_patient") {
		t.Errorf("signed in and agreed: %s", actions(a))
	}
	if a := s.authorize(b, s.request("scope", "openid")); a.header.Get("Location") == "" {
		t.Errorf("nothing to ask: %d %s", a.status, actions(a))
	}
	if a := s.authorize(b, s.request("scope", "openid user/*.rs")); !strings.Contains(actions(a), "authorize") {
		t.Errorf("a wider scope asks again: %s", actions(a))
	}
	if a := s.consent(b, s.authorize(b, s.request("prompt", "consent"))); !strings.Contains(actions(a), "authorize") {
		t.Errorf("prompt consent: %s", actions(a))
	}
	if a := s.authorize(b, s.request("prompt", "login")); !strings.Contains(actions(a), "login") {
		t.Errorf("prompt login: %s", actions(a))
	}
	if a := s.authorize(b, s.request("prompt", "none", "scope", "openid")); !strings.Contains(a.header.Get("Location"), "code=") {
		t.Errorf("prompt none: %s", a.header.Get("Location"))
	}
	if a := s.authorize(b, s.request("prompt", "none")); !strings.Contains(a.header.Get("Location"), "error=interaction_required") {
		t.Errorf("prompt none with a picker: %s", a.header.Get("Location"))
	}
	if a := s.authorize(b, s.request("prompt", "none", "scope", "openid user/*.rs")); !strings.Contains(a.header.Get("Location"), "error=consent_required") {
		t.Errorf("prompt none with consent: %s", a.header.Get("Location"))
	}
	s.pass(time.Minute)
	if a := s.authorize(b, s.request("max_age", "30")); !strings.Contains(actions(a), "login") {
		t.Errorf("max_age: %s", actions(a))
	}
	s.pass(10 * time.Minute)
	if a := s.authorize(b, s.request()); !strings.Contains(actions(a), "login") {
		t.Errorf("after ten minutes: %s", actions(a))
	}
	// A decision about other scopes leaves the first one as it is; one about the same scopes
	// takes its place.
	b = newBrowser(t)
	agree := func(scope string, ticked ...string) {
		t.Helper()
		a := s.authorize(b, s.request("scope", scope, "prompt", "consent"))
		if strings.Contains(actions(a), "login") {
			a = s.submit(b, a.form(t, "login", "username", "doctor", "password", password))
		}
		v := a.form(t, "authorize")
		v["scope"] = ticked
		if a = s.submit(b, v); !strings.Contains(a.header.Get("Location"), "code=") {
			t.Fatalf("agree to %s: %d %s", scope, a.status, a.body)
		}
	}
	silently := func(scope, want string) {
		t.Helper()
		if a := s.authorize(b, s.request("prompt", "none", "scope", scope)); !strings.Contains(a.header.Get("Location"), want) {
			t.Errorf("%s: %s, want %s", scope, a.header.Get("Location"), want)
		}
	}
	agree("openid user/Observation.rs", "openid", "user/Observation.rs")
	agree("user/Condition.rs", "user/Condition.rs")
	silently("openid user/Observation.rs", "code=")
	silently("user/Observation.rs user/Condition.rs", "code=")
	agree("openid user/Observation.rs", "openid")
	silently("openid user/Observation.rs", "error=consent_required")
	silently("openid user/Condition.rs", "code=")

	s.client(map[string]any{"clientId": "ours", "trusted": true, "redirectUris": []string{callback}, "scopes": []string{appScopes}})
	b = newBrowser(t)
	page = s.authorize(b, s.request("client_id", "ours", "scope", "openid"))
	if a := s.submit(b, page.form(t, "login", "username", "doctor", "password", password)); !strings.Contains(a.header.Get("Location"), "code=") {
		t.Errorf("a trusted client has no consent page: %d %s", a.status, actions(a))
	}
}

// The pickers search, and show only patients that the user may see. Contract, Authorization
// 3: the patient picker searches (`action=search`, `q`, `birthdate`) and shows only what
// the user may see; a Patient gets that one; then the encounter picker.
func TestPickers(t *testing.T) {
	t.Parallel()
	s := start(t)
	s.app()
	s.user(map[string]any{"username": "blind", "fhirUser": "Practitioner/2"})
	s.user(map[string]any{"username": "ada", "fhirUser": "Patient/p1"})
	to := func(username string) (*browser, *answer) {
		b := newBrowser(t)
		return b, s.submit(b, s.authorize(b, s.request("scope", "openid patient/*.rs launch/patient launch/encounter")).form(t, "login", "username", username, "password", password))
	}
	b, page := to("doctor")
	if len(page.field("patient")) != 2 || !strings.Contains(string(page.body), "Alan &lt;Turing&gt;") {
		t.Fatalf("picker: %v", page.field("patient"))
	}
	page = s.submit(b, page.form(t, "search", "q", "Ada", "birthdate", "1815-12-10"))
	if got := page.field("patient"); len(got) != 1 || got[0] != "p1" {
		t.Errorf("search: %v", got)
	}
	if strings.Contains(string(page.body), `role="alert"`) {
		t.Errorf("a problem with a good search: %s", page.body)
	}
	page = s.submit(b, page.form(t, "search", "q", "Ada", "birthdate", `10.12."1815"`))
	if got := page.field("patient"); len(got) != 1 || got[0] != "p1" || page.field("q")[0] != "Ada" || page.field("birthdate")[0] != `10.12."1815"` {
		t.Errorf("search with a date that is none: %v %s", got, page.body)
	}
	if !strings.Contains(string(page.body), `role="alert" id="birthdate-problem">The date of birth is no date: expected YYYY-MM-DD`) ||
		!strings.Contains(string(page.body), `aria-invalid="true" aria-describedby="birthdate-problem"`) {
		t.Errorf("what is wrong with the date is not told: %s", page.body)
	}
	page = s.submit(b, page.form(t, "search", "q", strings.Repeat("x", 201), "birthdate", "1815-12-10"))
	if got := page.field("patient"); len(got) != 1 || got[0] != "p1" || page.field("q")[0] != "" {
		t.Errorf("search with a text that is too long: %v", got)
	}
	page = s.submit(b, page.form(t, "select_patient", "patient", "../p1"))
	page = s.submit(b, page.form(t, "select_patient", "patient", "p9"))
	if page.header.Get("Location") != "" || len(page.field("patient")) == 0 {
		t.Error("a patient whom the user cannot see is taken")
	}
	if !strings.Contains(string(page.body), `role="alert" id="problem">Choose one of these patients`) || !strings.Contains(string(page.body), `<fieldset aria-describedby="problem">`) {
		t.Errorf("what is wrong with the choice is not told: %s", page.body)
	}
	page = s.submit(b, page.form(t, "select_patient", "patient", "p1"))
	if got := page.field("encounter"); len(got) != 1 || got[0] != "e1" {
		t.Fatalf("encounters: %v %s", got, page.body)
	}
	if strings.Contains(string(page.body), `role="alert"`) {
		t.Errorf("a problem before a choice: %s", page.body)
	}
	if page = s.submit(b, page.form(t, "select_encounter", "encounter", "e9")); !strings.Contains(string(page.body), `role="alert" id="problem">Choose one of these encounters`) {
		t.Errorf("what is wrong with the choice is not told: %s", page.body)
	}
	page = s.submit(b, page.form(t, "select_encounter", "encounter", "e1"))
	if !strings.Contains(string(page.body), "It is about the record of <strong><bdi>Ada Lovelace</bdi></strong>.") {
		t.Errorf("the consent page does not name the patient: %s", page.body)
	}
	v := page.form(t, "authorize")
	v["scope"] = page.field("scope")
	page = s.submit(b, v)
	u, _ := url.Parse(page.header.Get("Location"))
	if a := s.exchange(u.Query().Get("code")); a.text("patient") != "p1" || a.text("encounter") != "e1" {
		t.Errorf("context: %s", a.body)
	}
	if _, page := to("blind"); len(page.field("patient")) != 0 || page.status != 200 {
		t.Errorf("a user who sees nobody: %v", page.field("patient"))
	}
	if _, page := to("ada"); len(page.field("encounter")) != 1 {
		t.Errorf("a patient is not asked for the patient: %s", page.body)
	}
}

// A granted patient/ scope wants a patient in context, as launch/patient does.
// SMART App Launch 2.2, scopes for requesting FHIR resources: "the EHR SHALL establish a patient in context".
// Contract, Authorization 3: the patient picker, for `launch/patient` or a scope `patient/…`.
func TestPatientScopesWantAPatient(t *testing.T) {
	t.Parallel()
	s := start(t)
	s.app()
	s.user(map[string]any{"username": "ada", "fhirUser": "Patient/p1"})
	const scope = "openid patient/*.rs"
	given := func(a *answer, patient, encounter, scope string) {
		t.Helper()
		u, err := url.Parse(a.header.Get("Location"))
		if err != nil || u.Query().Get("code") == "" {
			t.Fatalf("no code: %d %s %s", a.status, u, a.body)
		}
		got := s.exchange(u.Query().Get("code"))
		if _, c := claims(t, got.text("access_token")); got.text("patient") != patient || got.text("encounter") != encounter || got.text("scope") != scope || patient != "" && c["patient"] != patient {
			t.Errorf("given %s, claims %v; want patient %q, encounter %q, scope %q", got.body, c, patient, encounter, scope)
		}
	}
	picker := func(username string, changes ...string) (*browser, *answer) {
		t.Helper()
		b := newBrowser(t)
		return b, s.submit(b, s.authorize(b, s.request(append([]string{"prompt", "consent"}, changes...)...)).form(t, "login", "username", username, "password", password))
	}
	agree := func(b *browser, page *answer, tick func(scope string) bool) *answer {
		t.Helper()
		v := page.form(t, "authorize")
		v["scope"] = slices.DeleteFunc(page.field("scope"), func(scope string) bool { return tick != nil && !tick(scope) })
		return s.submit(b, v)
	}
	to := func(username string, tick func(scope string) bool, changes ...string) (*browser, *answer) {
		t.Helper()
		b, page := picker(username, changes...)
		return b, agree(b, s.consent(b, page), tick)
	}

	b, page := picker("doctor", "scope", scope)
	if len(page.field("patient")) != 2 {
		t.Fatalf("no picker: %d %s", page.status, page.body)
	}
	given(agree(b, s.submit(b, page.form(t, "select_patient", "patient", "p2")), nil), "p2", "", scope)
	if a := s.authorize(b, s.request("scope", scope, "prompt", "none")); !strings.Contains(a.header.Get("Location"), "error=interaction_required") {
		t.Errorf("prompt none: %s", a.header.Get("Location"))
	}
	_, page = to("ada", nil, "scope", scope)
	given(page, "p1", "", scope)
	_, page = to("doctor", nil, "scope", "openid user/*.rs")
	given(page, "", "", "openid user/*.rs")
	_, page = to("doctor", func(scope string) bool { return scope == "openid" }, "scope", scope)
	given(page, "", "", "openid")

	launch := func(c oauth.LaunchRequest) string {
		t.Helper()
		id, err := s.server.NewLaunch(t.Context(), c)
		if err != nil {
			t.Fatal(err)
		}
		return id
	}
	ehr := "launch patient/*.rs"
	b, page = picker("doctor", "scope", ehr, "launch", launch(oauth.LaunchRequest{Intent: "review"}))
	given(agree(b, s.submit(b, page.form(t, "select_patient", "patient", "p1")), nil), "p1", "", ehr)
	_, page = to("doctor", nil, "scope", ehr, "launch", launch(oauth.LaunchRequest{Patient: "p2"}))
	given(page, "p2", "", ehr)
	// Without the scope launch the app is told whose record the scope is of, and no more.
	_, page = to("doctor", func(scope string) bool { return scope != "launch" }, "scope", ehr, "launch", launch(oauth.LaunchRequest{Patient: "p1", Encounter: "e1"}))
	given(page, "p1", "", "patient/*.rs")
}

// Where standalone launches are off, no patient is asked for: patient/ scopes are left out of them.
// Contract, Authentication: `auth.smart.launch_standalone_enabled`.
func TestPatientScopesWithoutStandaloneLaunch(t *testing.T) {
	t.Parallel()
	s := start(t, func(o *oauth.Options) { o.Config.Smart.LaunchStandaloneEnabled = false })
	s.app()
	if a := s.authorize(newBrowser(t), s.request("scope", "launch/patient patient/*.rs")); !strings.Contains(a.header.Get("Location"), "error=invalid_scope") {
		t.Errorf("nothing is left: %d %s", a.status, a.header.Get("Location"))
	}
	if a := s.tokens("scope", "openid patient/*.rs user/*.rs"); a.text("scope") != "openid user/*.rs" || a.text("patient") != "" {
		t.Errorf("given %s", a.body)
	}
	launch, err := s.server.NewLaunch(t.Context(), oauth.LaunchRequest{Patient: "p2"})
	if err != nil {
		t.Fatal(err)
	}
	if a := s.tokens("scope", "launch patient/*.rs", "launch", launch); a.text("scope") != "launch patient/*.rs" || a.text("patient") != "p2" {
		t.Errorf("a launch from the EHR: %s", a.body)
	}
}

// POST /auth/launch: single use, five minutes, bound to client and user.
// Contract, Authorization 3: `POST /auth/launch`: its fields, 201, single use, five minutes, bound to client
// and user.
func TestLaunch(t *testing.T) {
	t.Parallel()
	s := start(t)
	s.app()
	s.user(map[string]any{"username": "nurse"})
	key, err := s.server.CreateAPIKey(t.Context(), "ehr", "launch/context", "")
	if err != nil {
		t.Fatal(err)
	}
	launch := func(body string) string {
		t.Helper()
		a := s.call("POST", "/auth/launch", key.Key, body)
		if a.status != 201 || a.json["expiresIn"] != 300.0 {
			t.Fatalf("launch: %d %s", a.status, a.body)
		}
		return a.text("launch")
	}
	scope := []string{"scope", "openid launch patient/*.rs"}
	full := launch(`{"patient": "Patient/p1", "encounter": "e1", "fhirContext": [{"reference": "Observation/1"}], "intent": "review", "needPatientBanner": false,
		"smartStyleUrl": "https://ehr.example.org/style.json", "tenant": "north", "client_id": "app", "user": "doctor"}`)
	a := s.tokens(append(scope, "launch", full)...)
	for name, want := range map[string]any{"patient": "p1", "encounter": "e1", "intent": "review", "need_patient_banner": false, "smart_style_url": "https://ehr.example.org/style.json", "tenant": "north"} {
		if a.json[name] != want {
			t.Errorf("%s is %v, want %v", name, a.json[name], want)
		}
	}
	if b, _ := json.Marshal(a.json["fhirContext"]); string(b) != `[{"reference":"Observation/1"}]` {
		t.Errorf("fhirContext %s", b)
	}
	refused := func(name, want string, changes ...string) {
		t.Helper()
		b := newBrowser(t)
		if q := s.walk(b, s.authorize(b, s.request(append(scope, changes...)...)), "doctor"); q.Get("error") != want {
			t.Errorf("%s: %v, want %s", name, q, want)
		}
	}
	refused("a second use", "invalid_request", "launch", full)
	s.user(map[string]any{"username": "other-doctor", "fhirUser": "Practitioner/2"})
	b := newBrowser(t)
	hidden := launch(`{"patient": "p1"}`)
	if q := s.walk(b, s.authorize(b, s.request(append(scope, "launch", hidden)...)), "other-doctor"); q.Get("error") != "access_denied" {
		t.Errorf("a launch about a patient whom the user may not see: %v", q)
	}
	refused("another user's", "access_denied", "launch", launch(`{"patient": "p1", "user": "nurse"}`))
	s.user(map[string]any{"username": "patient-2", "fhirUser": "Patient/p2"})
	b = newBrowser(t)
	if q := s.walk(b, s.authorize(b, s.request("scope", "launch launch/patient patient/*.rs", "launch", launch(`{"encounter": "e1"}`))), "patient-2"); q.Get("error") != "access_denied" {
		t.Errorf("a launch about an encounter of another patient: %v", q)
	}
	if a := s.tokens(append(scope, "launch", launch(`{"encounter": "e1"}`))...); a.json["patient"] != "p1" || a.json["encounter"] != "e1" {
		t.Errorf("an encounter says which patient: %s", a.body)
	}
	// Without launch ticked, the app receives nothing of it.
	for ticked, want := range map[string]int{"openid patient/*.rs": 0, "launch openid patient/*.rs": 2} {
		b = newBrowser(t)
		page := s.authorize(b, s.request(append(scope, "prompt", "consent", "launch", launch(`{"fhirContext": [{"reference": "Observation/1"}], "tenant": "north"}`))...))
		page = s.submit(b, page.form(t, "login", "username", "doctor", "password", password))
		v := page.form(t, "authorize")
		v["scope"] = strings.Fields(ticked)
		q := s.walk(b, s.submit(b, v), "doctor")
		a := s.exchange(q.Get("code"))
		n := 0
		for _, name := range []string{"fhirContext", "tenant"} {
			if a.json[name] != nil {
				n++
			}
		}
		if a.status != 200 || n != want {
			t.Errorf("%s: %d %s", ticked, a.status, a.body)
		}
	}
	s.client(map[string]any{"clientId": "other", "redirectUris": []string{callback}, "scopes": []string{appScopes}})
	refused("another client's", "invalid_request", "launch", launch(`{"patient": "p1", "client_id": "other"}`))
	late := launch(`{"patient": "p1"}`)
	s.pass(5*time.Minute + time.Second)
	refused("after five minutes", "invalid_request", "launch", late)
	for name, body := range map[string]string{
		"an unknown field": `{"person": "p1"}`, "no such patient": `{"patient": "p9"}`, "no id": `{"patient": "a b"}`, "another type": `{"patient": "Observation/1"}`,
		"no such client": `{"client_id": "nobody"}`, "no such user": `{"user": "nobody"}`, "no JSON": `x`, "a list": `[]`, "null": `null`, "fhirContext of texts": `{"fhirContext": ["x"]}`,
		"an element of fhirContext that names nothing": `{"fhirContext": [{}]}`, "a role that is no text": `{"fhirContext": [{"reference": "List/1", "role": 5}]}`,
		"another patient's encounter": `{"patient": "p2", "encounter": "e1"}`,
	} {
		if a := s.call("POST", "/auth/launch", key.Key, body); a.status != 400 {
			t.Errorf("%s: %d %s", name, a.status, a.body)
		}
	}
	plain, _ := s.server.CreateAPIKey(t.Context(), "x", "system/*.rs", "")
	if a := s.call("POST", "/auth/launch", plain.Key, "{}"); a.status != 403 || !strings.Contains(a.header.Get("WWW-Authenticate"), "insufficient_scope") {
		t.Errorf("without the scope: %d", a.status)
	}
	if a := s.call("POST", "/auth/launch", "", "{}"); a.status != 401 {
		t.Errorf("without a token: %d", a.status)
	}
}

// /admin/clients and /admin/users: create, show, update, disable, delete; only with
// an admin token.
// Contract, Authorization 2: `/admin/clients`, `/admin/users`: list, create, show, `PUT`, `PATCH`, delete,
// `…/secret`, `…/password`; lifetimes; client and user fields that are refused; API keys end by revocation
// and time.
func TestManage(t *testing.T) {
	t.Parallel()
	s := start(t)
	key, err := s.server.CreateAPIKey(t.Context(), "admin", "admin", "90d")
	if err != nil {
		t.Fatal(err)
	}
	weak, _ := s.server.CreateAPIKey(t.Context(), "weak", "system/*.cruds", "")
	for _, path := range []string{"/admin/clients", "/admin/users", "/admin/apikeys"} {
		if a := s.call("GET", path, "", ""); a.status != 401 {
			t.Errorf("GET %s without a token: %d", path, a.status)
		}
		if a := s.call("GET", path, weak.Key, ""); a.status != 403 {
			t.Errorf("GET %s without admin: %d", path, a.status)
		}
	}
	do := func(method, path, body string, want int) *answer {
		t.Helper()
		a := s.call(method, path, key.Key, body)
		if a.status != want {
			t.Errorf("%s %s: %d %s, want %d", method, path, a.status, a.body, want)
		}
		return a
	}
	c := do("POST", "/admin/clients", `{"name": "x", "confidential": true, "scopes": ["system/*.rs"]}`, 201)
	id := c.text("clientId")
	if id == "" || c.text("clientSecret") == "" || c.header.Get("Location") != "/admin/clients/"+id {
		t.Errorf("created %s", c.body)
	}
	shown := do("GET", "/admin/clients/"+id, "", 200)
	if shown.text("clientSecret") != "" || shown.json["active"] != true || shown.text("tokenEndpointAuthMethod") != "client_secret_basic" {
		t.Errorf("shown %s", shown.body)
	}
	if a := do("POST", "/admin/clients/"+id+"/secret", "", 200); a.text("clientSecret") == "" || a.text("clientSecret") == c.text("clientSecret") {
		t.Errorf("new secret %s", a.body)
	}
	if a := do("PATCH", "/admin/clients/"+id, `{"active": false}`, 200); a.json["active"] != false || a.text("name") != "x" {
		t.Errorf("patched %s", a.body)
	}
	if a := do("PUT", "/admin/clients/"+id, `{"confidential": true, "scopes": ["system/*.r"]}`, 200); a.json["active"] != true || a.text("name") != "" {
		t.Errorf("replaced %s", a.body)
	}
	for _, patch := range []string{`{"Active": false}`, `{"activ": false}`, `null`} {
		do("PATCH", "/admin/clients/"+id, patch, 400)
	}
	keys, _ := json.Marshal(newKeyPair(t, "k").jwks())
	do("POST", "/admin/clients", `{"clientId": "`+id+`", "confidential": true, "scopes": ["system/*.rs"]}`, 409)
	do("PUT", "/admin/clients/nobody", `{}`, 404)
	for name, body := range map[string]string{
		"an unknown field": `{"secret": "x"}`, "a wrong type": `{"name": 1}`, "no JSON": `x`,
		"a public client with a secret": `{"tokenEndpointAuthMethod": "none", "clientSecret": "x"}`, "an unknown method": `{"tokenEndpointAuthMethod": "tls_client_auth"}`,
		"public but confidential": `{"confidential": true, "tokenEndpointAuthMethod": "none"}`, "private_key_jwt without keys": `{"tokenEndpointAuthMethod": "private_key_jwt"}`,
		"a malformed scope": `{"scopes": ["patient/x.sr"]}`, "an unknown grant": `{"grantTypes": ["password"]}`, "a public service": `{"confidential": false, "grantTypes": ["client_credentials"]}`,
		"a lifetime that is none": `{"accessTokenLifetime": "soon"}`, "a fraction": `{"accessTokenLifetime": "1.5h"}`, "http": `{"redirectUris": ["http://app.example.org/cb"]}`,
		"javascript": `{"redirectUris": ["javascript:alert(1)"]}`, "a fragment": `{"redirectUris": ["https://a.example.org/#x"]}`, "a wildcard": `{"redirectUris": ["https://*.example.org/"]}`,
		"relative": `{"redirectUris": ["/cb"]}`, "an unknown algorithm": `{"idTokenSigningAlg": "none"}`, "a private key": `{"tokenEndpointAuthMethod":"private_key_jwt","jwks":{"keys":[{"kty":"oct","k":"AAAA"}]}}`,
		"an origin with a path": `{"allowedOrigins": ["https://a.example.org/x"]}`, "a name in other letters": `{"Name": "x"}`, "a name of nothing": `{"": 1}`, "null": `null`,
		"keys here and there": `{"confidential": true, "jwksUri": "https://a.example.org/k", "jwks": ` + string(keys) + `}`,
	} {
		if a := s.call("POST", "/admin/clients", key.Key, body); a.status != 400 {
			t.Errorf("%s: %d %s", name, a.status, a.body)
		}
	}
	do("DELETE", "/admin/clients/"+id, "", 204)
	do("GET", "/admin/clients/"+id, "", 404)

	do("POST", "/admin/users", `{"username": "doctor", "password": "`+password+`", "fhirUser": "Practitioner/1", "roles": ["admin"]}`, 201)
	if a := do("GET", "/admin/users/doctor", "", 200); strings.Contains(string(a.body), "argon2id") || strings.Contains(string(a.body), password) {
		t.Errorf("a user shows the password: %s", a.body)
	}
	if a := do("POST", "/admin/users/doctor/password", "", 200); len(a.text("password")) < 12 {
		t.Errorf("new password %s", a.body)
	}
	do("PATCH", "/admin/users/doctor", `{"Active": false}`, 400)
	do("PATCH", "/admin/users/doctor", `{"active": false}`, 200)
	do("POST", "/admin/users", `{"username": "doctor", "password": "`+password+`"}`, 409)
	for name, body := range map[string]string{
		"a short password": `{"username": "u", "password": "elevenchars"}`, "the name": `{"username": "twelve-chars-x", "password": "Twelve-Chars-X"}`, "no name": `{"password": "` + password + `"}`,
		"no such fhirUser": `{"username": "u", "password": "` + password + `", "fhirUser": "Patient/p9"}`, "another type": `{"username": "u", "password": "` + password + `", "fhirUser": "Device/1"}`,
		"null": `null`, "a role with a space": `{"username": "u", "password": "` + password + `", "roles": ["a b"]}`,
	} {
		if a := s.call("POST", "/admin/users", key.Key, body); a.status != 400 {
			t.Errorf("%s: %d %s", name, a.status, a.body)
		}
	}
	do("DELETE", "/admin/users/doctor", "", 204)
	do("DELETE", "/admin/users/doctor", "", 404)

	// API keys end by revocation, by time; --expires.
	if s.use(weak.Key) != 200 {
		t.Fatal("an API key is not taken")
	}
	do("DELETE", "/admin/apikeys/"+weak.ID, "", 204)
	if s.use(weak.Key) != 401 || s.use(weak.Key+"x") != 401 || s.use("kiln_") != 401 {
		t.Error("a revoked or unknown API key is taken")
	}
	s.pass(91 * 24 * time.Hour)
	if status := s.use(key.Key); status != 401 {
		t.Errorf("an expired API key: %d", status)
	}
}

// Keys: RS256 for ID tokens, the configured one for access tokens; the next is
// published before it signs, the last after; every server agrees.
// Contract, Authorization 2: signing keys: algorithm, rotation, published before and after; all servers
// agree.
func TestKeyRotation(t *testing.T) {
	t.Parallel()
	s := start(t, func(o *oauth.Options) { o.Config.Signing.EncryptionKey = "a passphrase" })
	s.app()
	jwks := func(at *service) (kids []string) {
		a := newBrowser(t).do("GET", at.base+"/.well-known/jwks.json", nil)
		for _, k := range a.json["keys"].([]any) {
			m := k.(map[string]any)
			if m["d"] != nil || m["use"] != "sig" {
				t.Errorf("key %v", m)
			}
			kids = append(kids, m["kid"].(string))
		}
		return kids
	}
	before := s.tokens()
	kid := func(token string) any { h, _ := claims(t, token); return h["kid"] }
	if len(jwks(s)) != 2 {
		t.Fatalf("keys %v", jwks(s))
	}
	if h, _ := claims(t, before.text("id_token")); h["alg"] != "RS256" {
		t.Errorf("ID token %v", h)
	}
	other := startOn(t, s.url, s.base, func(o *oauth.Options) { o.Config.Signing.EncryptionKey = "a passphrase" })
	if err := s.server.RotateKeys(t.Context(), false); err != nil {
		t.Fatal(err)
	}
	// The day begins on every server: none waits for the next look at all keys.
	for deadline := time.Now().Add(8 * time.Second); len(jwks(other)) != 4; <-time.After(20 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("the other server publishes %v", jwks(other))
		}
	}
	if len(jwks(s)) != 4 {
		t.Errorf("published %v", jwks(s))
	}
	if a := s.tokens(); kid(a.text("access_token")) != kid(before.text("access_token")) {
		t.Error("the next key signs at once")
	}
	s.pass(24*time.Hour + time.Second)
	after := s.tokens()
	if kid(after.text("access_token")) == kid(before.text("access_token")) {
		t.Error("the next key does not sign after a day")
	}
	if err := s.server.RotateKeys(t.Context(), true); err != nil {
		t.Fatal(err)
	}
	last := s.tokens()
	if kid(last.text("access_token")) == kid(after.text("access_token")) || s.use(after.text("access_token")) != 401 || len(jwks(s)) != 2 {
		t.Errorf("at once: the new key signs, the old one is withdrawn and its tokens end; published are %v", jwks(s))
	}
	s.pass(49 * time.Hour)
	if got := jwks(s); len(got) != 2 {
		t.Errorf("the old keys are still published: %v", got)
	}
	if _, err := oauth.New(t.Context(), oauth.Options{Config: func() oauth.Config { c := oauth.DefaultConfig(); c.Enabled = true; return c }(), Listen: "127.0.0.1:1", URL: s.url}); err == nil || !strings.Contains(err.Error(), "encryption_key") {
		t.Errorf("without the key that seals them: %v", err)
	}
}

// Keys that were made in the clear are sealed at the next start with an encryption
// key, and sign on; a server that runs without it keeps those that it has read.
// Contract, Authorization 2: signing keys: encrypted when `auth.signing.encryption_key` is set.
func TestKeysAreSealedLater(t *testing.T) {
	t.Parallel()
	s := start(t)
	s.app()
	token := s.tokens().text("access_token")
	keys := func() (clear, sealed int) {
		list, err := s.server.Store.Keys(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		for _, k := range list {
			if _, err := x509.ParsePKCS8PrivateKey(k.Private); (err == nil) == k.Sealed {
				t.Errorf("key %s: sealed is %t, and reading it says %v", k.Kid, k.Sealed, err)
			}
			if k.Sealed {
				sealed++
			} else {
				clear++
			}
		}
		return clear, sealed
	}
	if clear, sealed := keys(); clear != 2 || sealed != 0 {
		t.Fatalf("%d keys in the clear, %d sealed", clear, sealed)
	}
	later := startOn(t, s.url, s.server.Issuer, func(o *oauth.Options) { o.Config.Signing.EncryptionKey = "a passphrase" })
	if clear, sealed := keys(); clear != 0 || sealed != 2 {
		t.Errorf("%d keys in the clear, %d sealed", clear, sealed)
	}
	if later.use(token) != 200 || s.use(token) != 200 || later.use(s.tokens().text("access_token")) != 200 {
		t.Error("the same keys do not sign on")
	}
}

// Discovery lists exactly the capabilities that are on; wrong issuers are refused at start.
// Contract, Authorization 3: discovery; capabilities listed are exactly those that are on;
// an http issuer off loopback is refused at start unless `auth.allow_http`.
func TestDiscoveryAndIssuer(t *testing.T) {
	t.Parallel()
	s := start(t, func(o *oauth.Options) {
		o.Config.Smart.LaunchEHREnabled, o.Config.Smart.PublicClientsAllowed, o.Config.Smart.OpenIDEnabled = false, false, false
		o.Config.OAuth.GrantTypes = []string{"authorization_code", "client_credentials"}
	})
	on := start(t)
	for _, path := range []string{"/.well-known/smart-configuration", "/.well-known/oauth-authorization-server", "/fhir/.well-known/smart-configuration"} {
		a := newBrowser(t).do("GET", s.base+path, nil)
		list := string(a.body)
		if a.status != 200 || a.text("issuer") != s.base || a.text("token_endpoint") != s.base+"/auth/token" {
			t.Errorf("%s: %d %s", path, a.status, a.body)
		}
		for _, off := range []string{"launch-ehr", "client-public", "sso-openid-connect", "permission-offline", "userinfo", "registration_endpoint", "context-banner", `"none"`} {
			if strings.Contains(list, off) {
				t.Errorf("%s lists %s, which is off", path, off)
			}
		}
		full := string(newBrowser(t).do("GET", on.base+path, nil).body)
		for _, want := range []string{"launch-ehr", "launch-standalone", "client-public", "client-confidential-symmetric", "client-confidential-asymmetric", "sso-openid-connect", "context-standalone-patient", "permission-offline", "permission-v2", "S256"} {
			if !strings.Contains(full, want) {
				t.Errorf("%s lacks %s", path, want)
			}
		}
	}
	for _, path := range []string{"/.well-known/openid-configuration", "/auth/userinfo", "/auth/register"} {
		if a := newBrowser(t).do("GET", s.base+path, nil); a.status == 200 {
			t.Errorf("%s is served, though it is off", path)
		}
	}
	key, err := s.server.CreateAPIKey(t.Context(), "ehr", "launch/context", "")
	if err != nil {
		t.Fatal(err)
	}
	if a := s.call("POST", "/auth/launch", key.Key, `{"patient": "p1"}`); a.status != 404 {
		t.Errorf("/auth/launch with launches off: %d %s", a.status, a.body)
	}
	for issuer, good := range map[string]bool{
		"https://ehr.example.org": true, "http://127.0.0.1:8080": true, "http://localhost:8080": true, "http://ehr.example.org": false, "http://10.0.0.1": false,
		"ftp://x": false, "https://ehr.example.org/": false, "https://ehr.example.org?x": false, "http://0.0.0.0:8080": false,
	} {
		c := oauth.DefaultConfig()
		c.Enabled, c.Issuer = true, issuer
		if err := c.CheckServe(oauth.IssuerOf(c, "", "")); (err == nil) != good {
			t.Errorf("issuer %s: %v", issuer, err)
		}
	}
}

// What no scope that can be granted leads to is not on.
// Contract, Authorization 3: capabilities listed are exactly those that are on.
func TestCapabilitiesByScopes(t *testing.T) {
	t.Parallel()
	always := []string{"authorize-post", "client-confidential-asymmetric", "client-confidential-symmetric", "client-public", "launch-standalone"}
	for scopes, more := range map[string][]string{
		"system/*.rs":                  {"permission-v1", "permission-v2"},
		"openid":                       {"sso-openid-connect"},
		"user/Patient.rs":              {"permission-user", "permission-v1", "permission-v2"},
		"patient/*.read":               {"permission-patient", "permission-v1", "permission-v2"},
		"launch":                       {"context-banner", "context-ehr-encounter", "context-ehr-patient", "context-style", "launch-ehr"},
		"launch/patient":               {"context-standalone-patient"},
		"launch/encounter":             {"context-standalone-encounter"},
		"offline_access":               {"permission-offline"},
		"online_access launch/context": {"permission-online"},
	} {
		s := start(t, func(o *oauth.Options) { o.Config.Smart.SupportedScopes = strings.Fields(scopes) })
		var d struct {
			Capabilities []string `json:"capabilities"`
			Scopes       []string `json:"scopes_supported"`
		}
		if err := json.Unmarshal(newBrowser(t).do("GET", s.base+"/.well-known/smart-configuration", nil).body, &d); err != nil {
			t.Fatal(err)
		}
		want := slices.Sorted(slices.Values(append(more, always...)))
		if slices.Sort(d.Capabilities); !slices.Equal(d.Capabilities, want) {
			t.Errorf("scopes %s: capabilities %q, want %q", scopes, d.Capabilities, want)
		}
		if !slices.Equal(d.Scopes, strings.Fields(scopes)) {
			t.Errorf("scopes %s: listed %q", scopes, d.Scopes)
		}
	}
	s := start(t, func(o *oauth.Options) {
		o.Config.OAuth.GrantTypes = []string{"authorization_code"}
		o.Config.Smart.SupportedScopes = []string{"openid", "offline_access", "user/*.rs"}
	})
	if a := newBrowser(t).do("GET", s.base+"/.well-known/smart-configuration", nil); strings.Contains(string(a.body), "offline") {
		t.Errorf("without refresh_token: %s", a.body)
	}
}

// Sign-in with another OpenID provider, and tokens of a trusted issuer: both are
// played by a second server.
// Contract, Authorization 5: `auth.federation.providers[]`: "Sign in with …", code, PKCE, nonce,
// `auto_provision`; `trusted_issuers[]`: verified by JWKS, `aud` checked, scopes mapped.
func TestFederation(t *testing.T) {
	t.Parallel()
	theirs := start(t)
	theirs.user(map[string]any{"username": "doctor", "name": "Grace", "email": "grace@example.org", "fhirUser": "Practitioner/1"})
	s := start(t, func(o *oauth.Options) {
		o.Config.Federation.Providers = []map[string]any{{"name": "Hospital", "issuer": theirs.base, "client_id": "kiln", "client_secret": "a secret of theirs", "scopes": []any{"profile", "fhirUser"}, "auto_provision": true}}
		o.Config.Federation.TrustedIssuers = []map[string]any{{"issuer": theirs.base, "audience": theirs.base + "/fhir", "allow": "system/Patient.rs"}}
	})
	s.client(map[string]any{"clientId": "app", "redirectUris": []string{callback}, "scopes": []string{appScopes}})
	theirs.client(map[string]any{"clientId": "kiln", "clientSecret": "a secret of theirs", "trusted": true, "redirectUris": []string{s.base + "/auth/callback"}, "scopes": []string{"openid profile fhirUser"}})

	here, there := newBrowser(t), newBrowser(t)
	login := s.authorize(here, s.request())
	if !strings.Contains(string(login.body), "Sign in with Hospital") || !strings.Contains(login.header.Get("Content-Security-Policy"), theirs.base) {
		t.Fatalf("login page %s", login.body)
	}
	gone := s.submit(here, login.form(t, "federate", "provider", "Hospital"))
	target, err := url.Parse(gone.header.Get("Location"))
	if err != nil || gone.status != 303 || target.Query().Get("code_challenge_method") != "S256" || target.Query().Get("nonce") == "" {
		t.Fatalf("federate: %d %s", gone.status, gone.header.Get("Location"))
	}
	their := there.do("GET", target.String(), nil)
	done := theirs.submit(there, their.form(t, "login", "username", "doctor", "password", password))
	back := done.header.Get("Location")
	if a := newBrowser(t).do("GET", back, nil); a.status != 403 {
		t.Errorf("the answer in another browser: %d", a.status)
	}
	consent := s.consent(here, here.do("GET", back, nil))
	if consent.status != 200 || len(consent.field("scope")) == 0 {
		t.Fatalf("back: %d %s", consent.status, consent.body)
	}
	if a := here.do("GET", back, nil); a.status != 200 || len(a.field("scope")) == 0 || len(a.header["Set-Cookie"]) > 0 {
		t.Errorf("the page that came of it, loaded again: %d %s", a.status, a.body)
	}
	q := s.walk(here, consent, "")
	a := s.exchange(q.Get("code"))
	if _, c := claims(t, a.text("access_token")); c["sub"] != "doctor" || c["fhirUser"] != "Practitioner/1" {
		t.Errorf("claims %v", c)
	}

	service := theirs.client(map[string]any{"clientId": "service", "confidential": true, "scopes": []string{"system/*.rs admin"}})
	token := theirs.post("/auth/token", url.Values{"grant_type": {"client_credentials"}, "scope": {"system/Patient.rs system/Observation.rs admin"}, "client_id": {"service"}, "client_secret": {service.ClientSecret}}).text("access_token")
	who := s.call("GET", "/Patient", token, "")
	if who.status != 200 || who.text("scope") != "system/Patient.rs" || who.json["admin"] != false {
		t.Errorf("a token of a trusted issuer: %d %s", who.status, who.body)
	}
	if status := theirs.use(a.text("access_token")); status != 401 {
		t.Errorf("a token of an issuer that is not trusted: %d", status)
	}
	parts := strings.Split(token, ".")
	if status := s.use(parts[0] + "." + parts[1] + "." + strings.Repeat("A", len(parts[2]))); status != 401 {
		t.Errorf("a forged one: %d", status)
	}
}

// Dynamic registration, where it is on.
// Contract, Authorization 2: dynamic registration (RFC 7591) at `/auth/register`.
func TestRegister(t *testing.T) {
	t.Parallel()
	s := start(t, func(o *oauth.Options) { o.Config.Smart.DynamicRegistrationEnabled = true })
	a := s.call("POST", "/auth/register", "", `{"redirect_uris": ["https://app.example.org/cb"], "client_name": "App", "token_endpoint_auth_method": "none", "scope": "openid patient/*.rs system/*.rs admin", "logo_uri": "https://x.example.org"}`)
	if a.status != 201 || a.text("client_id") == "" || a.text("scope") != "openid patient/*.rs" || a.text("client_secret") != "" {
		t.Errorf("public: %d %s", a.status, a.body)
	}
	a = s.call("POST", "/auth/register", "", `{"redirect_uris": ["https://app.example.org/cb"], "scope": "openid"}`)
	if a.status != 201 || a.text("client_secret") == "" || a.json["client_secret_expires_at"] != 0.0 {
		t.Errorf("confidential: %d %s", a.status, a.body)
	}
	// RFC 7591 §3.2.1: the answer has all that is registered.
	keys, _ := json.Marshal(newKeyPair(t, "k").jwks())
	all := `{"redirect_uris": ["https://app.example.org/cb"], "client_name": "App", "token_endpoint_auth_method": "private_key_jwt", "grant_types": ["authorization_code"], "response_types": ["code"],
		"scope": "openid", "jwks": ` + string(keys) + `, "initiate_login_uri": "https://app.example.org/launch", "post_logout_redirect_uris": ["https://app.example.org/bye"], "id_token_signed_response_alg": "ES384"}`
	a = s.call("POST", "/auth/register", "", all)
	var asked map[string]any
	if err := json.Unmarshal([]byte(all), &asked); err != nil {
		t.Fatal(err)
	}
	for name, want := range asked {
		if !reflect.DeepEqual(a.json[name], want) {
			t.Errorf("registered %s %v, answered %v", name, want, a.json[name])
		}
	}
	both := `{"redirect_uris": ["https://a.example.org/cb"], "jwks_uri": "https://a.example.org/keys", "jwks": ` + string(keys)
	for body, want := range map[string]string{
		both + `}`: "invalid_client_metadata", both + `, "token_endpoint_auth_method": "none"}`: "invalid_client_metadata", // RFC 7591 §2
		both + `, "token_endpoint_auth_method": "private_key_jwt"}`: "invalid_client_metadata", `{"Redirect_URIs": ["https://a.example.org/cb"]}`: "invalid_redirect_uri",
		`x`: "invalid_client_metadata", `{}`: "invalid_redirect_uri", `{"redirect_uris": ["http://app.example.org/cb"]}`: "invalid_redirect_uri",
		`{"redirect_uris": ["https://a.example.org/cb"], "response_types": ["token"]}`:                                      "invalid_client_metadata",
		`{"redirect_uris": ["https://a.example.org/cb"], "scope": "patient/x"}`:                                             "invalid_client_metadata",
		`{"redirect_uris": ["https://a.example.org/cb"], "jwks_uri": "x", "token_endpoint_auth_method": "private_key_jwt"}`: "invalid_client_metadata",
	} {
		if a := s.call("POST", "/auth/register", "", body); a.status != 400 || a.text("error") != want {
			t.Errorf("%s: %d %s, want %s", body, a.status, a.body, want)
		}
	}
}

// auth.bootstrap makes absent clients and users, and leaves existing ones alone. Contract,
// Authorization 2: `auth.bootstrap.clients[]` and `.users[]`: made when absent, left alone
// when present.
func TestBootstrap(t *testing.T) {
	t.Parallel()
	boot := func(name string) func(o *oauth.Options) {
		return func(o *oauth.Options) {
			o.Config.Bootstrap.Clients = []map[string]any{{"clientId": "app", "name": name, "redirectUris": []any{callback}, "scopes": []any{"openid"}}}
			o.Config.Bootstrap.Users = []map[string]any{{"username": "doctor", "password": password, "name": name, "fhirUser": "Patient/nobody"},
				{"username": "nurse", "password": password, "fhirUser": "Practitioner/1"}}
		}
	}
	var log bytes.Buffer
	s := start(t, boot("first"), func(o *oauth.Options) { o.Logger = slog.New(slog.NewTextHandler(&log, nil)) })
	if said := log.String(); strings.Count(said, "level=WARN") != 1 || !strings.Contains(said, "username=doctor fhirUser=Patient/nobody") {
		t.Errorf("a user whose fhirUser is not there is made, and the log says %s", said)
	}
	startOn(t, s.url, s.base, boot("second"))
	c, err1 := s.server.Client(t.Context(), "app")
	u, err2 := s.server.User(t.Context(), "doctor")
	if err1 != nil || err2 != nil || c.Name != "first" || u.Name != "first" {
		t.Errorf("client %v %v, user %v %v", c, err1, u, err2)
	}
}

package oauth_test

import (
	"encoding/base64"
	"fmt"
	"maps"
	"net/url"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"kiln/oauth"
)

// A public app signs a clinician in, who picks a patient: docs/contract.md, Authorization,
// Endpoints. Contract, Authorization 3: token answer (`access_token`, numeric `expires_in`,
// `scope`, `id_token`, `patient`; no-store), access token (JWT `at+jwt`, its claims, no
// personal data), `/auth/userinfo`.
func TestCodeFlow(t *testing.T) {
	t.Parallel()
	s := start(t)
	s.app()
	a := s.tokens()
	for name, want := range map[string]string{
		"token_type": "Bearer", "patient": "p1", "scope": "openid fhirUser launch/patient offline_access patient/*.rs",
	} {
		if got := a.text(name); got != want {
			t.Errorf("%s is %q, want %q", name, got, want)
		}
	}
	if a.json["expires_in"] != 3600.0 && a.json["expires_in"] != 3599.0 {
		t.Errorf("expires_in is %v", a.json["expires_in"])
	}
	if a.header.Get("Cache-Control") != "no-store" || a.header.Get("Pragma") != "no-cache" {
		t.Errorf("headers %v", a.header)
	}
	header, c := claims(t, a.text("access_token"))
	if header["typ"] != "at+jwt" || header["alg"] != "ES384" {
		t.Errorf("header %v", header)
	}
	for name, want := range map[string]any{"iss": s.base, "sub": "doctor", "aud": s.base + "/fhir", "client_id": "app", "patient": "p1", "fhirUser": "Practitioner/1", "scope": a.text("scope")} {
		if c[name] != want {
			t.Errorf("claim %s is %v, want %v", name, c[name], want)
		}
	}
	for _, private := range []string{"name", "email", "birthdate"} {
		if c[private] != nil {
			t.Errorf("the access token has %s: no personal data", private)
		}
	}
	if _, id := claims(t, a.text("id_token")); id["nonce"] != "n-0S6_WzA2Mj" || id["aud"] != "app" || id["fhirUser"] != "Practitioner/1" || id["at_hash"] == nil {
		t.Errorf("ID token %v", id)
	}
	if status := s.use(a.text("access_token")); status != 200 {
		t.Errorf("using the token: %d", status)
	}
	if status := s.use(a.text("id_token")); status != 401 {
		t.Errorf("using the ID token as an access token: %d, want 401", status)
	}
	u := s.call("GET", "/auth/userinfo", a.text("access_token"), "")
	for name, want := range map[string]string{"sub": "doctor", "name": "Dr. Grace Hopper", "preferred_username": "doctor", "email": "grace@example.org", "fhirUser": "Practitioner/1"} {
		if u.text(name) != want {
			t.Errorf("userinfo %s is %q, want %q", name, u.text(name), want)
		}
	}
}

// Contract, Authentication 6: `fhirUser` adds the reference of the user to userinfo.
func TestUserinfoWithoutFHIRUser(t *testing.T) {
	t.Parallel()
	s := start(t)
	s.app()
	for scope, want := range map[string]string{"openid patient/*.rs launch/patient": "", "openid user/*.rs": "", "openid fhirUser": "Practitioner/1", "openid profile": "Practitioner/1"} {
		a := s.tokens("scope", scope)
		if u := s.call("GET", "/auth/userinfo", a.text("access_token"), ""); u.status != 200 || u.text("fhirUser") != want {
			t.Errorf("scope %s: userinfo %d %s, want fhirUser %q", scope, u.status, u.body, want)
		}
	}
}

// The page comes after the checks; without client and redirect_uri nothing is
// redirected.
// Contract, Authorization 3: `GET|POST /auth/authorize`: client and redirect_uri, exact string, loopback
// redirects may differ in port, else an HTML 400.
func TestAuthorizeRefusesWithoutRedirect(t *testing.T) {
	t.Parallel()
	s := start(t)
	s.app()
	for name, changes := range map[string][]string{
		"no client_id":               {"client_id", ""},
		"unknown client_id":          {"client_id", "nobody"},
		"no redirect_uri":            {"redirect_uri", ""},
		"one character more":         {"redirect_uri", callback + "/"},
		"one character less":         {"redirect_uri", callback[:len(callback)-1]},
		"another case":               {"redirect_uri", "https://app.example.org/CB"},
		"another host case":          {"redirect_uri", "https://App.example.org/cb"},
		"http for https":             {"redirect_uri", "http://app.example.org/cb"},
		"a port":                     {"redirect_uri", "https://app.example.org:443/cb"},
		"a query":                    {"redirect_uri", callback + "?x=1"},
		"a fragment":                 {"redirect_uri", callback + "#x"},
		"a user":                     {"redirect_uri", "https://x@app.example.org/cb"},
		"a dot more":                 {"redirect_uri", "https://app.example.org./cb"},
		"a path that comes back":     {"redirect_uri", "https://app.example.org/x/../cb"},
		"loopback on another path":   {"redirect_uri", "http://127.0.0.1:1234/other"},
		"loopback by https":          {"redirect_uri", "https://127.0.0.1:1234/cb"},
		"loopback by another name":   {"redirect_uri", "http://localhost:1234/cb"},
		"a host that begins like it": {"redirect_uri", "http://127.0.0.1.example.org/cb"},
		"a user before loopback":     {"redirect_uri", "http://evil@127.0.0.1/cb"},
		"a port that is none":        {"redirect_uri", "http://127.0.0.1:99999/cb"},
	} {
		a := s.authorize(newBrowser(t), s.request(changes...))
		if a.status != 400 || a.header.Get("Location") != "" || !strings.Contains(a.header.Get("Content-Type"), "text/html") {
			t.Errorf("%s: %d, Location %q", name, a.status, a.header.Get("Location"))
		}
	}
	for _, name := range []string{"client_id", "redirect_uri"} {
		v := s.request()
		v.Add(name, v.Get(name))
		if a := s.authorize(newBrowser(t), v); a.status != 400 || a.header.Get("Location") != "" {
			t.Errorf("%s twice: %d", name, a.status)
		}
	}
	if a := s.authorize(newBrowser(t), s.request("redirect_uri", "http://127.0.0.1:4711/cb")); a.status != 200 {
		t.Errorf("a loopback redirect on another port: %d", a.status)
	}
}

// Each parameter missing, doubled, altered: told by redirect with error,
// error_description, state and iss, before anybody sees a page.
// Contract, Authorization 3: `GET|POST /auth/authorize`: everything is checked before the login page, by
// redirect: response_type, state, PKCE, `aud`, scopes, launch; `request` and `request_uri` are refused.
// Contract, Authorization 4: grammar: malformed is `invalid_scope`; nothing left is `invalid_scope`.
func TestAuthorizeRefusesByRedirect(t *testing.T) {
	t.Parallel()
	s := start(t)
	s.app()
	s.client(map[string]any{"clientId": "secret", "confidential": true, "redirectUris": []string{callback}, "scopes": []string{"openid"}})
	s.client(map[string]any{"clientId": "service", "confidential": true, "redirectUris": []string{callback}, "grantTypes": []string{"client_credentials"}, "scopes": []string{"system/*.rs"}})
	s.client(map[string]any{"clientId": "nothing", "redirectUris": []string{callback}, "scopes": []string{"user/Medication.r"}})
	for _, tt := range []struct {
		name, want string
		changes    []string
	}{
		{"no response_type", "invalid_request", []string{"response_type", ""}},
		{"token", "unsupported_response_type", []string{"response_type", "token"}},
		{"hybrid", "unsupported_response_type", []string{"response_type", "code id_token"}},
		{"response_mode fragment", "invalid_request", []string{"response_mode", "fragment"}},
		{"no state", "invalid_request", []string{"state", ""}},
		{"a short state without PKCE", "invalid_request", []string{"client_id", "secret", "scope", "openid", "code_challenge", "", "code_challenge_method", "", "state", "abcdefghijklmnop"}},
		{"20 characters have 119 bits", "invalid_request", []string{"client_id", "secret", "scope", "openid", "code_challenge", "", "code_challenge_method", "", "state", "aB3dE6gH9jK2mN5pQ8sT"}},
		{"30 hex digits have 120 bits", "invalid_request", []string{"client_id", "secret", "scope", "openid", "code_challenge", "", "code_challenge_method", "", "state", "0123456789abcdef0123456789abcd"}},
		{"36 decimal digits have 119 bits", "invalid_request", []string{"client_id", "secret", "scope", "openid", "code_challenge", "", "code_challenge_method", "", "state", "012345678901234567890123456789012345"}},
		{"no code_challenge", "invalid_request", []string{"code_challenge", ""}},
		{"neither challenge nor method", "invalid_request", []string{"code_challenge", "", "code_challenge_method", ""}},
		{"no code_challenge_method", "invalid_request", []string{"code_challenge_method", ""}},
		{"plain", "invalid_request", []string{"code_challenge_method", "plain"}},
		{"s256 in small letters", "invalid_request", []string{"code_challenge_method", "s256"}},
		{"a challenge that is no SHA-256", "invalid_request", []string{"code_challenge", "short"}},
		{"no aud", "invalid_request", []string{"aud", ""}},
		{"aud of another server", "invalid_request", []string{"aud", "https://evil.example.org/fhir"}},
		{"aud that begins like ours", "invalid_request", []string{"aud", s.base + "/fhir/Patient"}},
		{"no scope", "invalid_scope", []string{"scope", ""}},
		{"a malformed scope", "invalid_scope", []string{"scope", "patient/Observation.sr"}},
		{"letters twice", "invalid_scope", []string{"scope", "patient/Observation.rr"}},
		{"an unknown context", "invalid_scope", []string{"scope", "group/Observation.rs"}},
		{"system scopes alone", "invalid_scope", []string{"scope", "system/*.rs"}},
		{"nothing allowed to the client", "invalid_scope", []string{"client_id", "nothing"}},
		{"the scope launch alone, without a launch", "invalid_scope", []string{"scope", "launch"}},
		{"an unknown launch without its scope", "invalid_request", []string{"launch", "x"}},
		{"an unknown launch", "invalid_request", []string{"launch", "unknown", "scope", "launch patient/*.rs"}},
		{"request", "request_not_supported", []string{"request", "eyJ"}},
		{"request_uri", "request_uri_not_supported", []string{"request_uri", "https://app.example.org/r"}},
		{"registration", "registration_not_supported", []string{"registration", "{}"}},
		{"an unknown prompt", "invalid_request", []string{"prompt", "create"}},
		{"prompt none with another", "invalid_request", []string{"prompt", "none login"}},
		{"max_age that is no number", "invalid_request", []string{"max_age", "soon"}},
		{"max_age below 0", "invalid_request", []string{"max_age", "-1"}},
		{"id_token_hint that is none", "invalid_request", []string{"id_token_hint", "x.y.z"}},
		{"prompt none without a sign-in", "login_required", []string{"prompt", "none"}},
		{"a confidential client's method without challenge", "invalid_request", []string{"client_id", "secret", "scope", "openid", "code_challenge", ""}},
		{"a client without authorization_code", "unauthorized_client", []string{"client_id", "service", "scope", "system/*.rs"}},
	} {
		a := s.authorize(newBrowser(t), s.request(tt.changes...))
		u, err := url.Parse(a.header.Get("Location"))
		if err != nil || a.status != 302 || !strings.HasPrefix(a.header.Get("Location"), callback+"?") {
			t.Errorf("%s: %d %s", tt.name, a.status, a.header.Get("Location"))
			continue
		}
		q := u.Query()
		if q.Get("error") != tt.want || q.Get("error_description") == "" || q.Get("iss") != s.base || q.Get("code") != "" {
			t.Errorf("%s: %v, want %s", tt.name, q, tt.want)
		}
		if want := s.request(tt.changes...).Get("state"); q.Get("state") != want {
			t.Errorf("%s: state %q, want %q", tt.name, q.Get("state"), want)
		}
	}
	for name := range s.request() {
		if name == "client_id" || name == "redirect_uri" {
			continue
		}
		v := s.request()
		v.Add(name, v.Get(name))
		a := s.authorize(newBrowser(t), v)
		if u, err := url.Parse(a.header.Get("Location")); err != nil || u.Query().Get("error") != "invalid_request" {
			t.Errorf("%s twice: %d %s", name, a.status, a.header.Get("Location"))
		}
	}
	for _, aud := range []string{s.base + "/fhir", s.base + "/fhir/", s.base, s.base + "/", strings.Replace(s.base, "127.0.0.1", "localhost", 1) + "/fhir"} {
		b := newBrowser(t)
		target := s.base
		if strings.Contains(aud, "localhost") {
			target = strings.Replace(s.base, "127.0.0.1", "localhost", 1)
		}
		if a := b.do("GET", target+"/auth/authorize?"+s.request("aud", aud).Encode(), nil); a.status != 200 {
			t.Errorf("aud %s, a served spelling: %d %s", aud, a.status, a.header.Get("Location"))
		}
	}
	for _, good := range []string{state, "0123456789abcdef0123456789abcdef", "aB3dE6gH9jK2mN5pQ8sTvW", strings.Repeat("0123456789", 4)} {
		if a := s.authorize(newBrowser(t), s.request("state", good)); a.status != 200 {
			t.Errorf("state %s has enough bits: %d", good, a.status)
		}
	}
}

// Codes: one minute, one use; the parameters of the exchange.
// Contract, Authorization 3: codes: URL-safe, one minute, one use; errors by RFC 6749 section 5.2.
func TestExchangeRefuses(t *testing.T) {
	t.Parallel()
	s := start(t)
	s.app()
	s.client(map[string]any{"clientId": "other", "redirectUris": []string{callback}, "scopes": []string{appScopes}})
	for _, tt := range []struct {
		name, want string
		status     int
		changes    []string
	}{
		{"no grant_type", "invalid_request", 400, []string{"grant_type", ""}},
		{"an unknown grant_type", "unsupported_grant_type", 400, []string{"grant_type", "password"}},
		{"no code", "invalid_request", 400, []string{"code", ""}},
		{"an unknown code", "invalid_grant", 400, []string{"code", "x"}},
		{"no redirect_uri", "invalid_request", 400, []string{"redirect_uri", ""}},
		{"another redirect_uri", "invalid_grant", 400, []string{"redirect_uri", callback + "/"}},
		{"no client_id", "invalid_client", 401, []string{"client_id", ""}},
		{"an unknown client_id", "invalid_client", 401, []string{"client_id", "nobody"}},
		{"another client", "invalid_grant", 400, []string{"client_id", "other"}},
		{"no code_verifier", "invalid_grant", 400, []string{"code_verifier", ""}},
		{"another code_verifier", "invalid_grant", 400, []string{"code_verifier", strings.Repeat("x", 43)}},
		{"the challenge as verifier", "invalid_grant", 400, []string{"code_verifier", challenge(verifier)}},
		{"a secret of a public client", "invalid_client", 401, []string{"client_secret", "x"}},
	} {
		code := s.code()
		a := s.exchange(code, tt.changes...)
		if a.status != tt.status || a.text("error") != tt.want || a.text("access_token") != "" || a.header.Get("Cache-Control") != "no-store" {
			t.Errorf("%s: %d %s, want %d %s", tt.name, a.status, a.body, tt.status, tt.want)
		}
	}
	code := s.code()
	v := url.Values{"grant_type": {"authorization_code"}, "code": {code, code}, "redirect_uri": {callback}, "client_id": {"app"}, "code_verifier": {verifier}}
	if a := s.post("/auth/token", v); a.status != 400 || a.text("error") != "invalid_request" {
		t.Errorf("a doubled parameter: %d %s", a.status, a.body)
	}
	if a := s.post("/auth/token?"+v.Encode(), url.Values{"x": {"1"}}); a.status != 400 {
		t.Errorf("parameters in the query: %d %s", a.status, a.body)
	}
	s.pass(61 * time.Second)
	if a := s.exchange(code); a.status != 400 || a.text("error") != "invalid_grant" {
		t.Errorf("after a minute: %d %s", a.status, a.body)
	}
}

// A second use of a code revokes the tokens of the first, on the other server too.
// Contract, Authorization 3: codes: a second use revokes what the first gave.
func TestCodeReplay(t *testing.T) {
	t.Parallel()
	s := start(t)
	s.app()
	other := startOn(t, s.url, s.base)
	code := s.code()
	first := s.exchange(code)
	if first.status != 200 || s.use(first.text("access_token")) != 200 || other.use(first.text("access_token")) != 200 {
		t.Fatalf("first use: %d %s", first.status, first.body)
	}
	if again := other.exchange(code); again.status != 400 || again.text("error") != "invalid_grant" {
		t.Errorf("second use: %d %s", again.status, again.body)
	}
	if status := other.use(first.text("access_token")); status != 401 {
		t.Errorf("the first token on the server that saw the replay: %d, want 401 at once", status)
	}
	eventually(t, time.Second, func() bool { return s.use(first.text("access_token")) == 401 })
	if a := s.refresh(first.text("refresh_token")); a.status != 400 {
		t.Errorf("the first refresh token: %d %s", a.status, a.body)
	}
}

// eventually waits until done, at most limit; a busy machine may take longer.
func eventually(t testing.TB, limit time.Duration, done func() bool) {
	t.Helper()
	began := time.Now()
	for ; !done(); time.Sleep(5 * time.Millisecond) {
		if time.Since(began) > limit+time.Minute {
			t.Errorf("not even within %s", time.Since(began))
			return
		}
	}
	if took := time.Since(began); took > limit {
		t.Logf("it took %s: more than %s, on a busy machine", took, limit)
	}
}

// Fifty at a time, on two servers: exactly one wins.
// Contract, Authorization 3: codes, one use; refresh rotates: on two servers, 50 at a time.
func TestOnceAtATime(t *testing.T) {
	t.Parallel()
	s := start(t)
	s.app()
	other := startOn(t, s.url, s.base)
	count := func(call func(*service) *answer) (won int, errors []string) {
		var mu sync.Mutex
		var all sync.WaitGroup
		for i := range 50 {
			at := []*service{s, other}[i%2]
			all.Go(func() {
				a := call(at)
				mu.Lock()
				defer mu.Unlock()
				if a.status == 200 {
					won++
				} else if !slices.Contains(errors, a.text("error")) {
					errors = append(errors, a.text("error"))
				}
			})
		}
		all.Wait()
		return won, errors
	}
	code := s.code()
	if won, errors := count(func(at *service) *answer { return at.exchange(code) }); won != 1 || !slices.Equal(errors, []string{"invalid_grant"}) {
		t.Errorf("code: %d won, errors %v", won, errors)
	}
	token := s.tokens().text("refresh_token")
	if won, errors := count(func(at *service) *answer { return at.refresh(token) }); won != 1 || !slices.Equal(errors, []string{"invalid_grant"}) {
		t.Errorf("refresh token: %d won, errors %v", won, errors)
	}
}

// Refresh rotates, with ten seconds of grace; scope and client.
// Contract, Authorization 3: refresh rotates; a reuse within 10 s; a wider scope; a public client may leave
// out `client_id`; `refresh_token` only for `offline_access` or `online_access`.
func TestRefresh(t *testing.T) {
	t.Parallel()
	s := start(t)
	s.app()
	s.client(map[string]any{"clientId": "other", "redirectUris": []string{callback}, "scopes": []string{appScopes}})
	first := s.tokens()
	token := first.text("refresh_token")
	for name, tt := range map[string]struct {
		want    string
		changes []string
	}{
		"no token":        {"invalid_request", []string{"refresh_token", ""}},
		"another token":   {"invalid_grant", []string{"refresh_token", token + "x"}},
		"another client":  {"invalid_grant", []string{"client_id", "other"}},
		"a wider scope":   {"invalid_scope", []string{"scope", "patient/*.cruds"}},
		"another scope":   {"invalid_scope", []string{"scope", "patient/*.rs user/*.rs"}},
		"malformed scope": {"invalid_scope", []string{"scope", "patient/*.sr"}},
	} {
		if a := s.refresh(token, tt.changes...); a.status != 400 || a.text("error") != tt.want {
			t.Errorf("%s: %d %s, want %s", name, a.status, a.body, tt.want)
		}
	}
	second := s.refresh(token, "scope", "patient/Observation.rs")
	if second.status != 200 || second.text("scope") != "patient/Observation.rs" || second.text("patient") != "p1" {
		t.Fatalf("narrower: %d %s", second.status, second.body)
	}
	third := s.refresh(second.text("refresh_token"), "client_id", "")
	if third.status != 200 || third.text("scope") != first.text("scope") || third.text("id_token") == "" {
		t.Fatalf("the family keeps its scope, and a public client may leave out client_id: %d %s", third.status, third.body)
	}
	if a := s.refresh(token); a.status != 400 || a.text("error") != "invalid_grant" {
		t.Errorf("reuse within ten seconds: %d %s", a.status, a.body)
	}
	if status := s.use(third.text("access_token")); status != 200 {
		t.Errorf("after that: %d, want 200, nothing more happens", status)
	}
	s.pass(11 * time.Second)
	if a := s.refresh(token); a.status != 400 || a.text("error") != "invalid_grant" {
		t.Errorf("reuse later: %d %s", a.status, a.body)
	}
	if status := s.use(third.text("access_token")); status != 401 {
		t.Errorf("after that the family is revoked: %d, want 401", status)
	}
	if a := s.refresh(third.text("refresh_token")); a.status != 400 {
		t.Errorf("the newest refresh token: %d %s", a.status, a.body)
	}
	if a := s.tokens("scope", "openid patient/*.rs"); a.text("refresh_token") != "" {
		t.Error("a refresh token without offline_access or online_access")
	}
	late := s.tokens()
	s.pass(91 * 24 * time.Hour)
	if a := s.refresh(late.text("refresh_token")); a.status != 400 || a.text("error") != "invalid_grant" {
		t.Errorf("after 90 days: %d %s", a.status, a.body)
	}
}

// A sign-out ends the tokens of the sign-in and unused codes, except with offline_access;
// the end of the session's time does not. Contract, Authorization 3: revoking: logout works
// at once; `/auth/logout` POST, GET.
func TestSignOutEndsWhatTheSignInGave(t *testing.T) {
	t.Parallel()
	s := start(t)
	s.app()
	other := startOn(t, s.url, s.base)
	// given are the tokens of a sign-in in a browser of its own, and a code that nobody has used.
	given := func(scope string) (b *browser, tokens *answer, unused string) {
		t.Helper()
		b = newBrowser(t)
		tokens = s.exchange(s.walk(b, s.authorize(b, s.request("scope", scope)), "doctor").Get("code"))
		if s.use(tokens.text("access_token")) != 200 || other.use(tokens.text("access_token")) != 200 {
			t.Fatalf("%s: %d %s", scope, tokens.status, tokens.body)
		}
		return b, tokens, s.walk(b, s.authorize(b, s.request("scope", scope)), "doctor").Get("code")
	}
	ways := map[string]func(b *browser, tokens *answer) *answer{
		"the cookie alone": func(b *browser, _ *answer) *answer { return b.do("POST", s.base+"/auth/logout", url.Values{}) },
		"an ID token": func(b *browser, tokens *answer) *answer {
			return b.do("GET", s.base+"/auth/logout?id_token_hint="+tokens.text("id_token"), nil)
		},
		"the page": func(b *browser, _ *answer) *answer {
			if a := b.do("GET", s.base+"/auth/logout", nil); a.status != 200 || !strings.Contains(string(a.body), "<form") {
				t.Errorf("no page that asks: %d %s", a.status, a.body)
			}
			return b.do("POST", s.base+"/auth/logout", nil)
		},
	}
	for name, signOut := range ways {
		for scope, ends := range map[string]bool{
			"openid user/*.rs": true, "openid online_access user/*.rs": true, "openid offline_access user/*.rs": false,
			"openid online_access offline_access user/*.rs": false,
		} {
			b, tokens, unused := given(scope)
			_, elsewhere, _ := given(scope)
			begun := s.authorize(b, s.request("scope", scope, "prompt", "consent"))
			before := maps.Clone(b.cookies)
			if a := signOut(b, tokens); a.status != 200 {
				t.Fatalf("%s: %d %s", name, a.status, a.body)
			}
			want := 200
			if ends {
				want = 401
			}
			if got := s.use(tokens.text("access_token")); got != want {
				t.Errorf("signed out by %s, %s: %d, want %d", name, scope, got, want)
			}
			eventually(t, time.Second, func() bool { return other.use(tokens.text("access_token")) == want })
			if got := s.exchange(unused); (got.status == 200) == ends {
				t.Errorf("signed out by %s, %s: a code from before gives %d %s", name, scope, got.status, got.body)
			}
			if r := tokens.text("refresh_token"); r != "" && (s.refresh(r).status == 200) == ends {
				t.Errorf("signed out by %s, %s: the refresh token", name, scope)
			}
			if got := s.use(elsewhere.text("access_token")); got != 200 {
				t.Errorf("signed out by %s, %s: a sign-in in another browser: %d", name, scope, got)
			}
			b.cookies = before // of a request that was on its way
			if a := s.submit(b, begun.form(t, "authorize", "scope", "openid")); strings.Contains(a.header.Get("Location"), "code=") {
				t.Errorf("signed out by %s, %s: what was begun gives a code", name, scope)
			}
		}
	}
	_, tokens, _ := given("openid user/*.rs")
	s.pass(11 * time.Minute)
	if got := s.use(tokens.text("access_token")); got != 200 {
		t.Errorf("the session is over by time: %d", got)
	}
}

// Tokens end: by time, revocation, logout, and when user or client are disabled or
// the password changes; on the other server within a second.
// Contract, Authorization 3: revoking (RFC 7009; logout; user or client disabled; password changed) works at
// once on the server that did it, soon on the others; `/auth/logout` POST.
func TestTokensEnd(t *testing.T) {
	t.Parallel()
	s := start(t)
	s.app()
	s.client(map[string]any{"clientId": "other", "redirectUris": []string{callback}, "scopes": []string{appScopes}})
	other := startOn(t, s.url, s.base)
	codesEnd := false // the codes that nobody has used end too
	ends := func(name string, end func(a *answer)) {
		t.Helper()
		a, unused := s.tokens(), s.code()
		token := a.text("access_token")
		if s.use(token) != 200 || other.use(token) != 200 {
			t.Fatalf("%s: the token is not good to begin with", name)
		}
		end(a)
		if status := s.use(token); status != 401 {
			t.Errorf("%s: %d at once here, want 401", name, status)
		}
		eventually(t, time.Second, func() bool { return other.use(token) == 401 })
		if r := s.refresh(a.text("refresh_token")); r.status == 200 {
			t.Errorf("%s: its refresh token is still good", name)
		}
		if r := s.exchange(unused); codesEnd && r.status == 200 {
			t.Errorf("%s: a code from before is still good", name)
		}
	}
	ends("revoked access token", func(a *answer) {
		if r := s.post("/auth/revoke", url.Values{"token": {a.text("access_token")}, "client_id": {"app"}}); r.status != 200 {
			t.Errorf("revoke: %d %s", r.status, r.body)
		}
	})
	ends("revoked refresh token", func(a *answer) {
		s.post("/auth/revoke", url.Values{"token": {a.text("refresh_token")}, "client_id": {"app"}, "token_type_hint": {"access_token"}})
	})
	ends("logout by header", func(a *answer) {
		if r := s.call("POST", "/auth/logout", a.text("access_token"), ""); r.status != 200 || r.json["success"] != true {
			t.Errorf("logout: %d %s", r.status, r.body)
		}
	})
	ends("logout by form", func(a *answer) { s.post("/auth/logout", url.Values{"token": {a.text("access_token")}}) })
	patch := func(path, body string) {
		t.Helper()
		key, err := s.server.CreateAPIKey(t.Context(), "test", "admin", "")
		if err != nil {
			t.Fatal(err)
		}
		if r := s.call("PATCH", path, key.Key, body); r.status != 200 {
			t.Fatalf("PATCH %s: %d %s", path, r.status, r.body)
		}
	}
	codesEnd = true
	ends("client disabled", func(*answer) { patch("/admin/clients/app", `{"active": false}`) })
	patch("/admin/clients/app", `{"active": true}`)
	ends("client disabled and enabled", func(*answer) {
		patch("/admin/clients/app", `{"active": false}`)
		patch("/admin/clients/app", `{"active": true}`)
	})
	ends("user disabled", func(*answer) { patch("/admin/users/doctor", `{"active": false}`) })
	patch("/admin/users/doctor", `{"active": true}`)
	ends("user disabled and enabled", func(*answer) {
		patch("/admin/users/doctor", `{"active": false}`)
		patch("/admin/users/doctor", `{"active": true}`)
	})
	ends("password changed", func(*answer) {
		if _, err := s.server.NewPassword(t.Context(), "doctor", password); err != nil {
			t.Fatal(err)
		}
	})

	a := s.tokens()
	for _, kind := range []string{"access_token", "refresh_token"} { // RFC 7009 §2.1
		if r := s.post("/auth/revoke", url.Values{"token": {a.text(kind)}, "client_id": {"other"}}); r.status != 400 || r.text("error") != "invalid_grant" {
			t.Errorf("revoking another client's %s: %d %s", kind, r.status, r.body)
		}
	}
	if r := s.post("/auth/revoke", url.Values{"token": {"x"}, "client_id": {"app"}}); r.status != 200 {
		t.Errorf("revoking nothing: %d", r.status)
	}
	if r := s.post("/auth/revoke", url.Values{"client_id": {"app"}}); r.status != 400 {
		t.Errorf("revoking without a token: %d", r.status)
	}
	if s.use(a.text("access_token")) != 200 {
		t.Error("another client can revoke the token")
	}
	if a = s.refresh(a.text("refresh_token")); a.status != 200 {
		t.Errorf("another client can revoke the refresh token: %d %s", a.status, a.body)
	}
	s.pass(time.Hour + time.Second)
	if status := s.use(a.text("access_token")); status != 401 {
		t.Errorf("after an hour: %d", status)
	}
	_ = oauth.EventToken
}

// SMART App Launch 2.2: a refresh token of online_access is usable for as long as the user
// remains online: the app is in use, whatever becomes of the browser's sign-in, and a day at most.
// Contract, Authorization 3: refresh: without `offline_access`.
func TestOnlineAccessLastsWhileTheAppIsInUse(t *testing.T) {
	t.Parallel()
	s := start(t)
	s.app()
	all := s.client(map[string]any{"clientId": "all", "confidential": true, "mayIntrospect": true})
	basic := "Basic " + base64.StdEncoding.EncodeToString([]byte("all:"+all.ClientSecret))
	told := func(a *answer) map[string]any {
		return s.post("/auth/introspect", url.Values{"token": {a.text("refresh_token")}}, "Authorization", basic).json
	}
	const scope = "openid online_access user/*.rs"
	online, unused, offline := s.tokens("scope", scope), s.tokens("scope", scope), s.tokens("scope", scope+" offline_access")
	for hours := 1; hours <= 23; hours++ {
		s.pass(time.Hour)
		narrow := []string{"scope", "user/*.rs"}
		if hours%2 == 0 {
			narrow = nil
		}
		if online = s.refresh(online.text("refresh_token"), narrow...); online.status != 200 || told(online)["active"] != true {
			t.Fatalf("an app in use, after %d hours: %d %s", hours, online.status, online.body)
		}
		if hours == 1 {
			s.pass(9 * time.Minute)
			if got := told(unused); got["active"] != true {
				t.Errorf("nine minutes after the access token: %v", got)
			}
			s.pass(2 * time.Minute)
			if a := s.refresh(unused.text("refresh_token")); told(unused)["active"] != false || a.status != 400 || a.text("error") != "invalid_grant" {
				t.Errorf("eleven minutes after the access token: %d %s", a.status, a.body)
			}
			online = s.refresh(online.text("refresh_token"))
		}
	}
	if exp, _ := told(online)["exp"].(float64); time.Unix(int64(exp), 0).After(time.Now().Add(time.Duration(s.clock.Load()) + 50*time.Minute)) {
		t.Errorf("exp of the refresh token is %v, more than a day after the sign-in", exp)
	}
	s.pass(50 * time.Minute)
	if a := s.refresh(online.text("refresh_token")); a.status != 400 || a.text("error") != "invalid_grant" || told(online)["active"] != false {
		t.Errorf("a day after the sign-in: %d %s", a.status, a.body)
	}
	if got := s.use(online.text("access_token")); got != 200 {
		t.Errorf("the access token of then: %d", got)
	}
	if a := s.refresh(offline.text("refresh_token"), "scope", scope); a.status != 200 || s.refresh(a.text("refresh_token")).status != 200 {
		t.Errorf("offline_access after the sign-in: %d %s", a.status, a.body)
	}
}

// RFC 6749 §3.3: what cannot be used is not granted: without the grant refresh_token, of the
// server or of the client, there is no access that a refresh token would give.
// Contract, Authorization 4: not allowed to this client: left out of the grant.
func TestRefreshScopesWithoutTheGrant(t *testing.T) {
	t.Parallel()
	for name, s := range map[string]*service{
		"of the server": start(t, func(o *oauth.Options) { o.Config.OAuth.GrantTypes = []string{"authorization_code"} }),
		"of the client": start(t),
	} {
		s.app()
		if name == "of the client" {
			if _, err := s.server.PatchClient(t.Context(), "app", []byte(`{"grantTypes": ["authorization_code"]}`)); err != nil {
				t.Fatal(err)
			}
		}
		if a := s.tokens("scope", "openid offline_access online_access user/*.rs"); a.text("scope") != "openid user/*.rs" || a.json["refresh_token"] != nil {
			t.Errorf("without the grant %s: %s", name, a.body)
		}
		a := s.authorize(newBrowser(t), s.request("scope", "offline_access"))
		if u, err := url.Parse(a.header.Get("Location")); err != nil || u.Query().Get("error") != "invalid_scope" {
			t.Errorf("offline_access alone without the grant %s: %d %s", name, a.status, a.header.Get("Location"))
		}
	}
}

// A form of another site comes without the cookie (SameSite): its answer takes no sign-in
// away, but where it has a token of ours. An authorization request is repeated by GET.
// Contract, Authorization 3: `/auth/logout` POST; `GET|POST /auth/authorize`.
func TestFormsOfAnotherSite(t *testing.T) {
	t.Parallel()
	s := start(t)
	s.app()
	for _, tt := range []struct {
		name, header, value string
		clears              bool
	}{
		{"from another site", "Sec-Fetch-Site", "cross-site", false},
		{"from another origin, by an old browser", "Origin", "https://evil.example.org", false},
		{"from here", "Sec-Fetch-Site", "same-origin", true},
		{"by no browser", "Accept", "*/*", true},
	} {
		for token, clears := range map[string]bool{"": tt.clears, "x": tt.clears, s.tokens().text("access_token"): true, s.tokens().text("refresh_token"): true} {
			a := s.post("/auth/logout", url.Values{"token": {token}}, tt.header, tt.value)
			if cleared := strings.Contains(a.header.Get("Set-Cookie"), "oauth_session=;"); a.status != 200 || a.json["success"] != true || cleared != clears {
				t.Errorf("logout %s, token %.10s: %d %s, clears is %t", tt.name, token, a.status, a.body, cleared)
			}
			if s.use(token) == 200 {
				t.Errorf("logout %s: the token is still good", tt.name)
			}
		}
		a := s.post("/auth/authorize", s.request(), tt.header, tt.value)
		if tt.clears != (len(a.header["Set-Cookie"]) > 0) || tt.clears != (a.status == 200) {
			t.Errorf("authorize %s: %d, cookies %q", tt.name, a.status, a.header["Set-Cookie"])
		}
		if to := a.header.Get("Location"); !tt.clears && (a.status != 303 || to != "/auth/authorize?"+s.request().Encode()) {
			t.Errorf("authorize %s: %d %s", tt.name, a.status, to)
		}
	}
}

// RFC 7009 §2.2.1: what no sign-in here gave is not ended by a logout, and no success is told.
// Contract, Authorization 3: `/auth/logout` POST.
func TestLogoutOfWhatIsNoSignIn(t *testing.T) {
	t.Parallel()
	p := newFakeProvider(t)
	s := start(t, func(o *oauth.Options) {
		o.Config.Federation.TrustedIssuers = []map[string]any{{"issuer": p.URL, "audience": "kiln"}}
	})
	key, err := s.server.CreateAPIKey(t.Context(), "internal", "system/*.rs", "")
	if err != nil {
		t.Fatal(err)
	}
	theirs := p.sign(t, map[string]any{"iss": p.URL, "aud": "kiln", "sub": "42", "exp": time.Now().Unix() + 300, "scope": "user/*.rs"})
	for name, token := range map[string]string{"an API key": key.Key, "a trusted issuer's token": theirs} {
		for how, a := range map[string]*answer{"form": s.post("/auth/logout", url.Values{"token": {token}}), "header": s.call("POST", "/auth/logout", token, "")} {
			if a.status != 400 || a.text("error") != "unsupported_token_type" || s.use(token) != 200 {
				t.Errorf("%s by %s: %d %s", name, how, a.status, a.body)
			}
		}
	}
}

// Whose sign-in or token has ended is told, and what ends nothing is no success.
// Contract, Authorization 5: `auth.audit.*`; 3: revoking (RFC 7009; logout).
func TestAuditOfWhatEnds(t *testing.T) {
	t.Parallel()
	s := start(t)
	s.app()
	told := func(kind string, do func()) (list []string) {
		t.Helper()
		for len(s.events) > 0 {
			<-s.events
		}
		do()
		for len(s.events) > 0 {
			if e := <-s.events; e.Kind == kind {
				list = append(list, fmt.Sprintf("%s|%s|%s|%t", e.User, e.FHIRUser, e.Client, e.Failed))
			}
		}
		return list
	}
	const doctor = "doctor|Practitioner/1|app|false"
	given := func() (*browser, *answer) {
		b := newBrowser(t)
		return b, s.exchange(s.walk(b, s.authorize(b, s.request("scope", "openid online_access user/*.rs")), "doctor").Get("code"))
	}
	for name, tt := range map[string]struct {
		kind string
		end  func(b *browser, a *answer)
		want []string
	}{
		"logout by token and cookie": {oauth.EventLogout, func(b *browser, a *answer) {
			b.do("POST", s.base+"/auth/logout", url.Values{"token": {a.text("access_token")}})
		}, []string{doctor}},
		"logout by refresh token":   {oauth.EventLogout, func(_ *browser, a *answer) { s.post("/auth/logout", url.Values{"token": {a.text("refresh_token")}}) }, []string{doctor}},
		"logout by the cookie":      {oauth.EventLogout, func(b *browser, _ *answer) { b.do("POST", s.base+"/auth/logout", url.Values{}) }, []string{"doctor|Practitioner/1||false"}},
		"logout by the ID token":    {oauth.EventLogout, func(b *browser, a *answer) { b.do("GET", s.base+"/auth/logout?id_token_hint="+a.text("id_token"), nil) }, []string{doctor}},
		"logout by nonsense":        {oauth.EventLogout, func(*browser, *answer) { s.post("/auth/logout", url.Values{"token": {"x"}}) }, []string{"|||true"}},
		"logout of nobody":          {oauth.EventLogout, func(*browser, *answer) { newBrowser(t).do("GET", s.base+"/auth/logout", nil) }, nil},
		"revocation":                {oauth.EventRevoke, func(_ *browser, a *answer) { s.revoke(a.text("access_token")) }, []string{doctor}},
		"revocation, refresh token": {oauth.EventRevoke, func(_ *browser, a *answer) { s.revoke(a.text("refresh_token")) }, []string{doctor}},
		"revocation of nonsense":    {oauth.EventRevoke, func(*browser, *answer) { s.revoke("x") }, []string{"||app|true"}},
		"revocation of what is over": {oauth.EventRevoke, func(_ *browser, a *answer) {
			s.post("/auth/logout", url.Values{"token": {a.text("access_token")}})
			s.revoke(a.text("refresh_token"))
		}, []string{"||app|true"}},
	} {
		b, a := given()
		if got := told(tt.kind, func() { tt.end(b, a) }); !slices.Equal(got, tt.want) {
			t.Errorf("%s: %q, want %q", name, got, tt.want)
		}
	}
}

// revoke revokes a token as the client app.
func (s *service) revoke(token string) *answer {
	return s.post("/auth/revoke", url.Values{"token": {token}, "client_id": {"app"}})
}

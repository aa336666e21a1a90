package oauth_test

import (
	"net"
	"net/http"
	"net/url"
	"strings"
	"testing"
	"time"

	"kiln/oauth"
)

// Contract, Authorization 3: errors by RFC 6749 section 5.2: each parameter of the token
// endpoint, of each grant, missing, doubled and altered gives no token; the code, the
// refresh token and the secret are as good afterwards as they were.
func TestEveryParameterOfToken(t *testing.T) {
	t.Parallel()
	s := start(t)
	s.app()
	service := s.client(map[string]any{"clientId": "service", "tokenEndpointAuthMethod": "client_secret_post", "confidential": true, "scopes": []string{"system/*.rs"}})
	for _, grant := range []struct {
		name     string
		form     url.Values
		fresh    func() string // of the parameter that is used up
		used     string
		optional string // may be left out
	}{
		{"authorization_code", url.Values{"grant_type": {"authorization_code"}, "redirect_uri": {callback}, "client_id": {"app"}, "code_verifier": {verifier}}, func() string { return s.code() }, "code", ""},
		{"refresh_token", url.Values{"grant_type": {"refresh_token"}, "client_id": {"app"}}, func() string { return s.tokens().text("refresh_token") }, "refresh_token", "client_id"},
		{"client_credentials", url.Values{"grant_type": {"client_credentials"}, "client_id": {"service"}, "client_secret": {service.ClientSecret}, "scope": {"system/Patient.s"}}, nil, "", ""},
	} {
		good := func() url.Values {
			v := url.Values{}
			for name, values := range grant.form {
				v[name] = values
			}
			if grant.fresh != nil {
				v.Set(grant.used, grant.fresh())
			}
			return v
		}
		names := good()
		for name := range names {
			value := names.Get(name)
			for how, values := range map[string][]string{"missing": nil, "empty": {""}, "doubled": {value, value}, "longer": {value + "x"}, "shorter": {value[:len(value)-1]}, "with a NUL": {value + "\x00"}} {
				if name == grant.optional && (how == "missing" || how == "empty") {
					continue
				}
				v := url.Values{}
				for n, x := range names {
					v[n] = x
				}
				if v[name] = values; values == nil {
					v.Del(name)
				}
				a := s.post("/auth/token", v)
				if a.status != 400 && a.status != 401 || a.text("error") == "" || a.text("access_token") != "" || a.header.Get("Cache-Control") != "no-store" {
					t.Errorf("%s, %s %s: %d %s", grant.name, name, how, a.status, a.body)
				}
			}
		}
		if a := s.post("/auth/token", names); a.status != 200 {
			t.Errorf("%s after all that: %d %s", grant.name, a.status, a.body)
		}
	}
}

// Contract, Authorization 2: all servers of one database agree: a key that one has just
// made, for the first client with its algorithm, is published by the others at once.
func TestKeyOfAnotherServer(t *testing.T) {
	t.Parallel()
	s := start(t)
	s.app()
	other := startOn(t, s.url, s.base)
	s.client(map[string]any{"clientId": "es256", "redirectUris": []string{callback}, "scopes": []string{appScopes}, "idTokenSigningAlg": "ES256"})
	a := s.exchange(s.code("client_id", "es256", "scope", "openid"), "client_id", "es256")
	h, _ := claims(t, a.text("id_token"))
	for _, at := range []*service{s, other} {
		if keys := newBrowser(t).do("GET", at.base+"/.well-known/jwks.json", nil); !strings.Contains(string(keys.body), h["kid"].(string)) {
			t.Errorf("%v is not in %s", h, keys.body)
		}
	}
}

// RFC 6749 §3.1, §3.2: parameters without a value count as left out.
func TestEmptyParameters(t *testing.T) {
	t.Parallel()
	s := start(t)
	s.app()
	v := s.request("scope", "openid offline_access user/*.rs")
	for _, name := range []string{"request", "request_uri", "registration", "max_age", "prompt", "launch", "id_token_hint", "response_mode", "nonce"} {
		v.Set(name, "")
	}
	b := newBrowser(t)
	q := s.walk(b, s.authorize(b, v), "doctor")
	a := s.exchange(q.Get("code"))
	if a.status != 200 {
		t.Fatalf("%v: %d %s", q, a.status, a.body)
	}
	form := url.Values{"grant_type": {"refresh_token"}, "refresh_token": {a.text("refresh_token")}, "client_id": {""}, "client_secret": {""}, "scope": {""}}
	if a = s.post("/auth/token", form); a.status != 200 || a.text("scope") != "openid offline_access user/*.rs" {
		t.Errorf("refresh: %d %s", a.status, a.body)
	}
	v = s.request()
	v["state"] = []string{state, ""}
	if a := s.authorize(newBrowser(t), v); !strings.Contains(a.header.Get("Location"), "error=invalid_request") {
		t.Errorf("once with and once without a value: %d %s", a.status, a.header.Get("Location"))
	}
}

// RFC 6749 §3.1, §4.1.2.1: a state that could not come back as it is, and a form that cannot
// be read, are refused; OpenID Connect Core §3.1.2.1: prompt is a list with spaces between.
// Contract, Authorization 3: everything about the request is checked before the login page.
func TestMalformedAuthorizationRequests(t *testing.T) {
	t.Parallel()
	s := start(t)
	s.app()
	for name, bad := range map[string]string{"state": "\xff" + strings.Repeat("aB3", 20), "nonce": "\xff", "login_hint": "a\x00"} {
		v := s.request(name, bad)
		a := s.authorize(newBrowser(t), v)
		u, err := url.Parse(a.header.Get("Location"))
		if err != nil || u.Query().Get("error") != "invalid_request" || u.Query().Get("state") != v.Get("state") {
			t.Errorf("%s %q: %d %s", name, bad, a.status, a.header.Get("Location"))
		}
	}
	send := func(b *browser, query, body string) *answer {
		req, err := http.NewRequest("POST", s.base+"/auth/authorize"+query, strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Content-Type", "application/x-www-form-urlencoded")
		for name, value := range b.cookies {
			req.AddCookie(&http.Cookie{Name: name, Value: value})
		}
		resp, err := http.DefaultTransport.RoundTrip(req)
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
		return &answer{status: resp.StatusCode, header: resp.Header}
	}
	b := newBrowser(t)
	form := s.authorize(b, s.request()).form(t, "login", "username", "doctor", "password", password).Encode()
	for _, good := range []string{s.request().Encode(), form} {
		for _, query := range []string{"", "?x=%zz"} {
			for _, end := range []string{"&x=%zz", "&a;b=1", "&action=x&action=y"} {
				if a := send(b, query, good+end); a.status != 400 && !strings.Contains(a.header.Get("Location"), "error=invalid_request") {
					t.Errorf("%s%s%s: %d %s", query, good, end, a.status, a.header.Get("Location"))
				}
			}
			if a := send(b, query, good); a.status != 200 {
				t.Errorf("%s%s: %d %s", query, good, a.status, a.header.Get("Location"))
			}
		}
	}
	for prompt, want := range map[string]string{" none": "login_required", "none ": "login_required", " none login": "invalid_request"} {
		a := s.authorize(newBrowser(t), s.request("prompt", prompt))
		if u, err := url.Parse(a.header.Get("Location")); err != nil || u.Query().Get("error") != want {
			t.Errorf("prompt %q: %d %s, want %s", prompt, a.status, a.header.Get("Location"), want)
		}
	}
}

// RFC 6749 §3.1.2: the query of a redirect URI is retained, as it was written.
func TestQueryOfRedirectURI(t *testing.T) {
	t.Parallel()
	s := start(t)
	s.app()
	const to = "https://app.example.org/cb?z=1&flag&a=b;c&code=old"
	s.client(map[string]any{"clientId": "query", "redirectUris": []string{to}, "scopes": []string{appScopes}})
	page := s.authorize(newBrowser(t), s.request("client_id", "query", "redirect_uri", to, "prompt", "none"))
	if got := page.header.Get("Location"); !strings.HasPrefix(got, "https://app.example.org/cb?z=1&flag&a=b;c&code=old&error=login_required&") {
		t.Errorf("an error to %s", got)
	}
	b := newBrowser(t)
	page = s.authorize(b, s.request("client_id", "query", "redirect_uri", to, "scope", "openid"))
	page = s.submit(b, page.form(t, "login", "username", "doctor", "password", password))
	page = s.submit(b, page.form(t, "authorize", "scope", "openid"))
	got := page.header.Get("Location")
	if u, err := url.Parse(got); err != nil || !strings.HasPrefix(got, "https://app.example.org/cb?z=1&flag&a=b;c&code=") || len(u.Query()["code"]) != 1 || u.Query().Get("code") == "old" {
		t.Errorf("a code to %s", got)
	}
}

// Contract, Authorization 2: client: `idTokenSigningAlg`, `pkceRequired`,
// `refreshTokenLifetime`, `postLogoutRedirectUris`, `scopes` (empty: nothing), `active`;
// 3: `/auth/logout` GET.
func TestClientFields(t *testing.T) {
	t.Parallel()
	s := start(t)
	s.app()
	with := func(id string, fields map[string]any) {
		t.Helper()
		all := map[string]any{"clientId": id, "redirectUris": []string{callback}, "scopes": []string{appScopes}}
		for name, v := range fields {
			all[name] = v
		}
		s.client(all)
	}
	exchanged := func(id string) *answer {
		t.Helper()
		a := s.exchange(s.code("client_id", id), "client_id", id)
		if a.status != 200 {
			t.Fatalf("%s: %d %s", id, a.status, a.body)
		}
		return a
	}
	with("es384", map[string]any{"idTokenSigningAlg": "ES384"})
	if h, _ := claims(t, exchanged("es384").text("id_token")); h["alg"] != "ES384" {
		t.Errorf("idTokenSigningAlg: %v", h)
	}
	with("default", nil)
	if h, _ := claims(t, exchanged("default").text("id_token")); h["alg"] != "RS256" {
		t.Errorf("idTokenSigningAlg by default: %v", h)
	}
	refused := func(name, want string, changes ...string) {
		t.Helper()
		a := s.authorize(newBrowser(t), s.request(changes...))
		if u, err := url.Parse(a.header.Get("Location")); err != nil || u.Query().Get("error") != want {
			t.Errorf("%s: %d %s, want %s", name, a.status, a.header.Get("Location"), want)
		}
	}
	with("proof", map[string]any{"confidential": true, "pkceRequired": true})
	refused("pkceRequired", "invalid_request", "client_id", "proof", "code_challenge", "", "code_challenge_method", "")
	with("noproof", map[string]any{"confidential": true})
	if a := s.authorize(newBrowser(t), s.request("client_id", "noproof", "code_challenge", "", "code_challenge_method", "")); a.status != 200 {
		t.Errorf("PKCE is optional for a confidential client: %d %s", a.status, a.header.Get("Location"))
	}
	with("brief", map[string]any{"refreshTokenLifetime": "1m"})
	brief := exchanged("brief")
	s.pass(61 * time.Second)
	if a := s.refresh(brief.text("refresh_token"), "client_id", "brief"); a.status != 400 || a.text("error") != "invalid_grant" {
		t.Errorf("refreshTokenLifetime: %d %s", a.status, a.body)
	}
	with("nothing", map[string]any{"scopes": []string{"user/Medication.r"}})
	refused("scopes without those of the request", "invalid_scope", "client_id", "nothing")
	with("disabled", map[string]any{"active": false})
	if a := s.authorize(newBrowser(t), s.request("client_id", "disabled")); a.status != 400 || a.header.Get("Location") != "" {
		t.Errorf("active false: %d %s", a.status, a.header.Get("Location"))
	}

	const after = "https://app.example.org/bye"
	with("leaves", map[string]any{"postLogoutRedirectUris": []string{after}})
	b := newBrowser(t)
	q := s.walk(b, s.authorize(b, s.request("client_id", "leaves")), "doctor")
	tokens := s.exchange(q.Get("code"), "client_id", "leaves")
	logout := func(b *browser, v url.Values) *answer { return b.do("GET", s.base+"/auth/logout?"+v.Encode(), nil) }
	hint := tokens.text("id_token")
	for name, v := range map[string]url.Values{
		"another redirect":   {"id_token_hint": {hint}, "post_logout_redirect_uri": {after + "/"}},
		"another client":     {"id_token_hint": {hint}, "client_id": {"app"}, "post_logout_redirect_uri": {after}},
		"no client at all":   {"post_logout_redirect_uri": {after}},
		"a hint of nobody":   {"id_token_hint": {"x.y.z"}},
		"an access token":    {"id_token_hint": {tokens.text("access_token")}},
		"a doubled redirect": {"id_token_hint": {hint}, "post_logout_redirect_uri": {after, after}},
	} {
		if a := logout(b, v); a.status != 400 || a.header.Get("Location") != "" {
			t.Errorf("logout by %s: %d %s", name, a.status, a.header.Get("Location"))
		}
	}
	if s.use(tokens.text("access_token")) != 200 {
		t.Error("a refused logout ends the tokens")
	}
	a := logout(b, url.Values{"id_token_hint": {hint}, "post_logout_redirect_uri": {after}, "state": {"s 1"}})
	if a.status != 303 || a.header.Get("Location") != after+"?state=s+1" {
		t.Errorf("logout: %d %s", a.status, a.header.Get("Location"))
	}
	if a := s.authorize(b, s.request("client_id", "leaves")); !strings.Contains(strings.Join(a.field("action"), " "), "login") {
		t.Error("after the logout the browser is still signed in")
	}
}

// Contract, Authorization 2: user: ten times as many failures lock the name from anywhere.
func TestLockoutFromAnywhere(t *testing.T) {
	t.Parallel()
	s := start(t, func(o *oauth.Options) { o.Config.RateLimiting.MaxFailedAttempts = 1 })
	s.app()
	// The pages by a browser of each address; the forms go by the test's own connections.
	from := func(address string, form url.Values, cookies map[string]string) *http.Response {
		t.Helper()
		tr := &http.Transport{DialContext: (&net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(address)}}).DialContext}
		defer tr.CloseIdleConnections()
		req, err := http.NewRequest("POST", s.base+"/auth/authorize", strings.NewReader(form.Encode()))
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Content-Type", "application/x-www-form-urlencoded")
		for name, value := range cookies {
			req.AddCookie(&http.Cookie{Name: name, Value: value})
		}
		resp, err := tr.RoundTrip(req)
		if err != nil {
			t.Skipf("this machine has no address %s: %v", address, err)
		}
		resp.Body.Close()
		return resp
	}
	attempt := func(address, pass string) int {
		t.Helper()
		b := newBrowser(t)
		form := s.authorize(b, s.request()).form(t, "login", "username", "doctor", "password", pass)
		return from(address, form, b.cookies).StatusCode
	}
	for _, address := range []string{"127.0.0.11", "127.0.0.12", "127.0.0.13", "127.0.0.14", "127.0.0.15", "127.0.0.16", "127.0.0.17", "127.0.0.18", "127.0.0.19", "127.0.0.20"} {
		if got := attempt(address, "wrong password"); got != 401 {
			t.Fatalf("the failure from %s: %d", address, got)
		}
	}
	if got := attempt("127.0.0.21", password); got != 429 {
		t.Errorf("after ten failures from ten addresses, from another: %d, want 429", got)
	}
	s.pass(5*time.Minute + time.Second)
	if got := attempt("127.0.0.21", password); got != 200 {
		t.Errorf("five minutes later: %d", got)
	}
}

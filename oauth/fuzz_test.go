package oauth_test

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"

	"kiln/oauth"
)

// serve answers a request without a network; a bug is a status of 500 or more, or an
// answer that tells of the database or of code.
func (s *service) serve(t testing.TB, method, path, query, body string, header ...string) *answer {
	t.Helper()
	r := &http.Request{Method: method, URL: &url.URL{Path: path, RawQuery: query}, Host: strings.TrimPrefix(s.base, "http://"), RemoteAddr: "127.0.0.1:9",
		Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1, Header: make(http.Header), Body: http.NoBody}
	r.RequestURI = r.URL.RequestURI()
	if body != "" {
		r.Body = http.NoBody
		in := httptest.NewRequest(method, "/", strings.NewReader(body))
		r.Body, r.ContentLength = in.Body, in.ContentLength
	}
	for i := 0; i+1 < len(header); i += 2 {
		r.Header.Set(header[i], header[i+1])
	}
	w := httptest.NewRecorder()
	s.web.Config.Handler.ServeHTTP(w, r.WithContext(t.Context()))
	a := &answer{status: w.Code, header: w.Header(), body: w.Body.Bytes()}
	_ = json.Unmarshal(a.body, &a.json)
	if a.status >= 500 {
		t.Fatalf("%s %s?%s %q: %d %s", method, path, query, body, a.status, a.body)
	}
	// Words that no random text (base64) of a page has by chance.
	for _, word := range []string{"SQLSTATE", "goroutine", ".go:", "/pgx", "pgx:"} {
		if strings.Contains(string(a.body), word) && !strings.Contains(query+body, word) {
			t.Fatalf("%s %s?%s %q tells %q: %s", method, path, query, body, word, a.body)
		}
	}
	return a
}

// unheard keeps no events: nobody takes them.
func unheard(o *oauth.Options) { o.Audit = nil }

const formType = "application/x-www-form-urlencoded"

// toClient is the redirect of an answer; it must go to a registered redirect URI.
func toClient(t testing.TB, a *answer) url.Values {
	t.Helper()
	to := a.header.Get("Location")
	if to == "" {
		return nil
	}
	u, err := url.Parse(to)
	if err != nil {
		t.Fatalf("Location %q: %v", to, err)
	}
	bare := *u
	bare.RawQuery = ""
	if bare.Host = u.Host; bare.String() != callback && u.Hostname() != "127.0.0.1" {
		t.Fatalf("redirected to %q, which is not registered", to)
	}
	return u.Query()
}

// Endpoints, authorize: no query causes a 5xx, a code without a sign-in, or a redirect to
// an unregistered URI.
func FuzzAuthorize(f *testing.F) {
	s := start(f, unheard)
	s.app()
	good := s.request().Encode()
	f.Add(good)
	f.Add(s.request("launch", "x", "scope", "launch patient/*.rs").Encode())
	f.Add(s.request("scope", "patient/Observation.rs?category=http://x|y", "prompt", "none", "max_age", "-1", "login_hint", "\x00").Encode())
	f.Add(s.request("redirect_uri", "http://127.0.0.1:99999/cb").Encode())
	f.Add(good + "&state=x&%zz=1;a=b")
	f.Add(good + "&id_token_hint=a.b.c&request=x&claims={}&ui_locales=de&acr_values=1&display=page&response_mode=form_post")
	f.Fuzz(func(t *testing.T, query string) {
		if len(query) > 32<<10 {
			t.Skip("longer than a URL may be")
		}
		for _, a := range []*answer{s.serve(t, "GET", "/auth/authorize", query, ""), s.serve(t, "POST", "/auth/authorize", "", query, "Content-Type", formType)} {
			if q := toClient(t, a); q != nil && (q.Has("code") || !q.Has("error") || q.Get("iss") != s.base) {
				t.Fatalf("%q is answered by %v", query, q)
			}
		}
	})
}

// Endpoints, token: no form and no header Authorization causes a 5xx or gives a token.
func FuzzToken(f *testing.F) {
	s := start(f, unheard)
	s.app()
	s.client(map[string]any{"clientId": "backend", "confidential": true, "clientSecret": password, "grantTypes": []string{"client_credentials"}, "scopes": []string{"system/*.rs"}})
	for _, v := range []url.Values{
		{"grant_type": {"authorization_code"}, "code": {"x"}, "redirect_uri": {callback}, "client_id": {"app"}, "code_verifier": {verifier}},
		{"grant_type": {"refresh_token"}, "refresh_token": {"x"}, "client_id": {"app"}, "scope": {"patient/*.rs"}},
		{"grant_type": {"client_credentials"}, "scope": {"system/*.rs"}, "client_assertion": {"a.b.c"}, "client_assertion_type": {assertionType}},
		{"grant_type": {"client_credentials"}, "scope": {"system/*.rs"}, "client_id": {"backend"}, "client_secret": {"wrong"}},
		{"token": {"a.b.c"}, "token_type_hint": {"access_token"}, "client_id": {"app"}},
	} {
		f.Add(v.Encode(), "")
	}
	f.Add("grant_type=client_credentials&scope=system%2F*.rs", "Basic YmFja2VuZDp3cm9uZw==")
	f.Add("grant_type=client_credentials&grant_type=x", "Basic !")
	f.Add("%zz", "Bearer a.b.c")
	f.Fuzz(func(t *testing.T, body, authorization string) {
		if strings.Contains(body, url.QueryEscape(password)) || len(body) > 100<<10 {
			t.Skip()
		}
		header := []string{"Content-Type", formType, "Authorization", authorization}
		if authorization == "" {
			header = header[:2]
		}
		for _, path := range []string{"/auth/token", "/auth/revoke", "/auth/introspect", "/auth/userinfo", "/auth/logout"} {
			a := s.serve(t, "POST", path, "", body, header...)
			switch {
			case a.text("access_token") != "", a.json["active"] == true:
				t.Fatalf("%s %q: %s", path, body, a.body)
			case path == "/auth/token" && (a.status < 400 || a.text("error") == ""):
				t.Fatalf("%s %q: %d %s", path, body, a.status, a.body)
			}
		}
		s.serve(t, "GET", "/auth/logout", body, "")
		s.serve(t, "GET", "/auth/callback", body, "")
	})
}

const assertionType = "urn:ietf:params:oauth:client-assertion-type:jwt-bearer"

// Endpoints, private_key_jwt, and bearer tokens: no claims that a registered key signs, and
// no text in place of a token, cause a 5xx. A token is accepted only with claims that the
// contract allows.
func FuzzJWT(f *testing.F) {
	s := start(f, unheard)
	s.app()
	k := newKeyPair(f, "k1")
	s.client(map[string]any{"clientId": "backend", "tokenEndpointAuthMethod": "private_key_jwt", "jwks": k.jwks(), "scopes": []string{"system/*.rs"}})
	good, err := json.Marshal(s.assertion())
	if err != nil {
		f.Fatal(err)
	}
	f.Add(string(good), s.tokens().text("access_token"))
	f.Add(`{"iss":"backend","sub":"backend","aud":[1,null],"exp":1e400,"jti":{}}`, "a.b.c")
	f.Add(`{"iss":"backend","sub":"backend","aud":"`+s.base+`","exp":99999999999999999999,"jti":"x"}`, "eyJhbGciOiJub25lIn0.e30.")
	f.Add(`[]`, "kiln_")
	f.Fuzz(func(t *testing.T, payload, token string) {
		text := k.signText(t, []byte(payload))
		form := url.Values{"grant_type": {"client_credentials"}, "scope": {"system/*.rs"}, "client_assertion": {text}, "client_assertion_type": {assertionType}}
		if a := s.serve(t, "POST", "/auth/token", "", form.Encode(), "Content-Type", formType); a.status == 200 {
			var c struct {
				Issuer  string  `json:"iss"`
				Subject string  `json:"sub"`
				Expires float64 `json:"exp"`
				ID      string  `json:"jti"`
			}
			if err := json.Unmarshal([]byte(payload), &c); err != nil || c.Issuer != "backend" || c.Subject != "backend" || c.ID == "" ||
				c.Expires < float64(time.Now().Add(-time.Minute).Unix()) || c.Expires > float64(time.Now().Add(6*time.Minute).Unix()) {
				t.Fatalf("taken: %s", payload)
			}
		}
		if strings.ContainsAny(token, "\r\n\x00") {
			return
		}
		s.serve(t, "GET", "/Patient", "", "", "Authorization", "Bearer "+token)
		s.serve(t, "POST", "/auth/introspect", "", url.Values{"token": {token}, "client_assertion": {text}, "client_assertion_type": {assertionType}}.Encode(), "Content-Type", formType)
	})
}

// Endpoints, forms: no form on the way through the pages causes a 5xx, gives a code to a
// person who has not signed in, or grants a scope that was not requested.
func FuzzForms(f *testing.F) {
	s := start(f, unheard)
	s.app()
	f.Add("login", "doctor", "wrong", "patient/*.rs", "p1")
	f.Add("authorize", "", "", "patient/*.cruds system/*.*", "")
	f.Add("select_patient", "x", "\x00", "openid", "p2")
	f.Add("select_encounter", "x", "y", "%", "../e1")
	f.Add("search", "Ada", "1815-12-10", "", "")
	f.Add("deny", strings.Repeat("x", 10_000), "\xff\xfe", "<script>", "'")
	signedIn := "" // the cookie: argon2id takes long
	f.Fuzz(func(t *testing.T, action, username, secret, scope, id string) {
		if secret == password {
			t.Skip()
		}
		page := s.serve(t, "GET", "/auth/authorize", s.request().Encode(), "")
		cookie, _, _ := strings.Cut(page.header.Get("Set-Cookie"), ";")
		v := page.form(t, action, "username", username, "password", secret, "scope", scope, "patient", id, "encounter", id, "q", username, "birthdate", secret)
		a := s.serve(t, "POST", "/auth/authorize", "", v.Encode(), "Content-Type", formType, "Cookie", cookie)
		if q := toClient(t, a); q.Has("code") {
			t.Fatalf("a code without a sign-in: %v", q)
		}
		// The same behind a sign-in.
		in := s.serve(t, "GET", "/auth/authorize", s.request("prompt", "consent").Encode(), "", "Cookie", signedIn)
		if slices.Contains(in.field("action"), "login") {
			cookie, _, _ = strings.Cut(in.header.Get("Set-Cookie"), ";")
			in = s.serve(t, "POST", "/auth/authorize", "", in.form(t, "login", "username", "doctor", "password", password).Encode(), "Content-Type", formType, "Cookie", cookie)
			signedIn, _, _ = strings.Cut(in.header.Get("Set-Cookie"), ";")
		}
		if slices.Contains(in.field("action"), "select_patient") {
			in = s.serve(t, "POST", "/auth/authorize", "", in.form(t, "select_patient", "patient", "p1").Encode(), "Content-Type", formType, "Cookie", signedIn)
		}
		if in.status != 200 || !slices.Contains(in.field("action"), "authorize") {
			t.Fatalf("no consent page: %d %s", in.status, in.body)
		}
		v = in.form(t, action, "username", username, "password", secret, "scope", scope, "patient", id, "encounter", id)
		a = s.serve(t, "POST", "/auth/authorize", "", v.Encode(), "Content-Type", formType, "Cookie", signedIn)
		if q := toClient(t, a); q.Has("code") {
			got := s.exchange(q.Get("code"))
			for _, granted := range strings.Fields(got.text("scope")) {
				if !slices.Contains(strings.Fields(s.request().Get("scope")), granted) {
					t.Fatalf("granted %q, which was not asked for", granted)
				}
			}
		}
	})
}

// Clients, users, keys; launches; registration: no JSON causes a 5xx.
func FuzzManage(f *testing.F) {
	s := start(f, unheard, func(o *oauth.Options) { o.Config.Smart.DynamicRegistrationEnabled = true })
	s.app()
	key, err := s.server.CreateAPIKey(f.Context(), "fuzz", "admin launch/context", "")
	if err != nil {
		f.Fatal(err)
	}
	for _, body := range []string{
		`{"clientId":"x","redirectUris":["https://a.example.org/cb"],"scopes":["patient/*.rs"],"jwks":{"keys":[{"kty":"RSA"}]},"accessTokenLifetime":"1s"}`,
		`{"username":"x","password":"correct horse battery","fhirUser":"Practitioner/1","roles":["admin"]}`, `{"patient":"Patient/p1","encounter":"e1","fhirContext":[{"reference":"x"}],"client_id":"app"}`,
		`{"redirect_uris":["https://a.example.org/cb"],"scope":"openid","jwks_uri":"http://127.0.0.1/"}`, `{"token":"a.b.c","method":"GET","path":"/Patient/1"}`, `[]`, `null`, `{"active":null}`, `{"name":"\u0000"}`, `{"clientId":"a/b","scopes":[""]}`,
	} {
		f.Add(body)
	}
	f.Fuzz(func(t *testing.T, body string) {
		if strings.Contains(body, "password") && strings.Count(body, "correct horse") == 0 {
			t.Skip("argon2id takes long")
		}
		for _, path := range []string{"POST /admin/clients", "PUT /admin/clients/app", "PATCH /admin/clients/app", "POST /admin/users", "PATCH /admin/users/doctor",
			"POST /admin/apikeys", "POST /auth/launch", "POST /auth/register", "POST /admin/token/explain"} {
			method, at, _ := strings.Cut(path, " ")
			s.serve(t, method, at, "", body, "Content-Type", "application/json", "Authorization", "Bearer "+key.Key)
		}
	})
}

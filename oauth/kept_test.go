package oauth_test

import (
	"context"
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"encoding/json"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/go-jose/go-jose/v4"
	"github.com/jackc/pgx/v5"

	"kiln/oauth"
)

// Contract, Authorization 2: `clientSecret` answered once, stored as SHA-256 of 256 random
// bits or argon2id of a chosen one; `password` argon2id; API keys stored hashed. The same
// is true of codes and refresh tokens: a person who reads the database can use none of
// them.
func TestSecretsAreStoredHashed(t *testing.T) {
	t.Parallel()
	s := start(t)
	s.app()
	made := s.client(map[string]any{"clientId": "made", "confidential": true, "scopes": []string{"system/*.rs"}})
	const chosen = "a secret of its own choice, 0123456789"
	s.client(map[string]any{"clientId": "chosen", "confidential": true, "clientSecret": chosen, "scopes": []string{"system/*.rs"}})
	key, err := s.server.CreateAPIKey(t.Context(), "internal", "system/*.rs", "")
	if err != nil {
		t.Fatal(err)
	}
	code := s.code()
	tokens := s.tokens()
	conn, err := pgx.Connect(t.Context(), s.url)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(t.Context())
	rows, err := conn.Query(t.Context(), "SELECT tablename::text FROM pg_tables WHERE schemaname = current_schema() AND tablename LIKE 'oauth%'")
	if err != nil {
		t.Fatal(err)
	}
	tables, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil || len(tables) < 5 {
		t.Fatalf("tables %v, %v", tables, err)
	}
	argon := 0
	for _, table := range tables {
		rows, err := conn.Query(t.Context(), "SELECT x::text FROM "+pgx.Identifier{table}.Sanitize()+" x")
		if err != nil {
			t.Fatal(err)
		}
		list, err := pgx.CollectRows(rows, pgx.RowTo[string])
		if err != nil {
			t.Fatal(err)
		}
		for _, row := range list {
			for what, secret := range map[string]string{"the password": password, "a made secret": made.ClientSecret, "a chosen secret": chosen, "an API key": strings.TrimPrefix(key.Key, "kiln_"),
				"a code": code, "a refresh token": tokens.text("refresh_token"), "an access token": tokens.text("access_token")} {
				if strings.Contains(row, secret) {
					t.Errorf("%s holds %s", table, what)
				}
			}
			if strings.Contains(row, "$argon2id$v=19$") {
				argon++
			}
		}
	}
	if argon != 2 { // of the user's password and of the chosen secret
		t.Errorf("%d rows hold a hash of argon2id, want 2", argon)
	}
}

// Contract, Authorization 2: unknown names cost the same time. The shortest of a few
// attempts is compared, which other work on the machine lengthens least.
func TestUnknownNamesCostTheSame(t *testing.T) {
	t.Parallel()
	s := start(t)
	s.app()
	shortest := map[string]time.Duration{}
	for range 4 {
		for _, name := range []string{"doctor", "nobody"} {
			b := newBrowser(t)
			form := s.authorize(b, s.request()).form(t, "login", "username", name, "password", "wrong password")
			began := time.Now()
			if a := s.submit(b, form); a.status != 401 {
				t.Fatalf("%s: %d", name, a.status)
			}
			if took := time.Since(began); shortest[name] == 0 || took < shortest[name] {
				shortest[name] = took
			}
		}
	}
	if shortest["nobody"] < shortest["doctor"]/5 { // without the hash it is a fiftieth
		t.Errorf("a known name takes %s, an unknown one %s", shortest["doctor"], shortest["nobody"])
	}
}

// Contract, Authorization 3: `oauth_session` is `Secure` whenever the issuer is https; an
// http issuer off loopback is refused at start unless `auth.allow_http`.
func TestCookieOfHTTPS(t *testing.T) {
	t.Parallel()
	first := start(t)
	first.app()
	s := startOn(t, first.url, "https://ehr.example.org")
	a := s.authorize(newBrowser(t), s.request("aud", "https://ehr.example.org/fhir"))
	if cookie := a.header.Get("Set-Cookie"); a.status != 200 || !strings.Contains(cookie, "oauth_session=") || !strings.Contains(cookie, "Secure") {
		t.Errorf("%d, cookie %q", a.status, cookie)
	}
	c := oauth.DefaultConfig()
	c.Enabled, c.Issuer = true, "http://ehr.example.org"
	if err := c.CheckServe(oauth.IssuerOf(c, "", "")); err == nil || !strings.Contains(err.Error(), "allow_http") {
		t.Errorf("an http issuer: %v", err)
	}
	c.AllowHTTP = true
	if err := c.CheckServe(oauth.IssuerOf(c, "", "")); err != nil {
		t.Errorf("with auth.allow_http: %v", err)
	}
}

// Contract, Authorization 3: `refresh_token` for `online_access` too; `/auth/userinfo` GET
// and POST, 403 `insufficient_scope` without `openid`; an access token without a patient
// has no claim `patient`.
func TestUserinfo(t *testing.T) {
	t.Parallel()
	s := start(t)
	s.app()
	a := s.tokens("scope", "openid fhirUser online_access user/*.rs")
	if a.text("refresh_token") == "" || s.refresh(a.text("refresh_token")).status != 200 {
		t.Errorf("online_access gives no refresh token: %s", a.body)
	}
	if _, c := claims(t, a.text("access_token")); c["patient"] != nil || c["encounter"] != nil || c["sid"] == nil {
		t.Errorf("claims %v", c)
	}
	for _, method := range []string{"GET", "POST"} {
		u := s.call(method, "/auth/userinfo", a.text("access_token"), "")
		if u.status != 200 || u.text("sub") != "doctor" || u.text("fhirUser") != "Practitioner/1" {
			t.Errorf("%s: %d %s", method, u.status, u.body)
		}
	}
	plain := s.tokens("scope", "user/*.rs")
	if plain.text("id_token") != "" {
		t.Error("an ID token without openid")
	}
	if u := s.call("GET", "/auth/userinfo", plain.text("access_token"), ""); u.status != 403 || !strings.Contains(u.header.Get("WWW-Authenticate"), `error="insufficient_scope"`) {
		t.Errorf("without openid: %d %s", u.status, u.header.Get("WWW-Authenticate"))
	}
	if u := s.call("GET", "/auth/userinfo", "", ""); u.status != 401 {
		t.Errorf("without a token: %d", u.status)
	}
}

// Contract, Authorization 3: `private_key_jwt`: RS384, ES384, and RS256, ES256; no other
// algorithm.
func TestAlgorithmsOfAssertions(t *testing.T) {
	t.Parallel()
	s := start(t)
	rsaKey, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		t.Fatal(err)
	}
	curve := func(c elliptic.Curve) crypto.Signer {
		k, err := ecdsa.GenerateKey(c, rand.Reader)
		if err != nil {
			t.Fatal(err)
		}
		return k
	}
	for alg, tt := range map[jose.SignatureAlgorithm]struct {
		key  crypto.Signer
		want int
	}{
		jose.RS256: {rsaKey, 200}, jose.RS384: {rsaKey, 200}, jose.ES256: {curve(elliptic.P256()), 200}, jose.ES384: {curve(elliptic.P384()), 200},
		jose.RS512: {rsaKey, 401}, jose.PS384: {rsaKey, 401}, jose.ES512: {curve(elliptic.P521()), 401},
	} {
		id := "client-" + string(alg)
		keys := map[string]any{"keys": []jose.JSONWebKey{{Key: tt.key.Public(), KeyID: "k", Use: "sig"}}}
		body, _ := json.Marshal(map[string]any{"clientId": id, "tokenEndpointAuthMethod": "private_key_jwt", "jwks": keys, "scopes": []string{"system/*.rs"}})
		if _, err := s.server.CreateClient(t.Context(), body); err != nil {
			if tt.want == 200 {
				t.Errorf("%s cannot be registered: %v", alg, err)
			}
			continue
		}
		signer, err := jose.NewSigner(jose.SigningKey{Algorithm: alg, Key: jose.JSONWebKey{Key: tt.key, KeyID: "k"}}, nil)
		if err != nil {
			t.Fatal(err)
		}
		text, _ := json.Marshal(s.assertion("iss", id, "sub", id))
		signed, err := signer.Sign(text)
		if err != nil {
			t.Fatal(err)
		}
		assertion, _ := signed.CompactSerialize()
		if a := s.backend(assertion); a.status != tt.want {
			t.Errorf("%s: %d %s, want %d", alg, a.status, a.body, tt.want)
		}
	}
}

// Contract, Authorization 2: rotation by age: the next key is published a day before it
// signs, when the current one is as old as `auth.signing.key_rotation_days`.
func TestKeyRotationByAge(t *testing.T) {
	t.Parallel()
	first := start(t)
	first.app()
	kids := func(s *service) (out []string) {
		for _, k := range newBrowser(t).do("GET", s.base+"/.well-known/jwks.json", nil).json["keys"].([]any) {
			out = append(out, k.(map[string]any)["kid"].(string))
		}
		slices.Sort(out)
		return out
	}
	signs := func(s *service) string {
		h, _ := claims(t, s.tokens().text("access_token"))
		return h["kid"].(string)
	}
	before, signed := kids(first), signs(first)
	at := func(days int) *service {
		now := time.Now().Add(time.Duration(days)*24*time.Hour + time.Minute)
		began := time.Now()
		return startOn(t, first.url, first.base, func(o *oauth.Options) { o.Now = func() time.Time { return now.Add(time.Since(began)) } })
	}
	if got := kids(at(88)); !slices.Equal(got, before) {
		t.Errorf("after 88 days: %v, want %v", got, before)
	}
	old := at(90)
	eventually(t, time.Minute, func() bool { return len(kids(old)) > len(before) })
	if got := signs(old); got != signed {
		t.Error("the next key signs on the day that it is published")
	}
	if got := signs(at(92)); got == signed {
		t.Error("the next key does not sign after a day")
	}
}

// Contract, Authorization 3: CORS on token, discovery, userinfo: any page may ask, without
// credentials.
func TestCORSOfAuthorization(t *testing.T) {
	t.Parallel()
	s := start(t)
	for _, path := range []string{"/.well-known/smart-configuration", "/.well-known/openid-configuration", "/.well-known/oauth-authorization-server", "/.well-known/jwks.json", "/fhir/.well-known/smart-configuration"} {
		b := newBrowser(t)
		b.header.Set("Origin", "https://page.example.org")
		if a := b.do("GET", s.base+path, nil); a.status != 200 || a.header.Get("Access-Control-Allow-Origin") != "*" || a.header.Get("Access-Control-Allow-Credentials") != "" {
			t.Errorf("%s: %d %v", path, a.status, a.header)
		}
	}
	for path, method := range map[string]string{"/auth/token": "POST", "/auth/userinfo": "GET", "/auth/revoke": "POST"} {
		b := newBrowser(t)
		b.header = http.Header{"Origin": {"https://page.example.org"}, "Access-Control-Request-Method": {method}, "Access-Control-Request-Headers": {"authorization,content-type"}}
		a := b.do("OPTIONS", s.base+path, nil)
		if a.status >= 300 || a.header.Get("Access-Control-Allow-Origin") != "*" || !strings.Contains(strings.ToLower(a.header.Get("Access-Control-Allow-Headers")), "authorization") {
			t.Errorf("OPTIONS %s: %d %v", path, a.status, a.header)
		}
		if a := s.post(path, url.Values{}, "Origin", "https://page.example.org"); a.header.Get("Access-Control-Allow-Origin") != "*" {
			t.Errorf("POST %s: %v", path, a.header)
		}
	}
	// The pages are for people: no other site may read them.
	b := newBrowser(t)
	b.header.Set("Origin", "https://page.example.org")
	if a := b.do("GET", s.base+"/auth/authorize?"+s.request().Encode(), nil); a.header.Get("Access-Control-Allow-Origin") != "" {
		t.Errorf("/auth/authorize: %v", a.header)
	}
}

// Contract, Authorization 3: what each scope means is said in words; one checkbox each.
func TestScopesInWords(t *testing.T) {
	t.Parallel()
	s := start(t)
	s.app()
	b := newBrowser(t)
	page := s.consent(b, s.submit(b, s.authorize(b, s.request("scope", "openid fhirUser launch/patient offline_access patient/Observation.rs?category=laboratory patient/*.cruds user/Patient.r")).
		form(t, "login", "username", "doctor", "password", password)))
	text := string(page.body)
	for _, scope := range page.field("scope") {
		_, after, _ := strings.Cut(text, `value="`+strings.ReplaceAll(scope, "&", "&amp;")+`"`)
		label, _, _ := strings.Cut(after, "</label>")
		if words := strings.Fields(strings.ReplaceAll(label, scope, "")); len(words) < 4 {
			t.Errorf("%s is explained as %q", scope, label)
		}
	}
	if len(page.field("scope")) != 7 {
		t.Errorf("%d checkboxes: %v", len(page.field("scope")), page.field("scope"))
	}
}

// Contract, Authorization 3: whether a token is revoked costs no query on the request
// path; 6: verifying a token seen before. In a context that has ended no query succeeds.
func TestVerifyingAsksNoDatabase(t *testing.T) {
	s := start(t)
	s.app()
	token := s.tokens().text("access_token")
	key, err := s.server.CreateAPIKey(t.Context(), "internal", "system/*.rs", "")
	if err != nil {
		t.Fatal(err)
	}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	if s.use(token) != 200 || s.use(key.Key) != 200 {
		t.Fatal("the token or the API key is not taken")
	}
	for name, text := range map[string]string{"a token": token, "an API key": key.Key} {
		if p, err := s.server.Verify(ended, text); err != nil || p == nil {
			t.Errorf("%s seen before: %v, %v", name, p, err)
		}
		if n := testing.AllocsPerRun(100, func() { _, _ = s.server.Verify(ended, text) }); n > 2 {
			t.Errorf("%s seen before takes %g allocations", name, n)
		}
	}
	s.post("/auth/revoke", url.Values{"token": {token}, "client_id": {"app"}})
	if _, err := s.server.Verify(ended, token); err == nil {
		t.Error("a revoked token is taken")
	}
}

func BenchmarkVerify(b *testing.B) {
	s := start(b)
	s.client(map[string]any{"clientId": "backend", "confidential": true, "clientSecret": password, "scopes": []string{"system/*.rs"}})
	token := s.post("/auth/token", url.Values{"grant_type": {"client_credentials"}, "scope": {"system/*.rs"}, "client_id": {"backend"}, "client_secret": {password}}).text("access_token")
	for b.Loop() {
		if _, err := s.server.Verify(b.Context(), token); err != nil {
			b.Fatal(err)
		}
	}
}

// Contract, Authorization 4: `admin` is for users with that role and clients that are
// registered with it.
func TestAdminIsForAdministrators(t *testing.T) {
	t.Parallel()
	s := start(t)
	s.app()
	s.user(map[string]any{"username": "boss", "roles": []string{"admin"}})
	s.client(map[string]any{"clientId": "narrow", "redirectUris": []string{callback}, "scopes": []string{"openid user/*.rs"}})
	granted := func(user, client string) string {
		b := newBrowser(t)
		q := s.walk(b, s.authorize(b, s.request("client_id", client, "scope", "openid user/*.rs admin")), user)
		return s.exchange(q.Get("code"), "client_id", client).text("scope")
	}
	for _, tt := range []struct{ user, client, want string }{
		{"boss", "app", "openid admin user/*.rs"}, {"doctor", "app", "openid user/*.rs"}, {"boss", "narrow", "openid user/*.rs"},
	} {
		if got := granted(tt.user, tt.client); got != tt.want {
			t.Errorf("%s by %s is granted %q, want %q", tt.user, tt.client, got, tt.want)
		}
	}
}

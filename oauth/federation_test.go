package oauth_test

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"net/http/httptest"
	"net/url"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-jose/go-jose/v4"

	"kiln/oauth"
	"kiln/oauth/storage"
)

// fakeProvider is an OpenID provider with a scripted token endpoint.
type fakeProvider struct {
	*httptest.Server
	key   *ecdsa.PrivateKey
	token atomic.Pointer[string]
	names atomic.Bool // itself in its answers, as its discovery document says
}

func newFakeProvider(t *testing.T) *fakeProvider {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	p := &fakeProvider{key: key}
	mux := http.NewServeMux()
	answer := func(path string, what func() any) {
		mux.HandleFunc(path, func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "application/json")
			_ = json.NewEncoder(w).Encode(what())
		})
	}
	answer("/.well-known/openid-configuration", func() any {
		return map[string]any{"issuer": p.URL, "authorization_endpoint": p.URL + "/authorize", "token_endpoint": p.URL + "/token", "jwks_uri": p.URL + "/keys",
			"id_token_signing_alg_values_supported": []string{"ES256"}, "authorization_response_iss_parameter_supported": p.names.Load()}
	})
	answer("/keys", func() any {
		return jose.JSONWebKeySet{Keys: []jose.JSONWebKey{{Key: &key.PublicKey, KeyID: "1", Algorithm: "ES256", Use: "sig"}}}
	})
	answer("/token", func() any {
		return map[string]any{"access_token": "x", "token_type": "Bearer", "id_token": *p.token.Load()}
	})
	p.Server = httptest.NewServer(mux)
	t.Cleanup(p.Close)
	return p
}

// signIn signs in with the provider, whose ID token has claims beside the good ones; nil
// takes one out; its answer has more parameters. It returns the page, or the redirect, that
// comes of it.
func (p *fakeProvider) signIn(t *testing.T, s *service, claims map[string]any, more ...string) (*browser, *answer) {
	t.Helper()
	b := newBrowser(t)
	gone := s.submit(b, s.authorize(b, s.request("scope", "openid patient/*.rs", "prompt", "consent")).form(t, "federate", "provider", "Hospital"))
	to, err := url.Parse(gone.header.Get("Location"))
	if err != nil || gone.status != 303 {
		t.Fatalf("to the provider: %d %s", gone.status, gone.body)
	}
	now := time.Now().Unix()
	all := map[string]any{"iss": p.URL, "aud": "kiln", "sub": "42", "exp": now + 300, "iat": now, "nonce": to.Query().Get("nonce")}
	maps.Copy(all, claims)
	maps.DeleteFunc(all, func(_ string, v any) bool { return v == nil })
	token := p.sign(t, all)
	p.token.Store(&token)
	back := url.Values{"code": {"c"}, "state": {to.Query().Get("state")}}
	for i := 0; i+1 < len(more); i += 2 {
		back.Set(more[i], more[i+1])
	}
	return b, b.do("GET", s.base+"/auth/callback?"+back.Encode(), nil)
}

// sign is a JWT of the provider.
func (p *fakeProvider) sign(t *testing.T, claims map[string]any) string {
	t.Helper()
	signer, err := jose.NewSigner(jose.SigningKey{Algorithm: jose.ES256, Key: jose.JSONWebKey{Key: p.key, KeyID: "1"}}, nil)
	if err != nil {
		t.Fatal(err)
	}
	body, _ := json.Marshal(claims)
	signed, err := signer.Sign(body)
	if err != nil {
		t.Fatal(err)
	}
	token, err := signed.CompactSerialize()
	if err != nil {
		t.Fatal(err)
	}
	return token
}

// A provider's ID token is held against OpenID Connect Core §3.1.3.7, and its claims
// against what users may have here: one that is not acceptable takes nothing else along.
// But nobody signs in whose fhirUser is not here: a user without one is not bounded to a compartment.
// Contract, Authorization 5: `auth.federation.providers[]`: an ID token that is not for this server.
func TestProviderThatMisbehaves(t *testing.T) {
	t.Parallel()
	p := newFakeProvider(t)
	s := start(t, func(o *oauth.Options) {
		o.Config.Federation.Providers = []map[string]any{{"name": "Hospital", "issuer": p.URL, "client_id": "kiln", "client_secret": "s", "auto_provision": true,
			"claims": map[string]any{"roles": "groups"}}}
	})
	s.app()
	for name, claims := range map[string]map[string]any{
		"another issuer":             {"iss": "https://elsewhere.example.org"},
		"another audience":           {"aud": "other"},
		"other audiences, no azp":    {"aud": []string{"kiln", "other"}},
		"other audiences":            {"aud": []string{"kiln", "other"}, "azp": "other"},
		"authorized for another":     {"azp": "other"},
		"azp that is none":           {"azp": 1},
		"expired":                    {"exp": time.Now().Unix() - 10},
		"not before in an hour":      {"nbf": time.Now().Add(time.Hour).Unix()},
		"another nonce":              {"nonce": "x"},
		"no nonce":                   {"nonce": nil},
		"no subject, and a user's":   {"sub": nil, "preferred_username": "doctor"},
		"an empty subject":           {"sub": "", "preferred_username": "eve"},
		"a subject of NUL":           {"sub": "\x00", "preferred_username": "eve"},
		"a subject that is too long": {"sub": strings.Repeat("s", 256), "preferred_username": "eve"},
	} {
		b, a := p.signIn(t, s, claims)
		if a.status != 401 || len(a.field("username")) != 1 || a.header.Get("Location") != "" {
			t.Errorf("%s: %d %s", name, a.status, a.body)
		}
		if again := b.do("GET", s.base+"/auth/callback?state=x", nil); again.status < 400 {
			t.Errorf("%s: a callback of nobody: %d", name, again.status)
		}
	}
	if _, a := p.signIn(t, s, map[string]any{"sub": "several", "aud": []string{"kiln", "other"}, "azp": "kiln"}); a.status != 200 || len(a.field("patient")) != 2 {
		t.Errorf("several audiences, made for this server: %d %s", a.status, a.body)
	}

	user := func(name string) *storage.User {
		t.Helper()
		u, err := s.server.Store.User(t.Context(), name)
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		return u
	}
	if _, a := p.signIn(t, s, map[string]any{"sub": "1", "preferred_username": "zoe", "name": "Zoe", "email": 7, "fhirUser": s.base + "/fhir/Practitioner/1", "groups": []any{"nurse", "Domain Users", 3}}); a.status != 200 {
		t.Fatalf("claims of which some are not acceptable: %d %s", a.status, a.body)
	}
	if u := user("zoe"); u.Name != "Zoe" || u.FHIRUser != "Practitioner/1" || !slices.Equal(u.Roles, []string{"nurse"}) {
		t.Errorf("claims of which some are not acceptable: %+v", u)
	}
	for _, v := range []any{"Patient/nobody", "Organization/1", "nobody", "Practitioner/1/", "https://login.example.org/fhir/Practitioner/1", s.base + ".example.org/fhir/Practitioner/1", s.base + "/x/Practitioner/1", 7, []any{"Practitioner/1"}} {
		_, a := p.signIn(t, s, map[string]any{"sub": "no", "preferred_username": "nan", "fhirUser": v})
		if a.status != 401 || len(a.field("username")) != 1 || !strings.Contains(string(a.body), "fhirUser") {
			t.Errorf("fhirUser %v: %d %s", v, a.status, a.body)
		}
	}
	if u, err := s.server.Store.User(t.Context(), "nan"); !errors.Is(err, storage.ErrNotFound) {
		t.Errorf("a user whose fhirUser is not here was made: %+v %v", u, err)
	}
	for i, v := range []any{nil, ""} {
		name := fmt.Sprintf("plain%d", i)
		if _, a := p.signIn(t, s, map[string]any{"sub": name, "preferred_username": name, "fhirUser": v}); a.status != 200 || user(name).FHIRUser != "" {
			t.Errorf("without fhirUser: %d %s", a.status, a.body)
		}
	}
	if _, a := p.signIn(t, s, map[string]any{"sub": "2", "preferred_username": "a\x00b", "groups": "nurse", "": "admin"}); a.status != 200 {
		t.Fatalf("a name that is none: %d %s", a.status, a.body)
	}
	if u := user("Hospital:2"); !slices.Equal(u.Roles, []string{"nurse"}) {
		t.Errorf("a name that is none: %+v", u)
	}
	if _, a := p.signIn(t, s, map[string]any{"sub": "3", "preferred_username": "doctor"}); a.status != 200 || user("Hospital:3").Username == "doctor" {
		t.Errorf("somebody else's name: %d %s", a.status, a.body)
	}
}

// A trusted issuer's token that names its user or patient so that it cannot be read here is no token that names none.
// Contract, Authorization 5: `auth.federation.trusted_issuers[]`; 4: user/ of a Patient user reaches the compartment.
func TestTrustedIssuerWhoseUserIsNone(t *testing.T) {
	t.Parallel()
	p := newFakeProvider(t)
	s := start(t, func(o *oauth.Options) {
		o.Config.Federation.TrustedIssuers = []map[string]any{{"issuer": p.URL, "audience": "kiln", "claims": map[string]any{"fhirUser": "fhir_user"}}}
	})
	for name, c := range map[string]struct {
		claims            map[string]any
		status            int
		fhirUser, patient string
	}{
		"nobody named":            {nil, 200, "", ""},
		"null and empty":          {map[string]any{"fhir_user": "", "patient": nil, "encounter": ""}, 200, "", ""},
		"a user and a patient":    {map[string]any{"fhir_user": "Patient/p1", "patient": "Patient/p1"}, 200, "Patient/p1", "p1"},
		"a user by URL":           {map[string]any{"fhir_user": s.base + "/fhir/Patient/p1"}, 200, "Patient/p1", ""},
		"the other path":          {map[string]any{"fhir_user": s.base + "/Patient/p1"}, 200, "Patient/p1", ""},
		"another name of it":      {map[string]any{"fhir_user": strings.Replace(s.base, "127.0.0.1", "localhost", 1) + "/fhir/Patient/p1"}, 200, "Patient/p1", ""},
		"a user elsewhere":        {map[string]any{"fhir_user": "https://other.example.org/fhir/Patient/p1"}, 401, "", ""},
		"a user below a path":     {map[string]any{"fhir_user": s.base + "/other/fhir/Patient/p1"}, 401, "", ""},
		"a user of a longer host": {map[string]any{"fhir_user": s.base + "0/fhir/Patient/p1"}, 401, "", ""},
		"a URN":                   {map[string]any{"fhir_user": "urn:x/Patient/p1"}, 401, "", ""},
		"a path":                  {map[string]any{"fhir_user": "x/Patient/p1"}, 401, "", ""},
		"no host":                 {map[string]any{"fhir_user": "//other.example.org/Patient/p1"}, 401, "", ""},
		"another claim":           {map[string]any{"fhirUser": "x"}, 200, "", ""},
		"no user's type":          {map[string]any{"fhir_user": "Organization/1"}, 401, "", ""},
		"no reference":            {map[string]any{"fhir_user": "p1"}, 401, "", ""},
		"a user that is a number": {map[string]any{"fhir_user": 1}, 401, "", ""},
		"a list of users":         {map[string]any{"fhir_user": []any{"Patient/p1"}}, 401, "", ""},
		"no id of a patient":      {map[string]any{"patient": "p 1"}, 401, "", ""},
		"a list of patients":      {map[string]any{"patient": []any{"p1", "p2"}}, 401, "", ""},
		"not before in an hour":   {map[string]any{"nbf": time.Now().Add(time.Hour).Unix()}, 401, "", ""},
		"not before an hour ago":  {map[string]any{"nbf": time.Now().Add(-time.Hour).Unix()}, 200, "", ""},
		"no id of an encounter":   {map[string]any{"encounter": "e 1"}, 200, "", ""},
	} {
		all := map[string]any{"iss": p.URL, "aud": "kiln", "sub": "42", "exp": time.Now().Unix() + 300, "scope": "user/*.rs"}
		maps.Copy(all, c.claims)
		if a := s.call("GET", "/Patient", p.sign(t, all), ""); a.status != c.status || a.text("fhirUser") != c.fhirUser || a.text("patient") != c.patient {
			t.Errorf("%s: %d %s", name, a.status, a.body)
		}
	}
}

// RFC 9207 §2.4: an answer of another issuer is refused, and one of nobody where the provider
// says that it names itself.
// Contract, Authorization 5: `auth.federation.providers[]`: "Sign in with …".
func TestIssuerOfAProvidersAnswer(t *testing.T) {
	t.Parallel()
	for _, names := range []bool{false, true} {
		p := newFakeProvider(t)
		p.names.Store(names)
		s := start(t, func(o *oauth.Options) {
			o.Config.Federation.Providers = []map[string]any{{"name": "Hospital", "issuer": p.URL, "client_id": "kiln", "client_secret": "s", "auto_provision": true}}
		})
		s.app()
		for name, tt := range map[string]struct {
			more []string
			want int
		}{
			"its own":                   {[]string{"iss", p.URL}, 200},
			"another":                   {[]string{"iss", "https://elsewhere.example.org"}, 401},
			"its own with a slash more": {[]string{"iss", p.URL + "/"}, 401},
			"an empty one":              {[]string{"iss", ""}, 401},
			"none":                      {nil, map[bool]int{false: 200, true: 401}[names]},
		} {
			if _, a := p.signIn(t, s, nil, tt.more...); a.status != tt.want {
				t.Errorf("a provider that names itself: %t; iss %s: %d %s, want %d", names, name, a.status, a.body, tt.want)
			}
		}
	}
}

// RFC 7662 §2.2: iss is who made the token, aud for whom.
// Contract, Authorization 5: `auth.federation.trusted_issuers[]`: tokens of another authorization server.
func TestIntrospectOfATrustedIssuer(t *testing.T) {
	t.Parallel()
	p := newFakeProvider(t)
	s := start(t, func(o *oauth.Options) {
		o.Config.Federation.TrustedIssuers = []map[string]any{{"issuer": p.URL, "audience": "kiln"}}
	})
	key, err := s.server.CreateAPIKey(t.Context(), "admin", "admin", "")
	if err != nil {
		t.Fatal(err)
	}
	told := func(token string) *answer {
		return s.post("/auth/introspect", url.Values{"token": {token}}, "Authorization", "Bearer "+key.Key)
	}
	now := time.Now().Unix()
	a := told(p.sign(t, map[string]any{"iss": p.URL, "aud": "kiln", "sub": "42", "exp": now + 300, "iat": now - 5, "jti": "j", "scope": "user/*.rs"}))
	if a.json["active"] != true || a.text("iss") != p.URL || a.text("aud") != "kiln" || a.json["iat"] != float64(now-5) || a.text("jti") != "j" {
		t.Errorf("theirs: %d %s", a.status, a.body)
	}
	a = told(p.sign(t, map[string]any{"iss": p.URL, "aud": []string{"kiln", "other"}, "sub": "42", "exp": now + 300, "scope": "user/*.rs"}))
	if aud, ok := a.json["aud"].([]any); !ok || len(aud) != 2 || a.json["iat"] != nil || a.json["jti"] != nil || a.json["client_id"] != nil {
		t.Errorf("theirs, with less: %d %s", a.status, a.body)
	}
	if a = told(key.Key); a.text("iss") != s.base || a.json["aud"] != nil || a.json["iat"] == nil {
		t.Errorf("an API key: %d %s", a.status, a.body)
	}
}

// OpenID Connect Core §5.7: sub is one of an issuer: somebody there is not the user, and a
// client there not the client, of that name here. Nor is a client or an API key a user.
// Contract, Authorization 3: `/auth/userinfo`, `/auth/introspect`; 5: `auth.federation.trusted_issuers[]`.
func TestNamesOfATrustedIssuerAreNotThoseHere(t *testing.T) {
	t.Parallel()
	p := newFakeProvider(t)
	s := start(t, func(o *oauth.Options) {
		o.Config.Federation.TrustedIssuers = []map[string]any{{"issuer": p.URL, "audience": "kiln"}}
	})
	c := s.client(map[string]any{"clientId": "doctor", "confidential": true, "grantTypes": []string{"client_credentials"}, "scopes": []string{"system/*.rs"}})
	theirs := p.sign(t, map[string]any{"iss": p.URL, "aud": "kiln", "sub": "doctor", "client_id": "doctor", "exp": time.Now().Unix() + 300, "scope": "openid profile user/*.rs"})
	key, err := s.server.CreateAPIKey(t.Context(), "doctor", "system/*.rs openid", "")
	if err != nil {
		t.Logf("no API key with openid: %v", err)
	}
	tokens := map[string]string{"a trusted issuer's": theirs}
	if key != nil {
		tokens["an API key"] = key.Key
	}
	for name, token := range tokens {
		if a := s.call("GET", "/auth/userinfo", token, ""); a.status != 401 || a.json["email"] != nil || a.json["name"] != nil || a.text("error") != "invalid_token" {
			t.Errorf("userinfo of %s token: %d %s", name, a.status, a.body)
		}
	}
	if v, err := s.server.Verify(t.Context(), theirs); err != nil || v.Issuer != p.URL {
		t.Errorf("whose the token is: %+v %v", v, err)
	}
	basic := "Basic " + base64.StdEncoding.EncodeToString([]byte("doctor:"+c.ClientSecret))
	if a := s.post("/auth/introspect", url.Values{"token": {theirs}}, "Authorization", basic); a.status != 200 || len(a.json) != 1 || a.json["active"] != false {
		t.Errorf("introspection by the client of that name: %d %s", a.status, a.body)
	}
}

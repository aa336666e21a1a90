package oauth_test

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"encoding/json"
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

// fakeProvider is an OpenID provider whose token endpoint answers what a test says.
type fakeProvider struct {
	*httptest.Server
	key   *ecdsa.PrivateKey
	token atomic.Pointer[string]
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
			"id_token_signing_alg_values_supported": []string{"ES256"}}
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
// takes one out. It returns the page, or the redirect, that comes of it.
func (p *fakeProvider) signIn(t *testing.T, s *service, claims map[string]any) (*browser, *answer) {
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
	signer, err := jose.NewSigner(jose.SigningKey{Algorithm: jose.ES256, Key: jose.JSONWebKey{Key: p.key, KeyID: "1"}}, nil)
	if err != nil {
		t.Fatal(err)
	}
	body, _ := json.Marshal(all)
	signed, err := signer.Sign(body)
	if err != nil {
		t.Fatal(err)
	}
	token, err := signed.CompactSerialize()
	if err != nil {
		t.Fatal(err)
	}
	p.token.Store(&token)
	return b, b.do("GET", s.base+"/auth/callback?"+url.Values{"code": {"c"}, "state": {to.Query().Get("state")}}.Encode(), nil)
}

// A provider's ID token is held against OpenID Connect Core §3.1.3.7, and its claims
// against what users may have here: one that is not acceptable takes nothing else along.
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
	if _, a := p.signIn(t, s, map[string]any{"sub": "several", "aud": []string{"kiln", "other"}, "azp": "kiln"}); a.status != 200 || len(a.field("scope")) != 2 {
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
	if _, a := p.signIn(t, s, map[string]any{"sub": "1", "preferred_username": "zoe", "name": "Zoe", "email": 7, "fhirUser": "Patient/nobody", "groups": []any{"nurse", "Domain Users", 3}}); a.status != 200 {
		t.Fatalf("claims of which some are not acceptable: %d %s", a.status, a.body)
	}
	if u := user("zoe"); u.Name != "Zoe" || u.FHIRUser != "" || !slices.Equal(u.Roles, []string{"nurse"}) {
		t.Errorf("claims of which some are not acceptable: %+v", u)
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

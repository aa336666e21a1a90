package oauth_test

import (
	"encoding/json"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"

	"kiln/oauth"
	"kiln/server/outcome"
)

// Contract, Authorization 2: `kiln admin key rotate --now`, while the next key waits for its
// day already: that one signs, and the key that signed until then is withdrawn.
func TestRotateAtOnceWhileTheNextKeyWaits(t *testing.T) {
	t.Parallel()
	for name, wait := range map[string]func(s *service) error{
		"rotated by hand": func(s *service) error { return s.server.RotateKeys(t.Context(), false) },
		"rotated twice by hand": func(s *service) error {
			if err := s.server.RotateKeys(t.Context(), false); err != nil {
				return err
			}
			s.pass(time.Hour)
			return s.server.RotateKeys(t.Context(), false)
		},
		"rotated by age": func(s *service) error {
			s.pass(90 * 24 * time.Hour)
			return s.server.EnsureKeys(t.Context())
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := start(t)
			s.app()
			states := func() map[string][]*oauth.KeyAnswer { // of the keys of access tokens
				list, err := s.server.SigningKeys(t.Context())
				if err != nil {
					t.Fatal(err)
				}
				out := make(map[string][]*oauth.KeyAnswer)
				for _, k := range list {
					if k.Algorithm == "ES384" {
						out[k.State] = append(out[k.State], k)
					}
				}
				return out
			}
			if err := wait(s); err != nil {
				t.Fatal(err)
			}
			token := s.tokens().text("access_token")
			before := states()
			if len(before["signing"]) != 1 || len(before["next"]) == 0 {
				t.Fatalf("before: %v", before)
			}
			if err := s.server.RotateKeys(t.Context(), true); err != nil {
				t.Fatal(err)
			}
			after := states()
			if next := before["next"][len(before["next"])-1]; len(after["signing"]) != 1 || after["signing"][0].ID != next.ID || after["signing"][0].PublishedUntil != nil || len(after["next"]) != 0 {
				t.Errorf("after: %v, want that the key %s signs, without an end", after, next.ID)
			}
			if len(after["retired"]) != 0 {
				t.Errorf("after: %v, want that the key %s is withdrawn", after["retired"], before["signing"][0].ID)
			}
			if h, _ := claims(t, s.tokens().text("access_token")); h["kid"] != after["signing"][0].ID {
				t.Errorf("the key %v signs, want %s", h["kid"], after["signing"][0].ID)
			}
			if s.use(token) != 401 {
				t.Error("a token of the withdrawn key is still good")
			}
			s.pass(25 * time.Hour)
			if last := states(); len(last["signing"]) != 1 || last["signing"][0].ID != after["signing"][0].ID || len(last["retired"])+len(last["next"]) != 0 {
				t.Errorf("a day later: %v", last)
			}
		})
	}
}

// Contract, Authorization 2: rotation: the last keys stay published until their tokens are
// over, whatever gave these their lifetime, and when.
func TestKeysStayPublishedUntilTheirTokensAreOver(t *testing.T) {
	t.Parallel()
	register := func(s *service, lifetime string) string {
		c := s.client(map[string]any{"clientId": "service", "confidential": true, "accessTokenLifetime": lifetime, "scopes": []string{"system/*.rs"}})
		return c.ClientSecret
	}
	grant := func(s *service, secret string) string {
		return s.post("/auth/token", url.Values{"grant_type": {"client_credentials"}, "scope": {"system/*.rs"}, "client_id": {"service"}, "client_secret": {secret}}).text("access_token")
	}
	for name, given := range map[string]func(s *service) (token string, err error){
		"the configuration": func(s *service) (string, error) {
			return grant(s, register(s, "")), s.server.RotateKeys(t.Context(), false)
		},
		"a client that has another now": func(s *service) (string, error) {
			token := grant(s, register(s, "5d"))
			if _, err := s.server.PatchClient(t.Context(), "service", []byte(`{"accessTokenLifetime": "1m"}`)); err != nil {
				return "", err
			}
			return token, s.server.RotateKeys(t.Context(), false)
		},
		"a client that is made after the rotation": func(s *service) (string, error) {
			err := s.server.RotateKeys(t.Context(), false)
			return grant(s, register(s, "5d")), err
		},
		"kiln token mint": func(s *service) (string, error) {
			register(s, "1m")
			token, err := s.server.Mint(t.Context(), s.base, "", oauth.Minting{ClientID: "service", Scope: "system/*.rs", Lifetime: "5d"})
			if err != nil {
				return "", err
			}
			return token, s.server.RotateKeys(t.Context(), false)
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := start(t, func(o *oauth.Options) { o.Config.OAuth.AccessTokenLifetime = "5d" })
			token, err := given(s)
			if err != nil {
				t.Fatal(err)
			}
			h, _ := claims(t, token)
			published := func(at *service) bool {
				var set struct{ Keys []struct{ Kid string } }
				_ = json.Unmarshal(newBrowser(t).do("GET", at.base+"/.well-known/jwks.json", nil).body, &set)
				for _, k := range set.Keys {
					if k.Kid == h["kid"] {
						return true
					}
				}
				return false
			}
			s.pass(5*24*time.Hour - time.Minute)
			if got := s.use(token); got != 200 || !published(s) {
				t.Errorf("just before the token is over: %d, its key published is %t", got, published(s))
			}
			s.pass(24 * time.Hour)
			if got := s.use(token); got != 401 || published(s) {
				t.Errorf("a day after it is over: %d, its key published is %t", got, published(s))
			}
		})
	}
}

// Contract, Authorization 2: client: `accessTokenLifetime`, also in the configuration and
// in `kiln token mint`: a year at most, since revocations are not kept longer, and a second
// at least, the unit of expires_in.
func TestAccessTokenLifetimeIsBounded(t *testing.T) {
	t.Parallel()
	s := start(t)
	s.client(map[string]any{"clientId": "service", "confidential": true, "accessTokenLifetime": "365d", "scopes": []string{"system/*.rs"}})
	if _, err := s.server.CreateClient(t.Context(), []byte(`{"confidential": true, "scopes": ["system/*.rs"], "refreshTokenLifetime": "1ms"}`)); err == nil {
		t.Error("a client's refresh tokens may live for 1ms")
	}
	for lifetime, good := range map[string]bool{"365d": true, "366d": false, "1s": true, "1ms": false, "999ms": false} {
		if _, err := s.server.CreateClient(t.Context(), []byte(`{"confidential": true, "scopes": ["system/*.rs"], "accessTokenLifetime": "`+lifetime+`"}`)); (err == nil) != good {
			t.Errorf("a client's accessTokenLifetime %s: %v", lifetime, err)
		}
		if _, err := s.server.Mint(t.Context(), s.base, "", oauth.Minting{ClientID: "service", Scope: "system/*.rs", Lifetime: lifetime}); (err == nil) != good {
			t.Errorf("kiln token mint --expires %s: %v", lifetime, err)
		}
		c := oauth.DefaultConfig()
		c.OAuth.AccessTokenLifetime = lifetime
		if err := c.Check(); (err == nil) != good {
			t.Errorf("auth.oauth.access_token_lifetime %s: %v", lifetime, err)
		}
	}
}

// An administrator can mint only tokens that the client could get. Contract, Authorization
// 3: `scopes` (what it may ask for); 2: `kiln token mint`.
func TestMintedScopes(t *testing.T) {
	t.Parallel()
	s := start(t)
	s.app()
	s.client(map[string]any{"clientId": "service", "confidential": true, "grantTypes": []string{"client_credentials"}, "scopes": []string{"system/*.rs"}})
	s.client(map[string]any{"clientId": "none", "confidential": true, "grantTypes": []string{"client_credentials"}, "scopes": []string{"metrics"}})
	for _, tt := range []struct {
		m    oauth.Minting
		want string // in the error, "" for a token
	}{
		{oauth.Minting{ClientID: "service", Scope: "system/*.rs"}, ""},
		{oauth.Minting{ClientID: "service", Scope: "system/Patient.r"}, ""},
		{oauth.Minting{ClientID: "service", Scope: "system/*.rs admin"}, "admin"},
		{oauth.Minting{ClientID: "service", Scope: "system/*.cruds"}, "system/*.cruds"},
		{oauth.Minting{ClientID: "service", Scope: "bogus"}, "bogus"},
		{oauth.Minting{ClientID: "none", Scope: "system/*.rs"}, "system/*.rs"},
		{oauth.Minting{ClientID: "app", Scope: "patient/*.rs", Patient: "p1"}, ""},
		{oauth.Minting{ClientID: "app", Scope: "patient/*.rs", Username: "doctor"}, ""},
		{oauth.Minting{ClientID: "app", Scope: "patient/*.rs"}, "neither a patient nor a user"},
		{oauth.Minting{ClientID: "app", Scope: "user/*.rs", Username: "doctor"}, ""},
		{oauth.Minting{ClientID: "app", Scope: "user/*.rs", Patient: "p1"}, "no user"},
	} {
		tt.m.Lifetime = "1h"
		token, err := s.server.Mint(t.Context(), s.base, "", tt.m)
		if (err == nil) != (tt.want == "") || err != nil && !strings.Contains(err.Error(), tt.want) || err == nil && s.use(token) != 200 {
			t.Errorf("%+v: %v, want %q", tt.m, err, tt.want)
		}
	}
}

// A client is no API key, whose grants and AuditEvents would be taken for the key's.
// Contract, Authorization 2: client: `clientId`.
func TestClientsHaveNoNamesOfAPIKeys(t *testing.T) {
	t.Parallel()
	s := start(t)
	for id, prefix := range map[string]string{"apikey:nightly": "apikey:", "app-chart": "app-"} {
		if _, err := s.server.CreateClient(t.Context(), []byte(`{"clientId": "`+id+`"}`)); err == nil || !strings.Contains(err.Error(), prefix) {
			t.Errorf("a client %s: %v", id, err)
		}
	}
}

// No answer below /auth is kept or taken for something else, an error neither.
// Contract, Authorization 3: `Cache-Control: no-store`.
func TestHeadersOfErrors(t *testing.T) {
	t.Parallel()
	s := start(t)
	for _, tt := range []struct {
		method, path string
		status       int
	}{{"POST", "/auth/token", 400}, {"POST", "/auth/introspect", 400}, {"GET", "/auth/userinfo", 401}, {"POST", "/auth/launch", 401}, {"GET", "/auth/logout?a=1&a=2", 400}} {
		a := newBrowser(t).do(tt.method, s.base+tt.path, nil)
		if a.status != tt.status || a.header.Get("X-Content-Type-Options") != "nosniff" || a.header.Get("Cache-Control") != "no-store" {
			t.Errorf("%s %s: %d %v", tt.method, tt.path, a.status, a.header)
		}
	}
	if a := newBrowser(t).do("GET", s.base+"/auth/style.css", nil); a.status != 200 || a.header.Get("Cache-Control") != "public, max-age=3600" {
		t.Errorf("the style sheet: %d %v", a.status, a.header)
	}
}

// published returns the ids of the keys of jwks.json.
func (s *service) published() (kids []string) {
	var set struct{ Keys []struct{ Kid string } }
	_ = json.Unmarshal(newBrowser(s.t).do("GET", s.base+"/.well-known/jwks.json", nil).body, &set)
	for _, k := range set.Keys {
		kids = append(kids, k.Kid)
	}
	return kids
}

// A withdrawn key verifies nothing on any server, whoever signed with it, also a server that
// does not know of the withdrawal yet. Another key signs.
// Contract, Authorization 2: `kiln admin key rotate --now`, `kiln admin key revoke KID`.
func TestWithdrawnKey(t *testing.T) {
	t.Parallel()
	kidOf := func(token string) string {
		h, _ := claims(t, token)
		kid, _ := h["kid"].(string)
		return kid
	}
	for name, withdraw := range map[string]func(a *oauth.Admin, kid string) error{
		"rotate --now": func(a *oauth.Admin, _ string) error { return a.RotateKeys(t.Context(), true) },
		"revoke":       func(a *oauth.Admin, kid string) error { return a.RevokeKey(t.Context(), kid) },
		"revoke after a rotation": func(a *oauth.Admin, kid string) error {
			if err := a.RotateKeys(t.Context(), false); err != nil {
				return err
			}
			return a.RevokeKey(t.Context(), kid)
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := start(t)
			other := startOn(t, s.url, s.base)
			s.app()
			tokens := s.tokens()
			access, id := tokens.text("access_token"), tokens.text("id_token")
			minted, err := s.server.Mint(t.Context(), s.base, "", oauth.Minting{ClientID: "app", Scope: "patient/*.rs", Username: "doctor", Lifetime: "1h"})
			if err != nil {
				t.Fatal(err)
			}
			p, err := s.server.Verify(t.Context(), access)
			if err != nil || p.KeyID != kidOf(access) || other.server.CheckOwner(t.Context(), p.KeyID, "", "") != nil {
				t.Fatalf("before: %+v, %v", p, err)
			}
			if s.use(access) != 200 || other.use(access) != 200 || other.use(minted) != 200 {
				t.Fatal("a good token is refused")
			}
			// As the command does it, beside the servers.
			c := oauth.DefaultConfig()
			c.Signing.Algorithm = "ES384"
			if err := withdraw(oauth.NewAdmin(s.server.Store, c), kidOf(access)); err != nil {
				t.Fatal(err)
			}
			at := time.Now()
			for _, x := range []*service{s, other} {
				// A token of another server can bring the new keys before the withdrawal is read.
				for x.use(access) != 401 || x.use(minted) != 401 || x.server.CheckOwner(t.Context(), p.KeyID, "", "") == nil {
					if time.Since(at) > 10*time.Second {
						t.Fatal("tokens of the withdrawn key, or a Subscription of one, go on")
					}
				}
				if slices.Contains(x.published(), kidOf(access)) {
					t.Error("jwks.json has the withdrawn key")
				}
				next := x.refresh(tokens.text("refresh_token"))
				if next.status != 200 || x.use(next.text("access_token")) != 200 || kidOf(next.text("access_token")) == kidOf(access) {
					t.Fatalf("refresh: %d %s", next.status, next.body)
				}
				if !slices.Contains(x.published(), kidOf(next.text("access_token"))) {
					t.Error("jwks.json lacks the key that signs")
				}
				tokens = next
			}
			if took := time.Since(at); took > 5*time.Second {
				t.Errorf("the servers knew of it after %s", took)
			}
			if name == "rotate --now" && kidOf(tokens.text("id_token")) == kidOf(id) {
				t.Error("the key of ID tokens was not replaced")
			}
		})
	}
}

// An algorithm always has a key that signs, whichever of its keys is revoked. Revoking the key
// that waits for its day makes another one wait; revoking a retired key changes nothing else.
// Contract, Authorization 2: `kiln admin key revoke KID`.
func TestRevokeEachKey(t *testing.T) {
	t.Parallel()
	s := start(t)
	s.app()
	states := func() map[string]string { // kid of the keys of access tokens by state
		list, err := s.server.SigningKeys(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		out := make(map[string]string)
		for _, k := range list {
			if k.Algorithm == "ES384" {
				if out[k.State] != "" {
					t.Errorf("two keys are %s", k.State)
				}
				out[k.State] = k.ID
			}
		}
		return out
	}
	revoke := func(kid string) map[string]string {
		t.Helper()
		if err := s.server.RevokeKey(t.Context(), kid); err != nil {
			t.Fatal(err)
		}
		now := states()
		for state, k := range now {
			if k == kid {
				t.Errorf("the revoked key is %s", state)
			}
		}
		if now["signing"] == "" {
			t.Errorf("no key signs: %v", now)
		}
		if s.use(s.tokens().text("access_token")) != 200 {
			t.Error("a new token is refused")
		}
		return now
	}
	rotate := func() {
		t.Helper()
		if err := s.server.RotateKeys(t.Context(), false); err != nil {
			t.Fatal(err)
		}
	}
	// The only key.
	one := states()["signing"]
	two := revoke(one)
	if two["next"] != "" || two["retired"] != "" {
		t.Errorf("after the only key: %v", two)
	}
	// The key that waits: another one waits instead.
	rotate()
	before := states()
	after := revoke(before["next"])
	if after["signing"] != before["signing"] || after["next"] == "" {
		t.Errorf("after the key that waits: %v, was %v", after, before)
	}
	// The key that signs: the waiting one takes over, and nothing else is made.
	taken := revoke(after["signing"])
	if taken["signing"] != after["next"] || taken["next"] != "" {
		t.Errorf("after the key that signs: %v, was %v", taken, after)
	}
	// A retired key.
	token := s.tokens().text("access_token")
	rotate()
	s.pass(24*time.Hour + time.Second)
	retired := states()
	if retired["retired"] != taken["signing"] && retired["retired"] != "" {
		t.Errorf("retired: %v", retired)
	}
	if retired["retired"] != "" {
		if now := revoke(retired["retired"]); now["signing"] != retired["signing"] {
			t.Errorf("after a retired key: %v, was %v", now, retired)
		}
	}
	if s.use(token) != 401 {
		t.Error("a token of the revoked key is good")
	}
	for _, unknown := range []string{"", "nobody", one} {
		if err := s.server.RevokeKey(t.Context(), unknown); !outcome.Is(err, outcome.CodeNotFound) {
			t.Errorf("revoke %q: %v, want not-found", unknown, err)
		}
	}
}

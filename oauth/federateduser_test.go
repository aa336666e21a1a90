package oauth_test

import (
	"maps"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"kiln/oauth"
	"kiln/oauth/storage"
)

// hospital is an authorization server with a provider whose roles are the claim groups, and a
// second server on the same database.
func hospital(t *testing.T, more map[string]any) (s, other *service, p *fakeProvider) {
	t.Helper()
	p = newFakeProvider(t)
	entry := map[string]any{"name": "Hospital", "issuer": p.URL, "client_id": "kiln", "client_secret": "s", "claims": map[string]any{"roles": "groups", "username": "login"}}
	maps.Copy(entry, more)
	configure := func(o *oauth.Options) { o.Config.Federation.Providers = []map[string]any{entry} }
	s = start(t, configure)
	other = startOn(t, s.url, s.base, configure)
	s.app()
	return s, other, p
}

// federated signs in with the provider, and returns the tokens.
func (s *service) federated(p *fakeProvider, claims map[string]any) *answer {
	s.t.Helper()
	t, ok := s.t.(*testing.T)
	if !ok {
		s.t.Fatal("no test")
	}
	b, page := p.signIn(t, s, claims)
	if page.status != http.StatusOK {
		s.t.Fatalf("sign in: %d %s", page.status, page.body)
	}
	code := s.walk(b, page, "").Get("code")
	a := s.exchange(code)
	if a.status != http.StatusOK {
		s.t.Fatalf("exchange: %d %s", a.status, a.body)
	}
	return a
}

func (s *service) stored(name string) *storage.User {
	s.t.Helper()
	u, err := s.server.Store.User(s.t.Context(), name)
	if err != nil {
		s.t.Fatalf("user %s: %v", name, err)
	}
	return u
}

// Each sign-in applies the provider's roles and fhirUser. Roles that the provider no longer
// sends are withdrawn, with the user's tokens on every server; an administrator's roles
// stay. Contract, Authorization 5: roles and `fhirUser` are applied at every sign-in.
func TestEachSignInAppliesClaims(t *testing.T) {
	t.Parallel()
	s, other, p := hospital(t, map[string]any{"auto_provision": true})
	first := map[string]any{"sub": "1", "login": "zoe", "fhirUser": "Practitioner/1", "groups": []any{"nurse", "admin"}}
	for name, tt := range map[string]struct {
		claims   map[string]any
		roles    []string
		fhirUser string
		ends     bool
	}{
		"the same again":             {first, []string{"admin", "nurse"}, "Practitioner/1", false},
		"the roles in another order": {map[string]any{"fhirUser": "Practitioner/1", "groups": []any{"admin", "nurse"}}, []string{"admin", "nurse"}, "Practitioner/1", false},
		"a role less":                {map[string]any{"fhirUser": "Practitioner/1", "groups": []any{"nurse"}}, []string{"nurse"}, "Practitioner/1", true},
		"no roles":                   {map[string]any{"fhirUser": "Practitioner/1"}, nil, "Practitioner/1", true},
		"another role":               {map[string]any{"fhirUser": "Practitioner/1", "groups": "doctor"}, []string{"doctor"}, "Practitioner/1", true},
		"another fhirUser":           {map[string]any{"fhirUser": "Practitioner/3", "groups": []any{"nurse", "admin"}}, []string{"admin", "nurse"}, "Practitioner/3", true},
		"no fhirUser":                {map[string]any{"groups": []any{"nurse", "admin"}}, []string{"admin", "nurse"}, "", true},
	} {
		t.Run(name, func(t *testing.T) {
			sub := strings.ReplaceAll(name, " ", "-")
			with := func(claims map[string]any) map[string]any {
				c := maps.Clone(claims)
				c["sub"], c["login"] = sub, sub
				return c
			}
			before := s.federated(p, with(first)).text("access_token")
			if s.use(before) != 200 || other.use(before) != 200 {
				t.Fatal("the first token is refused")
			}
			s.federated(p, with(tt.claims))
			u := s.stored(sub)
			if got := slices.Sorted(slices.Values(u.Roles)); !slices.Equal(got, tt.roles) || u.FHIRUser != tt.fhirUser {
				t.Errorf("%v %q, want %v %q", got, u.FHIRUser, tt.roles, tt.fhirUser)
			}
			if !tt.ends {
				if s.use(before) != 200 || other.use(before) != 200 {
					t.Error("the first token has ended")
				}
				return
			}
			for at := time.Now(); s.use(before) != 401 || other.use(before) != 401; {
				if time.Since(at) > 5*time.Second {
					t.Fatal("the first token is still good")
				}
			}
		})
	}
	t.Run("a fhirUser that is not here", func(t *testing.T) {
		c := map[string]any{"sub": "moved", "login": "moved", "fhirUser": "Practitioner/1", "groups": "nurse"}
		before := s.federated(p, c).text("access_token")
		c["fhirUser"] = "Patient/nobody"
		if _, a := p.signIn(t, s, c); a.status != 401 {
			t.Errorf("signed in: %d", a.status)
		}
		if u := s.stored("moved"); u.FHIRUser != "" || !u.Unbound() || s.use(before) != 401 {
			t.Errorf("the fhirUser is %q, and its token is good", u.FHIRUser)
		}
	})
	t.Run("what an administrator gave stays", func(t *testing.T) {
		c := map[string]any{"sub": "kept", "login": "kept", "groups": "nurse"}
		s.federated(p, c)
		if _, err := s.server.PatchUser(t.Context(), "kept", []byte(`{"roles": ["nurse", "auditor"], "fhirUser": "Practitioner/1"}`)); err != nil {
			t.Fatal(err)
		}
		s.federated(p, map[string]any{"sub": "kept", "login": "kept"})
		if u := s.stored("kept"); !slices.Equal(u.Roles, []string{"auditor"}) || u.FHIRUser != "Practitioner/1" {
			t.Errorf("%v %q", u.Roles, u.FHIRUser)
		}
	})
	t.Run("a disabled user", func(t *testing.T) {
		c := map[string]any{"sub": "off", "login": "off", "groups": "nurse"}
		s.federated(p, c)
		if _, err := s.server.PatchUser(t.Context(), "off", []byte(`{"active": false}`)); err != nil {
			t.Fatal(err)
		}
		if _, a := p.signIn(t, s, c); a.status != 401 {
			t.Errorf("signed in: %d", a.status)
		}
	})
}

// The fhirUser that a provider withdraws from a user of an administrator leaves nothing: else
// a patient would become somebody who reaches everything.
// Contract, Authorization 5: a user without `fhirUser` reaches nothing through user/.
func TestWithdrawnFHIRUserReachesNothing(t *testing.T) {
	t.Parallel()
	s, _, p := hospital(t, nil)
	s.user(map[string]any{"username": "jane"})
	if u := s.stored("jane"); u.Unbound() {
		t.Error("a user of an administrator is unbound")
	}
	s.federated(p, map[string]any{"sub": "1", "login": "jane"})
	if u := s.stored("jane"); u.Unbound() {
		t.Error("a user whom the administrator has made is unbound after a sign-in")
	}
	s.federated(p, map[string]any{"sub": "1", "fhirUser": "Patient/p1"})
	s.federated(p, map[string]any{"sub": "1"})
	if u := s.stored("jane"); u.FHIRUser != "" || !u.Unbound() {
		t.Errorf("%+v is not unbound", u)
	}
	if _, err := s.server.PatchUser(t.Context(), "jane", []byte(`{"name": "Jane"}`)); err != nil || !s.stored("jane").Unbound() {
		t.Errorf("changing the name binds the user, %v", err)
	}
}

// A name claim links to a user without an identity, once; a later identity with the same
// name is another person. Contract, Authorization 5: a name claim links only to a user who
// has no identity yet.
func TestNameClaimLinksOnce(t *testing.T) {
	t.Parallel()
	for name, auto := range map[string]bool{"auto_provision": true, "by administrators": false} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s, _, p := hospital(t, map[string]any{"auto_provision": auto})
			if auto {
				if err := s.server.Store.CreateUser(t.Context(), &storage.User{Username: "jane", FHIRUser: "Practitioner/1", Active: true}); err != nil {
					t.Fatal(err)
				}
			} else {
				s.user(map[string]any{"username": "jane", "fhirUser": "Practitioner/1"})
			}
			subject := func(c map[string]any) string {
				_, payload := claims(t, s.federated(p, c).text("access_token"))
				sub, _ := payload["sub"].(string)
				return sub
			}
			if got := subject(map[string]any{"sub": "1", "login": "jane"}); got != "jane" {
				t.Errorf("the first is %s", got)
			}
			if got := subject(map[string]any{"sub": "1", "login": "other"}); got != "jane" {
				t.Errorf("the first, by another name, is %s", got)
			}
			if !auto {
				if _, a := p.signIn(t, s, map[string]any{"sub": "2", "login": "jane"}); a.status != 401 {
					t.Errorf("the second has signed in: %d %s", a.status, a.body)
				}
				return
			}
			if got := subject(map[string]any{"sub": "2", "login": "jane"}); got != "Hospital:2" {
				t.Errorf("the second is %s", got)
			}
			if got := subject(map[string]any{"sub": "3", "login": "Hospital:2"}); got != "Hospital:3" {
				t.Errorf("the third, by the name of the second, is %s", got)
			}
		})
	}
}

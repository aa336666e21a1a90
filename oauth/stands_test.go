package oauth_test

import (
	"fmt"
	"net/url"
	"testing"
	"time"

	"kiln/server/outcome"
)

// Notifications, Access: a Subscription ends with the token, the user, the client or the
// API key that it was written with; not when the token expires. Contract, Authorization 3:
// revoking: what was given to a revoked owner ends.
func TestStands(t *testing.T) {
	t.Parallel()
	s := start(t)
	s.app()
	s.client(map[string]any{"clientId": "backend", "confidential": true, "clientSecret": password, "grantTypes": []string{"client_credentials"}, "scopes": []string{"system/*.rs"}})
	other := startOn(t, s.url, s.base)

	type owner struct{ subject, client, token, session string }
	user := func() (owner, *answer) {
		a := s.tokens()
		_, c := claims(t, a.text("access_token"))
		return owner{"doctor", "app", fmt.Sprint(c["jti"]), fmt.Sprint(c["sid"])}, a
	}
	backend := func() (owner, *answer) {
		a := s.post("/auth/token", url.Values{"grant_type": {"client_credentials"}, "scope": {"system/*.rs"}, "client_id": {"backend"}, "client_secret": {password}})
		_, c := claims(t, a.text("access_token"))
		return owner{"backend", "backend", fmt.Sprint(c["jti"]), ""}, a
	}
	stands := func(s *service, o owner) bool {
		t.Helper()
		err := s.server.Stands(t.Context(), o.subject, o.client, o.token, o.session)
		if err != nil && !outcome.Is(err, outcome.CodeLogin) {
			t.Fatalf("%v: %v, want login", o, err)
		}
		return err == nil
	}
	ends := func(name string, o owner, end func()) {
		t.Helper()
		if !stands(s, o) || !stands(other, o) {
			t.Fatalf("%s: %v does not stand to begin with", name, o)
		}
		end()
		if name != "an API key expires" && stands(s, o) {
			t.Errorf("%s: %v still stands on the server that was told", name, o)
		}
		eventually(t, time.Second, func() bool { return !stands(s, o) })
		eventually(t, time.Second, func() bool { return !stands(other, o) })
	}
	patch := func(change func() error) func() {
		return func() {
			if err := change(); err != nil {
				t.Fatal(err)
			}
		}
	}
	client := func(id, body string) func() {
		return patch(func() error { _, err := s.server.PatchClient(t.Context(), id, []byte(body)); return err })
	}

	o, a := user()
	ends("the token is revoked", o, func() { s.post("/auth/revoke", url.Values{"token": {a.text("access_token")}, "client_id": {"app"}}) })
	o, a = user()
	ends("the refresh token is revoked", o, func() { s.post("/auth/revoke", url.Values{"token": {a.text("refresh_token")}, "client_id": {"app"}}) })
	o, _ = user()
	ends("the user is disabled", o, patch(func() error {
		_, err := s.server.PatchUser(t.Context(), "doctor", []byte(`{"active": false}`))
		return err
	}))
	if _, err := s.server.PatchUser(t.Context(), "doctor", []byte(`{"active": true}`)); err != nil {
		t.Fatal(err)
	}
	o, _ = user()
	ends("the client is disabled", o, client("app", `{"active": false}`))
	client("app", `{"active": true}`)()
	if stands(s, o) {
		t.Error("what a client got before it was disabled stands again")
	}
	o, a = backend()
	ends("a backend's token is revoked", o, func() {
		s.post("/auth/revoke", url.Values{"token": {a.text("access_token")}, "client_id": {"backend"}, "client_secret": {password}})
	})
	o, _ = backend()
	ends("a backend is disabled", o, client("backend", `{"active": false}`))
	client("backend", `{"active": true}`)()
	o, _ = backend()
	ends("a backend is deleted", o, patch(func() error { return s.server.DeleteClient(t.Context(), "backend") }))

	key, err := s.server.CreateAPIKey(t.Context(), "feed", "system/*.rs", "")
	if err != nil {
		t.Fatal(err)
	}
	o = owner{"feed", "apikey:feed", key.ID, ""}
	ends("an API key is revoked", o, patch(func() error { return s.server.RevokeAPIKey(t.Context(), key.ID) }))
	if key, err = s.server.CreateAPIKey(t.Context(), "feed", "system/*.rs", "1h"); err != nil {
		t.Fatal(err)
	}
	o = owner{"feed", "apikey:feed", key.ID, ""}
	ends("an API key expires", o, func() {
		s.pass(2 * time.Hour)
		other.pass(2 * time.Hour)
	})

	o, _ = user()
	s.pass(200 * 24 * time.Hour)
	if !stands(s, o) {
		t.Error("a user's authorization does not outlive its tokens")
	}
	if stands(s, owner{"x", "nobody", "t", ""}) {
		t.Error("a client that there is not stands")
	}
}

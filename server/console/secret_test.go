package console_test

import (
	"net/http"
	"net/url"
	"regexp"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
)

var secretInput = regexp.MustCompile(`<input id="secret" class="code" readonly value="([^"]+)"`)

// made sends a form that makes a secret, and returns the secret from the page that the form leads to.
func (v *visitor) made(path string, form url.Values) string {
	v.s.t.Helper()
	p := v.get(v.post(path, form).want(http.StatusSeeOther).location).want(http.StatusOK)
	m := secretInput.FindStringSubmatch(p.body)
	if m == nil {
		v.s.t.Fatalf("%s shows no secret: %.2000s", p.what, p.body)
	}
	return m[1]
}

// A new password, secret or key is shown once, to the session that has made it, on any server, for two minutes. The database has
// no text of it.
func TestSecretIsShownOnce(t *testing.T) {
	t.Parallel()
	s, database := signedUp(t)
	other := start(t, database, withAuthorization, sameIssuer(s.base))
	admin, stranger := s.visitor(), s.visitor()
	admin.signIn("admin", "/console").want(200)
	stranger.signIn("admin", "/console").want(200)
	elsewhere := admin.on(other)
	db, err := pgx.Connect(t.Context(), database)
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close(t.Context())
	for _, tt := range []struct {
		name, path string
		form       url.Values
	}{
		{"password", "/console/access/users/new", url.Values{"username": {"nurse"}, "active": {"true"}}},
		{"secret of a client", "/console/access/clients/new", url.Values{"clientid": {"loader"}, "confidential": {"true"}, "scopes": {"system/Patient.rs"}, "active": {"true"}}},
		{"key", "/console/access/keys/new", url.Values{"name": {"tool"}, "scopes": {"system/*.rs"}}},
	} {
		to := admin.post(tt.path, tt.form).want(http.StatusSeeOther).location
		stranger.get(to).want(200).lacks(`id="secret"`) // another session of the same person
		var kept string
		if err := db.QueryRow(t.Context(), "SELECT string_agg(request::text, ' ') FROM console_request WHERE session LIKE 'secret %'").Scan(&kept); err != nil {
			t.Fatal(err)
		}
		p := elsewhere.get(to).want(200).has(`id="secret"`)
		secret := secretInput.FindStringSubmatch(p.body)[1]
		if strings.Contains(kept, secret) || strings.Contains(to, secret) || !strings.Contains(kept, "Sealed") {
			t.Errorf("%s: %q is in %s or %s", tt.name, secret, kept, to)
		}
		admin.get(to).want(200).lacks(`id="secret"`, secret).has("The secret was shown once.") // the back button
		elsewhere.get(to).want(200).lacks(`id="secret"`, secret)
		var rows int
		if err := db.QueryRow(t.Context(), "SELECT count(*) FROM console_request WHERE session LIKE 'secret %'").Scan(&rows); err != nil || rows != 0 {
			t.Errorf("%s: %d rows stay: %v", tt.name, rows, err)
		}
	}

	// After two minutes it is not shown, and the next secret sweeps it.
	late := admin.post("/console/access/keys/new", url.Values{"name": {"late"}, "scopes": {"system/*.rs"}}).want(http.StatusSeeOther).location
	forgotten := admin.post("/console/access/keys/new", url.Values{"name": {"forgotten"}, "scopes": {"system/*.rs"}}).want(http.StatusSeeOther).location
	if _, err := db.Exec(t.Context(), "UPDATE console_request SET at = at - interval '121 seconds' WHERE session LIKE 'secret %'"); err != nil {
		t.Fatal(err)
	}
	admin.get(late).want(200).lacks(`id="secret"`)
	admin.made("/console/access/keys/new", url.Values{"name": {"next"}, "scopes": {"system/*.rs"}})
	var rows int
	if err := db.QueryRow(t.Context(), "SELECT count(*) FROM console_request WHERE session LIKE 'secret %'").Scan(&rows); err != nil || rows != 0 {
		t.Errorf("%d rows stay: %v", rows, err)
	}
	admin.get(forgotten).want(200).lacks(`id="secret"`)
}

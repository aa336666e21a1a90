package main

import (
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"kiln/server/store/storetest"
)

// Contract, Console: `kiln admin session list|revoke` on the database.
func TestAdminSessionCommand(t *testing.T) {
	t.Parallel()
	database := storetest.New(t)
	run := func(line string) (string, error) {
		c := exec.Command(os.Args[0], strings.Fields(line)...)
		c.Dir, c.Env = t.TempDir(), append(os.Environ(), "RUN_AS_KILN=1", "KILN_DATABASE__URL="+database, "KILN_AUTH__SIGNING__ALGORITHM=ES384", "KILN_SERVER__LISTEN="+freeAddress(t))
		out, err := c.Output()
		return string(out), err
	}
	if out, err := run("admin user create doctor"); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	db, err := pgx.Connect(t.Context(), database)
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close(t.Context())
	for _, sql := range []string{
		"INSERT INTO oauth_grant (id, client_id, username, scope, created, expires) VALUES ('c757873d-ec9a-4326-a141-556f43239520', 'kiln-console', 'doctor', 'user/*.cruds', now(), now() + interval '1 day'), ('c757873d-ec9a-4326-a141-556f43239521', 'kiln-console', 'doctor', 'user/*.cruds', now(), now() + interval '1 day')",
		"INSERT INTO console_session (id, grant_id, username, started, last_active, address) VALUES ('hash1', 'c757873d-ec9a-4326-a141-556f43239520', 'doctor', now(), now(), '127.0.0.1'), ('hash2', 'c757873d-ec9a-4326-a141-556f43239521', 'doctor', now(), now(), '127.0.0.2')",
	} {
		if _, err := db.Exec(t.Context(), sql); err != nil {
			t.Fatal(err)
		}
	}
	out, err := run("admin session list --user doctor")
	if err != nil || !strings.Contains(out, "127.0.0.1") || !strings.Contains(out, "127.0.0.2") || !strings.Contains(out, `"id": "c757873d-ec9a-4326-a141-556f43239520"`) || strings.Contains(out, "hash") {
		t.Fatalf("the sessions: %v %s", err, out)
	}
	if out, err := run("admin session list --user other"); err != nil || strings.TrimSpace(out) != "[]" {
		t.Errorf("the sessions of another user: %v %s", err, out)
	}
	if out, err := run("admin session revoke c757873d-ec9a-4326-a141-556f43239520"); err != nil {
		t.Fatalf("revoke: %v %s", err, out)
	}
	if out, err = run("admin session list"); err != nil || strings.Contains(out, "127.0.0.1") || !strings.Contains(out, "127.0.0.2") {
		t.Errorf("after revoke: %v %s", err, out)
	}
	if _, err := run("admin session revoke none"); err == nil {
		t.Error("an unknown session is revoked")
	}
}

package main

import (
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"kiln/server/store/storetest"
)

// Every migrate command says that a later build has migrated the database.
func TestMigrateOfALaterSchema(t *testing.T) {
	t.Parallel()
	url := storetest.New(t)
	conn, err := pgx.Connect(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(t.Context())
	environment := []string{"KILN_SERVER__LISTEN=127.0.0.1:0", "KILN_DATABASE__URL=" + url}
	if out, err := runKiln(t, environment, "migrate", "plan"); err != nil || !strings.Contains(out, "nothing to do") {
		t.Fatalf("plan of this build's schema: %v %s", err, out)
	}
	if _, err := conn.Exec(t.Context(), "INSERT INTO goose_db_version (version_id, is_applied) VALUES (9998, true)"); err != nil {
		t.Fatal(err)
	}
	for _, command := range []string{"plan", "up"} {
		if out, err := runKiln(t, environment, "migrate", command); err == nil || !strings.Contains(out, "the database has schema 9998, and this build knows") || strings.Contains(out, "nothing to do") {
			t.Errorf("migrate %s: %v %s", command, err, out)
		}
	}
	if out, err := runKiln(t, environment, "migrate", "status"); err != nil || !strings.Contains(out, "9998  (of a later build)") {
		t.Errorf("migrate status: %v %s", err, out)
	}
}

package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"kiln/server/store/storetest"
	"kiln/server/view/table"
)

// The commands for tables work on the database, beside a server that builds.
func TestViewTableCommands(t *testing.T) {
	t.Parallel()
	database := storetest.New(t)
	s := startBulkServer(t, database, filepath.Join(t.TempDir(), "bulk"))
	for path, body := range map[string]string{
		"ViewDefinition/p": `{"resourceType":"ViewDefinition","id":"p","name":"People","status":"active","resource":"Patient","select":[{"column":[{"name":"id","path":"id"}]}]}`,
		"Patient/1":        `{"resourceType":"Patient","id":"1"}`,
	} {
		if code, _, answer := s.ask("PUT", "/fhir/"+path, "application/fhir+json", body); code != 201 {
			t.Fatalf("PUT is %d: %s", code, answer)
		}
	}
	run := func(args ...string) (string, error) {
		return runKiln(t, []string{"KILN_DATABASE__URL=" + database, "KILN_SERVER__LISTEN=" + s.address}, append([]string{"view"}, args...)...)
	}
	ok := func(args ...string) string {
		t.Helper()
		out, err := run(args...)
		if err != nil {
			t.Fatalf("kiln view %s: %v: %s", strings.Join(args, " "), err, out)
		}
		return out
	}
	if out := ok("materialize", "p", "--index", "ID", "--wait"); !strings.Contains(out, "view.people") || !strings.Contains(out, table.Current) {
		t.Errorf("materialize prints %s", out)
	}
	var list struct{ Views []table.Table }
	out := ok("list", "--json")
	if err := json.Unmarshal([]byte(out[strings.Index(out, "{"):]), &list); err != nil || len(list.Views) != 1 || list.Views[0].Rows != 1 || fmt.Sprint(list.Views[0].Indexes) != "[[id]]" {
		t.Errorf("list prints %s (%v)", out, err)
	}
	conn, err := pgx.Connect(t.Context(), database)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(context.Background())
	role := fmt.Sprintf("kiln_analyst_%d", os.Getpid())
	for _, sql := range []string{"DROP ROLE IF EXISTS " + role, "CREATE ROLE " + role} {
		if _, err := conn.Exec(t.Context(), sql); err != nil {
			t.Fatal(err)
		}
	}
	defer conn.Exec(context.Background(), "DROP OWNED BY "+role+"; DROP ROLE "+role)
	may := func(want bool) {
		t.Helper()
		var may bool
		if err := conn.QueryRow(t.Context(), "SELECT has_schema_privilege($1, 'view', 'USAGE') AND has_table_privilege($1, 'view.people', 'SELECT')", role).Scan(&may); err != nil || may != want {
			t.Errorf("the role may read: %t (%v)", may, err)
		}
	}
	may(false)
	ok("grant", role)
	may(true)
	ok("revoke", role)
	may(false)
	ok("grant", role, "--view", "People")
	may(true)
	ok("drop", "people")
	for _, args := range [][]string{{"drop", "people"}, {"materialize", "none"}, {"grant", "nobody_here"}, {"grant", role, "--view", "none"}} {
		if out, err := run(args...); err == nil {
			t.Errorf("kiln view %s ends well: %s", strings.Join(args, " "), out)
		}
	}
}

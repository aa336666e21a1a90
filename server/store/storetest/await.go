package storetest

import (
	"context"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
)

// Await waits until done holds: it is asked again after each change of one of the tables of a
// database, of which triggers tell from now on. It fails the test after a minute.
func Await(t testing.TB, url, what string, done func() bool, tables ...string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	conn, err := pgx.Connect(ctx, url)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(context.Background())
	run := func(sql string) {
		t.Helper()
		if _, err := conn.Exec(ctx, sql); err != nil {
			t.Fatalf("watch %v: %v", tables, err)
		}
	}
	run(`CREATE OR REPLACE FUNCTION storetest_changed() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN NOTIFY storetest_changed; RETURN NULL; END'`)
	for _, table := range tables { // each by itself: others write, and may hold several
		var there bool
		if err := conn.QueryRow(ctx, "SELECT EXISTS (SELECT FROM pg_trigger t WHERE t.tgrelid = $1::regclass AND t.tgname = 'storetest_changed')", table).Scan(&there); err != nil {
			t.Fatal(err)
		}
		if !there {
			run("CREATE TRIGGER storetest_changed AFTER INSERT OR UPDATE OR DELETE ON " + pgx.Identifier{table}.Sanitize() + " FOR EACH STATEMENT EXECUTE FUNCTION storetest_changed()")
		}
	}
	run("LISTEN storetest_changed")
	for !done() {
		if _, err := conn.WaitForNotification(ctx); err != nil {
			t.Fatalf("%s: %v", what, err)
		}
	}
}

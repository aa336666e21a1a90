package store_test

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"testing"
	"time"

	"kiln/server/fhir"
	"kiln/server/store"
	"kiln/server/store/storetest"

	"github.com/jackc/pgx/v5"
)

// TestEpochOfAPromotion promotes a standby that lacks the last writes of its primary. The
// server on it empties its memory, and a change of the lost timeline is found nowhere.
func TestEpochOfAPromotion(t *testing.T) {
	ctx := t.Context()
	s, at := open(t)
	write(t, s, put(t, "Patient", "p", "x"))
	standbyURL := startStandby(t, at)
	standby := openAt(t, standbyURL)
	if n := standby.Epoch().Number(); n != 1 {
		t.Fatalf("epoch %d on the standby, want 1", n)
	}
	execute(t, standbyURL, "SELECT pg_wal_replay_pause()")
	write(t, s, put(t, "Patient", "lost", "x"))
	lost, err := s.ChangeHorizon(ctx)
	if err != nil {
		t.Fatal(err)
	}
	execute(t, standbyURL, "ALTER SYSTEM SET primary_conninfo = ''", "SELECT pg_reload_conf()", "SELECT pg_promote()")
	write(t, standby, put(t, "Device", "d", "x"))
	epochs, err := standby.Epochs(ctx)
	if err != nil || len(epochs) != 2 || epochs[1].Cause != "promotion" || epochs[1].Timeline != 2 || epochs[1].ID != standby.Epoch() {
		t.Fatalf("epochs %+v, %v", epochs, err)
	}
	changes, err := standby.Changes(ctx, store.ChangePosition{}, 10)
	if err != nil || len(changes) < 2 || changes[len(changes)-1].Position.Epoch != epochs[1].ID {
		t.Fatalf("changes %+v, %v", changes, err)
	}
	if ahead, err := standby.FindCursor(ctx, changes[0].Position); ahead || err != nil {
		t.Errorf("the cursor of a change of the former epoch: ahead %v, %v", ahead, err)
	}
	beyond := lost
	beyond.XID += 1000
	for _, p := range []store.ChangePosition{beyond, {Epoch: epochs[1].ID + 1, XID: 900, RID: 1, Version: 1}} {
		var gone *store.TrimmedError
		if _, err := standby.FindCursor(ctx, p); !errors.As(err, &gone) || !gone.Lost {
			t.Errorf("the cursor %+v of a change that is not part of the history: %v", p, err)
		} else if _, err := standby.ChangesSince(ctx, gone.Next()); err != nil {
			t.Errorf("the instant %v of the answer does not work: %v", gone.Next(), err)
		}
	}
}

// TestEpochOfACopy restores a database elsewhere with pg_dump and psql: transaction numbers begin again, readers continue
// behind their last change, and nothing is read twice.
func TestEpochOfACopy(t *testing.T) {
	ctx := t.Context()
	if _, err := exec.LookPath("pg_dump"); err != nil {
		t.Skip("pg_dump is not installed: ", err)
	}
	s, at := open(t)
	execute(t, at, "INSERT INTO change_reader (name, xid, rid, version) VALUES ('r', '0', 0, 0)")
	for _, id := range []string{"a", "b", "c"} {
		write(t, s, put(t, "Patient", id, "x"))
	}
	all, err := s.Changes(ctx, store.ChangePosition{}, 10)
	if err != nil || len(all) != 3 {
		t.Fatalf("changes %+v, %v", all, err)
	}
	// As in another cluster, the numbers of this database lie far ahead.
	execute(t, at, "UPDATE change SET xid = (xid::text::bigint + 1000000000)::text::xid8",
		"UPDATE change_reader SET xid = (SELECT max(xid::text::bigint)::text::xid8 FROM change)")
	copied := storetest.New(t)
	execute(t, copied, "DROP SCHEMA public CASCADE", "CREATE SCHEMA public")
	dump := exec.Command("sh", "-c", `pg_dump "$FROM" | psql -q -v ON_ERROR_STOP=1 "$TO"`)
	dump.Env = append(os.Environ(), "FROM="+at, "TO="+copied)
	if out, err := dump.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	c := openAt(t, copied)
	write(t, c, put(t, "Patient", "d", "x"))
	epochs, err := c.Epochs(ctx)
	if err != nil || len(epochs) != 2 || epochs[1].Cause != "copy" {
		t.Fatalf("epochs %+v, %v", epochs, err)
	}
	readers, err := c.Readers(ctx)
	if err != nil || len(readers) != 1 || readers[0].Ahead {
		t.Fatalf("readers %+v, %v", readers, err)
	}
	rest, err := c.Changes(ctx, readers[0].Position, 10)
	if err != nil {
		t.Fatal(err)
	}
	if last := rest[len(rest)-1]; last.Ref != int64(fhir.ValueReference("Patient", "d")) || last.Position.Epoch != epochs[1].ID {
		t.Errorf("the last change is %+v", last)
	}
	execute(t, copied, "UPDATE change_reader SET xid = '9000000000', epoch = (SELECT epoch FROM search_registry)")
	if readers, err := c.Readers(ctx); err != nil || !readers[0].Ahead {
		t.Errorf("a reader ahead of the database: %+v, %v", readers, err)
	}
}

// TestManualEpoch stores a new epoch while a server writes: the server notices it with its next write, and the changes of
// both epochs are read in order.
func TestManualEpoch(t *testing.T) {
	ctx := t.Context()
	s, at := open(t)
	write(t, s, put(t, "Patient", "a", "x"))
	e, err := store.StartEpoch(ctx, at)
	if err != nil || e.ID.Number() != 2 || e.Cause != "manual" {
		t.Fatalf("epoch %+v, %v", e, err)
	}
	write(t, s, put(t, "Patient", "b", "x"))
	if s.Epoch() != e.ID {
		t.Errorf("the server works in epoch %x, want %x", s.Epoch(), e.ID)
	}
	// Changes stops before the oldest transaction on this PostgreSQL, which may belong to another test.
	var changes []store.Change
	for deadline := time.Now().Add(time.Minute); len(changes) < 2 && err == nil && time.Now().Before(deadline); {
		changes, err = s.Changes(ctx, store.ChangePosition{}, 10)
	}
	if err != nil || len(changes) != 2 || changes[0].Position.Epoch != store.FirstEpoch || changes[1].Position.Epoch != e.ID {
		t.Errorf("changes %+v, %v", changes, err)
	}
}

func execute(t *testing.T, url string, statements ...string) {
	t.Helper()
	conn, err := pgx.Connect(context.Background(), url)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(context.Background())
	for _, sql := range statements {
		if _, err := conn.Exec(context.Background(), sql); err != nil {
			t.Fatalf("%s: %v", sql, err)
		}
	}
}

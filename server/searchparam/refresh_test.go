package searchparam

import (
	"context"
	"log/slog"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"kiln/gen/index"
	"kiln/gen/r4"
	"kiln/server/fhir"
	"kiln/server/search"
	"kiln/server/store"
	"kiln/server/store/storetest"
)

// TestRefreshOfBeforeAWrite holds back the answer to a Refresh that was given before a definition was written. A Refresh
// after the write does not take that answer for its own.
func TestRefreshOfBeforeAWrite(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	at := storetest.New(t)
	s, err := store.Open(ctx, store.Config{URL: at})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	var forgotten atomic.Int64
	service := &Service{Base: search.NewRegistry(r4.Model, index.Parameters, index.Compartments), Value: index.Value, Model: r4.Model, Store: s,
		NewID: fhir.NewID, Now: time.Now, Logger: slog.New(slog.DiscardHandler), Forget: func() { forgotten.Add(1) }, MaxAge: time.Hour}
	if err := service.Open(ctx); err != nil {
		t.Fatal(err)
	}
	conn, err := pgx.Connect(ctx, at)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close(context.Background()) })
	run := func(sql string) {
		t.Helper()
		if _, err := conn.Exec(ctx, sql); err != nil {
			t.Fatalf("%s: %v", sql, err)
		}
	}
	// The statement of ParametersState waits when it has its snapshot.
	run(`CREATE FUNCTION wait_for_test() RETURNS bigint LANGUAGE plpgsql AS
		$$ BEGIN PERFORM pg_advisory_xact_lock_shared(7); RETURN 1; END $$`)
	run("ALTER TABLE rid_next RENAME TO rid_next_of_test")
	run("CREATE VIEW rid_next AS SELECT n.* FROM (SELECT wait_for_test() OFFSET 0) w CROSS JOIN rid_next_of_test n")
	run("SELECT pg_advisory_lock(7)")
	run("UPDATE search_registry SET progress = progress + 1")
	var refreshing sync.WaitGroup
	refreshing.Go(func() {
		if err := service.Refresh(ctx); err != nil {
			t.Error(err)
		}
	})
	for deadline := time.Now().Add(time.Minute); ; {
		var waits bool
		if err := conn.QueryRow(ctx, `SELECT EXISTS (SELECT FROM pg_locks l WHERE l.locktype = 'advisory' AND NOT l.granted AND l.database =
			(SELECT d.oid FROM pg_database d WHERE d.datname = current_database()))`).Scan(&waits); err != nil {
			t.Fatal(err)
		}
		if waits {
			break
		}
		if time.Now().After(deadline) {
			t.Fatal("Refresh does not wait")
		}
	}
	run("UPDATE search_registry SET definitions = definitions + 1")
	before := forgotten.Load()
	begun := make(chan struct{})
	refreshing.Go(func() {
		close(begun)
		if err := service.Refresh(ctx); err != nil {
			t.Error(err)
		}
		if forgotten.Load() == before {
			t.Error("what was written before Refresh is not known after it")
		}
	})
	<-begun
	time.Sleep(50 * time.Millisecond) // it waits for the first one: nothing tells of that
	run("SELECT pg_advisory_unlock(7)")
	refreshing.Wait()
}

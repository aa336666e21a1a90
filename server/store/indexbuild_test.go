package store_test

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"kiln/server/jobs"
	"kiln/server/searchshape"
	"kiln/server/store"
)

// buildJobs runs the jobs of one server that build indexes.
type buildJobs struct {
	*jobs.Core
	stop func()
}

func startBuilds(t testing.TB, s *store.Store) *buildJobs {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	b := &buildJobs{Core: newCore(s, searchshape.BuildKind(s, slog.New(slog.DiscardHandler)))}
	var running sync.WaitGroup
	running.Go(func() { b.Run(ctx) })
	b.stop = func() { cancel(); running.Wait() }
	t.Cleanup(b.stop)
	return b
}

func (b *buildJobs) add(t testing.TB, name, statement string) string {
	t.Helper()
	spec, err := json.Marshal(searchshape.Build{Name: name, Statement: statement})
	if err != nil {
		t.Fatal(err)
	}
	j := &jobs.Job{Type: searchshape.BuildType, Spec: spec, Principal: []byte("{}"), Reason: "a test"}
	if err := b.Add(t.Context(), j, jobs.Part{Spec: struct{}{}}); err != nil {
		t.Fatal(err)
	}
	return j.ID
}

// awaitState waits until a job is in a state, and returns it.
func (b *buildJobs) awaitState(t testing.TB, id, state string) *jobs.Job {
	t.Helper()
	var j *jobs.Job
	for deadline := time.Now().Add(30 * time.Second); ; time.Sleep(20 * time.Millisecond) {
		var err error
		if j, err = b.Get(t.Context(), id); err != nil {
			t.Fatal(err)
		}
		if j.State == state {
			return j
		}
		if time.Now().After(deadline) {
			t.Fatalf("the job is %+v, want %s", j, state)
		}
	}
}

// indexes counts the indexes of a name, valid or not.
func indexes(t testing.TB, url, name string, valid bool) (n int) {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(context.WithoutCancel(t.Context()))
	if err := conn.QueryRow(t.Context(), "SELECT count(*) FROM pg_index i JOIN pg_class c ON c.oid = i.indexrelid WHERE c.relname = $1 AND i.indisvalid = $2", name, valid).Scan(&n); err != nil {
		t.Fatal(err)
	}
	return n
}

// An index build is a job like the others: any server takes it over, a cancelled one leaves nothing behind, and a
// statement that PostgreSQL rejects fails it.
func TestIndexBuilds(t *testing.T) {
	s, url := open(t)
	const statement = "CREATE INDEX CONCURRENTLY %s ON index_string (rid)"
	writer := func(t testing.TB) pgx.Tx { // CREATE INDEX CONCURRENTLY waits for it
		tx := olderTransaction(t, url)
		if _, err := tx.Exec(t.Context(), "LOCK TABLE index_string IN ROW EXCLUSIVE MODE"); err != nil {
			t.Fatal(err)
		}
		return tx
	}
	unfinished := func(t testing.TB, name string) {
		t.Helper()
		for deadline := time.Now().Add(30 * time.Second); indexes(t, url, name, false) != 1; time.Sleep(20 * time.Millisecond) {
			if time.Now().After(deadline) {
				t.Fatalf("the build of %s has not begun", name)
			}
		}
	}
	t.Run("a stopped server gives it to another", func(t *testing.T) {
		first := startBuilds(t, s)
		older := writer(t)
		id := first.add(t, "built_twice", fmt.Sprintf(statement, "built_twice"))
		unfinished(t, "built_twice")
		second := startBuilds(t, openAt(t, url))
		first.stop()
		if err := older.Rollback(t.Context()); err != nil {
			t.Fatal(err)
		}
		second.awaitState(t, id, jobs.Done)
		if n := indexes(t, url, "built_twice", true); n != 1 {
			t.Errorf("%d indexes are valid", n)
		}
		second.stop()
	})
	b := startBuilds(t, s)
	t.Run("a cancelled one leaves nothing", func(t *testing.T) {
		older := writer(t)
		id := b.add(t, "cancelled", fmt.Sprintf(statement, "cancelled"))
		unfinished(t, "cancelled")
		ended := make(chan error, 1)
		go func() {
			_, err := b.Cancel(context.WithoutCancel(t.Context()), id)
			ended <- err
		}()
		b.awaitState(t, id, jobs.Cancelled)
		for deadline := time.Now().Add(30 * time.Second); ; time.Sleep(20 * time.Millisecond) {
			building, err := s.IndexProgress(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			if len(building) == 0 {
				break
			}
			if time.Now().After(deadline) {
				t.Fatal("the builder does not give up")
			}
		}
		if err := older.Rollback(t.Context()); err != nil {
			t.Fatal(err)
		}
		if err := <-ended; err != nil {
			t.Fatal(err)
		}
		if n := indexes(t, url, "cancelled", false) + indexes(t, url, "cancelled", true); n != 0 {
			t.Errorf("%d indexes are left", n)
		}
	})
	t.Run("a rejected statement fails it", func(t *testing.T) {
		j := b.awaitState(t, b.add(t, "rejected", "CREATE INDEX CONCURRENTLY rejected ON index_string (no_such_column)"), jobs.Failed)
		if j.Failure != "the index cannot be built" || j.Attempts != 0 {
			t.Errorf("the job is %+v", j)
		}
	})
}

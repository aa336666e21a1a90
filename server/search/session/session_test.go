package session_test

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"

	"kiln/server/search"
	"kiln/server/search/admission"
	"kiln/server/search/match"
	"kiln/server/search/session"
	"kiln/server/store/storetest"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// pooledStore is a Store on a pool of connections.
type pooledStore struct {
	session.Store
	pool  *pgxpool.Pool
	parts atomic.Pointer[match.Parts]
}

func newPooledStore(t *testing.T) *pooledStore {
	t.Helper()
	pool, err := pgxpool.New(t.Context(), storetest.New(t))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	s := &pooledStore{pool: pool}
	s.parts.Store(new(match.Parts))
	return s
}

func (s *pooledStore) Acquire(ctx context.Context) (*pgxpool.Conn, error) { return s.pool.Acquire(ctx) }

func (s *pooledStore) Parts(context.Context) (*match.Parts, error) { return s.parts.Load(), nil }

// acquired returns the number of connections that are taken from the pool.
func (s *pooledStore) acquired() int32 { return s.pool.Stat().AcquiredConns() }

// A search keeps its connection from one statement to the next, and gives it back while it waits for others.
func TestConnectionIsKept(t *testing.T) {
	store := newPooledStore(t)
	limits := admission.New(8)
	key := admission.Key{1}
	c := session.NewConnection(limits, store)
	defer c.Close()
	if n := store.acquired(); n != 0 {
		t.Fatalf("%d connections before the first statement", n)
	}
	first, err := c.Acquire(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if second, err := c.Acquire(t.Context()); err != nil || second != first {
		t.Errorf("the second statement has another connection: %v", err)
	}
	if !limits.TryExpensive(key) {
		t.Fatal("no place of an expensive search is free")
	}
	held := int32(-1)
	waited, err := c.BecomeExpensive(t.Context(), key, func() (bool, <-chan struct{}) {
		held = store.acquired()
		return true, nil
	})
	if err != nil || !waited || c.IsExpensive() || held != 0 {
		t.Errorf("waited %v, expensive %v, %d connections while it waited: %v", waited, c.IsExpensive(), held, err)
	}
	limits.EndExpensive(key)
	if waited, err := c.BecomeExpensive(t.Context(), key, nil); err != nil || waited || !c.IsExpensive() {
		t.Errorf("waited %v, expensive %v: %v", waited, c.IsExpensive(), err)
	}
	if c.Close(); !limits.TryExpensive(key) {
		t.Error("the place of the expensive search is not given back")
	}
	if n := store.acquired(); n != 0 {
		t.Errorf("%d connections after the end", n)
	}
}

// A search that was planned for other parts of the index has to be planned again.
func TestNewParts(t *testing.T) {
	store := newPooledStore(t)
	c := session.NewConnection(admission.New(8), store)
	defer c.Close()
	c.SetParts(store.parts.Load())
	if _, err := c.Acquire(t.Context()); err != nil {
		t.Fatal(err)
	}
	store.parts.Store(&match.Parts{})
	if _, err := c.Acquire(t.Context()); !errors.Is(err, session.ErrNewParts) {
		t.Errorf("Acquire: %v, want ErrNewParts", err)
	}
	var one int
	if err := c.QueryRow(t.Context(), "SELECT 1").Scan(&one); !errors.Is(err, session.ErrNewParts) {
		t.Errorf("QueryRow: %v, want ErrNewParts", err)
	}
}

// The statements of RunInSnapshot read one snapshot, in which the search does not wait. Later statements read the present data.
func TestRunInSnapshot(t *testing.T) {
	ctx, store := t.Context(), newPooledStore(t)
	if _, err := store.pool.Exec(ctx, "CREATE TABLE counted (n integer)"); err != nil {
		t.Fatal(err)
	}
	c := session.NewConnection(admission.New(8), store)
	defer c.Close()
	s := session.New(&search.Query{}, store, c)
	count := func() (n int) {
		t.Helper()
		if err := s.QueryRow(ctx, "count", match.Statement{SQL: "SELECT count(*) FROM counted"}, &n); err != nil {
			t.Fatal(err)
		}
		return n
	}
	failure := errors.New("the outcome of f")
	err := s.RunInSnapshot(ctx, func(ctx context.Context) error {
		before := count()
		if _, err := store.pool.Exec(ctx, "INSERT INTO counted VALUES (1)"); err != nil {
			t.Fatal(err)
		}
		if after := count(); after != before || s.CanWait() {
			t.Errorf("%d rows, then %d; can wait %v", before, after, s.CanWait())
		}
		return s.RunInSnapshot(ctx, func(context.Context) error { return failure })
	})
	if !errors.Is(err, failure) {
		t.Errorf("%v, want the error of f", err)
	}
	if n := count(); n != 1 || !s.CanWait() {
		t.Errorf("%d rows after the snapshot, can wait %v", n, s.CanWait())
	}
}

// A private session uses the connection of its caller, and never waits.
func TestPrivateSession(t *testing.T) {
	ctx, store := t.Context(), newPooledStore(t)
	err := pgx.BeginFunc(ctx, store.pool, func(tx pgx.Tx) error {
		s := session.NewPrivate(&search.Query{}, store, tx)
		if !s.IsPrivate() || s.CanWait() || s.Connection() != nil {
			t.Error("the session is not private")
		}
		if waited, err := s.BecomeExpensive(ctx, admission.Key{1}); waited || err != nil {
			t.Errorf("BecomeExpensive: waited %v, %v", waited, err)
		}
		return s.RunInSnapshot(ctx, func(ctx context.Context) error {
			var one int
			return s.QueryRow(ctx, "one", match.Statement{SQL: "SELECT 1"}, &one)
		})
	})
	if err != nil || store.acquired() != 0 {
		t.Errorf("%v, %d connections are left", err, store.acquired())
	}
}

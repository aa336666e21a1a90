package searchtest

import (
	"context"
	"testing"

	"github.com/jackc/pgx/v5"

	"kiln/server/fhir"
	"kiln/server/store"
	"kiln/server/store/storetest"
)

// Open returns a Store on a database of the test's own, and its URL.
func Open(t testing.TB) (*store.Store, string) {
	t.Helper()
	url := storetest.New(t)
	return OpenAt(t, url), url
}

// OpenAt returns a Store on a database.
func OpenAt(t testing.TB, url string) *store.Store {
	t.Helper()
	s, err := store.Open(context.Background(), store.Config{URL: url})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	return s
}

// Connect returns a connection to a database, which is closed when the test ends.
func Connect(t testing.TB, url string) *pgx.Conn {
	t.Helper()
	conn, err := pgx.Connect(context.Background(), url)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close(context.Background()) })
	return conn
}

// NewDelete returns the deletion of a resource.
func NewDelete(typ, id string) *store.Write {
	return &store.Write{Method: fhir.DELETE, ResourceType: typ, ID: id}
}

// Write writes a resource, and returns its version.
func Write(t testing.TB, s *store.Store, w *store.Write) fhir.Version {
	t.Helper()
	if err := s.Write(context.Background(), w); err != nil {
		t.Fatalf("%s %s/%s: %v", w.Method, w.ResourceType, w.ID, err)
	}
	return w.Result
}

package server

import (
	"context"
	"errors"
	"log/slog"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"kiln/server/store/storetest"
)

// A start whose database stops in the middle begins again; another error ends it.
func TestStartWhileTheDatabaseStops(t *testing.T) {
	t.Parallel()
	url := storetest.New(t)
	query := func(sql string) error {
		conn, err := pgx.Connect(t.Context(), url)
		if err != nil {
			return err
		}
		defer conn.Close(context.Background())
		_, err = conn.Exec(t.Context(), sql)
		return err
	}
	for _, tt := range []struct {
		name      string
		first     string
		wantTries int
		wantErr   bool
	}{
		{"the database ends the session", "SELECT pg_terminate_backend(pg_backend_pid())", 2, false},
		{"a statement that is wrong", "SELECT nothing FROM nowhere", 1, true},
		{"nothing happens", "SELECT 1", 1, false},
	} {
		tries := 0
		err := whileUp(t.Context(), url, 10*time.Second, slog.New(slog.DiscardHandler), func() error {
			if tries++; tries == 1 {
				return query(tt.first)
			}
			return nil
		})
		if (err != nil) != tt.wantErr || tries != tt.wantTries {
			t.Errorf("%s: %d tries, %v", tt.name, tries, err)
		}
	}
	tries := 0
	stops := errors.New("unreachable")
	err := whileUp(t.Context(), url, 600*time.Millisecond, slog.New(slog.DiscardHandler), func() error {
		tries++
		stops = query("SELECT pg_terminate_backend(pg_backend_pid())")
		return stops
	})
	if !errors.Is(err, stops) || tries < 2 {
		t.Errorf("a database that stops again and again: %d tries, %v", tries, err)
	}
}

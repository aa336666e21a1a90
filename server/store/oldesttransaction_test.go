package store_test

import (
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"kiln/server/store"
	"kiln/server/store/storetest"
)

// Contract, Notifications 7: a transaction of any database of the cluster that has written something is
// found, and the server's own transactions end when they stand still.
func TestFindOldestTransaction(t *testing.T) {
	t.Parallel()
	url := storetest.New(t)
	s, err := store.Open(t.Context(), store.Config{URL: url})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	other, err := pgx.Connect(t.Context(), storetest.New(t))
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close(t.Context())
	var pid int32
	if err := other.QueryRow(t.Context(), "SELECT set_config('application_name', 'long', false), pg_backend_pid()").Scan(new(string), &pid); err != nil {
		t.Fatal(err)
	}
	// Other tests have transactions in the cluster too, which may be older.
	for _, statement := range []string{"BEGIN", "SELECT pg_current_xact_id()"} {
		if _, err := other.Exec(t.Context(), statement); err != nil {
			t.Fatal(err)
		}
	}
	found, err := store.FindOldestTransaction(t.Context(), s.Pool())
	if err != nil || found.Age <= 0 || found.Database == "" {
		t.Errorf("%+v, %v: want a transaction", found, err)
	}
	if found.PID == pid && (found.Client != "long" || !strings.Contains(found.String(), "long")) {
		t.Errorf("%+v: want the name of the program", found)
	}
	var timeout string
	if err := s.Pool().QueryRow(t.Context(), "SHOW idle_in_transaction_session_timeout").Scan(&timeout); err != nil || timeout != "10s" {
		t.Errorf("a transaction that stands still ends after %s, %v", timeout, err)
	}
}

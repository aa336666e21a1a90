package store_test

import (
	"context"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
)

// A database keeps 10,000 stored searches: those whose last use is longest ago go first.
func TestStoredSearchesAreBounded(t *testing.T) {
	s, database := open(t)
	ctx := context.Background()
	c, err := pgx.Connect(ctx, database)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close(ctx)
	put := func(self string) string {
		t.Helper()
		token, err := s.PutStoredSearch(ctx, "me", self, time.Hour)
		if err != nil {
			t.Fatal(err)
		}
		return token
	}
	has := func(token string) bool {
		t.Helper()
		_, ok, err := s.UseStoredSearch(ctx, "me", token, time.Hour)
		if err != nil {
			t.Fatal(err)
		}
		return ok
	}
	count := func() (n int) {
		t.Helper()
		if err := c.QueryRow(ctx, "SELECT count(*) FROM stored_search").Scan(&n); err != nil {
			t.Fatal(err)
		}
		return n
	}
	used, idle := put("used"), put("idle")
	if _, err := c.Exec(ctx, `INSERT INTO stored_search (token, owner, self, used)
		SELECT sha256(n::text::bytea), 'me', 'x', clock_timestamp() FROM generate_series(1, 9998) n`); err != nil {
		t.Fatal(err)
	}
	if !has(used) {
		t.Fatal("a new search is not kept")
	}
	last := put("last")
	if n := count(); n != 10_000 {
		t.Errorf("%d searches are kept, want 10,000", n)
	}
	if !has(used) || !has(last) || has(idle) {
		t.Errorf("kept: used %v, last %v, idle %v; want all but the idle one", has(used), has(last), has(idle))
	}
	if _, err := c.Exec(ctx, "UPDATE stored_search SET used = used - interval '2 hours' WHERE self = 'x'"); err != nil {
		t.Fatal(err)
	}
	if err := s.TrimStoredSearches(ctx, time.Hour); err != nil {
		t.Fatal(err)
	}
	if n := count(); n != 2 {
		t.Errorf("%d searches are kept, want the two that were used within the hour", n)
	}
	if self, ok, err := s.UseStoredSearch(ctx, "you", used, time.Hour); ok || err != nil {
		t.Errorf("another owner gets %q, %v", self, err)
	}
}

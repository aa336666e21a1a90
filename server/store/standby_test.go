package store_test

import (
	"context"
	"fmt"
	"net/url"
	"testing"
	"time"

	"kiln/server/search/plan"
	"kiln/server/search/searchtest"
	"kiln/server/store"
	"kiln/server/store/storetest"

	"github.com/jackc/pgx/v5"
)

// TestTotalsOnAStandby searches on a streaming standby while the primary has a transaction
// open. Snapshots of a standby leave running transactions out, so a cached total would miss
// their writes for ever. Source: PostgreSQL, "Functions", pg_current_snapshot; "Hot
// Standby".
func TestTotalsOnAStandby(t *testing.T) {
	ctx := t.Context()
	s, at := open(t)
	observation := func(i int) *store.Write {
		return searchtest.NewWrite(t, fmt.Appendf(nil, `{"resourceType":"Observation","id":"o%d","status":"final","code":{"coding":[{"code":"c"}]},"effectiveDateTime":"2020-01-01"}`, i))
	}
	for i := range 44 {
		write(t, s, observation(i))
	}
	standbyURL := startStandby(t, at)
	standby := openAt(t, standbyURL)
	standby.SetSearchLimit(2)
	primary, err := pgx.Connect(ctx, at)
	if err != nil {
		t.Fatal(err)
	}
	defer primary.Close(context.Background())
	replica, err := pgx.Connect(ctx, standbyURL)
	if err != nil {
		t.Fatal(err)
	}
	defer replica.Close(context.Background())
	replayed := func() {
		t.Helper()
		var lsn string
		if err := primary.QueryRow(ctx, "SELECT pg_current_wal_insert_lsn()::text").Scan(&lsn); err != nil {
			t.Fatal(err)
		}
		for deadline := time.Now().Add(30 * time.Second); ; {
			var there bool
			if err := replica.QueryRow(ctx, "SELECT pg_last_wal_replay_lsn() >= $1::text::pg_lsn", lsn).Scan(&there); err != nil {
				t.Fatal(err)
			}
			if there {
				return
			}
			if time.Now().After(deadline) {
				t.Fatal("the standby does not catch up")
			}
			time.Sleep(5 * time.Millisecond) // nothing tells of a replay
		}
	}
	totals := func(want int) {
		t.Helper()
		for range 4 { // a second miss fills the other cache
			for _, values := range [][]string{{"code", "c"}, {"date", "ge2019"}, {"status", "final", "_sort", "-date"}, {"code", "c", "_summary", "count"}} {
				sc := searchtest.Case{Type: "Observation", Values: searchtest.Parameters(values...)}
				if got := *searchtest.FindMatches(t, standby, sc.ParseQuery(t)).Total; got != want {
					t.Errorf("%s: total %d on the standby, want %d", &sc, got, want)
				}
			}
			standby.Searcher().AwaitCache()
		}
	}
	open, finish, done := make(chan struct{}), make(chan struct{}), make(chan error, 1)
	go func() {
		done <- s.InTx(ctx, func(tx *store.Tx) error {
			var ws []*store.Write
			for i := range 20 {
				ws = append(ws, observation(100+i))
			}
			if err := tx.Write(ctx, ws); err != nil {
				return err
			}
			close(open)
			<-finish
			return nil
		})
	}()
	<-open
	write(t, s, put(t, "Patient", "p", "x")) // later, and committed before
	replayed()
	totals(44)
	close(finish)
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	replayed()
	totals(64)
	if n := standby.Searcher().CacheState(); n.Sets+n.Columns > 0 {
		t.Errorf("a standby remembers %+v", n)
	}

	// The standby is promoted: the cache of the primary's state belongs to another
	// PostgreSQL.
	if _, err := replica.Exec(ctx, "SELECT pg_promote()"); err != nil {
		t.Fatal(err)
	}
	var of, taken string
	if err := primary.QueryRow(ctx, "SELECT "+plan.Now).Scan(&of); err != nil {
		t.Fatal(err)
	}
	if err := replica.QueryRow(ctx, "SELECT "+plan.Now).Scan(&taken); err != nil {
		t.Fatal(err)
	}
	if !plan.IsLasting(taken) || plan.HasSameIndex(of, taken) {
		t.Errorf("the state %q of the primary, %q of who has taken over", of, taken)
	}
	totals(64)
}

// startStandby returns the URL of the same database on a streaming standby of its server.
func startStandby(t *testing.T, at string) string {
	t.Helper()
	standby := storetest.StandbyOf(t, at)
	u, err := url.Parse(at)
	if err != nil {
		t.Fatal(err)
	}
	q := u.Query()
	q.Set("host", standby.Dir())
	u.RawQuery = q.Encode()
	return u.String()
}

package store_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"kiln/server/outcome"
	"kiln/server/store"
	"kiln/server/store/storetest"
)

// Contract, Bulk data, One moment: a chain of exports by _since is exact, with any number of
// servers and different clocks; a transaction is in it wholly or not at all.
func TestMomentChainsAreExact(t *testing.T) {
	t.Parallel()
	url := storetest.New(t)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var stores []*store.Store
	for _, skew := range []time.Duration{0, 2 * time.Second, -2 * time.Second} {
		s, err := store.Open(ctx, store.Config{URL: url, Now: func() time.Time { return time.Now().Add(skew) }})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(s.Close)
		stores = append(stores, s)
	}
	const patients = 40
	var writers sync.WaitGroup
	var written, pairs atomic.Int64
	for i := range 6 {
		s, r := stores[i%len(stores)], rand.New(rand.NewPCG(uint64(i), 1))
		writers.Go(func() {
			for n := 0; ctx.Err() == nil; n++ {
				var err error
				id := fmt.Sprintf("p%d", r.IntN(patients))
				switch r.IntN(4) {
				case 0:
					err = s.Write(ctx, remove("Patient", id))
				case 1: // a transaction of two calls
					family := fmt.Sprintf("pair-%d-%d", i, n)
					a, b := fmt.Sprintf("a%d", i), fmt.Sprintf("b%d", r.IntN(3))
					err = s.InTx(ctx, func(tx *store.Tx) error {
						if err := tx.Write(ctx, []*store.Write{put(t, "Patient", a+"x", family)}); err != nil {
							return err
						}
						return tx.Write(ctx, []*store.Write{put(t, "Patient", a+b, family)})
					})
					pairs.Add(1)
				default:
					err = s.Write(ctx, put(t, "Patient", id, "n"))
				}
				if ctx.Err() == nil && err != nil {
					t.Errorf("write: %v", err)
				}
				written.Add(1)
			}
		})
	}
	type version struct {
		id string
		n  int
	}
	seen := make(map[version]bool)
	merged := make(map[string]int)
	var since time.Time
	var moments []time.Time
	for n := range 40 {
		if n == 39 {
			cancel()
			writers.Wait()
			ctx = t.Context()
		}
		s := stores[n%len(stores)]
		at, err := s.FixMoment(ctx, 10*time.Second)
		if err != nil {
			t.Fatal(err)
		}
		_, high, err := s.TypeSpan(ctx, "Patient", at)
		if err != nil {
			t.Fatal(err)
		}
		for after := int64(0); after < high; {
			end, err := s.VersionsAt(ctx, store.MomentPage{ResourceType: "Patient", At: at, Since: since, After: after, Last: high, Count: 7}, func(v *store.Stored) error {
				k := version{v.ID, v.VersionID}
				if seen[k] {
					t.Errorf("export %d repeats Patient/%s version %d", n, v.ID, v.VersionID)
				}
				seen[k] = true
				merged[v.ID] = v.VersionID
				return nil
			})
			if err != nil {
				t.Fatal(err)
			}
			after = end
		}
		if !since.IsZero() {
			last := int64(-1)
			for after := int64(0); last != 0; after = last {
				last, err = s.DeletionsAt(ctx, "Patient", since, at, after, 5, func(v *store.Stored) error {
					if merged[v.ID] > v.VersionID {
						t.Errorf("export %d deletes Patient/%s at version %d, which was created again at %d", n, v.ID, v.VersionID+1, merged[v.ID])
					}
					delete(merged, v.ID)
					return nil
				})
				if err != nil {
					t.Fatal(err)
				}
			}
		}
		since, moments = at, append(moments, at)
	}
	conn, err := pgx.Connect(ctx, url)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(ctx)
	rows, err := conn.Query(ctx, "SELECT id, version FROM resource")
	if err != nil {
		t.Fatal(err)
	}
	current := make(map[string]int)
	var id string
	var v int
	if _, err := pgx.ForEachRow(rows, []any{&id, &v}, func() error { current[id] = v; return nil }); err != nil {
		t.Fatal(err)
	}
	for id, v := range current {
		if merged[id] != v {
			t.Errorf("Patient/%s is at version %d, the exports have %d", id, v, merged[id])
		}
		delete(merged, id)
	}
	for id := range merged {
		t.Errorf("Patient/%s is deleted, and the exports have it", id)
	}
	if n := written.Load(); n < 100 || pairs.Load() == 0 {
		t.Errorf("only %d writes", n)
	}
	var torn int
	err = conn.QueryRow(ctx, `SELECT count(*) FROM (
		SELECT c.xid, min(v.last_updated) AS first, max(v.last_updated) AS last
		FROM change c CROSS JOIN LATERAL (SELECT unnest(c.refs) AS ref, unnest(c.versions) AS version) u
		JOIN (SELECT ref, version, last_updated FROM resource UNION ALL SELECT ref, version, last_updated FROM resource_history) v USING (ref, version)
		GROUP BY c.xid) x JOIN unnest($1::timestamptz[]) m ON x.first <= m AND x.last > m`, moments).Scan(&torn)
	if err != nil || torn > 0 {
		t.Errorf("%d transactions are on both sides of a moment: %v", torn, err)
	}
}

// A transaction can begin to write while the moment is being stored, and so have a higher id than the transaction that
// stores it. It does not see the moment, and an export waits for it.
func TestMomentWaitsForTransactionsBesideIt(t *testing.T) {
	t.Parallel()
	s, url := open(t)
	ctx := t.Context()
	lock, err := pgx.Connect(ctx, url)
	if err != nil {
		t.Fatal(err)
	}
	defer lock.Close(ctx)
	if _, err := lock.Exec(ctx, "BEGIN; SELECT FROM search_registry FOR UPDATE"); err != nil {
		t.Fatal(err)
	}
	type fixed struct {
		at  time.Time
		err error
	}
	result := make(chan fixed, 1)
	go func() {
		at, err := s.FixMoment(ctx, 30*time.Second)
		result <- fixed{at, err}
	}()
	watch, err := pgx.Connect(ctx, url)
	if err != nil {
		t.Fatal(err)
	}
	defer watch.Close(ctx)
	for waits := false; !waits; {
		if err := watch.QueryRow(ctx, "SELECT EXISTS (SELECT FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock')").Scan(&waits); err != nil {
			t.Fatal(err)
		}
	}
	err = s.InTx(ctx, func(tx *store.Tx) error {
		if err := tx.Write(ctx, []*store.Write{put(t, "Patient", "beside", "a")}); err != nil {
			return err
		}
		if _, err := lock.Exec(ctx, "ROLLBACK"); err != nil {
			return err
		}
		select {
		case f := <-result:
			t.Errorf("the moment %v was fixed (%v) while a transaction that does not see it was open", f.at, f.err)
			result <- f
		case <-time.After(500 * time.Millisecond): // long after it would have been
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if f := <-result; f.err != nil {
		t.Error(f.err)
	}
}

// Contract, Bulk data, One moment: an export waits for older writes up to bulk.snapshot_wait, then
// fails as transient. A write that is acknowledged before is in it.
func TestMomentWaitsForOlderTransactions(t *testing.T) {
	t.Parallel()
	s, url := open(t)
	ctx := t.Context()
	v := write(t, s, put(t, "Patient", "1", "a"))
	conn, err := pgx.Connect(ctx, url)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(ctx)
	if _, err := conn.Exec(ctx, "BEGIN; INSERT INTO change (shard, rids, refs, versions, methods) VALUES (0, '{}', '{}', '{}', '')"); err != nil {
		t.Fatal(err)
	}
	if _, err := s.FixMoment(ctx, 100*time.Millisecond); !outcome.Is(err, outcome.CodeTransient) {
		t.Errorf("beside an open transaction: %v, want transient", err)
	}
	if _, err := conn.Exec(ctx, "COMMIT"); err != nil {
		t.Fatal(err)
	}
	at, err := s.FixMoment(ctx, 10*time.Second)
	if err != nil {
		t.Fatal(err)
	}
	if v.LastUpdated.After(at) {
		t.Errorf("the moment is %s, before an acknowledged write of %s", at, v.LastUpdated)
	}
	if after := write(t, s, put(t, "Patient", "1", "b")).LastUpdated; !after.After(at) {
		t.Errorf("a later write has %s, not after the moment %s", after, at)
	}
}

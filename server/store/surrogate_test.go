package store_test

import (
	"context"
	"fmt"
	"sync"
	"testing"

	"github.com/jackc/pgx/v5"

	"kiln/server/store"
)

// The surrogates of a type are close together, also if other types are written meanwhile.
// Two servers give out different surrogates.
func TestSurrogatesOfAType(t *testing.T) {
	s, url := open(t)
	servers := []*store.Store{s, openAt(t, url)}
	const each = 100
	var wg sync.WaitGroup
	for i, s := range servers {
		wg.Go(func() {
			for n := range each {
				for _, typ := range []string{"Patient", "Observation"} {
					if err := s.Write(context.Background(), put(t, typ, fmt.Sprintf("%d-%d", i, n), "x")); err != nil {
						t.Error(err)
					}
				}
			}
		})
	}
	wg.Wait()
	conn, err := pgx.Connect(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(context.Background())
	const block = 4096
	for _, typ := range []string{"Patient", "Observation"} {
		var low, high, numbers, blocks int64
		err := conn.QueryRow(t.Context(), `SELECT min(n), max(n), count(DISTINCT n), count(DISTINCT n / $2)
			FROM (SELECT (r.rid & ((1::bigint << 48) - 1)) - $3 AS n FROM resource r JOIN resource_type USING (typ) WHERE name = $1) x`, typ, block, 1<<20-40).
			Scan(&low, &high, &numbers, &blocks)
		if err != nil {
			t.Fatal(err)
		}
		if low != 0 || high >= 2*block || numbers != 2*each || blocks != 2 {
			t.Errorf("%s: %d numbers from %d to %d in %d blocks", typ, numbers, low, high, blocks)
		}
	}
}

package store_test

import (
	"net/url"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"kiln/server/search"
	"kiln/server/search/searchtest"
	"kiln/server/store"
)

// Contract, Operations: suggestions: never one that a plan with a hypothetical or real index
// did not confirm: with hypopg by the planner's costs, without it by a real index on a
// sample. An index that no plan would use is worth nothing, and a proof leaves nothing.
func TestProveIndex(t *testing.T) {
	t.Parallel()
	s, at := open(t)
	var key int64
	for _, p := range searchtest.Registry.Parameters("Observation") {
		if p.Code == "value-quantity" {
			key = int64(p.Keys[0])
		}
	}
	q, err := search.Parse(searchtest.Registry, "Observation", url.Values{"value-quantity": {"gt3990"}}, search.Options{Now: time.Unix(0, 0)})
	if err != nil {
		t.Fatal(err)
	}
	conn, err := pgx.Connect(t.Context(), at)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(t.Context())
	for _, sql := range []string{
		"INSERT INTO index_quantity (key, rid, unit, low, high) SELECT $1::bigint, n, n % 400, n, n FROM generate_series(1, 4000) n",
		"INSERT INTO index_quantity (key, rid, unit, low, high) SELECT $1::bigint + 1, n, n % 7, n, n FROM generate_series(1, 20000) n",
	} {
		if _, err := conn.Exec(t.Context(), sql, key); err != nil {
			t.Fatal(err)
		}
	}
	state := func() (indexes, temporary int) {
		if _, err := conn.Exec(t.Context(), "ANALYZE index_quantity"); err != nil {
			t.Fatal(err)
		}
		if err := conn.QueryRow(t.Context(), "SELECT (SELECT count(*) FROM pg_indexes i WHERE i.tablename = 'index_quantity'), (SELECT count(*) FROM pg_class c WHERE c.relpersistence = 't')").Scan(&indexes, &temporary); err != nil {
			t.Fatal(err)
		}
		return indexes, temporary
	}
	indexes, temporary := state()
	useful := store.IndexCandidate{Table: "index_quantity", Columns: "(key, low, unit, rid)"}
	useless := store.IndexCandidate{Table: "index_quantity", Columns: "(high) WHERE key < 0"}
	prove := func(method string) {
		t.Helper()
		for _, tt := range []struct {
			name string
			store.IndexCandidate
			gains bool
		}{{"useful", useful, true}, {"useless", useless, false}} {
			p, err := s.ProveIndex(t.Context(), tt.IndexCandidate, []*search.Query{q})
			if err != nil || p.Method != method || p.Improvement < 0 || p.Improvement > 1 || !tt.gains && p.Improvement > 0 || tt.gains && method == "hypothetical" && p.Improvement == 0 {
				t.Errorf("%s, %s: %+v, %v", method, tt.name, p, err)
			}
			t.Logf("%s, %s: %+v", method, tt.name, p)
		}
		if i, tmp := state(); i != indexes || tmp != temporary {
			t.Errorf("%s: %d indexes and %d temporary tables, before %d and %d", method, i, tmp, indexes, temporary)
		}
	}
	prove("sample")
	if ok, err := s.CanCreateExtension(t.Context(), "hypopg"); err != nil || !ok {
		t.Skipf("hypopg is not installed: %v", err)
	}
	if err := s.EnsureExtension(t.Context(), "hypopg"); err != nil {
		t.Fatal(err)
	}
	prove("hypothetical")
}

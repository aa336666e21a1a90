package strategy_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"kiln/gen/db"
	"kiln/server/search/match"
	"kiln/server/search/plan"
	"kiln/server/search/searchtest"
)

// Statements that look for a term read the index of terms alone. Their plans are generic:
// the planner expects a range of surrogates beside the term to be narrow, and reads the
// primary key instead. That reads the index of all resources as soon as one of them has the
// term. Among few resources that plan is good, so the test switches index scans off.
func TestTermsAreReadByTheirIndexAlone(t *testing.T) {
	t.Parallel()
	s, url := searchtest.Open(t)
	searchtest.NewCorpus(44, 100, 3000).Load(t, s)
	conn := searchtest.Connect(t, url)
	for _, sql := range []string{"ANALYZE resource", "SET enable_seqscan = off", "SET enable_indexscan = off", "SET plan_cache_mode = force_generic_plan"} {
		if _, err := conn.Exec(t.Context(), sql); err != nil {
			t.Fatal(err)
		}
	}
	for name, st := range map[string]match.Statement{
		"definitions with a canonical URL": {SQL: db.ResourcesByTerms, Args: []any{"{1}"}},
		"resources that have a term":       plan.SelectWithTerm(1, 1, 20_000),
	} {
		got := genericPlanOf(t, conn, st)
		if !strings.Contains(got, "resource_terms") || strings.Contains(got, "resource_pkey") || strings.Contains(got, "resource_last_updated") {
			t.Errorf("%s:\n%s", name, got)
		}
	}
}

// genericPlanOf is the plan of a statement for whatever arguments, where the connection makes such plans.
func genericPlanOf(t *testing.T, conn *pgx.Conn, st match.Statement) string {
	t.Helper()
	if _, err := conn.Exec(t.Context(), "PREPARE asked AS "+st.SQL); err != nil {
		t.Fatal(err)
	}
	got := planOf(t, conn, fmt.Sprintf("EXECUTE asked(%s)", strings.Join(slices.Repeat([]string{"NULL"}, len(st.Args)), ", ")))
	if _, err := conn.Exec(t.Context(), "DEALLOCATE asked"); err != nil {
		t.Fatal(err)
	}
	return got
}

// planOf returns PostgreSQL's plan of a statement that was run.
func planOf(t *testing.T, conn *pgx.Conn, sql string, args ...any) string {
	t.Helper()
	rows, err := conn.Query(t.Context(), "EXPLAIN (ANALYZE, BUFFERS) "+sql, args...)
	if err != nil {
		t.Fatal(err)
	}
	lines, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		t.Fatal(fmt.Errorf("explain: %w", err))
	}
	return strings.Join(lines, "\n")
}

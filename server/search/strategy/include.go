package strategy

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"kiln/server/outcome"
	"kiln/server/search/match"
	"kiln/server/search/pgvalue"
	"kiln/server/search/plan"

	"github.com/jackc/pgx/v5"
)

// addIncludes adds what `_include` and `_revinclude` ask for, round after round while
// `:iterate` finds something new. A resource comes once, so a cycle ends by
// itself; what goes over the cap is named in an issue.
// Spec: https://hl7.org/fhir/R4/search.html#include.
func (x *searching) addIncludes(ctx context.Context, r *Result, rids []int64) error {
	seen := slices.Clone(rids)
	from := r.Matches
	for round := 0; len(rids) > 0; round++ {
		var found []int64
		first := len(r.Includes)
		// add reports false where the cap is reached, as it is when cut says that
		// there are more rows.
		add := func(rows []row, cut bool) bool {
			for _, m := range rows {
				if slices.Contains(found, m.rid) {
					continue
				}
				if len(r.Includes) == plan.IncludeLimit {
					cut = true
					break
				}
				r.Includes = append(r.Includes, m.v)
				found = append(found, m.rid)
			}
			if cut {
				r.Issues = append(r.Issues, outcome.Issue{
					Severity: outcome.Warning, Code: outcome.CodeTooCostly,
					Diagnostics: fmt.Sprintf("more than %d resources would be included on this page; the rest was left out: ask for fewer matches with _count, or for the included resources by themselves", plan.IncludeLimit),
				})
			}
			return !cut
		}
		limit := plan.IncludeLimit - first + 1
		for _, st := range x.plan.Following(rids, seen, round > 0, limit) {
			rows, err := x.includedRows(ctx, st)
			if err != nil {
				return err
			}
			if !add(rows, false) {
				return nil
			}
		}
		if more, err := x.includeCanonicals(ctx, from, seen, round > 0, limit, add); err != nil || !more {
			return err
		}
		seen = append(seen, found...)
		rids, from = found, r.Includes[first:]
	}
	return nil
}

func (x *searching) includedRows(ctx context.Context, st match.Statement) ([]row, error) {
	x.noteStatement("include", st)
	rows, err := x.conn.Query(ctx, st.SQL, st.Args...)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	var found []row
	for rows.Next() {
		if found == nil {
			if err := pgvalue.CheckColumns(rows, 1, 6); err != nil {
				return nil, err
			}
		}
		v := rows.RawValues()
		m := row{rid: pgvalue.ReadInt8(v[0])}
		if m.v, err = x.readVersion(ctx, v[1:]); err != nil {
			return nil, err
		}
		found = append(found, m)
	}
	return found, rows.Err()
}

// addExplanation adds the query in words, and each statement with PostgreSQL's plan and
// times: each is run again to measure it.
func (x *searching) addExplanation(ctx context.Context, r *Result) error {
	tell := func(format string, args ...any) {
		r.Issues = append(r.Issues, outcome.Issue{
			Severity: outcome.Information, Code: outcome.CodeInformational, Diagnostics: fmt.Sprintf(format, args...),
		})
	}
	tell("%s", x.q.Describe())
	for _, step := range x.steps {
		rows, err := x.conn.Query(ctx, "EXPLAIN (ANALYZE, BUFFERS) "+step.st.SQL, append([]any{pgx.QueryExecModeDescribeExec}, step.st.Args...)...)
		if err != nil {
			return err
		}
		lines, err := pgx.CollectRows(rows, pgx.RowTo[string])
		if err != nil {
			return err
		}
		tell("%s\n%s\n%s", step.name, step.st.SQL, strings.Join(lines, "\n"))
	}
	return nil
}

package session

import (
	"context"
	"fmt"
	"strings"

	"github.com/jackc/pgx/v5"

	"kiln/server/search/match"
)

// step is a statement that was run.
type step struct {
	name string
	st   match.Statement
}

// NoteStatement notes a statement for the explanation, if the client wants one.
func (s *Session) NoteStatement(name string, st match.Statement) {
	if s.q.Explain {
		s.steps = append(s.steps, step{name, st})
	}
}

// Explain calls add for each noted statement, with its name, its SQL, and PostgreSQL's plan and times. It runs each statement
// again to measure it.
func (s *Session) Explain(ctx context.Context, add func(explanation string)) error {
	for _, step := range s.steps {
		rows, err := s.conn.Query(ctx, "EXPLAIN (ANALYZE, BUFFERS) "+step.st.SQL, append([]any{pgx.QueryExecModeDescribeExec}, step.st.Args...)...)
		if err != nil {
			return err
		}
		lines, err := pgx.CollectRows(rows, pgx.RowTo[string])
		if err != nil {
			return err
		}
		add(fmt.Sprintf("%s\n%s\n%s", step.name, step.st.SQL, strings.Join(lines, "\n")))
	}
	return nil
}

package strategy

import (
	"context"
	"errors"
	"slices"

	"kiln/server/outcome"
	"kiln/server/search"
	"kiln/server/search/match"

	"github.com/jackc/pgx/v5/pgconn"
)

// boundContent refuses a search by `_content` where the other parameters leave more
// resources than it may read.
func (x *searching) boundContent(ctx context.Context) error {
	if !readsContent(x.q) {
		return nil
	}
	reads := func(c match.Clause) bool { return c.ReadsContent() }
	rest := search.Query{Type: x.q.Type, Types: x.q.Types, Clauses: slices.DeleteFunc(slices.Clone(x.q.Clauses), reads)}
	found, err := x.s.runSearch(ctx, x.conn, x.connection, &rest, x.store)
	if err != nil {
		return err
	}
	if *found.Total > match.MaxContent {
		return outcome.New(outcome.CodeTooCostly, "parameter _content reads each resource that the other parameters find, at most %d, and they find %d: add parameters that narrow the search, such as patient or a date", match.MaxContent, *found.Total)
	}
	return nil
}

func readsContent(q *search.Query) bool {
	return slices.ContainsFunc(q.Clauses, func(c match.Clause) bool { return c.ReadsContent() })
}

// tooManyWords is the error of a search by `_content` that has met a resource whose words PostgreSQL does not
// hold together: a megabyte of different ones. Without it the answer would leave out a resource in silence.
func tooManyWords(q *search.Query, err error) error {
	var pg *pgconn.PgError
	if !errors.As(err, &pg) || pg.Code != "54000" || !readsContent(q) {
		return err
	}
	return outcome.New(outcome.CodeTooCostly, "parameter _content: one of the resources that the other parameters find has more different words than are searched, 1 MB: add parameters that leave it out").Because(err)
}

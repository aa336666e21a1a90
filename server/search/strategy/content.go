package strategy

import (
	"errors"
	"slices"

	"kiln/server/outcome"
	"kiln/server/search"
	"kiln/server/search/match"

	"github.com/jackc/pgx/v5/pgconn"
)

// readsContent reports whether a search has the parameter `_content`, which reads each resource that the other parameters find.
func readsContent(q *search.Query) bool {
	return slices.ContainsFunc(q.Clauses, func(c match.Clause) bool { return c.ReadsContent() })
}

// withoutContent returns the query without `_content`, sort order and includes.
func withoutContent(q *search.Query) *search.Query {
	reads := func(c match.Clause) bool { return c.ReadsContent() }
	return &search.Query{Type: q.Type, Types: q.Types, Clauses: slices.DeleteFunc(slices.Clone(q.Clauses), reads)}
}

// checkContent rejects a search by `_content` if the other parameters find more resources than it may read.
func checkContent(found int) error {
	if found <= match.MaxContent {
		return nil
	}
	return outcome.New(outcome.CodeTooCostly, "parameter _content reads each resource that the other parameters find, at most %d, and they find %d: add parameters that narrow the search, such as patient or a date", match.MaxContent, found)
}

// explainTooManyWords explains the error of a search by `_content` that has met a resource with too many words for PostgreSQL: a
// megabyte of different ones. An answer would leave out the resource in silence.
func explainTooManyWords(q *search.Query, err error) error {
	var pg *pgconn.PgError
	if !errors.As(err, &pg) || pg.Code != "54000" || !readsContent(q) {
		return err
	}
	return outcome.New(outcome.CodeTooCostly, "parameter _content: one of the resources that the other parameters find has more different words than are searched, 1 MB: add parameters that leave it out").Because(err)
}

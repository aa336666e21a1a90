package strategy

import (
	"context"
	"slices"

	"kiln/server/outcome"
	"kiln/server/search"
	"kiln/server/search/match"
)

// boundContent refuses a search by `_content` where the other parameters leave more
// resources than it may read.
func (x *searching) boundContent(ctx context.Context) error {
	reads := func(c match.Clause) bool { return c.ReadsContent() }
	if !slices.ContainsFunc(x.q.Clauses, reads) {
		return nil
	}
	rest := search.Query{Type: x.q.Type, Types: x.q.Types, Clauses: slices.DeleteFunc(slices.Clone(x.q.Clauses), reads)}
	found, err := x.s.search(ctx, x.conn, x.connection, &rest)
	if err != nil {
		return err
	}
	if *found.Total > match.MaxContent {
		return outcome.New(outcome.CodeTooCostly, "parameter _content reads each resource that the other parameters find, at most %d, and they find %d: add parameters that narrow the search, such as patient or a date", match.MaxContent, *found.Total)
	}
	return nil
}

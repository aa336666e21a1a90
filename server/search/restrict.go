package search

import "kiln/server/search/match"

// Restrict makes the query blind to what readable hides: chains and `_has` follow
// only resources that are readable, and includes add no others. readable returns
// what must hold of a resource of any of types, nil for every type. It leaves the
// matches themselves to And.
func (q *Query) Restrict(readable func(types []string) []match.Clause) {
	q.Clauses = match.Restrict(q.Clauses, readable)
	if len(q.Includes)+len(q.RevIncludes) > 0 {
		q.Readable = readable(nil)
	}
}

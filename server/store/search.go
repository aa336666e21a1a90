package store

import (
	"context"

	"kiln/server/fhir"
	"kiln/server/outcome"
	"kiln/server/search"
)

// SearchResult is one page of a search.
type SearchResult struct {
	// Total is the number of matches on all pages, nil where none was asked for.
	Total   *int
	Matches []fhir.Version // in the order asked for
	// Includes are what `_include` and `_revinclude` add, none twice and none
	// that is a match.
	Includes []fhir.Version

	// Offset is the place of the first match in the whole result, from 0.
	Offset int
	// First is the cursor of the page before this one, Last of the page after
	// it, End of the last page; EndOffset is where that begins. They are "" where
	// there is no such page.
	First, Last, End string
	EndOffset        int
	HasNext          bool

	// Issues tell what the client should know of the answer: a cap that was
	// reached, an explanation that was asked for.
	Issues []outcome.Issue
}

// Search runs a search. Spec: https://hl7.org/fhir/R4/http.html#search.
func (s *Store) Search(ctx context.Context, q *search.Query) (*SearchResult, error) {
	return s.search(ctx, s.pool, q)
}

// Search is Store.Search inside the transaction: it sees what the transaction
// wrote.
func (t *Tx) Search(ctx context.Context, q *search.Query) (*SearchResult, error) {
	return t.store.search(ctx, t.tx, q)
}
func (s *Store) search(ctx context.Context, conn querier, q *search.Query) (*SearchResult, error) {
	return &SearchResult{}, nil
}

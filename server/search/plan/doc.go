// Package plan turns a query into statements: one for each way to find its page,
// its total, and its includes. It runs none of them; package strategy chooses.
//
//	plan.go        Plan, and the drivers that may find candidates
//	candidates.go  rows that one driver finds, tested and sorted in one statement
//	walk.go        along the requested order, testing each resource
//	gather.go      every match, sorted
//	count.go       the number of matches
//	page.go        the place of the page: cursor, offset, keyset
//	sort.go        the values that _sort compares
//	order.go       matches in an order without an index, in memory
//	include.go     _include and _revinclude
//	state.go       tests whether data changed since a statement ran
//
// The search cache (package cache) needs:
//
//	question.go          the parts of a query that the cache can answer
//	changes.go           the changes since a state
//	column.go            the entries of a column; parametercolumns.go, the columns of search parameters
//	terms.go             the terms of a type
//	typesizes.go         the number of resources of each type
//
// The text of a statement depends on the shape of the query only, and every value
// is bound, so that PostgreSQL reuses its prepared statements.
//
// # Orders without an index
//
// Tokens, references and uris are stored as hashes. A search sorted by one of
// them is an Order: it reads all matches, computes their sort values with the
// extraction that indexes them (fhir.Sorter), and sorts them in memory, together with
// the other sort keys. 88,674 Observations by code take 0.6 s once, and 3 ms
// for each further page from the cache. More than Plan.MaxOrder matches are rejected by name. If an
// administrator has indexed the order (search.SortIndex), it is an order of strings.
package plan

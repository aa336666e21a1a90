// Package search turns the query string of a search into a Query: it owns the
// registry of search parameters and the meaning of every parameter type, modifier and
// prefix. It writes no SQL and runs none.
//
//	url.Values --Parse--> Query
//	              |         |
//	           Registry   Clauses, ANDed
//	         (parameters)  of Matches, ORed
//
// These packages share the work on a search. Each uses only packages below it:
//
//	search/strategy    chooses the way to answer a search
//	search/session     runs the statements of one search and reads their rows
//	search/admission   limits the searches that run at the same time
//	search/recent      totals, orders and other results of recent searches
//	search/cache/fill  reads items into the search cache in the background
//	search/plan        the statements that find a page, its total and its includes
//	search             query string -> Query; one file for each parameter type
//	search/cache       sets and columns in memory that follow the change log
//	search/match       conditions on a resource: one file for each kind of match
//
// # Query
//
// A Query is a conjunction of clauses, one for each parameter of the request. A
// Clause is a disjunction of matches, one for each value between commas, and may
// be negated (`:not`, `:missing=true`). A match.Match is a small struct with one
// condition on the index of a resource: Terms, Dates, Quantities, Chain, … Parse
// makes matches and knows nothing of SQL. The packages below it know nothing of the
// syntax of FHIR. Query.Holds judges one resource in memory by the same matches.
//
// `_filter` is a language of its own (filtersyntax.go) whose comparisons are read
// like other parameters (filter.go): `and` becomes match.All, `or` several matches,
// and `not` a negated clause.
//
// # Paging
//
// A request selects a page by `_offset`, by a cursor, or by both; the cursor wins. The
// cursor contains the sort values and the surrogate of the last row (a keyset). So
// pages neither repeat nor miss a match while others write, and page 1,000
// costs as much as page 1. Resources without a value for a sort key come last,
// in both directions. Spec: https://hl7.org/fhir/R4/search.html#sort.
//
// # Includes
//
// Include is an _include or _revinclude with the keys of its parameter. Canonicals
// (canonical.go) name a resource by its URL; versions are compared in Go.
//
// # Errors
//
// Parse rejects a parameter that it cannot apply, and names it: an unknown parameter, a
// modifier that the type lacks, an unreadable value, a chain without a target.
// It rejects a query that is too large for one statement as too-costly; the limits
// are in parse.go.
//
// Options.Lenient (Prefer: handling=lenient) ignores unknown parameters only, also in a
// chain, _has or _sort, and lists them in Query.Ignored. Query.Applied has the
// applied parameters, for the self link. Spec: https://hl7.org/fhir/R4/search.html#errors.
package search

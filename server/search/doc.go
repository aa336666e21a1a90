// Package search turns the query string of a search into a Query: it owns the
// registry of search parameters and the meaning of every parameter type, modifier and
// prefix. It writes no SQL and runs none.
//
//	url.Values --Parse--> Query
//	              |         |
//	           Registry   Clauses, ANDed
//	         (parameters)  of Matches, ORed
//
// Five packages share the work on a search:
//
//	search             query string -> Query; one file for each parameter type
//	search/match       what a resource must be like: one file for each kind of match
//	search/plan        the statements that find a page, its total and its includes
//	search/strategy    which statement is run, over a small interface of a connection
//	search/remembered  sets and columns in memory that follow the change log
//
// # What is asked
//
// A Query is a conjunction of clauses, one for each parameter of the request. A
// Clause is a disjunction of matches, one for each value between commas, and may
// be negated (`:not`, `:missing=true`). A match.Match is a small struct that says
// what the index of a resource must have: Terms, Dates, Quantities, Chain, … Parse
// makes matches and knows nothing of SQL; the packages below know nothing of FHIR's
// syntax. Query.Holds judges one resource in memory by the same matches.
//
// `_filter` is a language of its own (filtersyntax.go) whose comparisons are read
// like other parameters (filter.go): `and` becomes match.All, `or` several matches,
// and `not` a negated clause.
//
// # Paging
//
// A page is asked for by `_offset`, by a cursor, or both; the cursor wins. It
// holds the sort values and the surrogate of the last row seen (a keyset), so
// that pages neither repeat nor miss a match while others write, and page 1,000
// costs what page 1 costs. Resources that have no value for a sort key come last,
// in both directions. Spec: https://hl7.org/fhir/R4/search.html#sort.
//
// # Includes
//
// Include is an _include or _revinclude with the keys of its parameter. Canonicals
// (canonical.go) name a resource by its URL; versions are compared in Go.
//
// # Never an answer to another question
//
// A parameter that cannot be applied is refused by name: an unknown one, a modifier
// that its type does not have, a value that cannot be read, a chain into nowhere.
// A query that is too large for one statement is refused as too-costly; the limits
// stand in parse.go.
//
// Options.Lenient (Prefer: handling=lenient) leaves out unknown parameters only, also where a
// chain, _has or _sort names one, and says so in Query.Ignored. Query.Applied has the parameters
// that were applied, for the self link. Spec: https://hl7.org/fhir/R4/search.html#errors.
package search

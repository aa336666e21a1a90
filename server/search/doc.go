// Package search turns a query string into SQL. It owns the registry of search
// parameters, the meaning of every parameter type, modifier and prefix, and the
// shape of the statements; it never runs one.
//
//	url.Values --Parse--> Query --Compile--> Plan: statements with bound values
//	              |          |                   |
//	           Registry   Clauses, ANDed      run by store.Search
//	         (parameters)  of Matches, ORed
//
// # What is asked
//
// A Query is a conjunction of clauses, one for each parameter of the request. A
// Clause is a disjunction of matches, one for each value between commas, and may
// be negated (`:not`, `:missing=true`). A Match is one of a dozen small structs
// that say what the index must have: Terms (hashed equality), Dates, Numbers,
// Quantities, Strings (ordered rows), Texts (display texts and uris below),
// Expanded (the codes of a large value set, which are in a table), IDs, Updated,
// Chain and Has (which hold a list of clauses about another resource), All (the
// parts of a composite). Parse makes matches and knows nothing of SQL; Compile
// makes SQL and knows nothing of FHIR's syntax. There is one file for
// each parameter type: token.go, date.go, …
//
// # How it is asked
//
// Matches have two renderings. The driving form finds rows through an index:
//
//	Terms       r.terms @> $1            GIN resource_terms, several ANDed in one scan
//	            r.terms && $1            the same, for values ORed
//	Dates, …    rid from index_date      b-tree (key, low, high, rid), …
//	Chain       r.terms && ARRAY(SELECT t.ref # key FROM resource t WHERE …)
//	Has         r.ref = ANY(ARRAY(SELECT u FROM resource s, unnest(s.targets) u WHERE …))
//
// The probing form tests one row that is already known, through index_*_rid or
// resource_ref. Which is used when is decided here and not by the planner, whose
// estimates of array terms are guesses. Each driving form is bounded. The
// Candidates statement tries the driving forms in turn, most selective kind first,
// and takes the first whose result stays below the bound; the others probe. Below
// the bound total, order and page are exact and come in one round trip. If every
// driving form overflows, the search is a common one: the total comes from the
// Count statement, and the page from the Walk statement, which goes along the
// order asked for and probes every row until the page is full.
//
// The text of a statement depends on the shape of the query only, and every value
// is bound, so that PostgreSQL's prepared statements are reused.
//
// # Paging
//
// A page is asked for by `_offset`, by a cursor, or both; the cursor wins. It
// holds the sort values and the surrogate of the last row seen (a keyset), so
// that pages neither repeat nor miss a match while others write, and page 1,000
// costs what page 1 costs. Resources that have no value for a sort key come last,
// in both directions. Spec: https://hl7.org/fhir/R4/search.html#sort.
//
// # Never an answer to another question
//
// What cannot be applied is refused by name: an unknown parameter, a modifier
// that its type does not have, a value that cannot be read, a chain into nowhere.
// Options.Lenient (Prefer: handling=lenient) leaves out unknown parameters only,
// and says so in Query.Ignored. Query.Applied is what really was applied, for the
// self link. Spec: https://hl7.org/fhir/R4/search.html#errors.
package search

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
// `_filter` is a language of its own (filtersyntax.go) whose comparisons are read
// like other parameters (filter.go): and, or and not make All, several matches,
// and Not of what the others make, so that it needs nothing of Compile.
//
// # How it is asked
//
// Every clause can be asked in two ways. To find rows, through an index:
//
//	Terms       r.terms @> $1            GIN resource_terms; clauses ANDed in one scan,
//	            r.terms && $1            values ORed up to 64
//	Dates, …    rid from index_date      b-tree (key, low, high, rid), (key, unit, low, rid), …
//	Coded       the same, the key being that of a composite with a code in its system
//	Texts       terms of the distinct texts of token_text, then as a chain
//	Chain       SELECT t.ref # key FROM the targets, then one look-up
//	            r.terms @> ARRAY[term] for each
//	Has         SELECT u FROM the sources, unnest(targets) u, then r.ref = u
//
// And to test a row that is already known, through index_*_rid or resource_ref.
// Which is used when is decided here and not by the planner, whose estimates of
// array terms are guesses: tests are written so that no other index tempts it
// (IS TRUE, OFFSET 0, key + 0), and lists that are intersected are made as a whole
// first, which leaves hashing as the only way to join them. Sequential scans are
// switched off.
//
// The store tries, in this order:
//
//  1. Memory: the page of a List, the matches of the same search before; of a
//     Column, the values of one parameter among the resources with some terms, in
//     a unit or with a code, which answers every comparison of them.
//  2. Candidates. Each driver (chain, terms, an ordered clause) finds at most
//     Plan.Limit rows; the first that stays below answers the search: total, order
//     and page are exact in one round trip. Drivers that overflowed are remembered.
//  3. A total, from memory, from a Histogram, which turns the count of one
//     comparison into a subtraction, or counted. Walk goes along the order asked
//     for and tests each resource until the page is full, or, where matches are
//     rare or no index has the order, Gather fetches and sorts them all; an order
//     that no index has is kept from the second page on.
//
// What is remembered has with it the snapshot that it was made in, and holds as long
// as the change log has no change of a type that the query depends on outside of
// that snapshot, and no search parameter has changed (Plan.Unchanged). The proof is
// part of the statement that uses it. A total survives new resources: they are
// looked at one by one (Plan.Added).
//
// On 191,093 Synthea resources and two cores the benchmark's mix of searches runs
// 4,500 to 5,300 times a second, at 0.11 to 0.14 ms of PostgreSQL and 0.18 to 0.22 ms
// of the server each.
// What memory does not know costs, in PostgreSQL: identifier 0.04 ms, patient 0.2,
// name 0.1, code 0.3 to 5, a code with a quantity 1 to 3 (17 before coded rows), a
// count of 88,674 matches by a term 50 to 100.
//
// The text of a statement depends on the shape of the query only, and every value
// is bound, so that PostgreSQL's prepared statements are reused.
//
// # What has no order in the database
//
// Tokens, references and uris are kept as hashes. A search that is sorted by one
// of them is an Order: the store reads all matches, finds what they are sorted by
// with the extraction that indexes them (fhir.Sorter), and sorts them in memory,
// with other sort keys beside. An order is remembered like a column. 88,674
// Observations by code take 0.6 s once and 3 ms for each further page; more than
// MaxOrder matches are refused by name.
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
// What the resources of a page refer to stands in their rows (targets), and what
// refers to them is found by terms. A canonical names its resource by URL: the
// store reads canonicals from the bodies of the page and looks for resources with
// that url, or for resources that name the url, and compares versions (canonical.go).
//
// # Never an answer to another question
//
// What cannot be applied is refused by name: an unknown parameter, a modifier
// that its type does not have, a value that cannot be read, a chain into nowhere.
// What one statement would not bear is refused as too-costly: the limits stand in
// parse.go, and a chain that names the type of each hop stays far below them.
//
// Options.Lenient (Prefer: handling=lenient) leaves out unknown parameters only,
// and says so in Query.Ignored. Query.Applied is what really was applied, for the
// self link. Spec: https://hl7.org/fhir/R4/search.html#errors.
package search

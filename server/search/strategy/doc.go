// Package strategy decides how a search is answered: from what is remembered, from
// candidates, along an order, or from all matches at once. It runs the statements
// that package plan writes, on a connection that a Store lends it, and knows nothing
// of how resources are written.
//
//	strategy.go    the steps of one search, and the page that it gives
//	connection.go  the connection of a search, and how many may run
//	total.go       the number of matches: from memory where it still holds, else counted
//	memory.go      the drivers that found too much; bounds of what is kept of totals and orders
//	remembered.go  what package remembered is asked, and how it is filled
//	ahead.go       what it is filled with before anybody asks
//	order.go       matches in an order that no index has; estimate.go, _total=estimate
//	include.go     _include and _revinclude; canonical.go, along canonical URLs
//
// # The steps of a search
//
//  1. Memory (package remembered): the matches of the same clauses before, those of
//     common terms, and of comparisons the values of the parameter, which answer every
//     comparison of it and have its order. Chains and `_has` go along remembered
//     references, from what is remembered of the other type.
//  2. Candidates. Each driver (chain, terms, an ordered clause) finds at most
//     Plan.Limit rows; the first that stays below answers the search: total, order
//     and page are exact in one round trip. Drivers that overflowed are remembered.
//  3. A total, from memory or counted. Then the page: Walk goes along the order asked
//     for and tests each resource until the page is full; where matches are rare, or
//     no index has the order, Gather fetches and sorts them all. An order that no
//     index has is kept from the second page on. Total and page are of one snapshot.
//
// Many equal searches at once compute a dear thing once: of searches with the same clauses
// one at a time is among the dear ones, and who comes after it looks into memory first.
//
// What searches miss for the second time within a minute, dear ones for the first, is found in
// the background, on a connection of its own; package remembered follows the change log from
// there on. Of dear searches for terms these are all common terms of the type, in one reading: what
// is asked of terms is then an intersection of their sets. While the database has nothing
// else to do, the same is read of large types before anybody asks, with their references to
// patients; where this server is asked for something meanwhile, that stands aside. Totals of searches that depend on other resources or on full text, and orders, have the
// snapshot with them that they were made in. They hold while the search parameters are unchanged and the
// change log has no change, outside of that snapshot, of a type that the query depends
// on (Plan.Unchanged). Such a total survives new resources: they are looked at one by
// one (Plan.Added). The statement that uses what is remembered proves it itself.
//
// # What it costs
//
// On 191,093 Synthea resources and two cores the benchmark's mix of searches runs
// 4,500 to 5,300 times a second, at 0.11 to 0.14 ms of PostgreSQL and 0.18 to 0.22 ms
// of the server each. A search without a remembered answer costs, in PostgreSQL:
// identifier 0.04 ms, patient 0.2, name 0.1, code 0.3 to 5, a code with a quantity 1
// to 3 (17 before coded rows), a count of 88,674 matches by a term 50 to 100.
package strategy

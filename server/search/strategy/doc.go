// Package strategy chooses the way to answer a search: from the cache, from candidates, along an order, or from all matches
// at once. It runs the statements of package plan in a session, and knows nothing of writes.
//
//	searcher.go       Searcher; statistics.go, its caches and their state
//	answer.go         the steps of one search; compile.go makes its plan
//	ways.go           the ways to answer a search, in the order in which they are tried
//	common.go         the page of a search with many matches
//	estimate.go       the page of a search with _total=estimate
//	sortedpage.go     the page in an order without an index; sortmatches.go sorts the matches
//	walk.go           the page along an order, or among all matches
//	recentorder.go    the page along the order of a recent search
//	total.go          the number of matches; cachedtotal.go, from a cache; typesize.go, of a whole type
//	expensive.go      the admission of an expensive search
//	cached.go         the page from the cache
//	question.go       the question to the cache, and the items that it lacks
//	execution.go      one search while it is being answered
//	result.go         the page that the client sees
//	include.go        its includes, round after round; canonical.go, along canonical URLs; includer.go collects them
//	content.go        the limit on _content
//	environment.go    Config; the caches and limits that all searches share
//	store.go          the interface of a Store
//
// Each file uses only files below it. The packages that it uses:
//
//	strategy ──> session ──> admission           statements, rows, connection; limits
//	   ├───────> recent                          totals, orders, texts, units of recent searches
//	   └───────> cache/fill ──> cache ──> plan   items in memory, and the background work that reads them
//
// # The steps of a search
//
//  1. The cache (package cache). It contains matches of earlier clauses, sets of
//     common terms, and columns of values. A column answers every comparison of its
//     parameter, and has its order. Chains and `_has` follow cached
//     references to the cached sets of the other type.
//  2. Candidates. Each driver (chain, terms, an ordered clause) finds at most
//     Plan.Limit rows. The first driver that stays below answers the search: total, order
//     and page are exact in one round trip. The cache records drivers that overflowed.
//  3. A total, from the cache or counted. Then the page: a walk follows the requested order
//     and tests each resource until the page is full. If matches are rare, or
//     no index has the order, GatherMatches fetches and sorts them all. An order without an
//     index is cached from the second page on. Total and page are of one snapshot.
//
// Of many equal searches at once only one computes an expensive result: the queue of
// expensive searches admits one at a time for each key, and later searches check the cache first.
//
// The server fills the cache in the background, on a connection of its own, after the second miss
// within a minute, or the first miss of an expensive search. The cache then follows the
// change log (package fill). After an expensive search by terms it reads all common terms of the type
// at once: conditions on terms are then intersections of their sets. While the database
// is idle, the server reads the same for large types ahead, with their references to
// patients. Reading ahead pauses while this server serves requests.
//
// Cached orders, and totals of searches that depend on other resources or on full text, contain
// their snapshot. They are valid while the search parameters are unchanged and the
// change log has no change, outside of that snapshot, of a type that the query depends
// on (Plan.CheckUnchanged). Such a total survives new resources: the search tests them one by
// one (Plan.CountAdded). The statement that uses a cached value also verifies it.
//
// # Costs
//
// On 191,093 Synthea resources and two cores the benchmark's mix of searches runs
// 4,500 to 5,300 times a second, at 0.11 to 0.14 ms of PostgreSQL and 0.18 to 0.22 ms
// of the server each. A search without a cached answer costs, in PostgreSQL:
// identifier 0.04 ms, patient 0.2, name 0.1, code 0.3 to 5, a code with a quantity 1
// to 3, a count of 88,674 matches by a term 50 to 100.
package strategy

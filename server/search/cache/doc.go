// Package cache is the search cache: sets of matches, columns of the values of
// ordered parameters, and references, in memory. It follows the change log, so
// that its answers equal the result of a statement in one snapshot.
//
//	memory.go    Memory: the cache, its state, and its answers
//	question.go  a question and its answer; setpage.go has the page of an answer
//	change.go    changed resources, read from the index tables
//	catchup.go   applies them to the cache until an answer is settled
//	written.go   this server's own writes, applied without reading them
//	snapshot.go  the transactions that a state of the database has seen
//	set.go       the resources for which some clauses hold
//	terms.go     the resources of each common term of a type;
//	             terms that occur together share one set (cachedterms.go)
//	column.go    the values of an ordered parameter, in chunks (chunk.go). A chunk stores each value once.
//	             places.go finds the value of a resource; window.go compares
//	columnorder.go  a page in the order of a column
//	links.go     chains and _has: the references from one type to another, as a column (refcolumn.go)
//	sections.go  the resources between some values of a column, for ranges among millions
//
// Package bitmap stores the sets, and package packed stores the numbers of the columns in few bytes. Package fill reads the
// items from the database.
//
// # How the cache stays exact
//
// The contents of a Memory belong to one state: a snapshot of PostgreSQL and the search
// parameters in force. A search that uses it reads, in the statement that fetches the page,
// all resources that have changed since that state, with their present index
// entries (plan.SelectChanges). Old entries are not needed: a set knows its members, a column
// the value of each. Each changed resource is removed from all sets and columns and judged anew
// (match.Hold). So a change is idempotent: several searches may read the
// same changes at the same time, and apply them in any order of their snapshots. A version
// that was already applied is skipped:
//
//	FindAnswer    the page as of state S                      surrogates
//	RenewAnswer   the same once a connection is available     S is as young as possible
//	              rows of these, and the changes since S      one statement, in snapshot T
//	SettleAnswer  apply changes up to T, ask again: the same surrogates, none of them
//	              changed after T, are the answer; else the search asks again
//
// If the cache has passed T meanwhile, its state belongs to a snapshot U, taken while the search
// ran. Its total and surrogates are right in U, and so are the rows unless one of them
// changed between T and U. The last steps (Memory.steps) record such changes.
//
// The cache knows this server's writes before their commit (Writing): the statement then only
// reports that such a row of the change log is visible. If a search sees the row before the commit
// has returned, it waits for the commit: after a failed one another server may have written a version
// of that number.
//
// # Limits
//
// The cache is cleared when the index of stored resources changes, when the search
// parameters change, on a standby (whose snapshots omit running transactions), when another
// PostgreSQL answers, and after more than MaxCatchUp changed resources. It
// does not answer then, and the search goes on in SQL. After more than MaxChanges by other servers it lags: it does
// not answer until a CatchUp has applied them, some resources at a time. Sets of clauses that the index
// entries of a resource do not decide (match.ByRows) are not cached.
//
// All contents share one budget. The item that saved least time for its size is evicted first.
package cache

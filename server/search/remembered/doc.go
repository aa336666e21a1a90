// Package remembered keeps in memory what the database would find again and again:
// sets of matches, the values of ordered parameters, and references. It follows the change log, so
// that what it says is exactly what a statement would have found in one snapshot.
//
//	memory.go    Memory: what is kept, its state, and what it answers
//	change.go    changed resources: read from the index tables, brought into what is kept,
//	             until an answer is settled
//	written.go   what this server writes itself, which is brought in without being read
//	snapshot.go  which transactions a state of the database has seen
//	bitmap.go    the numbers of some resources, in few objects; as one bit each
//	set.go       the resources for which some clauses hold
//	terms.go     those of the resources that have a term, for each common term of a type;
//	             terms that come together have one set
//	column.go    the values of an ordered parameter, each once in its chunk (chunk.go, whose
//	             resources stretches.go and packed.go keep in few bytes, all in one piece.go
//	             of the column's room.go); places.go, where the value of a resource is; window.go, what a comparison asks of it
//	columnorder.go  a page in the order of a column
//	links.go     chains and _has: the references from one type to another, as a column
//	sections.go  the resources between some values of a column, for ranges among millions
//	list.go      an ordered list that is changed in place
//
// # How it stays right
//
// All that a Memory keeps is of one state: a snapshot of PostgreSQL and the search
// parameters in force. A search that uses it reads, in the statement that fetches the page,
// all resources that have changed since that state, with the index entries that they
// have now (plan.Changes). Old entries are not needed: a set knows its members, a column
// the value of each. Each changed resource is taken out of everything and judged anew
// (match.Hold). That makes a change idempotent, so that several searches may read the
// same changes at the same time, and bring them in any order of their snapshots; a version
// that was brought in already is left out:
//
//	Ask     the page as of state S                      surrogates
//	Renew   the same when a connection is there         S is as young as can be then
//	        rows of these, and the changes since S      one statement, in snapshot T
//	Settle  bring the memory to T, ask again: the same surrogates, none of them
//	        changed behind T, are the answer; else the search asks again
//
// Memory that has moved behind T meanwhile is of a snapshot U, taken while the search
// ran. Its total and surrogates are right in U, and the rows too unless one of them has
// changed between T and U, which the last steps (Memory.steps) tell.
//
// What this server writes is known to the memory before it is committed (Writing): of such a row of the
// change log the statement tells no more than that it is there. Where that is seen before the commit has
// answered the answer is awaited, since after a failed one another server may have written a version
// of that number.
//
// # What it gives up
//
// It forgets everything when the index of stored resources has changed, with the search
// parameters, on a standby (whose snapshots leave out running transactions), when another
// PostgreSQL answers, and when more than MaxBrought resources have changed. It
// never answers then, and the search goes on in SQL. After more than MaxChanges of other servers it lags: it answers
// nothing either until a CatchUp, some resources at a time, has brought them in. Sets of clauses that the index
// entries of a resource do not decide (match.ByRows) are not kept.
//
// Everything together stays within one budget. What has saved least for its size is
// forgotten first.
package remembered

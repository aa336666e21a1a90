// Package table keeps views as tables of PostgreSQL, in the schema view: it owns the tables view_table,
// view_generation and view_problem, and the schema view.
//
//	POST /admin/views ──> view_table ──> view_generation (building), view._build_<id>
//	                                          │  job view-build: all resources, from one moment on
//	                                     (built)    follows the change log
//	                                          │  one transaction: drop the old table, rename the new one
//	                                     (shown)    view.<name>, follows the change log
//
// A new version of the view makes a new generation; the old one is shown, and follows, until the swap.
//
// # The snapshot of a table
//
// A table shows the state of one snapshot of PostgreSQL (view_generation.seen): each transaction wholly or not
// at all. A round (catchup.go) is a REPEATABLE READ transaction. It finds the changes that its own snapshot sees
// and the stored one does not, reads the current state of their resources, replaces their rows, and stores its
// own snapshot. All of this commits together. A change that commits late has a transaction id below
// others: no snapshot before its commit sees it, so no round passes it.
//
// The position of the named reader is the oldest transaction that the snapshot does not see: the
// change log keeps everything from there on.
//
// The tables of a resource type that are shown have their rounds together: a changed resource is read and decoded
// once for all of them. If the common round fails, each table has a round of its own (follow.go).
//
// One server at a time has the advisory lock of a table. The lock ends with its connection, so another server
// continues at once.
package table

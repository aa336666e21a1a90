// Package recent contains results of recent searches that help the next ones. They are small, and the database has all of
// them too.
//
//	totals.go     numbers of matches, each with the snapshot in which it was counted
//	orders.go     matches in an order without an index, each with its snapshot
//	overflows.go  conditions that have too many candidates
//	texts.go      the texts of a key in the dictionary of display texts
//	units.go      units of quantities
//	key.go        the key of a statement
//	counter.go    hits, misses and evictions
//
// Totals, orders and overflows are used for at most one minute: the change log is trimmed, and a common term can become
// rare. The package does not know whether a result is still valid. The statement that uses a total, an order or a text
// also verifies it. Overflows only choose between ways to answer. Units never change.
package recent

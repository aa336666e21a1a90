// Package strategy decides how a search is answered: from what is remembered, from
// candidates, along an order, or from all matches at once. It runs the statements
// that server/search writes, on a connection that a Store lends it, and knows
// nothing of how resources are written.
//
//	strategy.go    the steps of one search, and the page that it gives
//	connection.go  the connection of a search, and how many may run
//	memory.go      totals, and the drivers that found too much
//	column.go      columns and lists of matches
//	histogram.go   counts of one comparison
//	order.go       matches in an order that no index has
//	include.go     _include and _revinclude; canonical.go, along canonical URLs
package strategy

// Package store keeps resources in PostgreSQL: transactions, versions, history,
// index rows, the change log. It owns every statement that is run; what a search
// means is decided in server/search, what a request means in
// server/interaction.
//
// A write is one transaction, whatever it touches:
//
//	lock current versions (in ref order) -> decide in Go -> one pipeline:
//	    move superseded versions to history, insert or update resources,
//	    replace index rows, append to the change log -> commit
//
// Short writes that come at the same time share a transaction and its commit
// (queue.go); the rows of a transaction go in as one statement for each table,
// however many there are (group.go).
package store

// Package session runs the statements of one search, and reads their rows.
//
//	session.go     Session: the statements of a search, inside a snapshot or not
//	connection.go  the connection of a search, after its admission (package admission)
//	rows.go        the rows of a page, and of includes
//	explain.go     the statements of a search with PostgreSQL's plans, for an explanation
//	store.go       the interface of a Store
//
// A search that begins by itself takes a connection at its first statement and keeps it until the last, so that it waits
// once. It gives the connection back whenever it waits for another search. A search inside a transaction, or on a standby,
// gets a connection from its caller and never waits: it is private, because it may see other data than other
// searches, and nothing that it finds is cached.
package session

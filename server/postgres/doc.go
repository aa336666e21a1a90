// Package postgres runs a private PostgreSQL from the system's own binaries, for
// a server that has been given no database: in its data directory, reachable
// over a unix socket in there, kept from one run to the next.
//
//	<data dir>/postgres/data    the cluster; appears whole or not at all
//	<data dir>/postgres/run     the socket, where its path is short enough
//	<data dir>/postgres/log     what PostgreSQL has to say
//	<data dir>/postgres/lock    held while one server looks or starts
//
// It is a full member of the family: data is synced, commits are durable, a
// crash of anything is repaired by PostgreSQL itself. The process ends with the
// server, even when the server is killed. A second server on the same data
// directory uses the PostgreSQL of the first, and starts its own when the first
// one leaves. When run as root the process belongs to the user postgres, else
// nobody.
//
// Settings are in data/kiln.conf; what is written below its include in
// data/postgresql.conf wins.
package postgres

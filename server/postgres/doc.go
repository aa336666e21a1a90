// Package postgres runs a private PostgreSQL from the binaries of the system, for
// a server without a configured database. Its data is in the data directory, it listens on
// a unix socket there, and the next run uses it again.
//
//	<data dir>/postgres/data    the cluster; appears whole or not at all
//	<data dir>/postgres/run     the socket, if its path is short enough
//	<data dir>/postgres/log     PostgreSQL's log
//	<data dir>/postgres/lock    locked while one server looks or starts
//
// Data is synced, commits are durable, and PostgreSQL itself recovers from a
// crash. The process ends with the server, even if the server is killed. A second server on
// the same data directory uses the PostgreSQL of the first, and starts its own when the
// first one leaves. If the server runs as root, the process runs as the user postgres, else
// as nobody.
//
// The settings are in data/kiln.conf. Settings below its include in data/postgresql.conf
// override them.
package postgres

package store

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// Pooler is the kind of pooler between a server and PostgreSQL.
type Pooler string

// The kinds of Pooler.
const (
	NoPooler      Pooler = "none"
	SessionPooler Pooler = "session" // each connection keeps its connection of PostgreSQL
)

// errPooler is the error of a pooler that Kiln cannot work with.
var errPooler = errors.New("database.url leads to a pooler that changes the connection of PostgreSQL between transactions " +
	"(PgBouncer: pool_mode = transaction or statement): prepared statements, settings and locks of a connection do not work there. " +
	"Use the address of PostgreSQL itself, or a pool with pool_mode = session")

const (
	poolerRounds = 5
	// poolerTime bounds the check: a pool that is used up makes new connections wait.
	poolerTime = 5 * time.Second
)

// CheckPooler fails where the database of a URL is behind a pooler that changes the backend of a connection between
// transactions. Where it cannot tell, because there are no two connections to be had, it returns NoPooler.
func CheckPooler(ctx context.Context, url string) (Pooler, error) {
	c, err := pgx.ParseConfig(url)
	if err != nil {
		return NoPooler, err
	}
	ctx, cancel := context.WithTimeout(ctx, poolerTime)
	defer cancel()
	var conns [2]*pgconn.PgConn
	var backends [2]string
	pooler := NoPooler
	for i := range conns {
		if conns[i], err = pgconn.ConnectConfig(ctx, &c.Config); err != nil {
			return NoPooler, nil
		}
		defer conns[i].Close(context.WithoutCancel(ctx))
		if backends[i], err = backendOf(ctx, conns[i]); err != nil {
			return NoPooler, nil
		}
		if backends[i] != fmt.Sprint(conns[i].PID()) { // a pooler gives its clients numbers of its own
			pooler = SessionPooler
		}
	}
	if backends[0] == backends[1] {
		return pooler, errPooler
	}
	// One connection holds its backend in a transaction, and the other one has to have another than before where that
	// was the same.
	for round := range poolerRounds {
		holds, asks := round%2, 1-round%2
		if _, err := conns[holds].Exec(ctx, "BEGIN").ReadAll(); err != nil {
			var pg *pgconn.PgError
			if errors.As(err, &pg) { // of a pooler, pool_mode = statement
				return pooler, fmt.Errorf("%w (%s)", errPooler, pg.Message)
			}
			return pooler, nil
		}
		held, err1 := backendOf(ctx, conns[holds])
		other, err2 := backendOf(ctx, conns[asks])
		_, err3 := conns[holds].Exec(ctx, "ROLLBACK").ReadAll()
		switch {
		case errors.Join(err1, err2, err3) != nil:
			return pooler, nil
		case held != backends[holds] || other != backends[asks]:
			return pooler, errPooler
		}
	}
	return pooler, nil
}

// backendOf returns the number of the backend that runs a statement, by the simple protocol: a prepared
// statement may be lost behind a pooler.
func backendOf(ctx context.Context, conn *pgconn.PgConn) (string, error) {
	results, err := conn.Exec(ctx, "SELECT pg_backend_pid()").ReadAll()
	if err != nil {
		return "", err
	}
	return string(results[0].Rows[0][0]), nil
}

// CheckVersion fails where the PostgreSQL of a URL is too old.
func CheckVersion(ctx context.Context, url string) error {
	c, err := pgx.ParseConfig(url)
	if err != nil {
		return err
	}
	conn, err := pgconn.ConnectConfig(ctx, &c.Config)
	if err != nil {
		return err
	}
	defer conn.Close(context.WithoutCancel(ctx))
	return checkVersion(conn.ParameterStatus("server_version"))
}

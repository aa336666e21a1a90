package store

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"kiln/gen/db"
)

// undefinedTable is PostgreSQL's code of a table that does not exist.
const undefinedTable = "42P01"

// HasInstance reports whether the server with an id has registered itself in a database. A
// database without Kiln's tables has no servers.
func HasInstance(ctx context.Context, url, id string) (bool, error) {
	conn, err := pgx.Connect(ctx, url)
	if err != nil {
		return false, fmt.Errorf("look for a server: %w", err)
	}
	defer conn.Close(ctx)
	there, err := db.New(conn).HasServer(ctx, id)
	if pg, ok := errors.AsType[*pgconn.PgError](err); ok && pg.Code == undefinedTable {
		return false, nil
	}
	return there, translateError(err)
}

package session

import (
	"context"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"kiln/server/search/match"
)

// Store is the database that a session reads.
type Store interface {
	// Acquire takes a connection from the pool. The session releases it.
	Acquire(ctx context.Context) (*pgxpool.Conn, error)
	// Parts returns the parts of index_date and index_quantity that a statement has to read if it begins now. The pointer
	// is the same as before unless something has changed. It may ask the database.
	Parts(ctx context.Context) (*match.Parts, error)
	// TypeName returns the resource type of a number.
	TypeName(ctx context.Context, number int16) (string, error)
	// Bodies returns memory for the bodies of one page.
	Bodies() Bodies
}

// Bodies decodes the bodies of one page into memory that is used again.
type Bodies interface {
	Decode(stored []byte) ([]byte, error)
	// Release ends the use of everything that was decoded.
	Release()
}

// Conn is a connection or a transaction.
type Conn interface {
	Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error)
	QueryRow(ctx context.Context, sql string, args ...any) pgx.Row
}

// aloneConn is a connection to one snapshot. QueryAlone is Query for a statement that is probably the only one of the
// search.
type aloneConn interface {
	QueryAlone(ctx context.Context, sql string, args ...any) (pgx.Rows, error)
}

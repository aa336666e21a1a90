package session

import (
	"context"

	"github.com/jackc/pgx/v5"

	"kiln/server/search"
	"kiln/server/search/admission"
	"kiln/server/search/match"
)

// Session runs the statements of one search. One goroutine uses it.
type Session struct {
	q          *search.Query
	store      Store
	conn       Conn
	connection *Connection // nil for a private session
	inSnapshot bool        // conn is a transaction that RunInSnapshot has begun
	bodies     Bodies      // nil before the first row
	steps      []step      // for an explanation
}

// New returns the session of a search that takes a connection of its own.
func New(q *search.Query, store Store, c *Connection) Session {
	return Session{q: q, store: store, conn: c, connection: c}
}

// NewPrivate returns the session of a search inside a transaction, or on a standby.
func NewPrivate(q *search.Query, store Store, conn Conn) Session {
	return Session{q: q, store: store, conn: conn}
}

// IsPrivate reports whether the search may see other data than other searches.
func (s *Session) IsPrivate() bool { return s.connection == nil }

// CanWait reports whether the search may wait for other searches. A search inside a transaction keeps its connection, and may
// not.
func (s *Session) CanWait() bool { return s.connection != nil && !s.inSnapshot }

// Connection returns the connection of a search that is not private.
func (s *Session) Connection() *Connection { return s.connection }

// Conn returns the connection or the transaction of the next statement.
func (s *Session) Conn() Conn { return s.conn }

// Bodies returns the memory of the bodies that were read, nil for none.
func (s *Session) Bodies() Bodies { return s.bodies }

// RunInSnapshot calls f. The statements that f runs read one snapshot. A private search is already in one, or in a transaction.
func (s *Session) RunInSnapshot(ctx context.Context, f func(ctx context.Context) error) error {
	if !s.CanWait() {
		return f(ctx)
	}
	conn, err := s.connection.Acquire(ctx)
	if err != nil {
		return err
	}
	return pgx.BeginTxFunc(ctx, conn, pgx.TxOptions{IsoLevel: pgx.RepeatableRead, AccessMode: pgx.ReadOnly}, func(tx pgx.Tx) error {
		s.conn, s.inSnapshot = tx, true
		defer func() { s.conn, s.inSnapshot = s.connection, false }()
		return f(ctx)
	})
}

// BecomeExpensive makes the search an expensive one, unless it may not wait. waited reports whether it had to wait.
func (s *Session) BecomeExpensive(ctx context.Context, key admission.Key) (waited bool, err error) {
	if !s.CanWait() {
		return false, nil
	}
	return s.connection.BecomeExpensive(ctx, key, nil)
}

// BeginComputation waits until no other search computes the value of a key, unless the search may not wait. The search
// then computes the value, and calls end.
func (s *Session) BeginComputation(ctx context.Context, key admission.Key) (end func(), err error) {
	if !s.CanWait() {
		return func() {}, nil
	}
	return s.connection.BeginComputation(ctx, key)
}

// QueryRow runs a statement that returns one row, and reads the row. name is for an explanation.
func (s *Session) QueryRow(ctx context.Context, name string, st match.Statement, into ...any) error {
	s.NoteStatement(name, st)
	return s.conn.QueryRow(ctx, st.SQL, st.Args...).Scan(into...)
}

package session

import (
	"context"
	"errors"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"kiln/server/search/admission"
	"kiln/server/search/match"
)

// ErrNewParts reports that the index has new parts since the search was planned, because the search waited. It has to be
// planned again.
var ErrNewParts = errors.New("search: parts of the index have been announced since the plan was made")

// Connection is the connection of one search. It is taken for the first statement, after the admission of the search, and
// kept until Release.
type Connection struct {
	admission *admission.Admission
	store     Store

	conn         *pgxpool.Conn // nil while none is taken
	endAdmission func()        // of a short search

	broad        bool
	expensive    bool          // the search was admitted as an expensive one
	expensiveKey admission.Key // of that admission
	parts        *match.Parts  // that the plan reads; nil before there is a plan
}

// NewConnection returns the connection of a search, which it has to close.
func NewConnection(a *admission.Admission, store Store) *Connection {
	return &Connection{admission: a, store: store}
}

// SetBroad says whether the search has many matches. Searches with few rows come before broad ones.
func (c *Connection) SetBroad(broad bool) { c.broad = broad }

// SetParts sets the parts of the index that the plan of the search reads.
func (c *Connection) SetParts(parts *match.Parts) { c.parts = parts }

// IsExpensive reports whether the search was admitted as an expensive one.
func (c *Connection) IsExpensive() bool { return c.expensive }

// Acquire returns the connection for a statement that begins at once. It fails with ErrNewParts if the plan reads other
// parts than the present ones.
func (c *Connection) Acquire(ctx context.Context) (*pgxpool.Conn, error) {
	if c.conn == nil {
		if err := c.take(ctx); err != nil {
			return nil, err
		}
	}
	if c.parts == nil {
		return c.conn, nil
	}
	now, err := c.store.Parts(ctx)
	if err == nil && now != c.parts {
		err = ErrNewParts
	}
	return c.conn, err
}

// take takes a connection from the pool, after the admission of the search.
func (c *Connection) take(ctx context.Context) error {
	end := func() {}
	if !c.expensive {
		var err error
		if end, err = c.admission.AdmitShort(ctx, c.broad); err != nil {
			return err
		}
	}
	conn, err := c.store.Acquire(ctx)
	if err != nil {
		end()
		return err
	}
	c.conn, c.endAdmission = conn, end
	return nil
}

// Release returns the connection to the pool. The next statement takes another.
func (c *Connection) Release() {
	if c.conn != nil {
		c.conn.Release()
		c.endAdmission()
		c.conn = nil
	}
}

// BecomeExpensive makes the search an expensive one. While it waits in the queue it has no connection. waited reports whether
// it had to wait. It does not become expensive if answered, which may be nil, reports true.
func (c *Connection) BecomeExpensive(ctx context.Context, key admission.Key, answered admission.IsAnswered) (waited bool, err error) {
	if c.expensive {
		return false, nil
	}
	if !c.admission.TryExpensive(key) {
		waited = true
		c.Release()
		if admitted, err := c.admission.AdmitExpensive(ctx, key, answered); !admitted {
			return true, err
		}
	}
	if c.conn != nil { // an expensive search needs no place of a short one
		c.endAdmission()
		c.endAdmission = func() {}
	}
	c.expensive, c.expensiveKey = true, key
	return waited, nil
}

// BeginComputation waits, without a connection, until no other search computes the value of a key. The search then computes the
// value, and calls end.
func (c *Connection) BeginComputation(ctx context.Context, key admission.Key) (end func(), err error) {
	for {
		end, ended := c.admission.BeginComputation(key)
		if end != nil {
			return end, nil
		}
		c.Release()
		select {
		case <-ended:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

// Close ends the search.
func (c *Connection) Close() {
	c.Release()
	if c.expensive {
		c.admission.EndExpensive(c.expensiveKey)
		c.expensive = false
	}
}

// Query runs a statement.
func (c *Connection) Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error) {
	conn, err := c.Acquire(ctx)
	if err != nil {
		return nil, err
	}
	return conn.Query(ctx, sql, args...)
}

// QueryRow runs a statement that returns one row.
func (c *Connection) QueryRow(ctx context.Context, sql string, args ...any) pgx.Row {
	conn, err := c.Acquire(ctx)
	if err != nil {
		return failedRow{err}
	}
	return conn.QueryRow(ctx, sql, args...)
}

// failedRow is the row of a statement that was not run.
type failedRow struct{ err error }

func (r failedRow) Scan(...any) error { return r.err }

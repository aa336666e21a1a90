package store

import (
	"context"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// lease is the connection of one search: taken when it is first needed, kept from
// one statement to the next, so that a search waits once.
type lease struct {
	s     *Store
	conn  *pgxpool.Conn
	leave func()
}

// brief is how long a search counts among those that are short. A few short
// searches at a time keep every processor busy; more would only take turns and all
// end late. One that takes longer makes room for another, as long as there are
// connections.
const brief = 20 * time.Millisecond

// get waits in the order of arrival.
func (l *lease) get(ctx context.Context) (*pgxpool.Conn, error) {
	if l.conn != nil {
		return l.conn, nil
	}
	select {
	case l.s.searching <- struct{}{}:
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	leave := sync.OnceFunc(func() { <-l.s.searching })
	conn, err := l.s.pool.Acquire(ctx)
	if err != nil {
		leave()
		return nil, err
	}
	timer := time.AfterFunc(brief, leave)
	l.conn, l.leave = conn, func() {
		timer.Stop()
		leave()
	}
	return conn, nil
}

// release gives the connection back; what is asked afterwards takes another.
func (l *lease) release() {
	if l.conn != nil {
		l.conn.Release()
		l.leave()
		l.conn = nil
	}
}

func (l *lease) Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error) {
	conn, err := l.get(ctx)
	if err != nil {
		return nil, err
	}
	return conn.Query(ctx, sql, args...)
}

func (l *lease) QueryRow(ctx context.Context, sql string, args ...any) pgx.Row {
	conn, err := l.get(ctx)
	if err != nil {
		return failedRow{err}
	}
	return conn.QueryRow(ctx, sql, args...)
}

// failedRow is the answer of a query that could not be asked.
type failedRow struct{ err error }

func (r failedRow) Scan(...any) error { return r.err }

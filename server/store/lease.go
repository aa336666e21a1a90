package store

import (
	"context"
	"runtime"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// lease is the connection of one search: taken when it is first needed, kept from
// one statement to the next, so that a search waits once.
type lease struct {
	s    *Store
	conn *pgxpool.Conn
	end  func()
}

// turns bounds the searches that run. Each gets both kinds of place in the order of
// arrival.
type turns struct {
	// all has room for fewer searches than there are connections, so that reads and
	// writes find one while long searches run.
	all chan struct{}
	// short has room for a few searches at a time, which keep every processor busy;
	// more would only take turns and all end late.
	short chan struct{}
}

// brief is how long a search counts among the short ones. One that takes longer makes
// room for another there.
const brief = 20 * time.Millisecond

func newTurns(maxConns int) turns {
	return turns{
		all:   make(chan struct{}, max(1, maxConns-3)),
		short: make(chan struct{}, max(1, min(maxConns/2, 2*runtime.NumCPU()))),
	}
}

// take waits for a turn, and returns how to end it.
func (t *turns) take(ctx context.Context) (end func(), err error) {
	select {
	case t.all <- struct{}{}:
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	select {
	case t.short <- struct{}{}:
	case <-ctx.Done():
		<-t.all
		return nil, ctx.Err()
	}
	leave := sync.OnceFunc(func() { <-t.short })
	timer := time.AfterFunc(brief, leave)
	return func() {
		timer.Stop()
		leave()
		<-t.all
	}, nil
}

func (l *lease) get(ctx context.Context) (*pgxpool.Conn, error) {
	if l.conn != nil {
		return l.conn, nil
	}
	end, err := l.s.turns.take(ctx)
	if err != nil {
		return nil, err
	}
	conn, err := l.s.pool.Acquire(ctx)
	if err != nil {
		end()
		return nil, err
	}
	l.conn, l.end = conn, end
	return conn, nil
}

// release gives the connection back; what is asked afterwards takes another.
func (l *lease) release() {
	if l.conn != nil {
		l.conn.Release()
		l.end()
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

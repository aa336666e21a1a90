package strategy

import (
	"context"
	"runtime"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// connection is the connection of one search: taken when it is first needed, kept from
// one statement to the next, so that a search waits once.
type connection struct {
	s    *Searcher
	conn *pgxpool.Conn
	end  func()
}

// admission bounds the searches that run. Each gets both kinds of place in the order of
// arrival.
type admission struct {
	// all has room for fewer searches than there are connections, so that reads and
	// writes find one while long searches run.
	all chan struct{}
	// short has room for a few searches at a time, which keep every processor busy;
	// more would only take admission and all end late.
	short chan struct{}
}

// shortFor is how long a search counts among the short ones. One that takes longer makes
// room for another there.
const shortFor = 20 * time.Millisecond

func newAdmission(maxConns int) admission {
	return admission{
		all:   make(chan struct{}, max(1, maxConns-3)),
		short: make(chan struct{}, max(1, min(maxConns/2, 2*runtime.NumCPU()))),
	}
}

// take waits for a turn, and returns how to end it.
func (t *admission) take(ctx context.Context) (end func(), err error) {
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
	timer := time.AfterFunc(shortFor, leave)
	return func() {
		timer.Stop()
		leave()
		<-t.all
	}, nil
}

func (l *connection) get(ctx context.Context) (*pgxpool.Conn, error) {
	if l.conn != nil {
		return l.conn, nil
	}
	end, err := l.s.admission.take(ctx)
	if err != nil {
		return nil, err
	}
	conn, err := l.s.store.Acquire(ctx)
	if err != nil {
		end()
		return nil, err
	}
	l.conn, l.end = conn, end
	return conn, nil
}

// Hold takes a connection as a search does, and returns how to give it back.
func (s *Searcher) Hold(ctx context.Context) (release func(), err error) {
	l := &connection{s: s}
	_, err = l.get(ctx)
	return l.release, err
}

// release gives the connection back; what is asked afterwards takes another.
func (l *connection) release() {
	if l.conn != nil {
		l.conn.Release()
		l.end()
		l.conn = nil
	}
}

func (l *connection) Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error) {
	conn, err := l.get(ctx)
	if err != nil {
		return nil, err
	}
	return conn.Query(ctx, sql, args...)
}

func (l *connection) QueryRow(ctx context.Context, sql string, args ...any) pgx.Row {
	conn, err := l.get(ctx)
	if err != nil {
		return failedRow{err}
	}
	return conn.QueryRow(ctx, sql, args...)
}

// failedRow is the answer of a query that could not be asked.
type failedRow struct{ err error }

func (r failedRow) Scan(...any) error { return r.err }

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
	dear bool // it has a place among the dear searches
}

// admission bounds the searches that run, in two lines. A cheap one gets a place of
// both kinds in the order of arrival. One that turns out dear, because it has to count
// or to read many matches, gives these places back and waits in a line of its own, so
// that no cheap search waits for a dear one.
type admission struct {
	// all has room for fewer searches than there are connections, so that reads and
	// writes find one while long searches run.
	all chan struct{}
	// short has room for a few searches at a time, which keep every processor busy;
	// more would only take turns and all end late.
	short chan struct{}
	// dear has room for the dear searches: half of the processors, at least one.
	dear chan struct{}
}

// shortFor is how long a search counts among the short ones. One that takes longer makes
// room for another there.
const shortFor = 20 * time.Millisecond

func newAdmission(maxConns int) admission {
	return admission{
		all:   make(chan struct{}, max(1, maxConns-3)),
		short: make(chan struct{}, max(1, min(maxConns/2, 2*runtime.NumCPU()))),
		dear:  make(chan struct{}, max(1, runtime.NumCPU()/2)),
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
	end := func() {}
	if !l.dear {
		var err error
		if end, err = l.s.admission.take(ctx); err != nil {
			return nil, err
		}
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

// HoldDear takes a place of a dear search.
func (s *Searcher) HoldDear(ctx context.Context) (release func(), err error) {
	l := &connection{s: s}
	_, err = l.becomeDear(ctx)
	return l.close, err
}

// release gives the connection back; what is asked afterwards takes another.
func (l *connection) release() {
	if l.conn != nil {
		l.conn.Release()
		l.end()
		l.conn = nil
	}
}

// becomeDear moves the search to the line of the dear ones; waited is true where others
// were before it. It gives the connection back while it waits.
func (l *connection) becomeDear(ctx context.Context) (waited bool, err error) {
	if l.dear {
		return false, nil
	}
	line := l.s.admission.dear
	select {
	case line <- struct{}{}:
	default:
		waited = true
		l.release()
		select {
		case line <- struct{}{}:
		case <-ctx.Done():
			return true, ctx.Err()
		}
	}
	if l.conn != nil {
		l.end() // its place among the cheap ones
		l.end = func() {}
	}
	l.dear = true
	return waited, nil
}

// becomeDear is connection.becomeDear; inside a transaction, which has a connection, it
// does nothing.
func (x *searching) becomeDear(ctx context.Context) (waited bool, err error) {
	if x.private() || x.inSnapshot {
		return false, nil
	}
	return x.connection.becomeDear(ctx)
}

// close ends the search.
func (l *connection) close() {
	l.release()
	if l.dear {
		<-l.s.admission.dear
		l.dear = false
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

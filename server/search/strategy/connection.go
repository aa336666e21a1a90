package strategy

import (
	"context"
	"errors"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"kiln/server/search/admission"
	"kiln/server/search/match"
)

// connection is the connection of one search: taken when it is first needed, kept from
// one statement to the next, so that a search waits once.
type connection struct {
	s     *Searcher
	conn  *pgxpool.Conn
	end   func()
	dear  bool         // it has a place among the dear searches
	key   totalKey     // of that place
	parts *match.Parts // that the plan asks; nil as long as there is no plan
	// broad is set where memory has found many matches: a search of few goes before it.
	broad bool
}

// errNewParts is of a search that has waited for so long that it has to be planned anew.
var errNewParts = errors.New("search: parts of the index have been announced since the plan was made")

// getConnection returns the connection for a statement that begins at once. It fails with errNewParts if the plan reads other
// parts than the present ones.
func (l *connection) getConnection(ctx context.Context) (*pgxpool.Conn, error) {
	conn, err := l.takenConnection(ctx)
	if err != nil || l.parts == nil {
		return conn, err
	}
	now, err := l.s.store.Parts(ctx)
	if err == nil && now != l.parts {
		err = errNewParts
	}
	return conn, err
}

func (l *connection) takenConnection(ctx context.Context) (*pgxpool.Conn, error) {
	if l.conn != nil {
		return l.conn, nil
	}
	end := func() {}
	if !l.dear {
		var err error
		if end, err = l.s.admission.AdmitShort(ctx, l.broad); err != nil {
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
	_, err = l.getConnection(ctx)
	return l.release, err
}

// HoldExpensive takes a place of an expensive search, and returns how to give it back.
func (s *Searcher) HoldExpensive(ctx context.Context) (release func(), err error) {
	l := &connection{s: s}
	_, err = l.becomeDear(ctx, totalKey{}, nil)
	return l.close, err
}

// CountExpensiveWaiting returns the number of expensive searches that wait for admission.
func (s *Searcher) CountExpensiveWaiting() int { return s.admission.CountWaiting() }

// release returns the connection to the pool; the next statement takes another.
func (l *connection) release() {
	if l.conn != nil {
		l.conn.Release()
		l.end()
		l.conn = nil
	}
}

// becomeDear moves the search to the line of the dear ones; waited is true where others
// were before it, and it is not dear where answered has said so. It gives the connection
// back while it waits. Searches with the same clauses have the same key.
func (l *connection) becomeDear(ctx context.Context, key totalKey, answered admission.IsAnswered) (waited bool, err error) {
	if l.dear {
		return false, nil
	}
	if a := l.s.admission; !a.TryExpensive(admission.Key(key)) {
		waited = true
		l.release()
		if admitted, err := a.AdmitExpensive(ctx, admission.Key(key), answered); !admitted {
			return true, err
		}
	}
	if l.conn != nil {
		l.end() // its place among the cheap ones
		l.end = func() {}
	}
	l.dear, l.key = true, key
	return waited, nil
}

// becomeDear is connection.becomeDear; inside a transaction, which has a connection, it
// does nothing.
func (x *searching) becomeDear(ctx context.Context) (waited bool, err error) {
	if x.isPrivate() || x.inSnapshot {
		return false, nil
	}
	return x.connection.becomeDear(ctx, x.clauses(), nil)
}

// runAlone waits, without a connection, until no other search finds what key names. Inside a
// transaction, which has a connection, it does not wait.
func (x *searching) runAlone(ctx context.Context, key totalKey) (end func(), err error) {
	if x.isPrivate() || x.inSnapshot {
		return func() {}, nil
	}
	for {
		end, ends := x.s.admission.BeginComputation(admission.Key(key))
		if end != nil {
			return end, nil
		}
		x.connection.release()
		select {
		case <-ends:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

// clauses returns a key of the search's clauses, the same for every page.
func (x *searching) clauses() totalKey { return keyOf(x.plan.Count()) }

// becomeDearUnlessFound is becomeDear, but that it returns the page where memory has it
// before the search is let in.
func (x *searching) becomeDearUnlessFound(ctx context.Context) (p *pageRows, waited bool, err error) {
	q := x.asks
	if q == nil || len(x.q.Sort) > 0 || x.isPrivate() || x.inSnapshot {
		waited, err = x.becomeDear(ctx)
		return nil, waited, err
	}
	found := func() (bool, <-chan struct{}) {
		again := x.s.filler.NextRead()
		_, yes := x.s.cache.Ask(q)
		return yes, again
	}
	for range maxAsked {
		more, err := x.connection.becomeDear(ctx, x.clauses(), found)
		waited = waited || more
		if err != nil || !more {
			return nil, waited, err
		}
		if p, err := x.byMemory(ctx); p != nil || err != nil || x.connection.dear {
			return p, waited, err
		}
	}
	_, err = x.becomeDear(ctx)
	return nil, true, err
}

// close ends the search.
func (l *connection) close() {
	l.release()
	if l.dear {
		l.s.admission.EndExpensive(admission.Key(l.key))
		l.dear = false
	}
}

func (l *connection) Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error) {
	conn, err := l.getConnection(ctx)
	if err != nil {
		return nil, err
	}
	return conn.Query(ctx, sql, args...)
}

func (l *connection) QueryRow(ctx context.Context, sql string, args ...any) pgx.Row {
	conn, err := l.getConnection(ctx)
	if err != nil {
		return failedRow{err}
	}
	return conn.QueryRow(ctx, sql, args...)
}

// failedRow is the answer of a query that could not be asked.
type failedRow struct{ err error }

func (r failedRow) Scan(...any) error { return r.err }

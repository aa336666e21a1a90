package store

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// liveness asks the database for a sign of life all the time, on a connection of
// its own. When none comes for some seconds, the database hangs (a stopped process,
// a dead disk, a network that drops everything), and no statement will ever be
// answered: every connection is closed, so that the requests which wait for one
// fail at once, and none gets a new one until there is a sign of life again. A statement
// that only takes long is left alone.
type liveness struct {
	config *pgx.ConnConfig
	log    *slog.Logger
	// patience is how long a sign of life may take.
	patience time.Duration

	hangs  atomic.Bool
	mu     sync.Mutex
	open   map[*watchedConn]struct{}
	cancel context.CancelFunc
	done   sync.WaitGroup
}

// signEvery is the time between two signs of life.
const signEvery = 500 * time.Millisecond

// errHangs is the error of work that needs the database while the database hangs.
var errHangs = unavailableError("the database does not answer")

// watchedConn is a connection to the database that liveness can close.
type watchedConn struct {
	net.Conn
	of *liveness
}

// Close closes the connection and forgets it.
func (c *watchedConn) Close() error {
	c.of.mu.Lock()
	delete(c.of.open, c)
	c.of.mu.Unlock()
	return c.Conn.Close()
}

// newLiveness makes requests fail within timeout when the database hangs.
func newLiveness(url string, timeout time.Duration, log *slog.Logger) (*liveness, error) {
	c, err := pgx.ParseConfig(url)
	if err != nil {
		return nil, err
	}
	// The rest of the timeout covers the last sign of life before, and the end of the
	// request.
	l := &liveness{config: c, log: log, patience: max(timeout*6/10-signEvery, signEvery), open: make(map[*watchedConn]struct{})}
	if len(hostsOf(c)) > 1 {
		c.ConnectTimeout = cmp.Or(c.ConnectTimeout, hostTimeout)
	}
	l.watch(&c.Config, true)
	return l, nil
}

// watch makes connections of a configuration known to l. While the database hangs only
// the one that asks for a sign of life is made: neither a pool's, nor the one that a
// request to cancel a statement goes through.
func (l *liveness) watch(c *pgconn.Config, asks bool) {
	dial := c.DialFunc
	c.DialFunc = func(ctx context.Context, network, address string) (net.Conn, error) {
		if !asks && l.hangs.Load() {
			return nil, errHangs
		}
		conn, err := dial(ctx, network, address)
		if err != nil {
			return nil, err
		}
		w := &watchedConn{conn, l}
		l.mu.Lock()
		l.open[w] = struct{}{}
		l.mu.Unlock()
		if !asks && l.hangs.Load() { // closeAll may have come before
			w.Close()
			return nil, errHangs
		}
		return w, nil
	}
}

// admitConnection refuses a connection while the database hangs.
func (l *liveness) admitConnection(context.Context, *pgx.ConnConfig) error {
	if l.hangs.Load() {
		return errHangs
	}
	return nil
}

func (l *liveness) start() {
	ctx, cancel := context.WithCancel(context.Background())
	l.cancel = cancel
	l.done.Go(func() { l.run(ctx) })
}

func (l *liveness) stop() {
	l.cancel()
	l.done.Wait()
}

func (l *liveness) run(ctx context.Context) {
	var conn *pgx.Conn
	defer func() {
		if conn != nil {
			conn.Close(context.WithoutCancel(ctx))
		}
	}()
	for {
		asking, cancel := context.WithTimeout(ctx, l.patience)
		err := l.sign(asking, &conn)
		late := asking.Err() != nil
		cancel()
		switch {
		case ctx.Err() != nil:
			return
		case err == nil && l.hangs.CompareAndSwap(true, false):
			l.log.Info("the database answers again")
		case err != nil && late && l.hangs.CompareAndSwap(false, true):
			l.log.Error("the database does not answer: waiting requests fail", slog.Duration("for", l.patience))
			fallthrough
		case l.hangs.Load():
			l.closeAll()
			conn = nil
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(signEvery):
		}
	}
}

// sign waits for a sign of life. An error that the database answers is one.
func (l *liveness) sign(ctx context.Context, conn **pgx.Conn) error {
	if *conn == nil || (*conn).IsClosed() {
		c, err := pgx.ConnectConfig(ctx, l.config)
		if err != nil {
			*conn = nil
			return alive(err)
		}
		*conn = c
	}
	return alive((*conn).Ping(ctx))
}

func alive(err error) error {
	var pg *pgconn.PgError
	if errors.As(err, &pg) {
		return nil
	}
	return err
}

// closeAll closes every connection, those in use included.
func (l *liveness) closeAll() {
	l.mu.Lock()
	all := make([]*watchedConn, 0, len(l.open))
	for c := range l.open {
		all = append(all, c)
	}
	clear(l.open)
	l.mu.Unlock()
	for _, c := range all {
		c.Conn.Close()
	}
}

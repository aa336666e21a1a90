package server

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// databasePause is how long a start waits between two tries to reach the database.
const databasePause = 250 * time.Millisecond

// waitForDatabase returns when the database takes connections: a server may be
// started together with it. It fails at once where waiting does not help (a wrong
// password, an unknown database), and otherwise after limit.
func waitForDatabase(ctx context.Context, url string, limit time.Duration, log *slog.Logger) error {
	config, err := pgx.ParseConfig(url)
	if err != nil {
		return fmt.Errorf("database.url: %w", err)
	}
	at := net.JoinHostPort(config.Host, fmt.Sprint(config.Port))
	end := time.Now().Add(limit)
	for logged := false; ; {
		try, cancel := context.WithTimeout(ctx, 5*time.Second)
		conn, err := pgx.ConnectConfig(try, config)
		cancel()
		if err == nil {
			return conn.Close(ctx)
		}
		if ctx.Err() != nil {
			return ctx.Err()
		}
		reason, comesUp := notUp(err)
		if !comesUp {
			return fmt.Errorf("the database at %s refuses the connection: %s", at, reason)
		}
		if time.Now().After(end) {
			return fmt.Errorf("the database at %s is not up after %v (database.wait_seconds): %s", at, limit, reason)
		}
		if !logged {
			logged = true
			log.Info("waiting for the database", slog.String("at", at), slog.String("reason", reason))
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(databasePause):
		}
	}
}

// whileUp waits for the database and runs f. Where f fails because the database has stopped
// meanwhile, it does both again until limit.
func whileUp(ctx context.Context, url string, limit time.Duration, log *slog.Logger, f func() error) error {
	for end := time.Now().Add(limit); ; {
		if err := waitForDatabase(ctx, url, max(time.Until(end), 0), log); err != nil {
			return err
		}
		err := f()
		if err == nil || !stopped(err) || time.Now().After(end) || ctx.Err() != nil {
			return err
		}
		log.Info("the database has stopped during the start", slog.Any("error", err))
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(databasePause):
		}
	}
}

// stopped reports whether an error is that of a database that stops or has stopped, or of a
// connection that it has closed.
func stopped(err error) bool {
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		return true
	}
	_, comesUp := notUp(err)
	return comesUp
}

// Connect makes a connection to the database of a URL. The error is one line, without
// the URL's password.
func Connect(ctx context.Context, url string) (*pgx.Conn, error) {
	config, err := pgx.ParseConfig(url)
	if err != nil {
		return nil, fmt.Errorf("database.url: %w", err)
	}
	conn, err := pgx.ConnectConfig(ctx, config)
	if err != nil {
		reason, _ := notUp(err)
		return nil, fmt.Errorf("the database at %s cannot be reached: %s", net.JoinHostPort(config.Host, fmt.Sprint(config.Port)), reason)
	}
	return conn, nil
}

// notUp says in a few words why there is no connection, and whether that is because
// the database is not up yet: nobody listens, its name does not resolve, or it is
// starting or stopping.
func notUp(err error) (reason string, comesUp bool) {
	var pg *pgconn.PgError
	if errors.As(err, &pg) {
		switch pg.Code {
		case "57P03", "57P01", "57P02": // cannot_connect_now, admin_shutdown, crash_shutdown
			return pg.Message, true
		}
		return pg.Message, false
	}
	var dns *net.DNSError
	var op *net.OpError
	switch {
	case errors.As(err, &dns):
		return "its name does not resolve", true
	case errors.Is(err, syscall.ENOENT):
		return "its socket is not there", true
	case errors.Is(err, context.DeadlineExceeded):
		return "it does not answer", true
	case errors.As(err, &op):
		return op.Err.Error(), true
	case errors.Is(err, syscall.ECONNRESET), errors.Is(err, syscall.EPIPE):
		return "it closes the connection", true
	}
	return err.Error(), false
}

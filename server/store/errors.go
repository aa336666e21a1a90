package store

import (
	"context"
	"errors"
	"strings"

	"github.com/jackc/pgx/v5/pgconn"

	"kiln/server/outcome"
)

// errLostRace is the error of a transaction that gave out a version number which another
// transaction committed first. The transaction is run again.
var errLostRace = errors.New("store: another transaction committed this version first")

// translateError turns what PostgreSQL and pgx say into an outcome: the one place
// where this is decided. An error that is an outcome, a *WriteError, or none of
// the client's business stays as it is.
func translateError(err error) error {
	if err == nil {
		return nil
	}
	var w *WriteError
	if errors.As(err, &w) {
		return err
	}
	if _, ok := outcome.From(err); ok {
		return err
	}
	if errors.Is(err, errLostRace) || isOutdated(err) {
		return outcome.Conflict("others kept changing the same resources; try again").Because(err)
	}
	var pg *pgconn.PgError
	if errors.As(err, &pg) {
		return translateCode(pg, err)
	}
	var connect *pgconn.ConnectError
	switch {
	case errors.Is(err, context.DeadlineExceeded):
		return outcome.New(outcome.CodeTimeout, "the request took too long").Because(err)
	case errors.Is(err, context.Canceled):
		return outcome.New(outcome.CodeTimeout, "the request was given up").Because(err)
	case errors.As(err, &connect), pgconn.Timeout(err), pgconn.SafeToRetry(err), isConnectionLost(err):
		return unavailableError("the database cannot be reached").Because(err)
	}
	return err
}

// Translate says of an error of the database, of another pool's too, what callers may
// know: unavailable, 503, where it cannot be reached. Other errors are returned as they are.
func Translate(err error) error { return translateError(err) }

func translateCode(pg *pgconn.PgError, err error) error {
	switch pg.Code {
	case "40001", "40P01", "23505": // serialization failure, deadlock, unique violation
		return outcome.Conflict("others kept changing the same resources; try again").Because(err)
	case "57014", "55P03", "25P03": // statement timeout or cancel, lock and idle timeouts
		return outcome.New(outcome.CodeTimeout, "the request took too long").Because(err)
	case "22021", "22P05": // text that PostgreSQL cannot hold
		return outcome.Invalid("text contains a character that cannot be stored").Because(err)
	case "54000": // an index row over its limit
		return outcome.New(outcome.CodeTooLong, "a value is too long to be indexed").Because(err)
	case "54001", "54023": // a statement too deep or with too many arguments
		return outcome.New(outcome.CodeTooCostly, "the search is too complex; ask for less at once").Because(err)
	case "53300": // too many connections
		return unavailableError("the database has no free connection").Because(err)
	case "25006", "53100", "53200": // read-only, disk full, out of memory
		return unavailableError("the database cannot take writes").Because(err)
	}
	// Classes 08 (connection) and 57P (shutdown, crash, start-up).
	if strings.HasPrefix(pg.Code, "08") || strings.HasPrefix(pg.Code, "57P") {
		return unavailableError("the database cannot be reached").Because(err)
	}
	return err
}

func unavailableError(diagnostics string) *outcome.Error {
	return outcome.New(outcome.CodeTransient, "%s", diagnostics)
}

// isConnectionLost reports whether the connection ended under a statement.
func isConnectionLost(err error) bool {
	text := err.Error()
	for _, s := range []string{"unexpected EOF", "conn closed", "connection reset", "broken pipe", "closed pool", "use of closed network connection"} {
		if strings.Contains(text, s) {
			return true
		}
	}
	return false
}

// isRetryable reports whether running the transaction again may succeed: nothing
// of it was committed and the reason has passed.
func isRetryable(err error) bool {
	if errors.Is(err, errLostRace) || errors.Is(err, errNotCommitted) || isOutdated(err) || pgconn.SafeToRetry(err) {
		return true
	}
	var lost *lostCommitError
	if errors.As(err, &lost) {
		return false
	}
	var pg *pgconn.PgError
	return errors.As(err, &pg) && (pg.Code == "40001" || pg.Code == "40P01" || pg.Code == "23505")
}

package store

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"testing"

	"github.com/jackc/pgx/v5/pgconn"

	"kiln/server/outcome"
)

func TestTranslate(t *testing.T) {
	pg := func(code string) error {
		return fmt.Errorf("write: %w", &pgconn.PgError{Code: code, Message: "secret"})
	}
	for _, tt := range []struct {
		name   string
		err    error
		status int // 0: not an outcome
		code   outcome.Code
		retry  bool
	}{
		{"serialization failure", pg("40001"), http.StatusConflict, outcome.CodeConflict, true},
		{"deadlock", pg("40P01"), http.StatusConflict, outcome.CodeConflict, true},
		{"unique violation", pg("23505"), http.StatusConflict, outcome.CodeConflict, true},
		{"lost race", errLostRace, http.StatusConflict, outcome.CodeConflict, true},
		{"statement timeout", pg("57014"), http.StatusServiceUnavailable, outcome.CodeTimeout, false},
		{"deadline", fmt.Errorf("read: %w", context.DeadlineExceeded), http.StatusServiceUnavailable, outcome.CodeTimeout, false},
		{"given up", context.Canceled, http.StatusServiceUnavailable, outcome.CodeTimeout, false},
		{"shutdown", pg("57P01"), http.StatusServiceUnavailable, outcome.CodeTransient, false},
		{"connection failure", pg("08006"), http.StatusServiceUnavailable, outcome.CodeTransient, false},
		{"connection lost", fmt.Errorf("read: %w", io.ErrUnexpectedEOF), http.StatusServiceUnavailable, outcome.CodeTransient, false},
		{"too many connections", pg("53300"), http.StatusServiceUnavailable, outcome.CodeTransient, false},
		{"disk full", pg("53100"), http.StatusServiceUnavailable, outcome.CodeTransient, false},
		{"NUL in a text", pg("22021"), http.StatusBadRequest, outcome.CodeInvalid, false},
		{"index row too long", pg("54000"), http.StatusRequestEntityTooLarge, outcome.CodeTooLong, false},
		{"a statement too deep", pg("54001"), http.StatusBadRequest, outcome.CodeTooCostly, false},
		{"an outcome", outcome.NotFound("Patient", "1"), http.StatusNotFound, outcome.CodeNotFound, false},
		{"a bug in SQL", pg("42601"), 0, "", false},
		{"anything else", errors.New("secret"), 0, "", false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			got := translateError(tt.err)
			if !errors.Is(got, tt.err) {
				t.Errorf("the cause is lost: %v", got)
			}
			if r := isRetryable(tt.err); r != tt.retry {
				t.Errorf("retryable is %v, want %v", r, tt.retry)
			}
			o, ok := outcome.From(got)
			if ok != (tt.status != 0) {
				t.Fatalf("got %v", got)
			}
			if ok && (o.HTTPStatus() != tt.status || o.Issues[0].Code != tt.code) {
				t.Errorf("got %d %s, want %d %s", o.HTTPStatus(), o.Issues[0].Code, tt.status, tt.code)
			}
		})
	}
	if translateError(nil) != nil {
		t.Error("no error became one")
	}
}

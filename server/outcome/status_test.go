package outcome

import (
	"errors"
	"fmt"
	"testing"
)

// Design, 2 and the Specification's table of errors: the status of each kind of error.
func TestStatus(t *testing.T) {
	t.Parallel()
	issues := []Issue{{Severity: Failure, Code: CodeInvalid}}
	for _, tt := range []struct {
		name   string
		err    *Error
		status int
		code   Code
		theirs bool
	}{
		{"Invalid", Invalid("x"), 400, CodeInvalid, true},
		{"RefusedParameter", RefusedParameter("x"), 400, CodeNotSupported, true},
		{"InvalidDuplicate", InvalidDuplicate("x"), 400, CodeDuplicate, true},
		{"too costly", New(CodeTooCostly, "x"), 400, CodeTooCostly, true},
		{"no token", New(CodeLogin, "x"), 401, CodeLogin, true},
		{"no right", New(CodeForbidden, "x"), 403, CodeForbidden, true},
		{"NotFound", NotFound("Patient", "1"), 404, CodeNotFound, true},
		{"NotSupported", NotSupported("x"), 404, CodeNotSupported, true},
		{"MethodNotAllowed", MethodNotAllowed("x"), 405, CodeNotSupported, true},
		{"NotAcceptable", NotAcceptable("x"), 406, CodeNotSupported, true},
		{"Conflict", Conflict("x"), 409, CodeConflict, true},
		{"an index that is being built", New(CodeIncomplete, "x"), 409, CodeIncomplete, true},
		{"Deleted", Deleted("Patient", "1"), 410, CodeDeleted, true},
		{"Precondition", Precondition(CodeDuplicate, "x"), 412, CodeDuplicate, true},
		{"several matches", New(CodeMultiple, "x"), 412, CodeMultiple, true},
		{"a body that is too long", New(CodeTooLong, "x"), 413, CodeTooLong, true},
		{"URITooLong", URITooLong("x"), 414, CodeTooLong, true},
		{"UnsupportedMediaType", UnsupportedMediaType("x"), 415, CodeNotSupported, true},
		{"Unprocessable", Unprocessable(issues), 422, CodeInvalid, true},
		{"UnprocessableContent", UnprocessableContent(CodeTooCostly, "x"), 422, CodeTooCostly, true},
		{"UpgradeRequired", UpgradeRequired("x"), 426, CodeInvalid, true},
		{"throttled", New(CodeThrottled, "x"), 429, CodeThrottled, true},
		{"Relayed", Relayed(418, "business-rule", "x"), 418, "business-rule", true},
		{"Relayed with a code that FHIR has not", Relayed(418, "x-own", "x"), 418, CodeInvalid, true},
		{"Relayed as an error of a server, without a code", Relayed(599, "", "x"), 599, CodeException, false},
		{"Internal", Internal("1", errors.New("secret")), 500, CodeException, false},
		{"NotImplemented", NotImplemented("x"), 501, CodeNotSupported, false},
		{"BadGateway", BadGateway(CodeTooLong, "x"), 502, CodeTooLong, false},
		{"Unavailable", Unavailable("x"), 503, CodeException, false},
		{"AtCapacity", AtCapacity("x"), 503, CodeThrottled, false},
		{"timeout", New(CodeTimeout, "x"), 503, CodeTimeout, false},
		{"GatewayTimeout", GatewayTimeout("x"), 504, CodeTimeout, false},
		{"a code of no status", New(CodeInformational, "x"), 500, CodeInformational, false},
		{"no issue", new(Error), 500, "", false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if got := tt.err.HTTPStatus(); got != tt.status {
				t.Errorf("status %d, want %d", got, tt.status)
			}
			wrapped := fmt.Errorf("read: %w", tt.err)
			if Is(wrapped, tt.code) == (tt.code == "") || Theirs(wrapped) != tt.theirs || Ours(wrapped) == tt.theirs {
				t.Errorf("Is %v, Theirs %v, Ours %v", Is(wrapped, tt.code), Theirs(wrapped), Ours(wrapped))
			}
		})
	}
	if got := Conflict("x").StatusWith(412); got != 412 {
		t.Errorf("a version conflict is %d where 412 is configured", got)
	}
	if got := New(CodeConflict, "x").StatusWith(412); got != 409 {
		t.Errorf("another conflict is %d, want 409", got)
	}
	if plain := errors.New("x"); Theirs(plain) || !Ours(plain) || Theirs(nil) || Ours(nil) {
		t.Error("another error is ours, and none is nobody's")
	}
}

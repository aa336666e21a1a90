package outcome

import (
	"errors"
	"fmt"
	"slices"
	"strings"
)

// Code is an issue type. Spec: https://hl7.org/fhir/R4/valueset-issue-type.html.
type Code string

// The issue codes this service answers with.
const (
	CodeInvalid       Code = "invalid"       // body or parameter is not acceptable content
	CodeStructure     Code = "structure"     // not JSON, or JSON that cannot be a resource
	CodeRequired      Code = "required"      // a required element is missing
	CodeValue         Code = "value"         // an element value is not of its type
	CodeNotSupported  Code = "not-supported" // interaction, operation, type or parameter is not served
	CodeNotFound      Code = "not-found"     // never existed
	CodeDeleted       Code = "deleted"       // existed, is deleted
	CodeExpired       Code = "expired"       // the link is no longer good
	CodeConflict      Code = "conflict"      // a version precondition failed, or a race was lost
	CodeMultiple      Code = "multiple-matches"
	CodeDuplicate     Code = "duplicate"
	CodeTooCostly     Code = "too-costly"
	CodeTooLong       Code = "too-long" // a body or value is over its limit
	CodeTimeout       Code = "timeout"
	CodeThrottled     Code = "throttled"
	CodeLogin         Code = "login"
	CodeForbidden     Code = "forbidden"
	CodeException     Code = "exception"
	CodeTransient     Code = "transient"  // the server waited in vain; nothing is stored
	CodeNoStore       Code = "no-store"   // the disk is full
	CodeIncomplete    Code = "incomplete" // not everything could be considered
	CodeInformational Code = "informational"
)

// Severity is how bad an issue is.
// Spec: https://hl7.org/fhir/R4/valueset-issue-severity.html.
type Severity string

// The severities, worst first.
const (
	Fatal       Severity = "fatal"
	Failure     Severity = "error"
	Warning     Severity = "warning"
	Information Severity = "information"
)

// Issue is one entry of an OperationOutcome. Line and Column are 1-based and 0
// where the place in the input is not known.
type Issue struct {
	Severity    Severity
	Code        Code
	Diagnostics string
	Expression  string // FHIRPath of the element, "" when the issue is about no element
	Line        int
	Column      int
}

// Error is a refused request: at least one issue, and the HTTP status of its code or of
// the constructor that made it.
type Error struct {
	Issues []Issue
	status int // HTTP status; 0 means the status of the first issue's code
	// Challenge is the header WWW-Authenticate of a 401 or 403; "" is Bearer for 401
	// and none for 403. RFC 6750 §3.
	Challenge string
	// VersionConflict marks the errors of Conflict, whose status the configuration
	// chooses.
	VersionConflict bool
	// Location is the relative URL of what may have been stored; "" is of nothing.
	Location string
	Cause    error // never shown to the client
}

func (e *Error) Error() string {
	parts := make([]string, len(e.Issues))
	for i, issue := range e.Issues {
		parts[i] = issue.Diagnostics
		if issue.Expression != "" {
			parts[i] = issue.Expression + ": " + parts[i]
		}
	}
	return strings.Join(parts, "; ")
}

// Unwrap returns the cause, for errors.Is and errors.As.
func (e *Error) Unwrap() error { return e.Cause }

// New returns an error with one issue and the status of its code.
func New(code Code, format string, args ...any) *Error {
	return &Error{Issues: []Issue{{Severity: Failure, Code: code, Diagnostics: fmt.Sprintf(format, args...)}}}
}

// At sets the element the first issue is about and returns e.
func (e *Error) At(expression string) *Error {
	e.Issues[0].Expression = expression
	return e
}

// WithChallenge sets the header WWW-Authenticate and returns e.
func (e *Error) WithChallenge(challenge string) *Error {
	e.Challenge = challenge
	return e
}

// With returns a copy of e with a cause, for an e that several requests share.
func (e *Error) With(cause error) *Error {
	other := *e
	other.Issues = slices.Clone(e.Issues)
	other.Cause = cause
	return &other
}

// Because sets the cause, which is logged and never shown, and returns e.
func (e *Error) Because(cause error) *Error {
	e.Cause = cause
	return e
}

// NotFound says that a resource never existed: 404 not-found.
func NotFound(typ, id string) *Error {
	return New(CodeNotFound, "%s/%s does not exist", typ, id)
}

// Deleted says that a resource existed and is deleted: 410 deleted.
func Deleted(typ, id string) *Error {
	return New(CodeDeleted, "%s/%s is deleted", typ, id)
}

// Invalid says that a parameter, header or body cannot be accepted: 400 invalid.
func Invalid(format string, args ...any) *Error { return New(CodeInvalid, format, args...) }

// NotSupported says that an interaction, operation or type is not served: 404
// not-supported.
func NotSupported(format string, args ...any) *Error { return New(CodeNotSupported, format, args...) }

// Conflict says that If-Match does not name the current version, or that a race
// was lost: 409 conflict. R4's text asks for 412 where If-Match fails
// (https://hl7.org/fhir/R4/http.html#concurrency); the service's contract says
// 409 for a version mismatch, and fhir.version_conflict_status chooses.
func Conflict(format string, args ...any) *Error {
	e := New(CodeConflict, format, args...)
	e.VersionConflict = true
	return e
}

// maxClipped is how many bytes of a client's text an error shows.
const maxClipped = 100

// Clip is a text of a client as an error shows it: its beginning, as valid UTF-8.
func Clip(s string) string {
	if len(s) > maxClipped {
		return strings.ToValidUTF8(s[:maxClipped], "") + "…"
	}
	return strings.ToValidUTF8(s, "?")
}

// From returns err as an *Error, and whether it was one.
func From(err error) (*Error, bool) {
	var e *Error
	ok := errors.As(err, &e)
	return e, ok
}

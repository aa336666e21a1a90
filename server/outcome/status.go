package outcome

import (
	"net/http"
	"slices"
)

// statusOf is the table from issue code to HTTP status. The constructors below are the
// exceptions from it, each with its name; no other package knows a status of an error.
var statusOf = map[Code]int{
	CodeInvalid:      http.StatusBadRequest,
	CodeStructure:    http.StatusBadRequest,
	CodeRequired:     http.StatusBadRequest,
	CodeValue:        http.StatusBadRequest,
	CodeNotSupported: http.StatusNotFound,
	CodeNotFound:     http.StatusNotFound,
	CodeDeleted:      http.StatusGone,
	CodeExpired:      http.StatusGone,
	CodeConflict:     http.StatusConflict,
	CodeIncomplete:   http.StatusConflict,
	CodeMultiple:     http.StatusPreconditionFailed,
	CodeDuplicate:    http.StatusPreconditionFailed,
	CodeTooCostly:    http.StatusBadRequest,
	CodeTooLong:      http.StatusRequestEntityTooLarge,
	CodeTimeout:      http.StatusServiceUnavailable,
	CodeThrottled:    http.StatusTooManyRequests,
	CodeLogin:        http.StatusUnauthorized,
	CodeForbidden:    http.StatusForbidden,
	CodeException:    http.StatusInternalServerError,
	CodeTransient:    http.StatusServiceUnavailable,
	CodeNoStore:      http.StatusInternalServerError,
}

// HTTPStatus is the status that answers e, save version conflicts: StatusWith.
func (e *Error) HTTPStatus() int {
	if e.status != 0 {
		return e.status
	}
	if len(e.Issues) == 0 {
		return http.StatusInternalServerError
	}
	if s, ok := statusOf[e.Issues[0].Code]; ok {
		return s
	}
	return http.StatusInternalServerError
}

// StatusWith is the status that answers e where version conflicts are answered with
// conflict (409, or 412 as R4's text has it; 0 is 409).
func (e *Error) StatusWith(conflict int) int {
	if e.VersionConflict && conflict != 0 {
		return conflict
	}
	return e.HTTPStatus()
}

// Is reports whether err is an Error whose first issue has one of the codes.
func Is(err error, codes ...Code) bool {
	e, ok := From(err)
	return ok && len(e.Issues) > 0 && slices.Contains(codes, e.Issues[0].Code)
}

// Ours reports whether the service is at fault, and not the request: errors of other types,
// and errors with a status of 500 or more.
func Ours(err error) bool {
	e, ok := From(err)
	return err != nil && (!ok || e.HTTPStatus() >= http.StatusInternalServerError)
}

// Theirs reports whether the request is at fault, and not the service: an Error that
// is answered with a status below 500.
func Theirs(err error) bool { return err != nil && !Ours(err) }

// IsUnprocessable reports whether err says that a body failed validation: 422.
func IsUnprocessable(err error) bool { return hasStatus(err, http.StatusUnprocessableEntity) }

// IsMethodNotAllowed reports whether err says that a path does not take the method:
// 405.
func IsMethodNotAllowed(err error) bool { return hasStatus(err, http.StatusMethodNotAllowed) }

// IsUnsupportedMediaType reports whether err says that the body is of a type that is not
// served: 415.
func IsUnsupportedMediaType(err error) bool { return hasStatus(err, http.StatusUnsupportedMediaType) }

// IsGatewayTimeout reports whether err says that another party took too long: 504.
func IsGatewayTimeout(err error) bool { return hasStatus(err, http.StatusGatewayTimeout) }

func hasStatus(err error, status int) bool {
	e, ok := From(err)
	return ok && e.HTTPStatus() == status
}

func withStatus(status int, code Code, format string, args []any) *Error {
	e := New(code, format, args...)
	e.status = status
	return e
}

// RefusedParameter says that a parameter, modifier or value of a search is not served:
// 400 not-supported. R4 leaves the status of these to the server.
// Spec: https://hl7.org/fhir/R4/search.html#errors.
func RefusedParameter(format string, args ...any) *Error {
	return withStatus(http.StatusBadRequest, CodeNotSupported, format, args)
}

// InvalidDuplicate says that a body defines again what another resource defines: 400
// duplicate, where a failed precondition with this code is a 412.
func InvalidDuplicate(format string, args ...any) *Error {
	return withStatus(http.StatusBadRequest, CodeDuplicate, format, args)
}

// AbsentParameter says that a parameter names a resource that is not there for the caller: 400 not-found.
func AbsentParameter(format string, args ...any) *Error {
	return withStatus(http.StatusBadRequest, CodeNotFound, format, args)
}

// MethodNotAllowed says that an interaction or operation is not to be had by the
// request's method: 405 not-supported.
func MethodNotAllowed(format string, args ...any) *Error {
	return withStatus(http.StatusMethodNotAllowed, CodeNotSupported, format, args)
}

// NotAcceptable says that no representation that the request accepts is served: 406
// not-supported.
func NotAcceptable(format string, args ...any) *Error {
	return withStatus(http.StatusNotAcceptable, CodeNotSupported, format, args)
}

// Precondition says that a conditional interaction does not apply: 412.
func Precondition(code Code, format string, args ...any) *Error {
	return withStatus(http.StatusPreconditionFailed, code, format, args)
}

// URITooLong says that the URL of a request is over its limit: 414 too-long.
func URITooLong(format string, args ...any) *Error {
	return withStatus(http.StatusRequestURITooLong, CodeTooLong, format, args)
}

// UnsupportedMediaType says that the body is of a type or encoding that is not served:
// 415 not-supported.
func UnsupportedMediaType(format string, args ...any) *Error {
	return withStatus(http.StatusUnsupportedMediaType, CodeNotSupported, format, args)
}

// Unprocessable says that a body failed validation: 422, one issue an error.
func Unprocessable(issues []Issue) *Error {
	return &Error{status: http.StatusUnprocessableEntity, Issues: issues}
}

// UnprocessableContent says that a body, or a stored resource that the request needs,
// can be read and not worked with: 422, with one issue.
func UnprocessableContent(code Code, format string, args ...any) *Error {
	return withStatus(http.StatusUnprocessableEntity, code, format, args)
}

// UpgradeRequired says that a path is served by another protocol alone: 426 invalid.
func UpgradeRequired(format string, args ...any) *Error {
	return withStatus(http.StatusUpgradeRequired, CodeInvalid, format, args)
}

// NotImplemented means that the configuration has switched off a needed feature: 501
// not-supported.
func NotImplemented(format string, args ...any) *Error {
	return withStatus(http.StatusNotImplemented, CodeNotSupported, format, args)
}

// BadGateway says that a server that the request was handed to, or its answer, failed:
// 502.
func BadGateway(code Code, format string, args ...any) *Error {
	return withStatus(http.StatusBadGateway, code, format, args)
}

// Unavailable says that something the service stands on does not answer, or that
// the service ends: 503 exception.
func Unavailable(format string, args ...any) *Error {
	return withStatus(http.StatusServiceUnavailable, CodeException, format, args)
}

// AtCapacity says that the server holds as many connections of a kind as it takes: 503
// throttled.
func AtCapacity(format string, args ...any) *Error {
	return withStatus(http.StatusServiceUnavailable, CodeThrottled, format, args)
}

// GatewayTimeout says that another party took longer than the request may: 504 timeout.
func GatewayTimeout(format string, args ...any) *Error {
	return withStatus(http.StatusGatewayTimeout, CodeTimeout, format, args)
}

// Relayed is an error that another party has made, such as the handler of an App: its
// status, which is 400 to 599, and its code, or one by the status where FHIR has no such code.
func Relayed(status int, code, diagnostics string) *Error {
	if !slices.Contains(issueTypes, code) {
		code = string(relayedCode(status))
	}
	return &Error{status: status, Issues: []Issue{{Severity: Failure, Code: Code(code), Diagnostics: diagnostics}}}
}

// issueTypes are the codes that an issue may have.
// Spec: https://hl7.org/fhir/R4/valueset-issue-type.html.
var issueTypes = []string{
	"invalid", "structure", "required", "value", "invariant", "security", "login", "unknown", "expired", "forbidden", "suppressed",
	"processing", "not-supported", "duplicate", "multiple-matches", "not-found", "deleted", "too-long", "code-invalid", "extension",
	"too-costly", "business-rule", "conflict", "transient", "lock-error", "no-store", "exception", "timeout", "incomplete", "throttled",
	"informational",
}

func relayedCode(status int) Code {
	switch {
	case status == http.StatusUnauthorized:
		return CodeLogin
	case status == http.StatusForbidden:
		return CodeForbidden
	case status == http.StatusNotFound:
		return CodeNotFound
	case status == http.StatusConflict:
		return CodeConflict
	case status == http.StatusTooManyRequests:
		return CodeThrottled
	case status >= http.StatusInternalServerError:
		return CodeException
	}
	return CodeInvalid
}

// Internal wraps an unexpected error: 500 exception. The request id is the only
// thing about it that the client sees.
func Internal(requestID string, cause error) *Error {
	return New(CodeException, "internal error, request id %s", requestID).Because(cause)
}

package web

import (
	"bufio"
	"context"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"log/slog"
	"math/rand/v2"
	"net"
	"net/http"
	"strings"
	"time"

	"kiln/server/access"
	"kiln/server/outcome"
	"kiln/server/telemetry"
)

// Exchange is one request on its way: the ResponseWriter of the handlers, and the fields
// for the access log and the metrics.
type Exchange struct {
	http.ResponseWriter
	ID     string // X-Request-Id
	Prefix string // "" or "/fhir": how the request named the service
	// Route names the kind of request in the metrics: an interaction, or the
	// pattern of a path. It never has a value of the request in it.
	Route     string
	Principal *access.Principal // nil before authentication, and on paths without
	Audited   bool              // an AuditEvent tells of the request already

	// BeforeHeader is called with the status before the header of the answer is written; may be nil.
	BeforeHeader func(status int)

	mux    *Mux
	ctx    context.Context
	path   string // as it came
	start  time.Time
	status int
	bytes  int
	stream bool // long-lived: not slow
	// inFlight says that Mux.InFlight counts the request.
	inFlight bool

	span    telemetry.Span
	timings *telemetry.Timings // nil where they are not asked for
	// guarded says that the request needed a token.
	guarded bool
}

// Path is the path of the request as it came, without its query.
func (x *Exchange) Path() string { return x.path }

// ExchangeOf is the Exchange below w, nil where there is none.
func ExchangeOf(w http.ResponseWriter) *Exchange {
	for {
		if x, ok := w.(*Exchange); ok {
			return x
		}
		u, ok := w.(interface{ Unwrap() http.ResponseWriter })
		if !ok {
			return nil
		}
		w = u.Unwrap()
	}
}

// Context is the request's context with its principal.
func (x *Exchange) Context() context.Context { return x.ctx }

// Start is when the request came.
func (x *Exchange) Start() time.Time { return x.start }

// Status is the status that was answered, 0 before.
func (x *Exchange) Status() int { return x.status }

// WriteHeader notes the status.
func (x *Exchange) WriteHeader(status int) {
	if x.status == 0 && status >= http.StatusOK {
		x.status = status
		x.beforeHeader()
	}
	x.ResponseWriter.WriteHeader(status)
}

// beforeHeader adds the headers that depend on the whole answer.
func (x *Exchange) beforeHeader() {
	if x.BeforeHeader != nil {
		x.BeforeHeader(x.status)
	}
	x.tellTimings()
}

// tellTimings writes where the time went, up to now. Spec:
// https://www.w3.org/TR/server-timing/.
func (x *Exchange) tellTimings() {
	if x.timings != nil {
		x.Header()["Server-Timing"] = []string{x.timings.Header(time.Since(x.start))}
	}
}

// Write counts the bytes.
func (x *Exchange) Write(b []byte) (int, error) {
	if x.status == 0 {
		x.status = http.StatusOK
		x.beforeHeader()
	}
	n, err := x.ResponseWriter.Write(b)
	x.bytes += n
	return n, err
}

// Unwrap gives http.ResponseController the connection.
func (x *Exchange) Unwrap() http.ResponseWriter { return x.ResponseWriter }

// Flush sends the bytes written so far.
func (x *Exchange) Flush() {
	if x.status == 0 {
		x.status = http.StatusOK
		x.beforeHeader()
	}
	_ = http.NewResponseController(x.ResponseWriter).Flush() // a client that has gone needs none
}

// Hijack takes the connection over; the access log then says 101.
func (x *Exchange) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	conn, rw, err := http.NewResponseController(x.ResponseWriter).Hijack()
	if err == nil && x.status == 0 {
		x.status = http.StatusSwitchingProtocols
	}
	return conn, rw, err
}

// stripPrefix makes /fhir/Patient and /Patient/ the same as /Patient.
func (x *Exchange) stripPrefix(r *http.Request) {
	path, raw := r.URL.Path, r.URL.RawPath
	if rest, ok := strings.CutPrefix(path, "/fhir"); ok && (rest == "" || rest[0] == '/') {
		x.Prefix, path = "/fhir", rest
		if raw, ok = strings.CutPrefix(raw, "/fhir"); !ok {
			raw = ""
		}
	}
	if path != "/" && !strings.HasPrefix(path, "/debug/pprof/") && (raw == "" || strings.HasSuffix(raw, "/")) {
		path, raw = strings.TrimSuffix(path, "/"), strings.TrimSuffix(raw, "/")
	}
	if path == "" {
		path = "/"
	}
	if path != r.URL.Path {
		r.URL.Path, r.URL.RawPath = path, raw
	}
}

// Fail answers with an error as an OperationOutcome; after an answer has begun it does
// nothing. Errors other than outcome.Error, and all faults of ours, are logged with their
// cause.
func (x *Exchange) Fail(r *http.Request, err error) {
	if x.status != 0 {
		return
	}
	e, ok := outcome.From(err)
	switch {
	case ok:
	case errors.Is(err, context.DeadlineExceeded):
		e = outcome.New(outcome.CodeTimeout, "the request took too long and was given up").Because(err)
	case errors.Is(err, context.Canceled) && r.Context().Err() != nil:
		e = outcome.New(outcome.CodeTimeout, "the client went away").Because(err)
	default:
		e = outcome.Internal(x.ID, err)
	}
	status := e.StatusWith(x.mux.Now().VersionConflictStatus)
	if status >= http.StatusInternalServerError && r.Context().Err() == nil {
		cause := e.Cause
		if cause == nil {
			cause = err
		}
		x.mux.Logger.LogAttrs(x.ctx, slog.LevelError, "request failed", slog.String("request", x.ID),
			slog.String("method", r.Method), slog.String("path", r.URL.Path), slog.Any("error", cause))
	}
	header := x.Header()
	switch status {
	case http.StatusUnauthorized, http.StatusForbidden:
		if e.Challenge != "" {
			header.Set("WWW-Authenticate", e.Challenge)
		} else if status == http.StatusUnauthorized {
			header.Set("WWW-Authenticate", challenge)
		}
	case http.StatusServiceUnavailable, http.StatusTooManyRequests:
		if header.Get("Retry-After") == "" {
			header.Set("Retry-After", "1")
		}
	case http.StatusRequestEntityTooLarge:
		header.Set("Connection", "close") // the rest of the body is not read
	}
	x.Send(r, status, outcomeType, outcome.JSON(e.Issues), true)
}

// challenge asks for an access token. A scheme alone would be no challenge: RFC 6750
// §3 wants a parameter at least.
const challenge = `Bearer realm="kiln"`

// outcomeType is the content type of an OperationOutcome.
const outcomeType = "application/fhir+json; charset=utf-8"

// requestID is the client's X-Request-Id where it is fit to be repeated, else a
// new one.
func requestID(r *http.Request) string {
	if v := r.Header["X-Request-Id"]; len(v) > 0 && len(v[0]) > 0 && len(v[0]) <= 128 && printable(v[0]) {
		return v[0]
	}
	var id [8]byte
	binary.BigEndian.PutUint64(id[:], rand.Uint64())
	return hex.EncodeToString(id[:])
}

func printable(s string) bool {
	for i := range len(s) {
		if s[i] <= ' ' || s[i] > '~' {
			return false
		}
	}
	return true
}

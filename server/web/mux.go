package web

import (
	"fmt"
	"log/slog"
	"net/http"
	"net/url"
	"runtime/debug"
	"strings"
	"time"

	"kiln/server/access"
	"kiln/server/outcome"
	"kiln/server/telemetry"
)

// Mux is the root of all paths. Its fields are set before the first Handle.
type Mux struct {
	// Verifier turns tokens into principals; nil means that authorization is off
	// and everyone is access.Open.
	Verifier access.Verifier
	// Limiter counts requests; nil limits nobody.
	Limiter Limiter
	// Settings are what can change at run time; nil is their zero value.
	Settings func() *Settings
	// Decided is called for each request that needed a token, when it is answered; may
	// be nil.
	Decided func(x *Exchange, r *http.Request)
	Metrics *Metrics // nil counts nothing
	// InFlight counts the requests that jobs give way to; nil counts none.
	InFlight *InFlight
	// Pages answers browsers; nil has no pages.
	Pages Pages
	// Observed is called for each request that came over the network, when it is answered; may be nil.
	Observed func(status int, took time.Duration)
	// Tracing makes the spans of requests; nil makes none.
	Tracing *telemetry.Tracing
	Logger  *slog.Logger

	routes   http.ServeMux
	first    map[string]bool // the first segments of the patterns of Handle
	fallback Handler
}

// Handler is a part that takes the Exchange as it is, without a copy of the
// request for the context: Exchange.Context has the principal.
type Handler interface {
	ServeExchange(x *Exchange, r *http.Request)
}

// Part is a part of the service that answers paths of its own.
type Part interface {
	Mount(m *Mux)
}

// Group says who may call a path.
type Group struct {
	Name  string
	Token Token // the token that callers need
	// TokenInQuery lets the token stand in the query parameter token, for clients
	// that cannot send headers: WebSocket and EventSource of a browser. It is taken
	// out of the URL before anyone sees it.
	TokenInQuery bool
	Unlimited    bool // never refused for its rate
	// Background says that nobody waits for quick answers: InFlight does not count the requests.
	Background bool
	// Throttled answers a request that the Limiter has refused, with 429; nil answers with
	// the OperationOutcome alone.
	Throttled func(w http.ResponseWriter, r *http.Request, e *outcome.Error)
}

// Token is the kind of token that a caller needs when authorization is on.
type Token int

// Nothing; a valid access token; one with the scope admin; one with admin or metrics.
const (
	NoToken Token = iota
	AnyToken
	AdminToken
	MetricsToken
)

// scope is the scope that a group needs, "" where it needs none.
func (t Token) scope() string {
	switch t {
	case AdminToken:
		return "admin"
	case MetricsToken:
		return "metrics"
	}
	return ""
}

// The groups of paths.
var (
	Health  = Group{Name: "health", Token: NoToken, Unlimited: true, Background: true}
	Metric  = Group{Name: "metrics", Token: MetricsToken, Unlimited: true, Background: true}
	Public  = Group{Name: "public", Token: NoToken} // discovery, the authorization server
	Admin   = Group{Name: "admin", Token: AdminToken, Background: true}
	FHIR    = Group{Name: "fhir", Token: AnyToken}
	Jobs    = Group{Name: "jobs", Token: AnyToken, Background: true} // the status and the files of jobs
	Streams = Group{Name: "streams", Token: AnyToken, TokenInQuery: true, Background: true}
)

// Limiter counts requests by who makes them.
type Limiter interface {
	// Limit counts a request of p, nil where no valid token came, and writes the
	// X-RateLimit headers. It fails with throttled, 429, and Retry-After.
	Limit(x *Exchange, r *http.Request, g Group, p *access.Principal) error
}

// maxURL is the greatest length of a URL, in bytes. A longer one is answered like any other
// error as long as net/http reads it.
const maxURL = 64 << 10

// Handle serves a pattern of http.ServeMux. The handler finds the principal in the
// request's context. It panics if the first segment of the pattern is a wildcard: that
// segment distinguishes a request from the requests of HandleRest.
func (m *Mux) Handle(g Group, pattern string, h http.Handler) {
	route := pattern[strings.IndexByte(pattern, '/'):]
	first := firstSegment(route)
	if strings.HasPrefix(first, "{") {
		panic("web: the pattern " + pattern + " begins with a wildcard")
	}
	if m.first == nil {
		m.first = make(map[string]bool)
	}
	m.first[first] = true
	m.routes.HandleFunc(pattern, func(w http.ResponseWriter, r *http.Request) {
		x := w.(*Exchange)
		x.Route = route
		r.Header["X-Request-Id"] = []string{x.ID} // parts that record the request know its id
		if m.admitRequest(x, r, g) {
			h.ServeHTTP(x, r.WithContext(x.ctx))
		}
	})
}

// HandleFunc is Handle for a function.
func (m *Mux) HandleFunc(g Group, pattern string, h http.HandlerFunc) { m.Handle(g, pattern, h) }

// firstSegment is the part of a path before its second slash.
func firstSegment(path string) string {
	first, _, _ := strings.Cut(path[1:], "/")
	return first
}

// HandleRest serves every path that no pattern of Handle matches.
func (m *Mux) HandleRest(g Group, h Handler) {
	m.fallback = admitted{m, g, h}
	m.routes.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) { m.fallback.ServeExchange(w.(*Exchange), r) })
}

// admitted serves callers that may call the group.
type admitted struct {
	m *Mux
	g Group
	h Handler
}

func (a admitted) ServeExchange(x *Exchange, r *http.Request) {
	g := a.g
	switch {
	case open(r.URL.Path):
		g = Public // a path or method that there is not: no token would help
	case strings.HasPrefix(r.URL.Path, "/admin/"):
		g = Admin // which paths there are is an administrator's to know
	}
	if a.m.admitRequest(x, r, g) {
		a.h.ServeExchange(x, r)
	}
}

// open reports whether a path is among those that need no token.
// Contract: docs/contract.md, Authorization, Shape.
func open(path string) bool {
	for _, prefix := range []string{"/auth/", "/.well-known/", "/health/"} {
		if strings.HasPrefix(path, prefix) {
			return true
		}
	}
	return path == "/health" || path == "/metadata"
}

// ServeHTTP serves one request.
func (m *Mux) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	x := &Exchange{ResponseWriter: w, Route: "other", ID: requestID(r), mux: m, ctx: r.Context(), path: r.URL.Path, start: time.Now()}
	w.Header()["X-Request-Id"] = []string{x.ID}
	w.Header()["X-Content-Type-Options"] = []string{"nosniff"}
	if m.Tracing != nil {
		x.ctx, x.span = m.Tracing.Request(x.ctx, r)
	}
	if m.Now().ServerTiming {
		x.ctx, x.timings = telemetry.WithTimings(x.ctx)
	}
	paceBody(w, r, paceGrace)
	defer m.finish(x, r)
	if !isConsole(r.URL.Path) && m.Now().CORS.answerCORS(x, r) {
		return
	}
	x.stripPrefix(r)
	if strings.HasPrefix(r.URL.Path, "/auth/") { // an error too, by any handler: RFC 6749 §5.1
		w.Header()["Cache-Control"] = []string{"no-store"}
	}
	switch {
	case len(r.RequestURI) > maxURL:
		x.Fail(r, outcome.URITooLong("the URL is longer than %d bytes; a search can be a POST to _search", maxURL))
	case r.RequestURI == "*" && r.Method == http.MethodOptions:
		x.Route = "options"
		x.WriteHeader(http.StatusNoContent)
	case r.RequestURI == "*" || r.Method == http.MethodConnect:
		x.Fail(r, outcome.Invalid("%s is not a URL of this server", clip(r.RequestURI)))
	case m.servePage(x, r):
	case unclean(r.URL):
		// The router would redirect to the cleaned path.
		m.fallback.ServeExchange(x, r)
	case m.fallback != nil && strings.HasPrefix(r.URL.Path, "/") && !m.first[firstSegment(r.URL.Path)]:
		m.fallback.ServeExchange(x, r) // nearly every request of FHIR: no pattern matches
	default:
		m.routes.ServeHTTP(x, r)
	}
}

// isConsole reports whether a path is one of the console, which pages of other origins never call.
func isConsole(path string) bool { return path == "/console" || strings.HasPrefix(path, "/console/") }

// finish ends an exchange: a panic is answered and logged, the request counted and
// logged.
func (m *Mux) finish(x *Exchange, r *http.Request) {
	p := recover()
	x.LeaveFlight()
	if p == http.ErrAbortHandler {
		panic(p)
	}
	if p != nil {
		m.Logger.LogAttrs(x.ctx, slog.LevelError, "panic", slog.String("request", x.ID),
			slog.Any("panic", p), slog.String("stack", string(debug.Stack())))
		x.Fail(r, fmt.Errorf("panic: %v", p))
	}
	if b, ok := r.Body.(*pacedBody); ok {
		b.finishBody(paceRest)
	}
	m.observeRequest(x, r)
	x.span.Answered(r.Method, x.Route, x.ID, x.status)
	if x.guarded && m.Decided != nil {
		m.Decided(x, r)
	}
}

// Allowed lists the methods of a path, by the patterns of Handle.
func (m *Mux) Allowed(r *http.Request) []string {
	var out []string
	for _, method := range Methods {
		probe := &http.Request{Method: method, URL: r.URL, Host: r.Host}
		if _, pattern := m.routes.Handler(probe); pattern != "/" && pattern != "" {
			out = append(out, method)
		}
	}
	return out
}

// Settings are the parts of the configuration that can change while the service runs.
type Settings struct {
	CORS         CORS
	Proxies      Proxies
	LogAccess    LogAccess // which requests are logged
	ServerTiming bool      // answers have the header Server-Timing
	// VersionConflictStatus answers version conflicts: 409 or 412; 0 is 409.
	VersionConflictStatus int
}

var noSettings Settings

// Now returns the settings in force.
func (m *Mux) Now() *Settings {
	if m.Settings == nil {
		return &noSettings
	}
	return m.Settings()
}

// Methods are the HTTP methods that some path is served with.
var Methods = []string{"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE"}

// unclean is Unclean of a URL. An id below /admin/ may be a URL itself, percent-encoded.
func unclean(u *url.URL) bool {
	if u.RawPath != "" && strings.HasPrefix(u.Path, "/admin/") {
		return IsUnclean(u.RawPath)
	}
	return IsUnclean(u.Path)
}

// IsUnclean reports whether a path has empty segments, or . or .. as one.
func IsUnclean(path string) bool {
	return strings.Contains(path, "//") || strings.Contains(path, "/./") || strings.Contains(path, "/../") ||
		strings.HasSuffix(path, "/.") || strings.HasSuffix(path, "/..")
}

package rest

import (
	"context"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net/http"
	"net/netip"
	"net/url"
	"runtime/debug"
	"strings"
	"time"

	"kiln/gen/handler"
	"kiln/server/access"
	"kiln/server/interaction"
	"kiln/server/outcome"
)

// Handler serves FHIR over HTTP. Its fields are set before Mount.
type Handler struct {
	Service *interaction.Service
	// BaseURL is the base that links are built from, without a trailing slash;
	// "" builds them from the request.
	BaseURL string
	// TrustedProxies may say by forwarding headers how a client sees the service.
	TrustedProxies []netip.Prefix
	MaxBodyBytes   int64 // of a request; 0 means 64 MiB
	// AllowedOrigins are the origins that browsers may call from: "*", or each in
	// full ("https://app.example.org"). None turns cross-origin calls off.
	AllowedOrigins []string
	// AllowSkipValidation lets X-Skip-Validation skip validation.
	AllowSkipValidation bool
	LogAccess           LogAccess
	Logger              *slog.Logger
	Metrics             *Metrics
	// Authenticate finds out on whose behalf a request runs; nil means that
	// everyone is access.Open.
	Authenticate func(r *http.Request) (*access.Principal, error)

	mux  *http.ServeMux
	gate *gate
}

// LogAccess says which requests are logged.
type LogAccess string

// Every request; those that failed on our side or took a second; none.
const (
	LogAll    LogAccess = "all"
	LogErrors LogAccess = "errors"
	LogOff    LogAccess = "off"
)

const (
	defaultMaxBody = 64 << 20
	slow           = time.Second
)

// maxURL is the longest URL taken, in bytes. What is longer is answered like any
// other error as long as net/http reads it.
const maxURL = 64 << 10

const systemOperation = "/{operation}"

// Mount sets up the routes: the FHIR ones, and extra ones (health, metrics) by
// pattern. It is called once.
func (h *Handler) Mount(extra map[string]http.Handler) {
	h.gate = newGate()
	h.mux = http.NewServeMux()
	handler.Mount(h.mux, h)
	h.mux.HandleFunc("GET /{$}", h.searchSystem)
	h.mux.HandleFunc("POST /_search", h.searchSystem)
	h.mux.HandleFunc("POST /{$}", h.bundle)
	h.mux.HandleFunc("GET /_history", h.historySystem)
	h.mux.HandleFunc("GET /metadata", h.metadata)
	h.mux.HandleFunc("GET "+systemOperation, h.operationSystem)
	h.mux.HandleFunc("POST "+systemOperation, h.operationSystem)
	for pattern, to := range extra {
		h.mux.Handle(pattern, to)
	}
	h.mux.HandleFunc("/", h.unrouted)
}

// call is one request on its way: the ResponseWriter that handlers get, and what
// the access log and the metrics want to know at the end.
type call struct {
	http.ResponseWriter
	h           *Handler
	ctx         context.Context
	id          string // X-Request-Id
	prefix      string // "" or "/fhir": how the request named the service
	interaction string // as in the metrics
	status      int
	bytes       int
	values      url.Values // of a search by POST: _format and _pretty can stand there
	leave       func()     // gives back the body's room at the gate
}

// WriteHeader notes the status.
func (c *call) WriteHeader(status int) {
	if c.status == 0 {
		c.status = status
	}
	c.ResponseWriter.WriteHeader(status)
}

// Write counts the bytes.
func (c *call) Write(b []byte) (int, error) {
	if c.status == 0 {
		c.status = http.StatusOK
	}
	n, err := c.ResponseWriter.Write(b)
	c.bytes += n
	return n, err
}

// Unwrap gives http.ResponseController the connection.
func (c *call) Unwrap() http.ResponseWriter { return c.ResponseWriter }

// ServeHTTP serves one request.
func (h *Handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	start := time.Now()
	c := &call{ResponseWriter: w, h: h, ctx: r.Context(), id: requestID(r), interaction: "other"}
	w.Header()["X-Request-Id"] = []string{c.id}
	path := r.URL.Path
	defer func() {
		if p := recover(); p != nil {
			if p == http.ErrAbortHandler {
				panic(p)
			}
			h.Logger.LogAttrs(c.ctx, slog.LevelError, "panic", slog.String("request", c.id),
				slog.Any("panic", p), slog.String("stack", string(debug.Stack())))
			if c.status == 0 {
				c.fail(r, fmt.Errorf("panic: %v", p))
			}
		}
		if c.leave != nil {
			c.leave()
		}
		h.done(c, r, path, time.Since(start))
	}()
	if h.cors(c, r) {
		return
	}
	c.stripPrefix(r)
	principal := access.Open
	if h.Authenticate != nil {
		var err error
		if principal, err = h.Authenticate(r); err != nil {
			c.fail(r, err)
			return
		}
	}
	c.ctx = access.With(c.ctx, principal)
	if h.AllowSkipValidation && r.Header.Get("X-Skip-Validation") == "true" {
		c.ctx = interaction.SkipValidation(c.ctx)
	}
	if len(r.RequestURI) > maxURL {
		c.fail(r, outcome.New(outcome.CodeTooLong, "the URL is longer than %d bytes; a search can be a POST to _search", maxURL).
			WithStatus(http.StatusRequestURITooLong))
		return
	}
	if unclean(r.URL.Path) {
		// The router would redirect to what it takes for the meaning.
		h.unrouted(c, r)
		return
	}
	h.mux.ServeHTTP(c, r)
}

// unclean reports whether a path has empty segments, or . or .. as one.
func unclean(path string) bool {
	return strings.Contains(path, "//") || strings.Contains(path, "/./") || strings.Contains(path, "/../") ||
		strings.HasSuffix(path, "/.") || strings.HasSuffix(path, "/..")
}

// stripPrefix makes /fhir/Patient and /Patient/ the same as /Patient.
func (c *call) stripPrefix(r *http.Request) {
	path := r.URL.Path
	if rest, ok := strings.CutPrefix(path, "/fhir"); ok && (rest == "" || rest[0] == '/') {
		c.prefix, path = "/fhir", rest
	}
	if path != "/" {
		path = strings.TrimSuffix(path, "/")
	}
	if path == "" {
		path = "/"
	}
	if path != r.URL.Path {
		r.URL.Path, r.URL.RawPath = path, ""
	}
}

// done writes the access log and the metrics.
func (h *Handler) done(c *call, r *http.Request, path string, took time.Duration) {
	if c.status == 0 {
		c.status = http.StatusOK
	}
	if h.Metrics != nil {
		h.Metrics.observe(c.interaction, c.status, took)
	}
	level := slog.LevelInfo
	switch {
	case h.LogAccess == LogOff:
		return
	case c.status >= 500:
		level = slog.LevelError
	case took >= slow:
		level = slog.LevelWarn
	case h.LogAccess != LogAll:
		return
	}
	h.Logger.LogAttrs(c.ctx, level, "request",
		slog.String("request", c.id), slog.String("method", r.Method), slog.String("path", path),
		slog.String("interaction", c.interaction), slog.Int("status", c.status), slog.Int("bytes", c.bytes),
		slog.Duration("took", took))
}

// requestID is the client's X-Request-Id where it is fit to be repeated, else a
// new one.
func requestID(r *http.Request) string {
	if v := r.Header["X-Request-Id"]; len(v) > 0 && len(v[0]) > 0 && len(v[0]) <= 128 && printable(v[0]) {
		return v[0]
	}
	return fmt.Sprintf("%016x", rand.Uint64())
}

func printable(s string) bool {
	for i := range len(s) {
		if s[i] <= ' ' || s[i] > '~' {
			return false
		}
	}
	return true
}

// unrouted answers what no route matches: OPTIONS, and 405 where the path exists
// with another method, with Allow; else 404.
func (h *Handler) unrouted(w http.ResponseWriter, r *http.Request) {
	c := w.(*call)
	allowed := h.allowed(r)
	switch {
	case len(allowed) > 0 && r.Method == http.MethodOptions:
		c.interaction = "options"
		c.Header().Set("Allow", strings.Join(append(allowed, http.MethodOptions), ", "))
		c.WriteHeader(http.StatusNoContent)
		return
	case len(allowed) > 0:
		c.methodNotAllowed(r, allowed...)
		return
	}
	first, _, _ := strings.Cut(strings.TrimPrefix(r.URL.Path, "/"), "/")
	switch {
	case h.Service.Model.Resources[first] != nil:
		c.fail(r, outcome.NotSupported("%s is not a path of this server", clip(r.URL.Path)))
	default:
		c.fail(r, h.Service.UnknownType(first))
	}
}

// allowed lists the methods that the request's path is served with.
func (h *Handler) allowed(r *http.Request) []string {
	if unclean(r.URL.Path) {
		return nil
	}
	var out []string
	name := r.URL.Path[strings.LastIndexByte(r.URL.Path, '/')+1:]
	for _, method := range []string{"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE"} {
		probe := &http.Request{Method: method, URL: r.URL, Host: r.Host}
		_, pattern := h.mux.Handler(probe)
		served := pattern != "/" && pattern != ""
		// A wildcard takes every name; an id and an operation do not have the same.
		switch at := pattern[strings.LastIndexByte(pattern, '/')+1:]; {
		case at == "{operation}":
			served = strings.HasPrefix(name, "$")
		case at == "{type}" && !reserved(name):
			served = name == "*" || h.Service.Model.Resources[name] != nil
		case at == "{id}", at == "{type}":
			served = !reserved(name) || name[0] == '$' && (method == "GET" || method == "HEAD")
		}
		if served {
			out = append(out, method)
		}
	}
	return out
}

// reserved reports whether a segment of a path is of the interface itself: _history,
// $meta. Neither can be an id. Spec: https://hl7.org/fhir/R4/datatypes.html#id.
func reserved(segment string) bool {
	return strings.HasPrefix(segment, "_") || strings.HasPrefix(segment, "$")
}

// methodNotAllowed answers 405.
func (c *call) methodNotAllowed(r *http.Request, allowed ...string) {
	list := strings.Join(allowed, ", ")
	c.Header().Set("Allow", list)
	c.fail(r, outcome.NotSupported("%s is not allowed here; allowed: %s", clip(r.Method), list).WithStatus(http.StatusMethodNotAllowed))
}

// clip bounds what an error repeats of its input.
func clip(s string) string {
	if len(s) > 100 {
		return s[:100] + "…"
	}
	return s
}

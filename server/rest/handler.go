package rest

import (
	"context"
	"net/http"
	"net/url"
	"slices"
	"strings"

	"kiln/gen/handler"
	"kiln/server/audit"
	"kiln/server/fhir"
	"kiln/server/interaction"
	"kiln/server/outcome"
	"kiln/server/patch"
	"kiln/server/ratelimit"
	"kiln/server/web"
)

// Handler serves FHIR over HTTP. Its fields are set before Mount.
type Handler struct {
	Service *interaction.Service
	// BaseURL is the base that links are built from, without a trailing slash;
	// "" builds them from the request.
	BaseURL string
	// MaxBodyBytes bounds the body of a request; nil and 0 mean 64 MiB.
	MaxBodyBytes func() int64
	// AllowSkipValidation lets X-Skip-Validation of this client skip validation; nil
	// lets nobody.
	AllowSkipValidation func(ctx context.Context) bool
	// Enter counts an expensive request for its client, and refuses more concurrent ones
	// than allowed; nil refuses nothing.
	Enter func(ctx context.Context, h http.Header, r *http.Request, what ratelimit.Kind) (leave func(), err error)
	// Audit records requests; nil records nothing.
	Audit *audit.Recorder
	// Attribute marks the writes of a request as the work of an App; nil does not ask.
	Attribute func(ctx context.Context) context.Context

	// Background answers requests later; nil answers every request at once.
	Background Background
	// Streamed answers operations by itself; may be nil.
	Streamed Streamed

	// Proxies are those whose X-Forwarded-For says who a caller is; nil is none.
	Proxies func() web.Proxies

	callers callers
	root    *web.Mux
	routes  *http.ServeMux
	bodies  *bodyLimit
}

const defaultMaxBody = 64 << 20

const systemOperation = "/{operation}"

// Mount serves FHIR on every path that nobody else has mounted.
func (h *Handler) Mount(m *web.Mux) {
	h.root = m
	h.bodies = newBodyLimit()
	h.routes = http.NewServeMux()
	handler.Mount(h.routes, h)
	h.routes.HandleFunc("GET /{$}", h.searchSystem)
	h.routes.HandleFunc("POST /_search", h.searchSystem)
	h.routes.HandleFunc("POST /{$}", h.bundle)
	h.routes.HandleFunc("GET /_history", h.historySystem)
	h.routes.HandleFunc("GET "+systemOperation, h.operationSystem)
	h.routes.HandleFunc("POST "+systemOperation, h.operationSystem)
	h.routes.HandleFunc("PUT /{type}/{id}/{operation}", h.operationByPut)
	h.routes.HandleFunc("/", h.serveUnrouted)
	m.HandleFunc(web.Public, "GET /metadata", func(w http.ResponseWriter, r *http.Request) { h.serveMetadata(h.call(web.ExchangeOf(w)), r) })
	m.HandleRest(web.FHIR, h)
}

// call is one request on its way through this package.
type call struct {
	*web.Exchange
	h       *Handler
	ctx     context.Context
	values  url.Values    // of a search by POST: _format and _pretty can stand there
	leave   func()        // gives back the body's room in the bodyLimit
	end     func()        // counts the request off
	read    *fhir.Version // the answer of a read or a vread
	routing *routing      // nil without replicas
	secure  bool          // the client has come over TLS
	// recorded is what AuditEvents say of the request, nil where there are none.
	recorded *audit.Request
}

func (h *Handler) call(x *web.Exchange) *call { return &call{Exchange: x, h: h, ctx: x.Context()} }

// ServeExchange serves one request.
func (h *Handler) ServeExchange(x *web.Exchange, r *http.Request) {
	c := h.call(x)
	if h.Audit != nil {
		c.ctx, c.recorded = h.Audit.BeginRequest(c.ctx, x, r)
	}
	if h.Attribute != nil && r.Method != http.MethodGet && r.Method != http.MethodHead {
		c.ctx = h.Attribute(c.ctx)
	}
	defer func() {
		if c.leave != nil {
			c.leave()
		}
		if c.end != nil {
			c.end()
		}
		if c.recorded != nil {
			c.recorded.EndRequest(x, r, c.subject(r), c.read)
		}
	}()
	if r.Header.Get("X-Skip-Validation") == "true" && h.AllowSkipValidation != nil && h.AllowSkipValidation(c.ctx) {
		c.ctx = interaction.SkipValidation(c.ctx)
	}
	if web.IsUnclean(r.URL.Path) {
		h.serveUnrouted(c, r)
		return
	}
	if err := c.routeRequest(r); err != nil {
		c.writeError(r, err)
		return
	}
	h.routes.ServeHTTP(c, r)
}

// enterLimited counts something expensive until the request ends, and answers where it is
// refused.
func (c *call) enterLimited(r *http.Request, what ratelimit.Kind) bool {
	if c.h.Enter == nil {
		return true
	}
	leave, err := c.h.Enter(c.ctx, c.Header(), r, what)
	if err != nil {
		c.writeError(r, err)
		return false
	}
	c.end = leave
	return true
}

// subject is the reference of the resource that a request is about, "" where its
// path names none.
func (c *call) subject(r *http.Request) string {
	id := r.PathValue("id")
	typ, _, _ := strings.Cut(strings.TrimPrefix(r.URL.Path, "/"), "/")
	if !fhir.ValidID(id) || c.h.Service.Model.Resources[typ] == nil {
		return ""
	}
	return typ + "/" + id
}

// writeError answers with an error as an OperationOutcome.
func (c *call) writeError(r *http.Request, err error) {
	if outcome.IsMethodNotAllowed(err) && c.Header().Get("Allow") == "" {
		// An interaction refused the method, the path takes it.
		c.Header().Set("Allow", strings.Join(slices.DeleteFunc(c.h.allowedMethods(r), func(m string) bool {
			return m == r.Method || m == http.MethodHead && r.Method == http.MethodGet || m == http.MethodGet && r.Method == http.MethodHead
		}), ", "))
	}
	if r.Method == http.MethodPatch && outcome.IsUnsupportedMediaType(err) {
		c.Header().Set("Accept-Patch", acceptPatch)
	}
	if e, ok := outcome.From(err); ok && e.Location != "" {
		c.Header().Set("Location", c.baseURL(r)+"/"+e.Location)
	}
	c.Fail(r, err)
}

// acceptPatch lists the types of patches: JSON Patch and FHIRPath Patch. RFC 5789 §2.2, §3.1.
const acceptPatch = patch.JSONType + ", application/fhir+json"

// serveUnrouted answers what no route matches: OPTIONS, and 405 where the path exists
// with another method, with Allow; else 404.
func (h *Handler) serveUnrouted(w http.ResponseWriter, r *http.Request) {
	c := w.(*call)
	allowed := h.allowedMethods(r)
	switch {
	case len(allowed) > 0 && r.Method == http.MethodOptions:
		c.Route = "options"
		c.Header().Set("Allow", strings.Join(append(allowed, http.MethodOptions), ", "))
		if slices.Contains(allowed, http.MethodPatch) {
			c.Header().Set("Accept-Patch", acceptPatch)
		}
		c.WriteHeader(http.StatusNoContent)
		return
	case len(allowed) > 0:
		c.methodNotAllowed(r, allowed...)
		return
	}
	first, _, _ := strings.Cut(strings.TrimPrefix(r.URL.Path, "/"), "/")
	switch {
	case first == "admin" || first == "auth" || first == ".well-known" || first == "health":
		c.writeError(r, outcome.New(outcome.CodeNotFound, "%s is not a path of this server", outcome.Clip(r.URL.Path)))
	case h.Service.Model.Resources[first] != nil:
		c.writeError(r, outcome.NotSupported("%s is not a path of this server", outcome.Clip(r.URL.Path)))
	default:
		c.writeError(r, h.Service.UnknownType(first))
	}
}

// allowedMethods lists the methods that the request's path is served with.
func (h *Handler) allowedMethods(r *http.Request) []string {
	if web.IsUnclean(r.URL.Path) {
		return nil
	}
	out := h.root.Allowed(r)
	name := r.URL.Path[strings.LastIndexByte(r.URL.Path, '/')+1:]
	if strings.HasPrefix(name, "$") {
		if methods, known := h.operationMethods(r.URL.Path); known {
			return append(out, methods...)
		}
	}
	for _, method := range web.Methods {
		probe := &http.Request{Method: method, URL: r.URL, Host: r.Host}
		_, pattern := h.routes.Handler(probe)
		served := pattern != "/" && pattern != ""
		// A wildcard takes every name; an id and an operation do not have the same.
		switch at := pattern[strings.LastIndexByte(pattern, '/')+1:]; {
		case at == "{operation}":
			served = strings.HasPrefix(name, "$")
			if typ, _, _ := strings.Cut(r.URL.Path[1:], "/"); served && method == http.MethodPut {
				served = !h.Service.ServesOperation(typ, name[1:]) // only operations of Apps have PUT
			}
		case at == "{type}" && !isReserved(name):
			served = name == "*" || h.Service.Model.Resources[name] != nil
		case at == "{id}", at == "{type}":
			served = !isReserved(name) || name[0] == '$' && (method == "GET" || method == "HEAD")
		}
		if served && !slices.Contains(out, method) {
			out = append(out, method)
		}
	}
	return out
}

// operationMethods are the methods of an operation that knows them: of an App.
func (h *Handler) operationMethods(path string) (methods []string, known bool) {
	switch parts := strings.Split(path[1:], "/"); len(parts) {
	case 2:
		return h.Service.OperationMethods(interaction.OperationParams{ResourceType: parts[0], Name: parts[1]})
	case 3:
		return h.Service.OperationMethods(interaction.OperationParams{ResourceType: parts[0], ID: parts[1], Name: parts[2]})
	}
	return nil, false
}

// isReserved reports whether a segment of a path is of the interface itself: _history,
// $meta. Neither can be an id. Spec: https://hl7.org/fhir/R4/datatypes.html#id.
func isReserved(segment string) bool {
	return strings.HasPrefix(segment, "_") || strings.HasPrefix(segment, "$")
}

// methodNotAllowed answers 405.
func (c *call) methodNotAllowed(r *http.Request, allowed ...string) {
	list := strings.Join(allowed, ", ")
	c.Header().Set("Allow", list)
	c.writeError(r, outcome.MethodNotAllowed("%s is not allowed here; allowed: %s", outcome.Clip(r.Method), list))
}

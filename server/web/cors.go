package web

import (
	"net/http"
	"slices"
)

// CORS says which pages of other origins browsers may let call the service. With
// credentials (cookies) they may never: a token is sent by script.
type CORS struct {
	// Origins are "*", or each in full ("https://app.example.org"). None turns
	// cross-origin calls off.
	Origins []string
}

// What browsers may send across origins.
const (
	corsMethods = "GET, HEAD, POST, PUT, PATCH, DELETE, OPTIONS"
	corsHeaders = "Content-Type, Authorization, Accept, X-Request-Id, Prefer, If-Match, If-None-Match, If-None-Exist, If-Modified-Since, X-Skip-Validation, X-Security-Context, Last-Event-ID, X-Kiln-Position"
	corsExposed = "ETag, Location, Content-Location, Last-Modified, X-Request-Id, X-Security-Context, X-RateLimit-Limit, X-RateLimit-Remaining, X-RateLimit-Reset, Retry-After, WWW-Authenticate, X-Kiln-Position, X-Kiln-Source"
	corsMaxAge  = "86400" // seconds that a preflight is remembered
)

// answerCORS adds the headers that let browsers call from allowed origins, and answers
// a preflight; it reports whether the request is done with.
func (c CORS) answerCORS(x *Exchange, r *http.Request) (done bool) {
	if len(c.Origins) == 0 {
		return false
	}
	header := x.Header()
	every := slices.Contains(c.Origins, "*")
	if !every {
		header.Add("Vary", "Origin")
	}
	origin := r.Header.Get("Origin")
	if origin == "" {
		return false
	}
	switch {
	case every:
		header.Set("Access-Control-Allow-Origin", "*")
	case slices.Contains(c.Origins, origin):
		header.Set("Access-Control-Allow-Origin", origin)
	default:
		return false
	}
	if r.Method != http.MethodOptions || r.Header.Get("Access-Control-Request-Method") == "" {
		header.Set("Access-Control-Expose-Headers", corsExposed)
		return false
	}
	header.Set("Access-Control-Allow-Methods", corsMethods)
	header.Set("Access-Control-Allow-Headers", corsHeaders)
	header.Set("Access-Control-Max-Age", corsMaxAge)
	x.Route = "preflight"
	x.WriteHeader(http.StatusNoContent)
	return true
}

// narrowOrigins lets only pages of a client's own origins read the answer to its token.
// Preflights carry no token: they are answered by the server's origins.
func narrowOrigins(x *Exchange, r *http.Request, origins []string) {
	if len(origins) == 0 || len(r.Header["Origin"]) == 0 {
		return
	}
	origin, header := r.Header.Get("Origin"), x.Header()
	header.Del("Access-Control-Allow-Origin")
	if !slices.Contains(header.Values("Vary"), "Origin") {
		header.Add("Vary", "Origin")
	}
	if slices.Contains(origins, origin) {
		header.Set("Access-Control-Allow-Origin", origin)
		header.Set("Access-Control-Expose-Headers", corsExposed)
	}
}

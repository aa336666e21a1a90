package rest

import (
	"net/http"
	"slices"
)

// What browsers may send across origins. PATCH is an interaction like the others.
const (
	corsMethods = "GET, POST, PUT, PATCH, DELETE, OPTIONS"
	corsHeaders = "Content-Type, Authorization, Accept, X-Request-Id, Prefer, If-Match, If-None-Match, If-None-Exist, If-Modified-Since, X-Skip-Validation, X-Security-Context"
	corsExposed = "ETag, Location, Content-Location, Last-Modified, X-Request-Id, X-Security-Context"
	corsMaxAge  = "86400" // seconds that a preflight is remembered
)

// cors adds the headers that let browsers call from allowed origins, and answers
// a preflight; it reports whether the request is done with.
func (h *Handler) cors(c *call, r *http.Request) (done bool) {
	if len(h.AllowedOrigins) == 0 {
		return false
	}
	header := c.Header()
	every := slices.Contains(h.AllowedOrigins, "*")
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
	case slices.Contains(h.AllowedOrigins, origin):
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
	c.interaction = "preflight"
	c.WriteHeader(http.StatusNoContent)
	return true
}

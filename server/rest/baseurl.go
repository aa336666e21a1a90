package rest

import (
	"net/http"
	"strings"
)

// base is the URL that links start with, without a trailing slash.
func (c *call) base(r *http.Request) string { return c.h.baseOf(r, c.Prefix) }

// Base is the URL that links of an answer to r start with, without a trailing slash and
// without the prefix that the request used.
func (h *Handler) Base(r *http.Request) string { return h.baseOf(r, "") }

func (h *Handler) baseOf(r *http.Request, prefix string) string {
	if h.BaseURL != "" {
		return h.BaseURL
	}
	scheme, host := "http", r.Host
	if r.TLS != nil {
		scheme = "https"
	}
	if h.root.Now().Proxies.Trusts(r.RemoteAddr) {
		if v := firstOf(r.Header.Get("X-Forwarded-Proto")); v == "http" || v == "https" {
			scheme = v
		}
		if v := firstOf(r.Header.Get("X-Forwarded-Host")); v != "" {
			host = v
		}
		if v := firstOf(r.Header.Get("X-Forwarded-Prefix")); strings.HasPrefix(v, "/") {
			prefix = strings.TrimSuffix(v, "/") + prefix
		}
	}
	return scheme + "://" + host + prefix
}

// firstOf is the first element of a comma-separated header: what the proxy
// nearest to the client said.
func firstOf(list string) string {
	first, _, _ := strings.Cut(list, ",")
	return strings.TrimSpace(first)
}

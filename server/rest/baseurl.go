package rest

import (
	"net/http"
	"net/url"
	"strconv"
	"strings"
)

// baseURL is the URL that links start with, without a trailing slash.
func (c *call) baseURL(r *http.Request) string { return c.h.baseOf(r, c.Prefix) }

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
		if v := strings.ToLower(firstOf(r.Header.Get("X-Forwarded-Proto"))); v == "http" || v == "https" {
			scheme = v
		}
		if v := firstOf(r.Header.Get("X-Forwarded-Host")); isHost(v) {
			host = v
		}
		if v := firstOf(r.Header.Get("X-Forwarded-Prefix")); strings.HasPrefix(v, "/") && !strings.ContainsFunc(v, notOfPaths) {
			prefix = strings.TrimSuffix(v, "/") + prefix
		}
	}
	return scheme + "://" + host + prefix
}

// firstOf is the first element of a comma-separated header: the value of the proxy nearest
// to the client.
func firstOf(list string) string {
	first, _, _ := strings.Cut(list, ",")
	return strings.TrimSpace(first)
}

// isHost reports whether a text is a host, with a port or not: a proxy may pass on
// what its client sent, and the text becomes part of links.
// Spec: RFC 9110 section 7.2, RFC 3986 section 3.2.2.
func isHost(text string) bool {
	u, err := url.Parse("http://" + text)
	if err != nil || u.Host != text || u.Hostname() == "" || strings.ContainsFunc(text, func(r rune) bool { return notOfPaths(r) || strings.ContainsRune("!$&'()*+,;=@", r) }) {
		return false
	}
	port, err := strconv.ParseUint(u.Port(), 10, 16)
	return u.Port() == "" && !strings.HasSuffix(text, ":") || err == nil && port > 0
}

// notOfPaths reports whether a character cannot stand as itself in the path of a URL.
// Spec: RFC 3986 section 3.3.
func notOfPaths(r rune) bool {
	return r <= ' ' || r >= 0x7f || strings.ContainsRune("\"<>\\^`{|}?#", r)
}

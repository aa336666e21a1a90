package web

import (
	"context"
	"mime"
	"net/http"
	"strconv"
	"strings"

	"kiln/server/access"
)

// insideKey is the key of a context whose request comes from a part of the service.
type insideKey struct{}

// Inside returns the context of a request that a part of the service makes on behalf of p. The request shows no token;
// rights, limits and the record are those of p.
func Inside(ctx context.Context, p *access.Principal) context.Context {
	return context.WithValue(ctx, insideKey{}, p)
}

// fromInside returns the principal of a request of a part.
func fromInside(ctx context.Context) (*access.Principal, bool) {
	p, ok := ctx.Value(insideKey{}).(*access.Principal)
	return p, ok
}

// Pages answers requests of browsers for paths that other parts answer to programs.
type Pages interface {
	// HasPage reports whether a path has a page.
	HasPage(path string) bool
	// HasContent reports whether a path has content of its own, which a browser shows unless
	// the request forces HTML.
	HasContent(path string) bool
	// ServePage answers a request that prefers HTML.
	ServePage(x *Exchange, r *http.Request)
}

// servePage answers a request that prefers HTML by a page, where there is one.
func (m *Mux) servePage(x *Exchange, r *http.Request) bool {
	if m.Pages == nil || r.Method != http.MethodGet && r.Method != http.MethodHead || !m.Pages.HasPage(r.URL.Path) {
		return false
	}
	if _, inside := fromInside(r.Context()); inside {
		return false
	}
	header := x.Header()
	header["Vary"] = append(header["Vary"], "Accept")
	if len(r.Header["Authorization"]) > 0 || !prefersHTML(r) || m.Pages.HasContent(r.URL.Path) && !forcesHTML(r) {
		return false
	}
	m.Pages.ServePage(x, r)
	return true
}

// prefersHTML reports whether a request names text/html with a higher quality than every FHIR type that it names.
// Wildcards do not count. _format overrides Accept. RFC 9110 §12.5.1.
func prefersHTML(r *http.Request) bool {
	if formatOf(r) != "" {
		return forcesHTML(r)
	}
	accept := strings.Join(r.Header["Accept"], ",")
	if !strings.Contains(strings.ToLower(accept), "text/html") {
		return false
	}
	page, other := -1.0, -1.0
	for item := range strings.SplitSeq(accept, ",") {
		typ, parameters, err := mime.ParseMediaType(item)
		if err != nil {
			continue
		}
		quality := 1.0
		if q, ok := parameters["q"]; ok {
			if quality, err = strconv.ParseFloat(q, 64); err != nil {
				continue
			}
		}
		switch typ {
		case "text/html":
			page = max(page, quality)
		case "application/fhir+json", "application/json", "text/json", "application/fhir+xml", "application/xml", "text/xml",
			"application/fhir+turtle", "text/turtle", "application/fhir+ndjson", "application/x-ndjson", "application/ndjson":
			other = max(other, quality)
		}
	}
	return page > 0 && page > other
}

// forcesHTML reports whether _format names HTML.
func forcesHTML(r *http.Request) bool {
	format := formatOf(r)
	return format == "html" || format == "text/html"
}

// formatOf returns the first _format of a request, "" for none.
func formatOf(r *http.Request) string {
	if !strings.Contains(r.URL.RawQuery, "_format") {
		return ""
	}
	return r.URL.Query().Get("_format")
}

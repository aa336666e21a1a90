package rest

import (
	"mime"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"kiln/server/interaction"
	"kiln/server/outcome"
)

// resourceBody is body for a FHIR resource: the Content-Type must be one of
// FHIR's for JSON, or absent.
func (c *call) resourceBody(r *http.Request) ([]byte, error) {
	if err := checkJSON(r); err != nil {
		return nil, err
	}
	return c.body(r)
}

// bodyOf is body for content of one of some types.
func (c *call) bodyOf(r *http.Request, types []string) ([]byte, error) {
	text := r.Header.Get("Content-Type")
	typ, _, err := mime.ParseMediaType(text)
	if err != nil || !slices.Contains(types, typ) {
		return nil, outcome.UnsupportedMediaType("Content-Type %q is not served here; %s is", outcome.Clip(text), strings.Join(types, ", "))
	}
	return c.body(r)
}

func checkJSON(r *http.Request) error {
	text := r.Header.Get("Content-Type")
	switch text {
	case "", "application/fhir+json", "application/json":
		return nil
	}
	typ, params, err := mime.ParseMediaType(text)
	if err != nil {
		return unsupportedType(text)
	}
	switch typ {
	case "application/fhir+json", "application/json", "text/json":
	default:
		return unsupportedType(text)
	}
	if charset := params["charset"]; charset != "" && !strings.EqualFold(charset, "utf-8") {
		return outcome.UnsupportedMediaType("charset %q is not served; FHIR is UTF-8", outcome.Clip(charset))
	}
	if v := params["fhirversion"]; v != "" && v != "4.0" && v != "4.0.1" {
		return outcome.UnsupportedMediaType("FHIR version %q is not served; 4.0 is", outcome.Clip(v))
	}
	return nil
}

func unsupportedType(text string) error {
	return outcome.UnsupportedMediaType("Content-Type %q is not served; application/fhir+json and application/json are", outcome.Clip(text))
}

// parseQuery reads the URL's query string. Unlike URL.Query it refuses malformed parts.
func parseQuery(r *http.Request) (url.Values, error) {
	if r.URL.RawQuery == "" {
		return nil, nil
	}
	return interaction.ParseQuery(r.URL.RawQuery)
}

// form reads the parameters of a search by POST, from the URL and the form together.
func (c *call) form(r *http.Request) (url.Values, error) {
	values, err := parseQuery(r)
	if err != nil {
		return nil, err
	}
	if typ, _, err := mime.ParseMediaType(r.Header.Get("Content-Type")); err == nil && typ != "application/x-www-form-urlencoded" {
		return nil, outcome.UnsupportedMediaType("Content-Type %q is not served by _search; application/x-www-form-urlencoded is", outcome.Clip(typ))
	}
	body, err := c.body(r)
	if err != nil {
		return nil, err
	}
	if c.recorded != nil {
		c.recorded.NoteForm(body)
	}
	form, err := interaction.ParseQuery(string(body))
	if err != nil {
		return nil, err
	}
	if values == nil {
		return form, nil
	}
	for name, v := range form {
		values[name] = append(values[name], v...)
	}
	return values, nil
}

// modifiedSince reads If-Modified-Since. Spec: RFC 9110 §13.1.3.
func modifiedSince(r *http.Request) time.Time { return dateHeader(r, "If-Modified-Since") }

// preconditions reads the conditional headers of a write. Spec: RFC 9110 §13.1.
func preconditions(r *http.Request) interaction.Preconditions {
	return interaction.Preconditions{IfMatch: guardOf(r, "If-Match"), IfNoneMatch: listHeader(r, "If-None-Match"),
		UnmodifiedSince: dateHeader(r, "If-Unmodified-Since")}
}

// listHeader is a header whose value is a list; several lines are one list.
// Spec: RFC 9110 §5.3.
func listHeader(r *http.Request, name string) string { return strings.Join(r.Header[name], ",") }

// guardOf is a header that guards a write. An empty one would guard nothing, so it is read
// as a malformed entity tag or criteria.
func guardOf(r *http.Request, name string) string {
	if v := listHeader(r, name); strings.TrimSpace(v) != "" || r.Header[name] == nil {
		return v
	}
	return "?"
}

// dateHeader reads a header, name in its canonical form; a date that cannot be read is
// no condition.
func dateHeader(r *http.Request, name string) time.Time {
	if v := r.Header[name]; len(v) > 0 {
		if t, err := http.ParseTime(v[0]); err == nil {
			return t
		}
	}
	return time.Time{}
}

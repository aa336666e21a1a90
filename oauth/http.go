package oauth

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"mime"
	"net/http"
	"net/url"
	"reflect"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/ory/fosite"

	"kiln/oauth/storage"
	"kiln/server/outcome"
)

// maxForm bounds the body of a request, in bytes.
const maxForm = 64 << 10

// readForm reads a form strictly: it must be one, and name each parameter once. Those
// without a value are left out.
// RFC 6749 §3.2.
func readForm(w http.ResponseWriter, r *http.Request) error {
	if err := parseForm(w, r); err != nil {
		return err
	}
	if err := checkOnce(r.PostForm); err != nil {
		return err
	}
	leaveOutEmpty(r.PostForm)
	return nil
}

// parseForm is readForm for a form that may name a parameter more than once.
func parseForm(w http.ResponseWriter, r *http.Request) error {
	if typ, _, err := mime.ParseMediaType(r.Header.Get("Content-Type")); err != nil || typ != "application/x-www-form-urlencoded" {
		return fosite.ErrInvalidRequest.WithHint("Content-Type must be application/x-www-form-urlencoded.")
	}
	r.Body = http.MaxBytesReader(w, r.Body, maxForm)
	query := r.URL.RawQuery
	r.URL.RawQuery = "" // none of ours, malformed or not: parameters stand in the body
	err := r.ParseForm()
	r.URL.RawQuery = query
	if err != nil {
		return fosite.ErrInvalidRequest.WithHint("The form cannot be read.")
	}
	return nil
}

// leaveOutEmpty takes out the parameters that have no value: they count as left out.
// RFC 6749 §3.1, §3.2.
func leaveOutEmpty(form url.Values) {
	maps.DeleteFunc(form, func(_ string, values []string) bool { return len(values) == 1 && values[0] == "" })
}

func checkOnce(form url.Values) error {
	for name, values := range form {
		if len(values) > 1 {
			return fosite.ErrInvalidRequest.WithHintf("The parameter %s stands there more than once.", printableText(name))
		}
		if strings.ContainsRune(values[0], 0) || !utf8.ValidString(values[0]) {
			return fosite.ErrInvalidRequest.WithHintf("The parameter %s holds a NUL byte, or is not UTF-8.", printableText(name))
		}
	}
	return nil
}

// printableText shortens a client's text and keeps the characters that an error_description may
// contain. RFC 6749 §5.2.
func printableText(text string) string {
	if len(text) > 100 {
		text = text[:100] + "..."
	}
	return strings.Map(func(r rune) rune {
		switch {
		case r == '"':
			return '\''
		case r == '\\':
			return '/'
		case r < ' ' || r > '~':
			return '?'
		}
		return r
	}, text)
}

func noStore(w http.ResponseWriter) {
	w.Header().Set("Cache-Control", "no-store")
	w.Header().Set("Pragma", "no-cache")
}

func writeJSON(w http.ResponseWriter, status int, v any) {
	noStore(w)
	w.Header().Set("Content-Type", "application/json; charset=utf-8")
	w.WriteHeader(status)
	e := json.NewEncoder(w)
	e.SetEscapeHTML(false)
	_ = e.Encode(v)
}

// oauthProblem is an error as RFC 6749 §5.2 writes it.
type oauthProblem struct {
	Error       string `json:"error"`
	Description string `json:"error_description,omitempty"`
}

func errorName(err error) string { return fosite.ErrorToRFC6749Error(err).ErrorField }

// problem is an error for a client, without its debug text and cause.
func problem(err error) (p oauthProblem, status int) {
	e := fosite.ErrorToRFC6749Error(err)
	p = oauthProblem{Error: e.ErrorField, Description: e.DescriptionField}
	if e.HintField != "" {
		p.Description = e.HintField
	}
	switch {
	case e.ErrorField == "error" || e.ErrorField == "server_error" || e.CodeField >= 500:
		return oauthProblem{Error: "server_error", Description: "internal error"}, http.StatusInternalServerError
	case e.ErrorField == "invalid_client":
		status = http.StatusUnauthorized
	case e.ErrorField == "request_unauthorized":
		return oauthProblem{Error: "invalid_grant", Description: p.Description}, http.StatusBadRequest
	default:
		status = http.StatusBadRequest
	}
	p.Description = describableText(p.Description)
	return p, status
}

// describableText keeps the characters that an error_description may contain.
func describableText(text string) string {
	return strings.Map(func(r rune) rune {
		switch {
		case r == '"':
			return '\''
		case r == '\\':
			return '/'
		case r == '…':
			return '.'
		case r < ' ' || r > '~':
			return '?'
		}
		return r
	}, text)
}

// oauthError answers an error of the token endpoint and its like.
func (s *Server) oauthError(w http.ResponseWriter, r *http.Request, err error) {
	p, status := problem(err)
	if status >= 500 && s.isUnavailable(err) {
		p, status = oauthProblem{Error: "temporarily_unavailable", Description: "the database does not answer"}, http.StatusServiceUnavailable
		w.Header().Set("Retry-After", "1")
	}
	if status >= 500 {
		s.Logger.ErrorContext(r.Context(), "authorization server", "path", r.URL.Path, "error", err)
	}
	if status == http.StatusUnauthorized && strings.HasPrefix(strings.ToLower(r.Header.Get("Authorization")), "basic") {
		w.Header().Set("WWW-Authenticate", `Basic realm="kiln", charset="UTF-8"`)
	}
	writeJSON(w, status, p)
}

// isUnavailable reports whether an error is that the database cannot be reached.
func (s *Server) isUnavailable(err error) bool {
	o, ok := outcome.From(s.options.Translate(err))
	return ok && o.HTTPStatus() == http.StatusServiceUnavailable
}

// allowOrigin lets a browser read the answer to a client that names its origins,
// and only from those. Other clients are answered as server.allowed_origins says.
func (s *Server) allowOrigin(w http.ResponseWriter, r *http.Request, c fosite.Client) {
	client, ok := c.(*storage.Client)
	origin := r.Header.Get("Origin")
	if !ok || origin == "" || len(client.AllowedOrigins) == 0 {
		return
	}
	w.Header().Del("Access-Control-Allow-Origin")
	w.Header().Add("Vary", "Origin")
	if slices.Contains(client.AllowedOrigins, origin) {
		w.Header().Set("Access-Control-Allow-Origin", origin)
	}
}

// decodeStrict reads one JSON object into a flat struct; a name that is not one of its
// fields, letter by letter, is an error.
func decodeStrict(body []byte, into any) error {
	var members map[string]json.RawMessage
	err := json.Unmarshal(body, &members)
	known := reflect.TypeOf(into).Elem()
	for _, name := range slices.Sorted(maps.Keys(members)) {
		if !slices.ContainsFunc(reflect.VisibleFields(known), func(f reflect.StructField) bool {
			tag, _, _ := strings.Cut(f.Tag.Get("json"), ",")
			return tag != "" && tag == name
		}) {
			return fmt.Errorf("unknown field %q", name)
		}
	}
	if err == nil && members != nil {
		err = json.Unmarshal(body, into)
	}
	var wrong *json.UnmarshalTypeError
	switch {
	case errors.As(err, &wrong):
		return errors.New(outcome.JSONProblem(err))
	case err != nil:
		return errors.New("malformed JSON")
	case members == nil:
		return errors.New("expected one JSON object")
	}
	return nil
}

// readBody reads a small body.
func readBody(w http.ResponseWriter, r *http.Request) ([]byte, error) {
	b, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxForm))
	var long *http.MaxBytesError
	switch {
	case errors.As(err, &long):
		return nil, outcome.New(outcome.CodeTooLong, "the body is longer than %d bytes", maxForm)
	case err != nil:
		return nil, outcome.New(outcome.CodeStructure, "the body could not be read to its end").Because(err)
	}
	return b, nil
}

// fail answers an error of a management endpoint as an OperationOutcome.
func (s *Server) fail(w http.ResponseWriter, r *http.Request, err error) {
	o, ok := outcome.From(err)
	if !ok {
		o, ok = outcome.From(s.options.Translate(err))
	}
	if !ok {
		s.Logger.ErrorContext(r.Context(), "authorization server", "path", r.URL.Path, "error", err)
		o = outcome.New(outcome.CodeException, "internal error")
	}
	if status := o.HTTPStatus(); status == http.StatusUnauthorized {
		w.Header().Set("WWW-Authenticate", `Bearer realm="kiln"`)
	} else if status == http.StatusServiceUnavailable {
		w.Header().Set("Retry-After", "1")
	} else if status == http.StatusForbidden {
		w.Header().Set("WWW-Authenticate", `Bearer realm="kiln", error="insufficient_scope", scope="admin"`)
	}
	noStore(w)
	w.Header().Set("Content-Type", "application/fhir+json; charset=utf-8")
	w.WriteHeader(o.HTTPStatus())
	_, _ = w.Write(append(outcome.JSON(o.Issues), '\n'))
}

// throttledPage tells a user that there were too many requests.
func (s *Server) throttledPage(w http.ResponseWriter, r *http.Request, e *outcome.Error) {
	s.errorPage(w, r, e.HTTPStatus(), "Too many requests came from here. Wait %s seconds, then load this page again.", "", w.Header().Get("Retry-After"))
}

// throttledLogout answers a browser by a page and other clients by JSON.
func (s *Server) throttledLogout(w http.ResponseWriter, r *http.Request, e *outcome.Error) {
	if wantsPage(r) {
		s.throttledPage(w, r, e)
		return
	}
	s.writeThrottled(w, r, e)
}

// writeThrottled tells an OAuth client that there were too many requests, in the words of RFC
// 6749 §5.2 and, beside them, of an OperationOutcome, as every limited answer has them.
func (s *Server) writeThrottled(w http.ResponseWriter, _ *http.Request, e *outcome.Error) {
	var both map[string]any
	if err := json.Unmarshal(outcome.JSON(e.Issues), &both); err != nil {
		both = make(map[string]any)
	}
	both["error"], both["error_description"] = "temporarily_unavailable", describableText(e.Error())
	writeJSON(w, e.HTTPStatus(), both)
}

package console

import (
	"bytes"
	"context"
	"encoding/json"
	"net/http"
	"net/url"
	"strings"
	"time"

	"kiln/server/outcome"
	"kiln/server/web"
)

// callTimeout bounds a request that a page makes.
const callTimeout = 60 * time.Second

// answer is the answer of the server to a request of a page. It is an http.ResponseWriter in memory.
type answer struct {
	status int
	header http.Header
	bytes.Buffer
}

func (a *answer) Header() http.Header { return a.header }

func (a *answer) WriteHeader(status int) {
	if a.status == 0 && status >= http.StatusOK {
		a.status = status
	}
}

func (a *answer) Write(b []byte) (int, error) {
	a.WriteHeader(http.StatusOK)
	return a.Buffer.Write(b)
}

// ok reports whether the request has succeeded.
func (a *answer) ok() bool { return a.status >= 200 && a.status < 300 }

// refusal is an answer of 400 or more as an error of the page.
type refusal struct {
	status int
	issues []outcome.Issue
	retry  string // Retry-After
}

func (e *refusal) Error() string { return strings.Join(e.words(), "\n") }

// words are the texts of the issues.
func (e *refusal) words() []string {
	var out []string
	for _, i := range e.issues {
		text := i.Diagnostics
		if text == "" {
			text = string(i.Code)
		}
		out = append(out, text)
	}
	return out
}

// err is the refusal that the answer is, nil for a success.
func (a *answer) err() error {
	if a.ok() || a.status == http.StatusNotModified {
		return nil
	}
	return &refusal{a.status, issuesOf(a.Bytes()), a.header.Get("Retry-After")}
}

// issuesOf reads the issues of an OperationOutcome. Other errors have their text as the only issue.
func issuesOf(body []byte) []outcome.Issue {
	var o struct {
		Issue []struct {
			Severity, Code, Diagnostics string
			Expression                  []string
			Details                     struct{ Text string }
		}
		Error       string
		Description string `json:"error_description"`
	}
	if err := json.Unmarshal(body, &o); err != nil || len(o.Issue) == 0 && o.Error == "" {
		return []outcome.Issue{{Severity: "error", Code: outcome.CodeException, Diagnostics: strings.ToValidUTF8(string(body[:min(len(body), 500)]), "")}}
	}
	var out []outcome.Issue
	for _, i := range o.Issue {
		text := i.Diagnostics
		if text == "" {
			text = i.Details.Text
		}
		issue := outcome.Issue{Severity: outcome.Severity(i.Severity), Code: outcome.Code(i.Code), Diagnostics: text}
		if len(i.Expression) > 0 {
			issue.Expression = i.Expression[0]
		}
		out = append(out, issue)
	}
	if len(out) == 0 {
		out = []outcome.Issue{{Severity: "error", Code: outcome.Code(o.Error), Diagnostics: o.Description}}
	}
	return out
}

// call makes a request to the server on behalf of the person. headers are names and values in turn.
func (v *visit) call(method, target string, body []byte, headers ...string) *answer {
	ctx, cancel := context.WithTimeout(v.r.Context(), callTimeout)
	defer cancel()
	a := &answer{header: make(http.Header)}
	v.callInto(ctx, a, method, target, body, headers...)
	return a
}

// callInto is call with an answer that the caller receives as it comes.
func (v *visit) callInto(ctx context.Context, a http.ResponseWriter, method, target string, body []byte, headers ...string) {
	ctx = web.Inside(ctx, v.principal)
	u, err := url.ParseRequestURI(target)
	if err != nil || !strings.HasPrefix(target, "/") {
		a.WriteHeader(http.StatusBadRequest)
		_, _ = a.Write([]byte("the path cannot be read")) // to memory
		return
	}
	r := (&http.Request{Method: method, URL: u, Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1, Header: make(http.Header), Host: v.r.Host,
		RequestURI: target, RemoteAddr: v.r.RemoteAddr, TLS: v.r.TLS, Body: http.NoBody}).WithContext(ctx)
	if len(body) > 0 {
		r.Body, r.ContentLength = closer{bytes.NewReader(body)}, int64(len(body))
		r.Header.Set("Content-Type", "application/fhir+json")
	}
	r.Header.Set("Accept", "application/fhir+json")
	r.Header.Set("X-Request-Id", v.x.ID)
	for _, name := range []string{"X-Forwarded-For", "X-Forwarded-Proto", "X-Forwarded-Host", "User-Agent", "Accept-Language", "Traceparent"} {
		if values := v.r.Header[name]; len(values) > 0 {
			r.Header[name] = values
		}
	}
	for i := 0; i+1 < len(headers); i += 2 {
		r.Header.Set(headers[i], headers[i+1])
	}
	v.c.mux.ServeHTTP(a, r)
	a.WriteHeader(http.StatusOK)
}

// closer is a body in memory.
type closer struct{ *bytes.Reader }

func (closer) Close() error { return nil }

// get reads JSON. It fails with the refusal of the server.
func (v *visit) get(target string, into any) error {
	a := v.call(http.MethodGet, target, nil)
	if err := a.err(); err != nil {
		return err
	}
	return decodeJSON(a.Bytes(), into)
}

// send makes a request with a JSON body, nil for none, and reads the answer, nil for none.
func (v *visit) send(method, target string, body, into any) error {
	var b []byte
	if body != nil {
		var err error
		if b, err = json.Marshal(body); err != nil {
			return err
		}
	}
	a := v.call(method, target, b, "Content-Type", "application/json")
	if err := a.err(); err != nil || into == nil {
		return err
	}
	return decodeJSON(a.Bytes(), into)
}

// decodeJSON reads JSON and keeps the digits of numbers.
func decodeJSON(b []byte, into any) error {
	d := json.NewDecoder(bytes.NewReader(b))
	d.UseNumber()
	return d.Decode(into)
}

// escape is a text as a segment of a path.
func escape(text string) string { return url.PathEscape(text) }

package app

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/textproto"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"unicode/utf8"

	"kiln/gen/r4"
	"kiln/server/fhir"
	"kiln/server/interaction"
	"kiln/server/outcome"
)

// remote is an http handler.
type remote struct {
	method  string
	url     string   // a template where the method is GET
	address *url.URL // of url
	headers http.Header
	auth    string // none, caller, app
}

// maxAnswer is the largest answer of an http handler, in bytes. docs/contract.md, Apps,
// section 3.
const maxAnswer = 16 << 20

// The methods of http handlers, and bounds on their headers.
var methods = []string{http.MethodGet, http.MethodPost, http.MethodPut, http.MethodPatch, http.MethodDelete}

const (
	maxHeaders = 32
	maxHeader  = 8 << 10 // bytes
)

// reservedHeaders are hop by hop (RFC 9110 §7.6.1), frame the message, or are set by the
// server.
var reservedHeaders = []string{
	"Host", "Content-Length", "Content-Type", "Content-Encoding", "Transfer-Encoding", "Connection", "Keep-Alive", "Te", "Trailer", "Upgrade",
	"Expect", "User-Agent", "Accept-Encoding", "Traceparent",
	"X-App-Id", "X-Operation", "X-Resource-Type", "X-Resource-Id", "X-User-Id", "X-Request-Id",
}

var (
	headerName  = regexp.MustCompile("^[A-Za-z0-9!#$%&'*+.^_`|~-]+$")
	placeholder = regexp.MustCompile(`\{([^{}]*)\}`)
)

// checkRemote refuses an http handler that cannot be called: invalid, 422.
func (p *Platform) checkRemote(at string, h *r4.AppOperationsHandler) error {
	out, err := p.remoteOf(at, h)
	if err != nil {
		return err
	}
	if err := p.Outbound().Check(out.address); err != nil {
		return unprocessable(at+".url", "%v", err)
	}
	return nil
}

// remoteOf reads an http handler. Whether its address may be called is told when it is, by
// the settings of then. It fails with invalid, 422.
func (p *Platform) remoteOf(at string, h *r4.AppOperationsHandler) (*remote, error) {
	out := &remote{method: http.MethodPost, url: h.URL.Text, headers: make(http.Header), auth: h.Auth.Text}
	if h.Method.Text != "" {
		out.method = strings.ToUpper(h.Method.Text)
	}
	if !slices.Contains(methods, out.method) {
		return nil, unprocessable(at+".method", "the method is %q: expected one of %s", clip(h.Method.Text), strings.Join(methods, ", "))
	}
	u, err := url.Parse(out.url)
	if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" || u.User != nil || u.Fragment != "" {
		return nil, unprocessable(at+".url", "an http handler needs an http or https url without user and fragment, found %q", clip(out.url))
	}
	if strings.ContainsAny(u.Host, "{}") {
		return nil, unprocessable(at+".url", "the host of the url has a placeholder: only its path and query may")
	}
	out.address = u
	if text := h.Headers.Text; text != "" {
		var headers map[string]string
		if err := json.Unmarshal([]byte(text), &headers); err != nil {
			return nil, unprocessable(at+".headers", "headers are an object of texts by name")
		}
		if len(headers) > maxHeaders {
			return nil, unprocessable(at+".headers", "%d headers: at most %d", len(headers), maxHeaders)
		}
		for _, name := range slices.Sorted(maps.Keys(headers)) {
			value := headers[name]
			canonical := textproto.CanonicalMIMEHeaderKey(name)
			switch {
			case !headerName.MatchString(name) || len(name)+len(value) > maxHeader || strings.ContainsFunc(value, func(c rune) bool { return c < ' ' && c != '\t' || c == 0x7f }):
				return nil, unprocessable(at+".headers", "%q is no header", clip(name))
			case slices.Contains(reservedHeaders, canonical) || strings.HasPrefix(canonical, "Proxy-"):
				return nil, unprocessable(at+".headers", "the header %s cannot be set: it belongs to the connection or to the server", canonical)
			case strings.Contains(secretReference.ReplaceAllStringFunc(value, namedSecret), "${"):
				return nil, unprocessable(at+".headers", "the header %s has ${ that names no secret: expected ${secret:NAME}", canonical)
			}
			out.headers.Set(canonical, value)
		}
	}
	return out, nil
}

// namedSecret takes a reference to a secret out of a header, where its name can be one.
func namedSecret(reference string) string {
	if secretName.MatchString(reference[len("${secret:") : len(reference)-1]) {
		return ""
	}
	return reference
}

// expanded is the url of a call: each {name} is in its place, escaped.
func (h *remote) expanded(hc *handlerContext) (string, error) {
	if h.method != http.MethodGet || !strings.Contains(h.url, "{") {
		return h.url, nil
	}
	values := map[string]any{}
	if len(hc.Parameters) > 0 {
		d := json.NewDecoder(bytes.NewReader(hc.Parameters))
		d.UseNumber()
		if err := d.Decode(&values); err != nil {
			return "", outcome.New(outcome.CodeStructure, "the parameters cannot be read: %s", outcome.JSONProblem(err))
		}
	}
	maps.Copy(values, hc.Query)
	values["Type"], values["id"] = hc.ResourceType, hc.ResourceID
	template, query, asked := strings.Cut(h.url, "?")
	var failed error
	fill := func(template string, escape func(string) string) string {
		return placeholder.ReplaceAllStringFunc(template, func(m string) string {
			name := m[1 : len(m)-1]
			text, err := plain(values[name])
			if err == nil && text == "" {
				err = outcome.New(outcome.CodeRequired, "the operation needs the parameter %q", clip(name))
			} else if err != nil {
				err = outcome.Invalid("the parameter %q cannot stand in a url: %v", clip(name), err)
			}
			if failed == nil {
				failed = err
			}
			return escape(text)
		})
	}
	path := fill(template, url.PathEscape)
	if failed == nil && dots(path) && !dots(template) {
		failed = outcome.Invalid("a parameter of the operation is . or .., which means another path")
	}
	if asked {
		path += "?" + fill(query, url.QueryEscape)
	}
	return path, failed
}

// dots reports whether a segment of a path is . or .. .
func dots(path string) bool {
	for s := range strings.SplitSeq(path, "/") {
		if s == "." || s == ".." {
			return true
		}
	}
	return false
}

// plain is a parameter as text: several are put together with commas.
func plain(v any) (string, error) {
	switch v := v.(type) {
	case nil:
		return "", nil
	case string, json.Number, bool:
		return fmt.Sprint(v), nil
	case []string:
		return strings.Join(v, ","), nil
	case []any:
		var list []string
		for _, one := range v {
			text, err := plain(one)
			if err != nil {
				return "", err
			}
			list = append(list, text)
		}
		return strings.Join(list, ","), nil
	}
	return "", errors.New("it is an object")
}

// badGateway is a 502: the handler is at fault.
func badGateway(e *entry, format string, args ...any) *outcome.Error {
	return outcome.BadGateway(outcome.CodeException, "%s: the handler %s", e.label(), fmt.Sprintf(format, args...))
}

// callRemote calls an http handler and judges its answer. docs/contract.md, Apps, section 3.
func (p *Platform) callRemote(ctx context.Context, e *entry, hc *handlerContext, text []byte) (interaction.Response, error) {
	h := e.remote
	at, err := h.expanded(hc)
	if err != nil {
		return interaction.Response{}, err
	}
	var body io.Reader
	if h.method != http.MethodGet {
		body = bytes.NewReader(text)
	}
	req, err := http.NewRequestWithContext(ctx, h.method, at, body)
	if err != nil {
		return interaction.Response{}, badGateway(e, "has a url that cannot be called").Because(err)
	}
	if err := p.Outbound().Check(req.URL); err != nil {
		return interaction.Response{}, badGateway(e, "may not be called: %v", err)
	}
	req.Header = h.headers.Clone()
	set := func(name, value string) {
		if value != "" {
			req.Header.Set(name, value)
		}
	}
	if body != nil {
		set("Content-Type", "application/json")
	}
	if req.Header.Get("Accept") == "" {
		set("Accept", "application/fhir+json, application/json")
	}
	set("User-Agent", "kiln")
	set("X-App-Id", e.app)
	set("X-Operation", hc.Operation)
	set("X-Resource-Type", hc.ResourceType)
	set("X-Resource-Id", hc.ResourceID)
	set("X-User-Id", hc.User.ID)
	set("X-Request-Id", hc.RequestID)
	caller := interaction.CallerFrom(ctx)
	set("Traceparent", traceparent(caller.Traceparent))
	token, err := p.bearerToken(ctx, e, caller.Token)
	if err != nil {
		return interaction.Response{}, err
	}
	if token != "" {
		set("Authorization", "Bearer "+token)
	}
	resp, err := p.http.Do(req)
	if err != nil {
		return interaction.Response{}, p.unanswered(ctx, e, err)
	}
	defer resp.Body.Close()
	answer, err := io.ReadAll(io.LimitReader(resp.Body, maxAnswer+1))
	switch status := resp.StatusCode; {
	case err != nil:
		return interaction.Response{}, p.unanswered(ctx, e, err)
	case len(answer) > maxAnswer:
		return interaction.Response{}, badGateway(e, "answered with more than %d bytes", maxAnswer)
	case status >= 200 && status < 300:
		return p.answered(e, status, answer)
	case status >= 400 && status < 500:
		if r, err := fhir.Decode(p.Service.Model, answer); err == nil && r.Type().Name == "OperationOutcome" {
			return interaction.Response{Status: status, Body: answer}, nil
		}
		return interaction.Response{}, outcome.UnprocessableContent(outcome.CodeInvalid, "%s: the handler answered with status %d", e.name, status)
	default:
		return interaction.Response{}, badGateway(e, "answered with status %d", status)
	}
}

// answered is an answer with success: nothing, a resource, checked to be FHIR, or any other
// JSON.
func (p *Platform) answered(e *entry, status int, answer []byte) (interaction.Response, error) {
	if len(bytes.TrimSpace(answer)) == 0 {
		return interaction.Response{Status: http.StatusNoContent}, nil
	}
	if !json.Valid(answer) || !utf8.Valid(answer) {
		return interaction.Response{}, badGateway(e, "answered with a body that is not JSON")
	}
	r, err := p.response(answer)
	if err != nil {
		o, _ := outcome.From(err)
		return interaction.Response{}, badGateway(e, "answered with nonsense: %s", o.Error()).Because(err)
	}
	r.Status = status
	return r, nil
}

// unanswered is the error of a call without an answer. The url, which may hold
// parameters, is left out.
func (p *Platform) unanswered(ctx context.Context, e *entry, err error) error {
	if cause := ctx.Err(); cause != nil {
		return cause
	}
	var u *url.Error
	if errors.As(err, &u) {
		err = u.Err
	}
	return badGateway(e, "cannot be reached, or broke off").Because(err)
}

var traceparentPattern = regexp.MustCompile(`^[0-9a-f]{2}-([0-9a-f]{32})-[0-9a-f]{16}-([0-9a-f]{2})(-.*)?$`)

// traceparent continues the caller's trace with a parent of its own, or begins one.
// Spec: https://www.w3.org/TR/trace-context/#traceparent-header.
func traceparent(from string) string {
	trace, flags := randomHex(16), "00"
	if m := traceparentPattern.FindStringSubmatch(from); m != nil && !strings.HasPrefix(from, "ff") && strings.Trim(m[1], "0") != "" {
		trace, flags = m[1], m[2]
	}
	return "00-" + trace + "-" + randomHex(8) + "-" + flags
}

func randomHex(n int) string {
	b := make([]byte, n)
	_, _ = rand.Read(b) // never fails
	return hex.EncodeToString(b)
}

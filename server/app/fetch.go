package app

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"net/http"
	"net/textproto"
	"net/url"
	"slices"
	"strings"
	"unicode/utf8"

	"kiln/server/outcome"
)

// The bounds of what scripts fetch, in bytes.
const (
	maxFetchBody   = 4 << 20
	maxFetchAnswer = 4 << 20
)

// fetched is the answer to fetch: prelude.js makes the Response of it.
type fetched struct {
	Status  int               `json:"status"`
	URL     string            `json:"url"`
	Headers map[string]string `json:"headers"`
	Body    string            `json:"body"`
}

// fetchURL is the function fetch of a script: of the hosts that its App names, by the rules
// of outbound requests. docs/contract.md, Apps, section 3.
func (p *Platform) fetchURL(ctx context.Context, e *entry, address string, o hostOptions) (json.RawMessage, error) {
	if !p.Config().AllowFetch {
		return nil, outcome.New(outcome.CodeForbidden, "fetch is off (apps.sandbox.allow_fetch)")
	}
	u, err := p.checkFetchAddress(e, address)
	if err != nil {
		return nil, err
	}
	req, err := newFetchRequest(ctx, u, o)
	if err != nil {
		return nil, err
	}
	resp, err := p.http.Do(req)
	if err != nil {
		if ctx.Err() != nil {
			return nil, outcome.GatewayTimeout("fetch: no answer in time")
		}
		return nil, outcome.BadGateway(outcome.CodeException, "fetch: %s cannot be reached", clip(u.Host))
	}
	defer resp.Body.Close()
	return readFetchAnswer(u, resp)
}

// checkFetchAddress reads an address, and checks that the App may fetch it.
func (p *Platform) checkFetchAddress(e *entry, address string) (*url.URL, error) {
	u, err := url.Parse(address)
	if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" || u.User != nil {
		return nil, outcome.Invalid("fetch needs an http or https URL without user, found %q", clip(address))
	}
	if host := strings.ToLower(u.Host); !slices.Contains(e.hosts, host) && !slices.Contains(e.hosts, strings.ToLower(u.Hostname())) {
		return nil, outcome.New(outcome.CodeForbidden, "fetch: the host %q is not in handler.allowHosts", clip(u.Host))
	}
	if err := p.Outbound().Check(u); err != nil {
		return nil, outcome.New(outcome.CodeForbidden, "fetch: %v", err)
	}
	return u, nil
}

// newFetchRequest checks the method, body and headers of a script's call.
func newFetchRequest(ctx context.Context, u *url.URL, o hostOptions) (*http.Request, error) {
	method := strings.ToUpper(o.Method)
	if method == "" {
		method = http.MethodGet
	}
	if !slices.Contains(methods, method) && method != http.MethodHead {
		return nil, outcome.Invalid("fetch: the method is %q: expected one of %s", clip(o.Method), strings.Join(methods, ", "))
	}
	var body string
	if b := bytes.TrimSpace(o.Body); len(b) > 0 && string(b) != "null" {
		if err := json.Unmarshal(b, &body); err != nil {
			return nil, outcome.Invalid("fetch: the body is a text: use JSON.stringify")
		}
	}
	if len(body) > maxFetchBody {
		return nil, outcome.New(outcome.CodeTooLong, "fetch: the body has more than %d bytes", maxFetchBody)
	}
	req, err := http.NewRequestWithContext(ctx, method, u.String(), strings.NewReader(body))
	if err != nil {
		return nil, outcome.Invalid("fetch: the request cannot be made")
	}
	if len(o.Headers) > maxHeaders {
		return nil, outcome.Invalid("fetch: %d headers: at most %d", len(o.Headers), maxHeaders)
	}
	for name, value := range o.Headers {
		if !mayFetchWith(name, value) {
			return nil, outcome.Invalid("fetch: the header %q cannot be set", clip(name))
		}
		req.Header.Set(name, value)
	}
	req.Header.Set("User-Agent", "kiln")
	return req, nil
}

// mayFetchWith reports whether a script may set a header.
func mayFetchWith(name, value string) bool {
	control := func(c rune) bool { return c < ' ' && c != '\t' || c == 0x7f }
	if !headerName.MatchString(name) || len(value) > maxHeader || strings.ContainsFunc(value, control) {
		return false
	}
	canonical := textproto.CanonicalMIMEHeaderKey(name)
	return canonical == "Content-Type" || !slices.Contains(reservedHeaders, canonical) && !strings.HasPrefix(canonical, "Proxy-")
}

// readFetchAnswer reads an answer, which has to be text of a limited size.
func readFetchAnswer(u *url.URL, resp *http.Response) (json.RawMessage, error) {
	answer, err := io.ReadAll(io.LimitReader(resp.Body, maxFetchAnswer+1))
	switch {
	case err != nil:
		return nil, outcome.BadGateway(outcome.CodeException, "fetch: %s broke off", clip(u.Host))
	case len(answer) > maxFetchAnswer:
		return nil, outcome.BadGateway(outcome.CodeTooLong, "fetch: the answer has more than %d bytes", maxFetchAnswer)
	case !utf8.Valid(answer):
		return nil, outcome.BadGateway(outcome.CodeInvalid, "fetch: the answer is no text in UTF-8")
	}
	out := fetched{Status: resp.StatusCode, URL: u.String(), Headers: make(map[string]string), Body: string(answer)}
	for name, list := range resp.Header {
		out.Headers[strings.ToLower(name)] = strings.Join(list, ", ")
	}
	return json.Marshal(out)
}

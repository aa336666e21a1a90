package rest

import (
	"bytes"
	"errors"
	"io"
	"mime"
	"net/http"
	"net/netip"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/klauspost/compress/gzip"

	"kiln/server/interaction"
	"kiln/server/outcome"
)

// maxDrain is how long a body that is too long is read for the client's sake.
const maxDrain = 5 * time.Second

// body reads the request's body, unpacked. It fails with too-long, 413, above
// the limit, and with not-supported, 415, for encodings other than gzip.
func (c *call) body(r *http.Request) ([]byte, error) {
	limit := c.h.MaxBodyBytes
	if limit == 0 {
		limit = defaultMaxBody
	}
	if r.ContentLength > limit {
		c.drain(r, limit)
		return nil, tooLong(limit)
	}
	packed := r.Header.Get("Content-Encoding")
	size := r.ContentLength
	if packed != "" {
		size = -1
	}
	var raw io.Reader = r.Body
	if size < 0 || size > smallBody {
		a, err := arrive(r.Body, limit)
		if err != nil {
			return nil, err
		}
		defer a.close()
		if raw = a; packed == "" {
			size = a.size
		}
	}
	var err error
	if c.leave, err = c.h.gate.enter(c.ctx, size); err != nil {
		return nil, err
	}
	in := raw
	switch encoding := strings.ToLower(packed); encoding {
	case "", "identity":
	case "gzip", "x-gzip":
		z, err := gzip.NewReader(raw)
		if err != nil {
			return nil, outcome.New(outcome.CodeStructure, "the body is not gzip, as Content-Encoding says it is").Because(err)
		}
		defer z.Close()
		in = z
	default:
		return nil, outcome.NotSupported("Content-Encoding %q is not served; gzip is", clip(encoding)).WithStatus(http.StatusUnsupportedMediaType)
	}
	var buf bytes.Buffer
	// The gate bounds what is announced; one byte more lets ReadFrom see the end
	// without growing.
	buf.Grow(int(max(size, 0)) + bytes.MinRead)
	n, err := buf.ReadFrom(io.LimitReader(in, limit+1))
	if err != nil {
		return nil, unreadable(err)
	}
	if n > limit {
		c.drain(r, limit)
		return nil, tooLong(limit)
	}
	return buf.Bytes(), nil
}

// drain reads what a client still sends of a body that is too long, up to another
// limit of it, and not for long: many clients read no answer before they have sent
// everything, and one that waits for leave to send is told at once.
func (c *call) drain(r *http.Request, limit int64) {
	if r.Header.Get("Expect") != "" {
		return
	}
	// Where there is no deadline to set, the server's own holds.
	_ = http.NewResponseController(c).SetReadDeadline(time.Now().Add(maxDrain))
	_, _ = io.CopyN(io.Discard, r.Body, limit)
}

func tooLong(limit int64) error {
	return outcome.New(outcome.CodeTooLong, "the body is larger than %d bytes (server.max_body_bytes)", limit)
}

func unreadable(err error) error {
	if errors.Is(err, gzip.ErrHeader) || errors.Is(err, gzip.ErrChecksum) {
		return outcome.New(outcome.CodeStructure, "the body is damaged gzip").Because(err)
	}
	return outcome.New(outcome.CodeStructure, "the body could not be read to its end").Because(err)
}

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
		return nil, outcome.NotSupported("Content-Type %q is not served here; %s is", clip(text), strings.Join(types, ", ")).
			WithStatus(http.StatusUnsupportedMediaType)
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
		return outcome.NotSupported("charset %q is not served; FHIR is UTF-8", clip(charset)).WithStatus(http.StatusUnsupportedMediaType)
	}
	if v := params["fhirversion"]; v != "" && v != "4.0" && v != "4.0.1" {
		return outcome.NotSupported("FHIR version %q is not served; 4.0 is", clip(v)).WithStatus(http.StatusUnsupportedMediaType)
	}
	return nil
}

func unsupportedType(text string) error {
	return outcome.NotSupported("Content-Type %q is not served; application/fhir+json and application/json are", clip(text)).
		WithStatus(http.StatusUnsupportedMediaType)
}

// query reads the URL's query string. Unlike URL.Query it refuses what it cannot
// read.
func query(r *http.Request) (url.Values, error) {
	if r.URL.RawQuery == "" {
		return nil, nil
	}
	return interaction.ParseQuery(r.URL.RawQuery)
}

// form reads the parameters of a search by POST: those of the URL and of the
// form together.
func (c *call) form(r *http.Request) (url.Values, error) {
	values, err := query(r)
	if err != nil {
		return nil, err
	}
	if typ, _, err := mime.ParseMediaType(r.Header.Get("Content-Type")); err == nil && typ != "application/x-www-form-urlencoded" {
		return nil, outcome.NotSupported("Content-Type %q is not served by _search; application/x-www-form-urlencoded is", clip(typ)).
			WithStatus(http.StatusUnsupportedMediaType)
	}
	body, err := c.body(r)
	if err != nil {
		return nil, err
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

// prefer is the header Prefer. Spec: RFC 7240, https://hl7.org/fhir/R4/http.html#ops.
type prefer struct {
	ret     interaction.Return
	lenient bool
}

// preferences reads Prefer. What is unknown is no preference, and no error.
// Spec: RFC 7240 §2.
func preferences(r *http.Request) prefer {
	var p prefer
	for _, line := range r.Header["Prefer"] {
		for item := range strings.FieldsFuncSeq(line, func(c rune) bool { return c == ',' || c == ';' }) {
			name, value, _ := strings.Cut(strings.TrimSpace(item), "=")
			value = strings.Trim(strings.TrimSpace(value), `"`)
			switch strings.ToLower(strings.TrimSpace(name)) {
			case "return":
				switch ret := interaction.Return(value); ret {
				case interaction.ReturnMinimal, interaction.ReturnRepresentation, interaction.ReturnOutcome:
					p.ret = ret
				}
			case "handling":
				p.lenient = value == "lenient"
			}
		}
	}
	return p
}

// modifiedSince reads If-Modified-Since; a date that cannot be read is no
// condition. Spec: RFC 9110 §13.1.3.
func modifiedSince(r *http.Request) time.Time {
	if v := r.Header["If-Modified-Since"]; len(v) > 0 {
		if t, err := http.ParseTime(v[0]); err == nil {
			return t
		}
	}
	return time.Time{}
}

// base is the URL that links start with, without a trailing slash.
func (c *call) base(r *http.Request) string {
	if c.h.BaseURL != "" {
		return c.h.BaseURL
	}
	scheme, host, prefix := "http", r.Host, c.prefix
	if r.TLS != nil {
		scheme = "https"
	}
	if c.h.trusts(r.RemoteAddr) {
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

func (h *Handler) trusts(remote string) bool {
	if len(h.TrustedProxies) == 0 {
		return false
	}
	at, err := netip.ParseAddrPort(remote)
	if err != nil {
		return false
	}
	for _, p := range h.TrustedProxies {
		if p.Contains(at.Addr().Unmap()) {
			return true
		}
	}
	return false
}

// firstOf is the first element of a comma-separated header: what the proxy
// nearest to the client said.
func firstOf(list string) string {
	first, _, _ := strings.Cut(list, ",")
	return strings.TrimSpace(first)
}

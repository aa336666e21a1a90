package main

import (
	"bytes"
	"cmp"
	"fmt"
	"net"
	"net/url"
	"strings"
	"time"

	"github.com/valyala/fasthttp"
)

// Client sends requests to one FHIR server over kept-alive connections. It is safe for concurrent use. It uses fasthttp,
// because the tool shares the machine with the server: net/http spent three times the processor time on a read.
type Client struct {
	base   string // "http://host:port/fhir", without a trailing slash
	prefix string // the path of base: "/fhir" or ""
	auth   string // Authorization header, "" for none
	host   *fasthttp.HostClient
}

// NewClient returns a client for the server at baseURL, http or https. An empty
// token sends no Authorization header.
func NewClient(baseURL, token string) (*Client, error) {
	u, err := url.Parse(strings.TrimRight(baseURL, "/"))
	if err != nil || u.Host == "" || (u.Scheme != "http" && u.Scheme != "https") {
		return nil, fmt.Errorf("%q is not a base URL: expected http://host:port/path", baseURL)
	}
	port := u.Port()
	if port == "" {
		port = map[string]string{"http": "80", "https": "443"}[u.Scheme]
	}
	c := &Client{base: u.String(), prefix: u.Path, host: &fasthttp.HostClient{
		Addr:                          net.JoinHostPort(u.Hostname(), port),
		IsTLS:                         u.Scheme == "https",
		MaxConns:                      4096,
		MaxIdleConnDuration:           time.Minute,
		ReadTimeout:                   5 * time.Minute,
		WriteTimeout:                  5 * time.Minute,
		MaxResponseBodySize:           1 << 30,
		ReadBufferSize:                16 << 10,
		NoDefaultUserAgentHeader:      true,
		MaxIdemponentCallAttempts:     1,
		DisablePathNormalizing:        true,
		DisableHeaderNamesNormalizing: false,
	}}
	if token != "" {
		c.auth = "Bearer " + token
	}
	return c, nil
}

// Request is one request; Path is relative to the base URL ("Patient?name=x") or
// an absolute URL that the server gave (a paging link).
type Request struct {
	Method, Path string
	Body         []byte
	Accept       string // application/fhir+json where it is empty
	// IfNoneExist makes a create conditional.
	IfNoneExist string
	// Minimal asks for no body in return.
	Minimal bool
	// Authorization replaces the client's header; ContentType replaces FHIR's JSON as type of Body.
	Authorization, ContentType string
	// Position and Cookie are the headers X-Kiln-Position and Cookie.
	Position, Cookie string
}

// Exchange is a request and its response in reusable memory. One goroutine uses
// it at a time; Body is valid until the next Do.
type Exchange struct {
	c    *Client
	req  *fasthttp.Request
	resp *fasthttp.Response

	Status   int
	Body     []byte
	Location string
}

// NewExchange returns an exchange with the client's server.
func (c *Client) NewExchange() *Exchange {
	return &Exchange{c: c, req: fasthttp.AcquireRequest(), resp: fasthttp.AcquireResponse()}
}

// Do sends r and reads the whole response. An error means that there was none.
func (x *Exchange) Do(r Request) error {
	x.req.Reset()
	x.resp.Reset()
	x.Status, x.Body, x.Location = 0, nil, ""
	x.req.Header.SetMethod(r.Method)
	x.req.SetRequestURI(x.c.target(r.Path))
	x.req.Header.SetHost(x.c.host.Addr)
	x.req.Header.Set("Accept", cmp.Or(r.Accept, "application/fhir+json"))
	if auth := cmp.Or(r.Authorization, x.c.auth); auth != "" {
		x.req.Header.Set("Authorization", auth)
	}
	if r.Body != nil {
		x.req.Header.SetContentType(cmp.Or(r.ContentType, "application/fhir+json"))
		x.req.SetBodyRaw(r.Body)
	}
	if r.IfNoneExist != "" {
		x.req.Header.Set("If-None-Exist", r.IfNoneExist)
	}
	if r.Position != "" {
		x.req.Header.Set("X-Kiln-Position", r.Position)
	}
	if r.Cookie != "" {
		x.req.Header.Set("Cookie", r.Cookie)
	}
	if r.Minimal {
		x.req.Header.Set("Prefer", "return=minimal")
	}
	if err := x.c.host.Do(x.req, x.resp); err != nil {
		return err
	}
	x.Status, x.Body = x.resp.StatusCode(), x.resp.Body()
	x.Location = string(x.resp.Header.Peek("Location"))
	return nil
}

// Header is a header of the response, "" for none.
func (x *Exchange) Header(name string) string { return string(x.resp.Header.Peek(name)) }

// target is the absolute URL of path.
func (c *Client) target(path string) string {
	if strings.HasPrefix(path, "http://") || strings.HasPrefix(path, "https://") {
		return path
	}
	return c.base + "/" + strings.TrimPrefix(path, "/")
}

// idFrom returns the logical id in a Location header: …/Patient/ID/_history/1.
func idFrom(location, typ string) (string, bool) {
	i := strings.LastIndex(location, typ+"/")
	if i < 0 {
		return "", false
	}
	id, _, _ := strings.Cut(location[i+len(typ)+1:], "/")
	return id, id != ""
}

// excerpt is the beginning of a body, for an error message.
func excerpt(body []byte) string {
	body = bytes.Join(bytes.Fields(body), []byte(" "))
	if len(body) > 300 {
		return string(body[:300]) + "…"
	}
	return string(body)
}

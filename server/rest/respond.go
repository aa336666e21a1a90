package rest

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/klauspost/compress/gzip"

	"kiln/server/interaction"
	"kiln/server/outcome"
)

// minGzip is the size from which compression pays: a packet.
const minGzip = 1400

var (
	buffers = sync.Pool{New: func() any { return new([]byte) }}
	zippers = sync.Pool{New: func() any {
		z, err := gzip.NewWriterLevel(nil, gzip.BestSpeed)
		if err != nil {
			panic(err) // a constant level
		}
		return z
	}}
)

// maxPooled is the largest buffer worth keeping for the next answer.
const maxPooled = 4 << 20

// answer writes a response, or the error in its place.
func (c *call) answer(r *http.Request, p prefer, resp interaction.Response, err error) {
	if err != nil {
		c.fail(r, err)
		return
	}
	var formatParam string
	pretty := false
	if q := c.values; q != nil || strings.Contains(r.URL.RawQuery, "_") {
		if q == nil {
			q, _ = query(r) // what cannot be read asks for no format
		}
		formatParam = q.Get("_format")
		pretty = q.Get("_pretty") == "true"
	}
	contentType, err := format(r, formatParam)
	if err != nil {
		c.fail(r, err)
		return
	}
	header := c.Header()
	v := &resp.Version
	if v.ResourceType != "" && v.VersionID > 0 {
		header["Etag"] = []string{interaction.ETag(v.VersionID)}
		header["Last-Modified"] = []string{v.LastUpdated.UTC().Format(http.TimeFormat)}
		if resp.Status == http.StatusCreated || resp.Written {
			header["Location"] = []string{c.base(r) + "/" + interaction.Location(*v)}
		}
	}
	switch {
	case resp.Status == http.StatusNoContent || resp.Status == http.StatusNotModified:
		c.WriteHeader(resp.Status)
	case resp.Bundle != nil:
		buf := buffers.Get().(*[]byte)
		*buf = appendBundle((*buf)[:0], c.base(r), resp.Bundle)
		resp.Release()
		c.send(r, resp.Status, contentType, *buf, pretty)
		if cap(*buf) <= maxPooled {
			buffers.Put(buf)
		}
	case resp.Written && p.ret == interaction.ReturnMinimal:
		header["Content-Length"] = []string{"0"}
		c.WriteHeader(resp.Status)
	case resp.Written && p.ret == interaction.ReturnOutcome:
		c.send(r, resp.Status, contentType, outcome.JSON(append(interaction.Told(resp), resp.Issues...)), pretty)
	case resp.Body != nil:
		c.send(r, resp.Status, contentType, resp.Body, pretty)
	default:
		if v.VersionID > 0 {
			header["Content-Location"] = []string{c.base(r) + "/" + interaction.Location(*v)}
		}
		c.send(r, resp.Status, contentType, v.Body, pretty)
	}
}

// send writes a body, compressed when the client asked for it and it is worth it.
func (c *call) send(r *http.Request, status int, contentType string, body []byte, pretty bool) {
	if pretty {
		var out bytes.Buffer
		if err := json.Indent(&out, body, "", "  "); err == nil {
			out.WriteByte('\n')
			body = out.Bytes()
		}
	}
	header := c.Header()
	header["Content-Type"] = []string{contentType}
	if len(body) >= minGzip {
		header["Vary"] = append(header["Vary"], "Accept-Encoding")
		if wantsGzip(r) {
			c.sendGzip(r, status, body)
			return
		}
	}
	header["Content-Length"] = []string{strconv.Itoa(len(body))}
	c.WriteHeader(status)
	if r.Method != http.MethodHead {
		c.Write(body) // a client that has gone needs no answer
	}
}

func (c *call) sendGzip(r *http.Request, status int, body []byte) {
	buf := buffers.Get().(*[]byte)
	out := bytes.NewBuffer((*buf)[:0])
	z := zippers.Get().(*gzip.Writer)
	z.Reset(out)
	z.Write(body) // writing to memory does not fail
	z.Close()
	zippers.Put(z)
	header := c.Header()
	header["Content-Encoding"] = []string{"gzip"}
	header["Content-Length"] = []string{strconv.Itoa(out.Len())}
	c.WriteHeader(status)
	if r.Method != http.MethodHead {
		c.Write(out.Bytes())
	}
	if *buf = out.Bytes(); cap(*buf) <= maxPooled {
		buffers.Put(buf)
	}
}

// fail writes an error as an OperationOutcome. What is no outcome.Error, and
// everything that is our fault, goes to the log with its cause.
func (c *call) fail(r *http.Request, err error) {
	if c.status != 0 {
		return
	}
	e, ok := outcome.From(err)
	switch {
	case ok:
	case errors.Is(err, context.DeadlineExceeded):
		e = outcome.New(outcome.CodeTimeout, "the request took too long and was given up").Because(err)
	case errors.Is(err, context.Canceled) && r.Context().Err() != nil:
		e = outcome.New(outcome.CodeTimeout, "the client went away").Because(err)
	default:
		e = outcome.Internal(c.id, err)
	}
	status := e.HTTPStatus()
	if status >= http.StatusInternalServerError && r.Context().Err() == nil {
		cause := e.Cause
		if cause == nil {
			cause = err
		}
		c.h.Logger.LogAttrs(c.ctx, slog.LevelError, "request failed", slog.String("request", c.id),
			slog.String("method", r.Method), slog.String("path", r.URL.Path), slog.Any("error", cause))
	}
	header := c.Header()
	switch status {
	case http.StatusUnauthorized:
		header.Set("WWW-Authenticate", "Bearer")
	case http.StatusServiceUnavailable, http.StatusTooManyRequests:
		if header.Get("Retry-After") == "" {
			header.Set("Retry-After", "1")
		}
	case http.StatusMethodNotAllowed:
		if header.Get("Allow") == "" { // an interaction refused the method, the path takes it
			header.Set("Allow", strings.Join(slices.DeleteFunc(c.h.allowed(r), func(m string) bool {
				return m == r.Method || m == http.MethodHead && r.Method == http.MethodGet || m == http.MethodGet && r.Method == http.MethodHead
			}), ", "))
		}
	case http.StatusRequestEntityTooLarge:
		header.Set("Connection", "close") // the rest of the body is not read
	}
	c.send(r, status, fhirJSON, outcome.JSON(e.Issues), true)
}

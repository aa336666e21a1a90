package server

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"regexp"
	"sync"
	"sync/atomic"
	"time"

	"kiln/server/outcome"
)

// net/http answers a request that it cannot read by itself, with plain text. This file
// replaces such an answer by an OperationOutcome. The connections of HTTP/2 stay as they
// are: net/http knows them by their type.

// maxHeaderBytes is the size of the largest request header that the server accepts.
const maxHeaderBytes = 64 << 10

// maxHeaderTime is the time within which the header of a request must arrive.
const maxHeaderTime = 10 * time.Second

// limitHeaders answers a request whose header is larger than maxHeaderBytes with 431.
func limitHeaders(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		size := len(r.Method) + len(r.RequestURI) + len(r.Proto) + len(r.Host)
		for name, values := range r.Header {
			for _, v := range values {
				size += len(name) + len(v) + len(": \r\n")
			}
		}
		if size <= maxHeaderBytes {
			next.ServeHTTP(w, r)
			return
		}
		body := refusalBody(http.StatusRequestHeaderFieldsTooLarge, "")
		h := w.Header()
		h.Set("Content-Type", refusalType)
		h.Set("X-Content-Type-Options", "nosniff")
		h.Set("Connection", "close")
		w.WriteHeader(http.StatusRequestHeaderFieldsTooLarge)
		_, _ = w.Write(body) // a client that has gone needs no answer
	})
}

const refusalType = "application/fhir+json; charset=utf-8"

// refusalBody returns the OperationOutcome of a request that could not be read. reason is
// the text of net/http.
func refusalBody(status int, reason string) []byte {
	code, text := outcome.CodeStructure, "the request is no valid HTTP request"
	switch status {
	case http.StatusRequestHeaderFieldsTooLarge:
		code, text, reason = outcome.CodeTooLong, fmt.Sprintf("the URL and the header of the request are larger than %d bytes; a long search can be a POST to _search", maxHeaderBytes), ""
	case http.StatusRequestTimeout:
		code, text = outcome.CodeTimeout, fmt.Sprintf("the header of the request was not complete within %s", maxHeaderTime)
	case http.StatusNotImplemented, http.StatusHTTPVersionNotSupported, http.StatusExpectationFailed:
		code, text = outcome.CodeNotSupported, "the server does not support this kind of HTTP request"
	}
	if reason != "" {
		text += ": " + outcome.Clip(reason)
	}
	return append(outcome.JSON(outcome.New(code, "%s", text).Issues), '\n')
}

// refusal matches the whole of an answer that net/http writes by itself: the answers to
// requests that it cannot read have no Date, unlike the answers of handlers.
var refusal = regexp.MustCompile(`^HTTP/1\.[01] ([0-9]{3}) ([^\r\n]*)\r\n(?:Content-Type: text/plain; charset=utf-8\r\nConnection: close\r\n\r\n|\r\nClient sent)[^\r\n]*\n?$`)

// expectation matches net/http's answer to an Expect header that it does not know.
var expectation = regexp.MustCompile(`^HTTP/1\.[01] (417) (Expectation Failed)\r\n(?:[^\r\n]+\r\n)*\r\n$`)

// maxRefusal is the size of the longest answer that can be a refusal.
const maxRefusal = 1 << 10

// refusingConn is a connection of HTTP/1 whose refusals are OperationOutcomes.
type refusingConn struct {
	net.Conn
	// deadline is the instant until which net/http waits for bytes, in nanoseconds since 1970; 0 is
	// without limit.
	deadline atomic.Int64
	late     atomic.Bool // the last read ended at the deadline
	refused  atomic.Bool // 408 was the last answer
}

// SetReadDeadline sets the instant until which reads wait.
func (c *refusingConn) SetReadDeadline(t time.Time) error {
	c.noteDeadline(t)
	return c.Conn.SetReadDeadline(t)
}

// SetDeadline sets the instant until which reads and writes wait.
func (c *refusingConn) SetDeadline(t time.Time) error {
	c.noteDeadline(t)
	return c.Conn.SetDeadline(t)
}

func (c *refusingConn) noteDeadline(t time.Time) {
	if t.IsZero() {
		c.deadline.Store(0)
		return
	}
	c.deadline.Store(t.UnixNano())
}

// Read reads bytes. It notes whether they came too late. A deadline in the year 1970 is how net/http
// interrupts a read.
func (c *refusingConn) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	c.late.Store(n == 0 && errors.Is(err, os.ErrDeadlineExceeded) && c.deadline.Load() > int64(365*24*time.Hour))
	return n, err
}

// refuseLate answers 408 to a request whose header has begun and is not there in time. net/http closes
// such a connection without an answer: it announces that the connection is active when it has read a
// part of the header, or all of it. RFC 9110 §15.5.9.
func (c *refusingConn) refuseLate(state http.ConnState) {
	if state != http.StateActive || !c.late.Load() {
		return
	}
	c.refused.Store(true)
	_ = c.Conn.SetWriteDeadline(time.Now().Add(time.Second))
	_, _ = c.Conn.Write(refusalAnswer(http.StatusRequestTimeout, ""))
}

// refuseLateRequests is the hook http.Server.ConnState.
func refuseLateRequests(conn net.Conn, state http.ConnState) {
	if c, ok := conn.(interface{ refuseLate(http.ConnState) }); ok {
		c.refuseLate(state)
	}
}

// Write writes p, or the OperationOutcome that replaces it.
func (c *refusingConn) Write(p []byte) (int, error) {
	if c.refused.Load() {
		return len(p), nil
	}
	if len(p) > maxRefusal || !bytes.HasPrefix(p, []byte("HTTP/1.")) {
		return c.Conn.Write(p)
	}
	m := refusal.FindSubmatch(p)
	if m == nil {
		m = expectation.FindSubmatch(p)
	}
	if m == nil {
		return c.Conn.Write(p)
	}
	var status int
	_, _ = fmt.Sscan(string(m[1]), &status) // three digits
	reason := string(m[2])
	if c.late.Load() { // net/http takes a part of a line for a wrong line
		status, reason = http.StatusRequestTimeout, ""
		m[2] = nil
	}
	if _, detail, ok := bytes.Cut(m[2], []byte(": ")); ok {
		reason = string(detail)
	}
	if _, err := c.Conn.Write(refusalAnswer(status, reason)); err != nil {
		return 0, err
	}
	return len(p), nil
}

// refusalAnswer is the whole answer to a request that could not be read.
func refusalAnswer(status int, reason string) []byte {
	body := refusalBody(status, reason)
	return fmt.Appendf(nil, "HTTP/1.1 %d %s\r\nDate: %s\r\nContent-Type: %s\r\nX-Content-Type-Options: nosniff\r\nContent-Length: %d\r\nConnection: close\r\n\r\n%s",
		status, http.StatusText(status), time.Now().UTC().Format(http.TimeFormat), refusalType, len(body), body)
}

// CloseWrite ends the answers. net/http calls it before it closes a connection from which
// it has not read everything, so that the client receives the last answer.
func (c *refusingConn) CloseWrite() error {
	if w, ok := c.Conn.(interface{ CloseWrite() error }); ok {
		return w.CloseWrite()
	}
	return nil
}

// refusingTLSConn is a refusingConn with TLS.
type refusingTLSConn struct {
	*refusingConn
	secure *tls.Conn
}

// ConnectionState returns the result of the handshake: net/http sets Request.TLS from it.
func (c refusingTLSConn) ConnectionState() tls.ConnectionState { return c.secure.ConnectionState() }

// refusingListener accepts connections whose refusals are OperationOutcomes. With TLS it
// finishes the handshake of a connection before it returns it: only then it is known
// whether the client speaks HTTP/2.
type refusingListener struct {
	net.Listener
	accepted chan net.Conn
	failed   chan error
	closed   chan struct{}
	once     func()
}

// maxHandshake is how long a client may take for its TLS handshake.
const maxHandshake = 10 * time.Second

// listenRefusing makes l a refusingListener.
func listenRefusing(l net.Listener) net.Listener {
	r := &refusingListener{Listener: l, accepted: make(chan net.Conn), failed: make(chan error), closed: make(chan struct{})}
	r.once = sync.OnceFunc(func() { close(r.closed) })
	go r.run()
	return r
}

// run accepts connections until the listener is closed.
func (l *refusingListener) run() {
	for {
		conn, err := l.Listener.Accept()
		if err != nil {
			select {
			case l.failed <- err:
			case <-l.closed:
				return
			}
			if errors.Is(err, net.ErrClosed) {
				return
			}
			continue
		}
		secure, ok := conn.(*tls.Conn)
		if !ok {
			l.deliver(&refusingConn{Conn: conn})
			continue
		}
		go l.handshake(secure)
	}
}

// handshake delivers a connection after its handshake. net/http repeats a handshake that
// failed, and logs the same error.
func (l *refusingListener) handshake(secure *tls.Conn) {
	ctx, cancel := context.WithTimeout(context.Background(), maxHandshake)
	defer cancel()
	err := secure.HandshakeContext(ctx)
	if err != nil || secure.ConnectionState().NegotiatedProtocol == "h2" {
		l.deliver(secure)
		return
	}
	l.deliver(refusingTLSConn{&refusingConn{Conn: secure}, secure})
}

func (l *refusingListener) deliver(c net.Conn) {
	select {
	case l.accepted <- c:
	case <-l.closed:
		c.Close()
	}
}

// Accept waits for the next connection.
func (l *refusingListener) Accept() (net.Conn, error) {
	select {
	case c := <-l.accepted:
		return c, nil
	case err := <-l.failed:
		return nil, err
	case <-l.closed:
		return nil, net.ErrClosed
	}
}

// Close ends Accept.
func (l *refusingListener) Close() error {
	l.once()
	return l.Listener.Close()
}

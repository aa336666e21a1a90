package server

import (
	"log/slog"
	"net"
	"net/http"
	"sync"
	"time"
)

// newHTTPServer limits clients. A request's header arrives within ten seconds and has at
// most maxHeaderBytes. A client reads an answer within ten minutes. An idle connection
// ends after two minutes. server/web ends bodies that arrive too slowly. The limits do not
// hold for the streams of web.OpenStreams.
func newHTTPServer(h http.Handler, log *slog.Logger) *http.Server {
	return &http.Server{
		Handler:           limitHeaders(h),
		ReadHeaderTimeout: maxHeaderTime,
		ConnState:         refuseLateRequests,
		WriteTimeout:      10 * time.Minute,
		IdleTimeout:       2 * time.Minute,
		MaxHeaderBytes:    2 * maxHeaderBytes, // limitHeaders answers up to here, also over HTTP/2
		// web.Mux answers OPTIONS * like every other request.
		DisableGeneralOptionsHandler: true,
		ErrorLog:                     slog.NewLogLogger(log.Handler(), slog.LevelWarn),
	}
}

// connectionLimit bounds the connections that listeners have together.
type connectionLimit struct {
	mu   sync.Mutex
	room sync.Cond // that there may be some
	open int
	most int
}

func newConnectionLimit(most int) *connectionLimit {
	c := &connectionLimit{most: most}
	c.room.L = &c.mu
	return c
}

// set makes most the limit. Connections above it stay until they end.
func (c *connectionLimit) set(most int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.most = most
	c.room.Broadcast()
}

// listen lets a listener take connections while there is room; more are taken when
// others end.
func (c *connectionLimit) listen(l net.Listener) net.Listener {
	return &limitedListener{Listener: l, limit: c}
}

type limitedListener struct {
	net.Listener
	limit  *connectionLimit
	closed bool // under limit.mu
}

// Accept waits for a connection and for room for it.
func (l *limitedListener) Accept() (net.Conn, error) {
	c := l.limit
	c.mu.Lock()
	for c.open >= c.most && !l.closed {
		c.room.Wait()
	}
	if l.closed {
		c.mu.Unlock()
		return nil, net.ErrClosed
	}
	c.open++
	c.mu.Unlock()
	conn, err := l.Listener.Accept()
	if err != nil {
		c.leave()
		return nil, err
	}
	return &limitedConn{Conn: conn, leave: sync.OnceFunc(c.leave)}, nil
}

func (c *connectionLimit) leave() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.open--
	c.room.Broadcast()
}

// Close ends Accept.
func (l *limitedListener) Close() error {
	l.limit.mu.Lock()
	l.closed = true
	l.limit.room.Broadcast()
	l.limit.mu.Unlock()
	return l.Listener.Close()
}

type limitedConn struct {
	net.Conn
	leave func()
}

// CloseWrite ends the answers, where the connection can be closed by halves.
func (c *limitedConn) CloseWrite() error {
	if w, ok := c.Conn.(interface{ CloseWrite() error }); ok {
		return w.CloseWrite()
	}
	return nil
}

// Close gives the room back.
func (c *limitedConn) Close() error {
	c.leave()
	return c.Conn.Close()
}

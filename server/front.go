package server

import (
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"

	"kiln/server/admin"
	"kiln/server/outcome"
)

// metricsConnections bounds the connections to server.metrics_listen. They are not counted
// among server.max_connections: a scrape succeeds while clients have taken all of those.
const metricsConnections = 64

// front serves one address of the configuration. Until its handler is replaced it answers
// that the server is starting.
type front struct {
	key         string // of the configuration
	told        func(address string)
	connections *connectionLimit
	files       *certificateFiles
	handler     atomic.Pointer[http.Handler]
	server      *http.Server
	ended       chan<- error // gets why the listener has ended

	mu         sync.Mutex
	configured string
	listener   *frontListener
}

// frontListener is a listener that may be closed for another one.
type frontListener struct {
	net.Listener
	replaced atomic.Bool
}

func newFront(key string, told func(address string), connections int, files *certificateFiles, ended chan<- error, log *slog.Logger) *front {
	f := &front{key: key, told: told, connections: newConnectionLimit(connections), files: files, ended: ended}
	starting := admin.StartingHandler()
	f.handler.Store(&starting)
	f.server = newHTTPServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { (*f.handler.Load()).ServeHTTP(w, r) }), log)
	return f
}

// listen makes address the one that is served, with TLS where it is configured. "" serves
// none. Connections to the previous address go on. After an error the previous address is
// served.
func (f *front) listen(address string) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if address == f.configured {
		return nil
	}
	before := f.listener
	f.listener = nil
	if address != "" {
		l, err := net.Listen("tcp", address)
		if err != nil {
			f.listener = before
			return listenError(f.key, address, err)
		}
		next := &frontListener{Listener: listenRefusing(f.files.secureListener(f.connections.listen(l)))}
		f.listener = next
		go func() {
			if err := f.server.Serve(next); !next.replaced.Load() {
				f.ended <- err
			}
		}()
		if f.told != nil {
			f.told(next.Addr().String())
		}
	}
	f.configured = address
	if before != nil {
		before.replaced.Store(true)
		before.Close()
	}
	return nil
}

// listenError says what to do where the address of a key cannot be taken.
func listenError(key, address string, err error) error {
	reason := err
	var op *net.OpError
	if errors.As(err, &op) {
		reason = op.Err
	}
	flag := ""
	if key == "server.listen" {
		flag = ", such as --listen 127.0.0.1:0 for a free one"
	}
	if errors.Is(err, syscall.EADDRINUSE) {
		return fmt.Errorf("%s is %s, and another program listens there: choose another port%s", key, address, flag)
	}
	return fmt.Errorf("%s is %s, which cannot be listened on (%w): choose another address%s", key, address, reason, flag)
}

// serveObservation serves /metrics and /health* of all paths, for server.metrics_listen.
func serveObservation(all http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		path := strings.TrimPrefix(r.URL.Path, "/fhir")
		switch path {
		case "/metrics", "/health", "/health/live", "/health/ready":
			all.ServeHTTP(w, r)
			return
		}
		w.Header().Set("X-Content-Type-Options", "nosniff")
		w.Header().Set("Content-Type", "application/fhir+json; charset=utf-8")
		e := outcome.New(outcome.CodeNotFound, "server.metrics_listen serves /metrics, /health, /health/live and /health/ready only")
		w.WriteHeader(e.HTTPStatus())
		_, _ = w.Write(append(outcome.JSON(e.Issues), '\n')) // a client that has gone needs no answer
	})
}

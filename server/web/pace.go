package web

import (
	"io"
	"net/http"
	"sync"
	"sync/atomic"
	"time"
)

const (
	// paceGrace is how long a body may come as slowly as it likes, and the time over
	// which its speed is looked at after that.
	paceGrace = 30 * time.Second
	// paceLeast is how many bytes a second it has to come with.
	paceLeast = 1000
	// paceRest is how long the rest of a body may take that nobody reads: net/http reads
	// some of it, so that the connection can be used again.
	paceRest = 5 * time.Second
)

// pacedBody cuts the body of a request that comes too slowly.
type pacedBody struct {
	io.ReadCloser
	w     http.ResponseWriter
	read  atomic.Int64
	timer *time.Timer
	stop  func()
	ended atomic.Bool // read to its end, or to an error
}

// paceBody makes r's body one that is cut when it comes too slowly: its client holds a
// connection and perhaps a file here. A quick beginning is no excuse for the rest.
func paceBody(w http.ResponseWriter, r *http.Request, grace time.Duration) {
	if r.Body == nil || r.Body == http.NoBody {
		return
	}
	b := &pacedBody{ReadCloser: r.Body, w: w}
	var mu sync.Mutex
	over, seen := false, int64(0)
	b.stop = sync.OnceFunc(func() {
		mu.Lock()
		defer mu.Unlock()
		over = true
		b.timer.Stop()
	})
	mu.Lock()
	defer mu.Unlock()
	b.timer = time.AfterFunc(grace, func() {
		mu.Lock()
		defer mu.Unlock()
		read := b.read.Load()
		switch {
		case over:
		case read-seen < int64(grace.Seconds()*paceLeast):
			// The read that waits ends with an error. Where there is no deadline to set,
			// the server's holds.
			_ = http.NewResponseController(w).SetReadDeadline(time.Now())
		default:
			seen = read
			b.timer.Reset(grace)
		}
	})
	r.Body = b
}

// Read counts the bytes of the body.
func (b *pacedBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	b.read.Add(int64(n))
	if err != nil {
		b.ended.Store(true)
		b.stop()
	}
	return n, err
}

// Close ends the watch.
func (b *pacedBody) Close() error {
	b.stop()
	return b.ReadCloser.Close()
}

// finishBody ends the watch of an answered request. The rest of the body must arrive within
// rest: the answer waits for it, and so does the connection.
func (b *pacedBody) finishBody(rest time.Duration) {
	b.stop()
	if !b.ended.Load() {
		_ = http.NewResponseController(b.w).SetReadDeadline(time.Now().Add(rest))
	}
}

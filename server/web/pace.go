package web

import (
	"io"
	"net/http"
	"sync"
	"sync/atomic"
	"time"
)

const (
	// paceGrace is how long a body may come as slowly as it likes.
	paceGrace = 30 * time.Second
	// paceLeast is how many bytes a second it has to come with after that, on the
	// average since its beginning.
	paceLeast = 1000
	paceCheck = 5 * time.Second
)

// pacedBody cuts the body of a request that comes too slowly.
type pacedBody struct {
	io.ReadCloser
	read  atomic.Int64
	timer *time.Timer
	stop  func()
}

// pace makes r's body one that is cut when it comes too slowly: its client holds a
// connection and perhaps a file here.
func pace(w http.ResponseWriter, r *http.Request, grace time.Duration) {
	if r.Body == nil || r.Body == http.NoBody {
		return
	}
	b := &pacedBody{ReadCloser: r.Body}
	start := time.Now()
	var mu sync.Mutex
	over := false
	b.stop = sync.OnceFunc(func() {
		mu.Lock()
		defer mu.Unlock()
		over = true
		b.timer.Stop()
	})
	b.timer = time.AfterFunc(grace, func() {
		mu.Lock()
		defer mu.Unlock()
		switch {
		case over:
		case b.read.Load() < int64(time.Since(start).Seconds()*paceLeast):
			// The read that waits ends with an error. Where there is no deadline to set,
			// the server's holds.
			_ = http.NewResponseController(w).SetReadDeadline(time.Now())
		default:
			b.timer.Reset(paceCheck)
		}
	})
	r.Body = b
}

// Read counts what comes.
func (b *pacedBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	b.read.Add(int64(n))
	if err != nil {
		b.stop()
	}
	return n, err
}

// Close ends the watch.
func (b *pacedBody) Close() error {
	b.stop()
	return b.ReadCloser.Close()
}

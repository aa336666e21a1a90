package bulk

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"kiln/server/outcome"
)

// fetcher reads the inputs of imports.
type fetcher struct {
	client   *http.Client
	settings ImportSettings
	idle     time.Duration // the longest time without a byte
	pause    time.Duration // before the second try; twice as long before the third
	s3       func(ctx context.Context, bucket, key string) (io.ReadCloser, error)
}

// sourceTries is how often an input is asked for, in all.
const sourceTries = 3

// errRestart says that a source cannot go on where it stopped.
var errRestart = errors.New("the source cannot go on from where it stopped")

// fetch hands an input to read, from its beginning. Where the source fails in the middle and cannot
// go on, read is called again. An errInput says that the input cannot be read.
func (f *fetcher) fetch(ctx context.Context, address string, read func(io.Reader) error) error {
	u, err := url.Parse(address)
	if err != nil {
		return errInput{"the URL is malformed"}
	}
	if err := f.settings.check(u); err != nil { // the settings may have changed since the kick-off
		return errInput{err.Error()}
	}
	switch u.Scheme {
	case "file":
		return f.fetchFile(u, read)
	case "s3":
		return f.fetchObject(ctx, u, read)
	}
	src := &source{f: f, ctx: ctx, url: address}
	defer src.close()
	for {
		err := read(src)
		switch {
		case ctx.Err() != nil:
			return ctx.Err()
		case src.failure == nil || err == nil:
			return err
		case errors.Is(src.failure, errRestart) && src.tries < sourceTries:
			src.restart()
			continue
		}
		return errInput{"the input cannot be read: " + reason(src.failure)}
	}
}

// reason is an error of a source in words, without its URL.
func reason(err error) string {
	if u, ok := errors.AsType[*url.Error](err); ok {
		err = u.Err
	}
	if op, ok := errors.AsType[*net.OpError](err); ok && op.Err != nil {
		err = op.Err
	}
	return outcome.Clip(err.Error())
}

func (f *fetcher) fetchObject(ctx context.Context, u *url.URL, read func(io.Reader) error) error {
	in, err := f.s3(ctx, u.Host, strings.TrimPrefix(u.Path, "/"))
	if err == nil {
		defer in.Close()
		counted := &countingReader{r: in}
		if err = read(counted); counted.err == nil || counted.err == io.EOF {
			return err
		}
	}
	if ctx.Err() != nil {
		return ctx.Err()
	}
	return errInput{"the input cannot be read: " + outcome.Clip(err.Error())}
}

// fetchFile reads a regular file below one of the allowed prefixes, after links are resolved.
func (f *fetcher) fetchFile(u *url.URL, read func(io.Reader) error) error {
	resolved, err := filepath.EvalSymlinks(filepath.FromSlash(u.Path))
	if err != nil {
		return errInput{"the file cannot be read: " + fileReason(err)}
	}
	if !f.allows(resolved) {
		return errInput{"the file is a link to a place that begins with none of bulk.import.sources"}
	}
	in, err := os.OpenFile(resolved, os.O_RDONLY|syscall.O_NOFOLLOW|syscall.O_NONBLOCK, 0)
	if err != nil {
		return errInput{"the file cannot be read: " + fileReason(err)}
	}
	defer in.Close()
	if info, err := in.Stat(); err != nil || !info.Mode().IsRegular() {
		return errInput{"the file is no regular file"}
	}
	counted := &countingReader{r: in}
	err = read(counted)
	if counted.err != nil && counted.err != io.EOF {
		return errInput{"the file cannot be read: " + fileReason(counted.err)}
	}
	return err
}

// allows reports whether a path without links begins with an allowed prefix, whose links are resolved.
func (f *fetcher) allows(resolved string) bool {
	for _, prefix := range f.settings.Sources {
		u, err := url.Parse(prefix)
		if err != nil || u.Scheme != "file" {
			continue
		}
		folder, rest := filepath.Split(u.Path)
		if at, err := filepath.EvalSymlinks(folder); err == nil {
			if strings.HasPrefix(resolved, strings.TrimSuffix(at, "/")+"/"+rest) {
				return true
			}
		}
	}
	return false
}

func fileReason(err error) string {
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return "there is none"
	case errors.Is(err, fs.ErrPermission):
		return "permission denied"
	}
	return "it cannot be opened"
}

// source reads an http URL. Where the connection fails, it goes on by Range.
type source struct {
	f   *fetcher
	ctx context.Context
	url string

	tries   int
	at      int64 // bytes that were read
	ranges  bool  // the source serves ranges
	tag     string
	body    io.ReadCloser
	cancel  context.CancelFunc
	timer   *time.Timer
	stalled bool
	mu      sync.Mutex // of stalled
	failure error      // that ended the reading; nil at the end of the input
}

func (s *source) restart() {
	s.close()
	s.at, s.failure, s.ranges, s.tag = 0, nil, false, ""
}

func (s *source) close() {
	if s.body != nil {
		s.body.Close()
		s.body = nil
	}
	if s.cancel != nil {
		s.cancel()
		s.cancel = nil
	}
	if s.timer != nil {
		s.timer.Stop()
	}
}

// Read implements io.Reader.
func (s *source) Read(b []byte) (int, error) {
	for {
		if s.failure != nil {
			return 0, s.failure
		}
		if s.body == nil {
			if err := s.open(); err != nil {
				s.fail(err)
				continue
			}
		}
		s.timer.Reset(s.f.idle)
		n, err := s.body.Read(b)
		s.timer.Stop()
		s.at += int64(n)
		switch {
		case n > 0:
			return n, nil
		case err == io.EOF:
			s.close()
			return 0, io.EOF
		case err != nil:
			s.fail(err)
		}
	}
}

// errStatus is the status of a source that does not give the input.
type errStatus int

func (e errStatus) Error() string {
	if e >= 300 && e < 400 {
		return fmt.Sprintf("the source answers %d; redirects are not followed", int(e))
	}
	return fmt.Sprintf("the source answers %d", int(e))
}

func (e errStatus) transient() bool { return e >= 500 || e == 408 || e == 429 }

var errStalled = errors.New("the source sent no byte for too long")

// fail notes an error, and waits for the next try where there is one.
func (s *source) fail(err error) {
	s.mu.Lock()
	stalled := s.stalled
	s.stalled = false
	s.mu.Unlock()
	s.close()
	if stalled {
		err = errStalled
	}
	status, refused := errors.AsType[errStatus](err)
	switch {
	case s.ctx.Err() != nil:
		s.failure = s.ctx.Err()
		return
	case s.tries >= sourceTries, refused && !status.transient():
		s.failure = err
		return
	}
	timer := time.NewTimer(s.f.pause << (s.tries - 1))
	defer timer.Stop()
	select {
	case <-s.ctx.Done():
		s.failure = s.ctx.Err()
		return
	case <-timer.C:
	}
	if s.at > 0 && !s.ranges || errors.Is(err, errRestart) {
		s.failure = errRestart
	}
}

// open asks for the input, from where it stopped.
func (s *source) open() error {
	s.tries++
	ctx, cancel := context.WithCancel(s.ctx)
	s.cancel = cancel
	s.timer = time.AfterFunc(s.f.idle, func() {
		s.mu.Lock()
		s.stalled = true
		s.mu.Unlock()
		cancel()
	})
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, s.url, nil)
	if err != nil {
		return err
	}
	r.Header.Set("Accept", ndjson+", */*")
	r.Header.Set("User-Agent", "Kiln")
	if s.at > 0 {
		r.Header.Set("Range", "bytes="+strconv.FormatInt(s.at, 10)+"-")
		if s.tag != "" {
			r.Header.Set("If-Range", s.tag)
		}
	}
	resp, err := s.f.client.Do(r)
	if err != nil {
		return err
	}
	s.body = resp.Body
	switch {
	case s.at == 0 && resp.StatusCode == http.StatusOK:
		s.ranges = resp.Header.Get("Accept-Ranges") == "bytes"
		if tag := resp.Header.Get("ETag"); !strings.HasPrefix(tag, "W/") {
			s.tag = tag
		}
		return nil
	case s.at > 0 && resp.StatusCode == http.StatusPartialContent &&
		strings.HasPrefix(resp.Header.Get("Content-Range"), "bytes "+strconv.FormatInt(s.at, 10)+"-"):
		return nil
	case s.at > 0 && resp.StatusCode >= 200 && resp.StatusCode < 300:
		return errRestart
	}
	return errStatus(resp.StatusCode)
}

package rest

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/klauspost/compress/gzip"

	"kiln/server/outcome"
)

// maxDrain is how long a body that is too long is read for the client's sake.
const maxDrain = 5 * time.Second

// minDrain is how much is read of it under any limit.
const minDrain = 16 << 20

// body reads the request's body, unpacked. It fails with too-long, 413, above
// the limit, and with not-supported, 415, for encodings other than gzip.
func (c *call) body(r *http.Request) ([]byte, error) {
	limit := int64(defaultMaxBody)
	if c.h.MaxBodyBytes != nil {
		limit = cmp.Or(c.h.MaxBodyBytes(), limit)
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
	if size > smallBody {
		if leave := c.h.bodies.admitArrived(size); leave != nil {
			defer leave()
			return c.arriving(r.Body, size)
		}
	}
	var raw io.Reader = r.Body
	if size < 0 || size > smallBody {
		a, err := spool(r.Body, limit)
		if err != nil {
			return nil, err
		}
		defer a.close()
		if raw = a; packed == "" {
			size = a.size
		}
	}
	var err error
	if c.leave, err = c.h.bodies.enterBody(c.ctx, size); err != nil {
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
		return nil, outcome.UnsupportedMediaType("Content-Encoding %q is not served; gzip is", outcome.Clip(encoding))
	}
	var buf bytes.Buffer
	// The bodyLimit bounds the announced size; one byte more lets ReadFrom see the end
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

// arriving reads a body of size bytes into memory, for which it has room, and waits for the bodyLimit.
func (c *call) arriving(in io.Reader, size int64) ([]byte, error) {
	body := make([]byte, size)
	if _, err := io.ReadFull(in, body); err != nil {
		return nil, unreadable(err)
	}
	var err error
	c.leave, err = c.h.bodies.enterBody(c.ctx, size)
	return body, err
}

// drain reads the rest of a body that is too long, up to another limit of it, at least
// minDrain bytes, and not for long: many clients read no answer before they have sent
// everything. A client that waits for 100 Continue is answered at once.
func (c *call) drain(r *http.Request, limit int64) {
	if r.Header.Get("Expect") != "" {
		return
	}
	// Where there is no deadline to set, the server's own holds.
	_ = http.NewResponseController(c).SetReadDeadline(time.Now().Add(maxDrain))
	_, _ = io.CopyN(io.Discard, r.Body, max(limit, minDrain))
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

// maxInMemory is how much of a large body is held in memory before it is complete.
const maxInMemory = 256 << 10

// spooledBody is a large body, complete.
type spooledBody struct {
	io.Reader
	size int64         // -1 where the body is still to be read
	file *os.File      // nil where memory holds it
	head *bytes.Buffer // one of heads, which close gives back; else nil
}

// heads are the buffers of the first part of large bodies.
var heads = sync.Pool{New: func() any { return new(bytes.Buffer) }}

// spool waits for all of a large body, up to one byte more than limit. It comes
// before the bodyLimit, so that a client that sends slowly, or nothing any more, takes
// up a file and no room there. Where no file can be made, the body is left to be
// read inside the bodyLimit.
func spool(in io.Reader, limit int64) (spooledBody, error) {
	head := heads.Get().(*bytes.Buffer)
	head.Reset()
	n, err := io.CopyN(head, in, maxInMemory)
	switch {
	case errors.Is(err, io.EOF):
		return spooledBody{Reader: head, size: n, head: head}, nil
	case err != nil:
		heads.Put(head)
		return spooledBody{}, unreadable(err)
	}
	all := io.MultiReader(head, io.LimitReader(in, limit+1-n))
	f, err := os.CreateTemp("", "kiln-body-")
	if err != nil {
		return spooledBody{Reader: all, size: -1, head: head}, nil
	}
	_ = os.Remove(f.Name()) // it lives as long as it is open
	size, err := io.Copy(f, all)
	heads.Put(head)
	if err == nil {
		_, err = f.Seek(0, io.SeekStart)
	}
	if err != nil {
		f.Close()
		if _, ours := errors.AsType[*fs.PathError](err); ours {
			return spooledBody{}, fmt.Errorf("keep a large body: %w", err)
		}
		return spooledBody{}, unreadable(err)
	}
	return spooledBody{Reader: f, size: size, file: f}, nil
}

// close frees the memory or file of the body.
func (a spooledBody) close() {
	if a.file != nil {
		a.file.Close()
	}
	if a.head != nil {
		heads.Put(a.head)
	}
}

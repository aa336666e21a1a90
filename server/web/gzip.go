package web

import (
	"bytes"
	"net/http"
	"strconv"
	"strings"
	"sync"

	"github.com/klauspost/compress/gzip"
)

// minGzip is the size from which compression pays: a packet.
const minGzip = 1400

var zippers = sync.Pool{New: func() any {
	z, err := gzip.NewWriterLevel(nil, gzip.BestSpeed)
	if err != nil {
		panic(err) // a constant level
	}
	return z
}}

// sendGzip answers with body, compressed.
func (x *Exchange) sendGzip(r *http.Request, status int, body []byte) {
	buf := TakeBuffer()
	out := bytes.NewBuffer((*buf)[:0])
	z := zippers.Get().(*gzip.Writer)
	z.Reset(out)
	z.Write(body) // writing to memory does not fail
	z.Close()
	zippers.Put(z)
	header := x.Header()
	header["Content-Encoding"] = []string{"gzip"}
	header["Content-Length"] = []string{strconv.Itoa(out.Len())}
	x.WriteHeader(status)
	if r.Method != http.MethodHead {
		x.Write(out.Bytes())
	}
	*buf = out.Bytes()
	GiveBuffer(buf)
}

// WantsGzip reports whether the client takes gzip; its weight for gzip goes before its
// weight for every coding.
// Spec: RFC 9110 §12.5.3.
func WantsGzip(r *http.Request) bool {
	named, gzip, every := false, false, false
	for _, line := range r.Header["Accept-Encoding"] {
		for item := range strings.SplitSeq(line, ",") {
			name, q, _ := strings.Cut(item, ";")
			v, err := strconv.ParseFloat(strings.TrimPrefix(strings.TrimSpace(q), "q="), 64)
			taken := err != nil || v > 0
			switch strings.ToLower(strings.TrimSpace(name)) {
			case "gzip", "x-gzip":
				named, gzip = true, taken
			case "*":
				every = taken
			}
		}
	}
	if named {
		return gzip
	}
	return every
}

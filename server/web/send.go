package web

import (
	"bytes"
	"encoding/json"
	"net/http"
	"strconv"
	"sync"
)

var buffers = sync.Pool{New: func() any { return new([]byte) }}

// maxPooled is the largest buffer worth keeping for the next answer.
const maxPooled = 4 << 20

// TakeBuffer returns a buffer to write an answer in; GiveBuffer takes it back.
func TakeBuffer() *[]byte { return buffers.Get().(*[]byte) }

// GiveBuffer keeps a buffer for the next answer, unless it is very large.
func GiveBuffer(b *[]byte) {
	if cap(*b) <= maxPooled {
		buffers.Put(b)
	}
}

// Send answers with a JSON or XML document and a line feed after it. pretty indents JSON.
// Send compresses the answer where the client accepts that and the answer is large
// enough.
func (x *Exchange) Send(r *http.Request, status int, contentType string, body []byte, pretty bool) {
	if pretty {
		var out bytes.Buffer
		if err := json.Indent(&out, body, "", "  "); err == nil {
			body = out.Bytes()
		}
	}
	if n := len(body); n > 0 && body[n-1] != '\n' {
		buf := TakeBuffer() // the body may be shared with other requests
		defer GiveBuffer(buf)
		*buf = append(append((*buf)[:0], body...), '\n')
		body = *buf
	}
	x.SendContent(r, status, contentType, body)
}

// SendContent answers with content, byte for byte, compressed as by Send.
func (x *Exchange) SendContent(r *http.Request, status int, contentType string, body []byte) {
	header := x.Header()
	header["Content-Type"] = []string{contentType}
	if len(body) >= minGzip {
		header["Vary"] = append(header["Vary"], "Accept-Encoding")
		if WantsGzip(r) {
			x.sendGzip(r, status, body)
			return
		}
	}
	header["Content-Length"] = []string{strconv.Itoa(len(body))}
	x.WriteHeader(status)
	if r.Method != http.MethodHead {
		x.Write(body) // a client that has gone needs no answer
	}
}

// SendJSON answers with v as plain JSON, indented.
func (x *Exchange) SendJSON(r *http.Request, status int, v any) {
	body, err := json.Marshal(v)
	if err != nil {
		x.Fail(r, err)
		return
	}
	x.Send(r, status, "application/json; charset=utf-8", body, true)
}

package sandbox

import (
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"
)

// maxFrame bounds one frame, in bytes.
const maxFrame = 72 << 20

// The kinds of frames.
const (
	frameCheck  = "check"  // to the worker: does code parse
	frameCall   = "call"   // to the worker: run code
	frameAnswer = "answer" // to the worker: what the host answered
	frameHost   = "host"   // to the host: a function of it is called
	frameLine   = "line"   // to the host: a line of the console
	frameWait   = "wait"   // to the host: the script waits for answers
	frameResult = "result" // to the host: the script has ended
)

// frame is one message between host and worker.
type frame struct {
	Kind string `json:"kind"`
	// Of a check and a call.
	Code      string          `json:"code,omitempty"`
	Context   json.RawMessage `json:"context,omitempty"`
	Raw       *Raw            `json:"raw,omitempty"`
	Execution int64           `json:"execution,omitempty"` // milliseconds
	Memory    int64           `json:"memory,omitempty"`    // bytes
	Fetch     bool            `json:"fetch,omitempty"`
	// Of a host call and its answer.
	ID       int             `json:"id,omitempty"`
	Function string          `json:"function,omitempty"`
	Args     json.RawMessage `json:"args,omitempty"`
	Value    json.RawMessage `json:"value,omitempty"`
	Failure  *Failure        `json:"failure,omitempty"`
	// Of a line.
	Level string `json:"level,omitempty"`
	Text  string `json:"text,omitempty"`
}

// send writes one frame.
func send(w io.Writer, f *frame) error {
	body, err := json.Marshal(f)
	if err != nil {
		return err
	}
	if len(body) > maxFrame {
		return fmt.Errorf("a frame of %d bytes is too large", len(body))
	}
	b := make([]byte, 4, 4+len(body))
	binary.BigEndian.PutUint32(b, uint32(len(body)))
	_, err = w.Write(append(b, body...))
	return err
}

// receive reads one frame of at most limit bytes.
func receive(r io.Reader, limit uint32) (*frame, error) {
	var head [4]byte
	if _, err := io.ReadFull(r, head[:]); err != nil {
		return nil, err
	}
	n := binary.BigEndian.Uint32(head[:])
	if n > limit {
		return nil, fmt.Errorf("a frame of %d bytes is larger than %d", n, limit)
	}
	body := make([]byte, n)
	if _, err := io.ReadFull(r, body); err != nil {
		return nil, err
	}
	f := new(frame)
	return f, json.Unmarshal(body, f)
}

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
	// Of a call.
	Execution int64 `json:"execution,omitempty"` // milliseconds
	Memory    int64 `json:"memory,omitempty"`    // bytes
	Fetch     bool  `json:"fetch,omitempty"`
	// Of a host call and its answer.
	ID       int      `json:"id,omitempty"`
	Function string   `json:"function,omitempty"`
	Failure  *Failure `json:"failure,omitempty"`
	// Of a line.
	Level string `json:"level,omitempty"`
	Text  string `json:"text,omitempty"`

	texts
	Sizes [numTexts]int `json:"sizes"` // of the texts, in bytes
}

// texts go behind the rest of a frame as they are: a resource is neither escaped nor
// checked at each step of its way.
type texts struct {
	Code       []byte // of a check and a call
	Context    []byte // of a call: JSON
	Resource   []byte // of a call: JSON
	Parameters []byte // of a call: JSON
	Args       []byte // of a host call: JSON
	Value      []byte // of an answer and a result: JSON
}

const numTexts = 6

func (t *texts) all() [numTexts]*[]byte {
	return [numTexts]*[]byte{&t.Code, &t.Context, &t.Resource, &t.Parameters, &t.Args, &t.Value}
}

// send writes one frame: its size and the size of its JSON, both in four bytes; the JSON; the
// texts.
func send(w io.Writer, f *frame) error {
	size := 0
	for i, t := range f.all() {
		f.Sizes[i] = len(*t)
		size += len(*t)
	}
	head, err := json.Marshal(f)
	if err != nil {
		return err
	}
	if size += len(head); size > maxFrame {
		return fmt.Errorf("a frame of %d bytes is too large", size)
	}
	b := make([]byte, 0, 8+size)
	b = binary.BigEndian.AppendUint32(b, uint32(size))
	b = binary.BigEndian.AppendUint32(b, uint32(len(head)))
	b = append(b, head...)
	for _, t := range f.all() {
		b = append(b, *t...)
	}
	_, err = w.Write(b)
	return err
}

// receive reads one frame of at most limit bytes.
func receive(r io.Reader, limit uint32) (*frame, error) {
	var sizes [8]byte
	if _, err := io.ReadFull(r, sizes[:]); err != nil {
		return nil, err
	}
	size, head := binary.BigEndian.Uint32(sizes[:4]), binary.BigEndian.Uint32(sizes[4:])
	if size > limit || head > size {
		return nil, fmt.Errorf("a frame of %d bytes, of which %d are JSON, is larger than %d", size, head, limit)
	}
	body := make([]byte, size)
	if _, err := io.ReadFull(r, body); err != nil {
		return nil, err
	}
	f := new(frame)
	if err := json.Unmarshal(body[:head], f); err != nil {
		return nil, err
	}
	rest := body[head:]
	for i, t := range f.all() {
		n := f.Sizes[i]
		if n < 0 || n > len(rest) {
			return nil, fmt.Errorf("a text of %d bytes does not fit into a frame of %d", n, size)
		}
		*t, rest = rest[:n:n], rest[n:]
	}
	return f, nil
}

package sandbox

import (
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"
)

// maxFrame bounds one frame, and maxAnswer the answer of the host in it, in bytes.
const (
	maxFrame  = 72 << 20
	maxAnswer = maxFrame - 1<<20
)

// frameSizeError says that something is too large to be sent to a worker.
type frameSizeError struct{ size, most int }

func (e *frameSizeError) Error() string {
	return fmt.Sprintf("%d bytes are too many for a frame: at most %d", e.size, e.most)
}

// failure is the failure that a script catches, or that its caller gets.
func (e *frameSizeError) failure(what string) *Failure {
	return &Failure{Kind: KindOutcome, Status: 413, Code: "too-long",
		Message: fmt.Sprintf("%s is too large for a script: it has %d bytes, at most %d are possible", what, e.size, e.most)}
}

// frameKind is the kind of a frame.
type frameKind uint8

const (
	frameCheck  frameKind = iota + 1 // to the worker: does code parse
	frameCall                        // to the worker: run code
	frameAnswer                      // to the worker: the answer of the host
	frameHost                        // to the host: a function of it is called
	frameLine                        // to the host: a line of the console
	frameWait                        // to the host: the script waits for answers
	frameResult                      // to the host: the script has ended
)

// frame is one message between host and worker.
type frame struct {
	Kind frameKind
	// Of a call.
	Fetch     bool
	Execution int64 // milliseconds
	Memory    int64 // bytes
	// Of a host call and its answer.
	ID      int
	Failure *Failure // of an answer and a result; nil for none
	Demoted bool     // of a result: the worker has come behind others, and is to be replaced

	texts
}

// texts go as they are: a resource is neither escaped nor checked at each step of its way.
type texts struct {
	Code       []byte // of a check and a call
	Context    []byte // of a call: JSON
	Resource   []byte // of a call: JSON
	Parameters []byte // of a call: JSON
	Function   []byte // of a host call
	Args       []byte // of a host call: JSON
	Value      []byte // of an answer and a result: JSON
	Level      []byte // of a line
	Text       []byte // of a line
}

const numTexts = 9

func (t *texts) all() [numTexts]*[]byte {
	return [numTexts]*[]byte{&t.Code, &t.Context, &t.Resource, &t.Parameters, &t.Function, &t.Args, &t.Value, &t.Level, &t.Text}
}

// headSize is the size of a frame's head in bytes. The head is the kind, the flags, execution,
// memory, id, and the sizes of the failure and of the texts.
const headSize = 1 + 1 + 8 + 8 + 4 + 4 + 4*numTexts

// send writes one frame: its head, the JSON of its failure, its texts.
func send(w io.Writer, f *frame) error {
	var failure []byte
	if f.Failure != nil {
		var err error
		if failure, err = json.Marshal(f.Failure); err != nil {
			return err
		}
	}
	all := f.all()
	size := headSize + len(failure)
	for _, t := range all {
		size += len(*t)
	}
	if size > maxFrame {
		return &frameSizeError{size, maxFrame}
	}
	b := append(make([]byte, 0, size), byte(f.Kind), 0)
	if f.Fetch {
		b[1] |= 1
	}
	if f.Demoted {
		b[1] |= 2
	}
	b = binary.BigEndian.AppendUint64(b, uint64(f.Execution))
	b = binary.BigEndian.AppendUint64(b, uint64(f.Memory))
	b = binary.BigEndian.AppendUint32(b, uint32(f.ID))
	b = binary.BigEndian.AppendUint32(b, uint32(len(failure)))
	for _, t := range all {
		b = binary.BigEndian.AppendUint32(b, uint32(len(*t)))
	}
	b = append(b, failure...)
	for _, t := range all {
		b = append(b, *t...)
	}
	_, err := w.Write(b)
	return err
}

// receive reads one frame of at most limit bytes.
func receive(r io.Reader, limit int) (*frame, error) {
	var head [headSize]byte
	if _, err := io.ReadFull(r, head[:]); err != nil {
		return nil, err
	}
	f := &frame{Kind: frameKind(head[0]), Fetch: head[1]&1 != 0, Demoted: head[1]&2 != 0,
		Execution: int64(binary.BigEndian.Uint64(head[2:])), Memory: int64(binary.BigEndian.Uint64(head[10:])), ID: int(binary.BigEndian.Uint32(head[18:]))}
	var sizes [1 + numTexts]int // of the failure and the texts
	size := headSize
	for i := range sizes {
		sizes[i] = int(binary.BigEndian.Uint32(head[22+4*i:]))
		if size += sizes[i]; size > limit {
			return nil, fmt.Errorf("a frame is larger than %d bytes", limit)
		}
	}
	rest := make([]byte, size-headSize)
	if _, err := io.ReadFull(r, rest); err != nil {
		return nil, err
	}
	next := func(n int) []byte {
		text := rest[:n:n]
		rest = rest[n:]
		return text
	}
	if failure := next(sizes[0]); len(failure) > 0 {
		f.Failure = new(Failure)
		if err := json.Unmarshal(failure, f.Failure); err != nil {
			return nil, err
		}
	}
	for i, t := range f.all() {
		if n := sizes[1+i]; n > 0 {
			*t = next(n)
		}
	}
	return f, nil
}

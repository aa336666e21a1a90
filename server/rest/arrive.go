package rest

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
)

// maxHeld is how much of a large body is held in memory before it is complete.
const maxHeld = 256 << 10

// arrived is a large body, complete.
type arrived struct {
	io.Reader
	size int64    // -1 where the body is still to be read
	file *os.File // nil where memory holds it
}

// arrive waits for all of a large body, up to one byte more than limit. It comes
// before the gate, so that a client that sends slowly, or nothing any more, takes
// up a file and no room there. Where no file can be made, the body is left to be
// read behind the gate.
func arrive(in io.Reader, limit int64) (arrived, error) {
	var head bytes.Buffer
	n, err := io.CopyN(&head, in, maxHeld)
	switch {
	case errors.Is(err, io.EOF):
		return arrived{Reader: &head, size: n}, nil
	case err != nil:
		return arrived{}, unreadable(err)
	}
	all := io.MultiReader(&head, io.LimitReader(in, limit+1-n))
	f, err := os.CreateTemp("", "kiln-body-")
	if err != nil {
		return arrived{Reader: all, size: -1}, nil
	}
	_ = os.Remove(f.Name()) // it lives as long as it is open
	size, err := io.Copy(f, all)
	if err == nil {
		_, err = f.Seek(0, io.SeekStart)
	}
	if err != nil {
		f.Close()
		if _, ours := errors.AsType[*fs.PathError](err); ours {
			return arrived{}, fmt.Errorf("keep a large body: %w", err)
		}
		return arrived{}, unreadable(err)
	}
	return arrived{Reader: f, size: size, file: f}, nil
}

// close gives the file back.
func (a arrived) close() {
	if a.file != nil {
		a.file.Close()
	}
}

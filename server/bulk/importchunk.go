package bulk

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"

	"github.com/klauspost/compress/gzip"

	"kiln/server/jobs"
	"kiln/server/outcome"
)

// The lines of an input are stored in files, of which each is the work of one part. A file has a
// record for each line that is not blank:
//
//	length (4 bytes) | number of the line (8 bytes) | length bytes
//
// A line that is too long has the length tooLong and no bytes.
const (
	recordHead = 12
	tooLong    = 1<<32 - 1

	chunkBytes = 8 << 20  // of a file, about
	lineChunk  = 64 << 10 // bytes that are read at a time
	// An input that unpacks to more than bombBytes, and to more than bombRatio times of its size,
	// is no NDJSON. Neither is one with so many bytes in a line, or in blank lines one after the other.
	bombBytes = 1 << 30
	bombRatio = 200
)

// errInput is an error of the input itself: nothing of it is stored.
type errInput struct{ reason string }

func (e errInput) Error() string { return e.reason }

// chunks writes the files of an input.
type chunks struct {
	ctx     context.Context
	storage Storage
	prefix  string // of the paths
	maxLine int64
	typ     string // of the input
	bomb    int64  // bombBytes, where it is 0
	// room fails where the files of all jobs, with so many bytes more, are over the quota.
	room func(ctx context.Context, more int64) error

	files []jobs.File
	lines int64 // records of all files
	bytes int64 // of all files
	check int64
	w     Writer
	buf   *bufio.Writer
	now   jobs.File
}

// split reads an input, which may be gzip, to its end. An *errInput says that the input cannot be read.
func (c *chunks) split(raw io.Reader) (err error) {
	defer func() {
		if err != nil && c.w != nil {
			c.w.Abort()
			c.w = nil
		}
	}()
	counted := &countingReader{r: raw}
	in, err := unpack(counted)
	if err != nil {
		return c.unreadable(counted, err)
	}
	bomb := cmp.Or(c.bomb, bombBytes)
	var line []byte
	var number, unpacked, length, blank int64
	for first := true; ; first = false {
		piece, err := in.ReadSlice('\n')
		unpacked += int64(len(piece))
		length += int64(len(piece))
		if first {
			piece = bytes.TrimPrefix(piece, []byte("\xef\xbb\xbf"))
		}
		if int64(len(line)+len(piece)) <= c.maxLine+2 {
			line = append(line, piece...)
		} else if length > c.maxLine+2 {
			line = line[:0]
		}
		switch {
		case unpacked > bomb && unpacked > bombRatio*counted.n, length > bomb, blank > bomb:
			return errInput{fmt.Sprintf("line %d: the input unpacks to more than a file of resources can have", number+1)}
		case err == bufio.ErrBufferFull:
			continue
		case err != nil && err != io.EOF:
			return c.unreadable(counted, err)
		}
		number++
		stored, failed := c.addLine(number, line, length)
		if failed != nil {
			return failed
		}
		if blank += length; stored {
			blank = 0
		}
		if line, length = line[:0], 0; cap(line) > chunkBytes {
			line = nil
		}
		if err == io.EOF {
			return c.finish()
		}
		if number%4096 == 0 && c.ctx.Err() != nil {
			return c.ctx.Err()
		}
	}
}

// unpack returns a reader of an input that may be gzip.
func unpack(raw io.Reader) (*bufio.Reader, error) {
	in := bufio.NewReaderSize(raw, lineChunk)
	if head, _ := in.Peek(2); len(head) < 2 || head[0] != 0x1f || head[1] != 0x8b {
		return in, nil
	}
	z, err := gzip.NewReader(in)
	return bufio.NewReaderSize(z, lineChunk), err
}

// addLine stores a line, unless it is blank. length is the length of the whole line; of one that is too long, line may
// be a part.
func (c *chunks) addLine(number int64, line []byte, length int64) (stored bool, err error) {
	text := bytes.TrimSpace(line)
	switch {
	case length > int64(len(line))+3 || int64(len(text)) > c.maxLine: // 3: the mark of the byte order
		return true, c.addRecord(number, nil, true)
	case len(text) > 0:
		return true, c.addRecord(number, text, false)
	}
	return false, nil
}

// unreadable is the error of an input that could not be read to its end: its own, where the bytes came.
func (c *chunks) unreadable(from *countingReader, err error) error {
	if from.err != nil && from.err != io.EOF {
		return from.err
	}
	if errors.Is(err, io.ErrUnexpectedEOF) {
		return errInput{"the gzip data end in the middle"}
	}
	return errInput{"the gzip data are damaged"}
}

// countingReader counts the bytes of an input, and remembers how it ended.
type countingReader struct {
	r   io.Reader
	n   int64
	err error
}

func (r *countingReader) Read(b []byte) (int, error) {
	n, err := r.r.Read(b)
	r.n += int64(n)
	if err != nil {
		r.err = err
	}
	return n, err
}

// addRecord stores one line.
func (c *chunks) addRecord(number int64, text []byte, long bool) error {
	size := int64(recordHead + len(text))
	if c.bytes+size > c.check {
		if c.room != nil {
			if err := c.room(c.ctx, c.bytes+size); err != nil {
				return err
			}
		}
		c.check = c.bytes + size + checkEvery
	}
	if c.w != nil && c.now.Bytes+size > chunkBytes {
		if err := c.finish(); err != nil {
			return err
		}
	}
	if c.w == nil {
		c.now = jobs.File{Kind: jobs.Input, Type: c.typ, Path: fmt.Sprintf("%s-in-%d", c.prefix, len(c.files)+1)}
		var err error
		if c.w, err = c.storage.Create(c.ctx, c.now.Path); err != nil {
			return err
		}
		c.buf = bufio.NewWriterSize(c.w, lineBuffer)
	}
	var head [recordHead]byte
	length := uint32(len(text))
	if long {
		length = tooLong
	}
	binary.BigEndian.PutUint32(head[:], length)
	binary.BigEndian.PutUint64(head[4:], uint64(number))
	if _, err := c.buf.Write(head[:]); err != nil {
		return err
	}
	if _, err := c.buf.Write(text); err != nil {
		return err
	}
	c.now.Lines++
	c.now.Bytes += size
	c.lines++
	c.bytes += size
	return nil
}

// finish ends the file that is written.
func (c *chunks) finish() error {
	if c.w == nil {
		return nil
	}
	err := c.buf.Flush()
	if err != nil {
		c.w.Abort()
	} else {
		err = c.w.Close()
	}
	c.w = nil
	if err == nil {
		c.files = append(c.files, c.now)
	}
	return err
}

// lineParts are the parts that store the lines of the files.
func (c *chunks) lineParts(input int) []jobs.Part {
	var out []jobs.Part
	for _, f := range c.files {
		out = append(out, jobs.Part{Spec: importPart{Do: storeLines, Input: input, Path: f.Path}})
	}
	return out
}

// record is a line of an input.
type record struct {
	number int64
	text   []byte
	long   bool  // the line is longer than server.max_body_bytes
	end    int64 // offset behind the record
}

// readRecord reads the record at an offset; io.EOF behind the last one.
func readRecord(in *bufio.Reader, offset int64) (record, error) {
	var head [recordHead]byte
	if _, err := io.ReadFull(in, head[:]); err != nil {
		return record{}, err
	}
	r := record{number: int64(binary.BigEndian.Uint64(head[4:])), end: offset + recordHead}
	length := binary.BigEndian.Uint32(head[:])
	if r.long = length == tooLong; r.long {
		return r, nil
	}
	r.text = make([]byte, length)
	r.end += int64(length)
	if _, err := io.ReadFull(in, r.text); err != nil {
		return record{}, outcome.New(outcome.CodeException, "a stored input is cut off").Because(err)
	}
	return r, nil
}

package bulk

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"

	"kiln/server/jobs"
)

// lines writes the files of one part: for each kind and type one or more, each at most max bytes.
type lines struct {
	ctx     context.Context
	storage Storage
	prefix  string // of the paths
	max     int64
	base    string // of the service, for URLs of Binaries
	// room fails where the files of all jobs, with so many bytes more, are over the quota.
	room func(ctx context.Context, more int64) error

	open  map[lineKind]*lineFile
	files []jobs.File
	made  int
	bytes int64 // of all files of the part
	check int64 // of bytes at the next look at the quota
	line  []byte
}

type lineKind struct{ kind, typ string }

type lineFile struct {
	jobs.File
	w   Writer
	buf *bufio.Writer
}

const (
	lineBuffer = 128 << 10
	checkEvery = 64 << 20 // bytes between two looks at the quota
)

// addLine writes a line: a resource, without a line feed.
func (l *lines) addLine(kind, typ string, body []byte) error {
	if bytes.IndexByte(body, '\n') >= 0 || bytes.IndexByte(body, '\r') >= 0 {
		var compact bytes.Buffer
		if err := json.Compact(&compact, body); err != nil {
			return fmt.Errorf("a stored resource is no JSON: %w", err)
		}
		body = compact.Bytes()
	}
	body = l.absoluteBinaries(body)
	size := int64(len(body)) + 1
	if l.bytes+size > l.check {
		if l.room != nil {
			if err := l.room(l.ctx, l.bytes+size); err != nil {
				return err
			}
		}
		l.check = l.bytes + size + checkEvery
	}
	key := lineKind{kind, typ}
	f := l.open[key]
	if f != nil && f.Bytes+size > l.max {
		if err := l.finish(key); err != nil {
			return err
		}
		f = nil
	}
	if f == nil {
		l.made++
		f = &lineFile{File: jobs.File{Kind: kind, Type: typ, Path: fmt.Sprintf("%s-%d.ndjson", l.prefix, l.made)}}
		var err error
		if f.w, err = l.storage.Create(l.ctx, f.Path); err != nil {
			return err
		}
		f.buf = bufio.NewWriterSize(f.w, lineBuffer)
		if l.open == nil {
			l.open = make(map[lineKind]*lineFile)
		}
		l.open[key] = f
	}
	if _, err := f.buf.Write(body); err != nil {
		return err
	}
	if err := f.buf.WriteByte('\n'); err != nil {
		return err
	}
	f.Lines++
	f.Bytes += size
	l.bytes += size
	return nil
}

// absoluteBinaries makes each Attachment.url that is Binary/{id} absolute.
func (l *lines) absoluteBinaries(body []byte) []byte {
	relative := []byte(`"url":"Binary/`)
	if !bytes.Contains(body, relative) {
		return body
	}
	l.line = l.line[:0]
	for {
		before, after, found := bytes.Cut(body, relative)
		l.line = append(l.line, before...)
		if !found {
			return l.line
		}
		l.line = append(append(append(l.line, `"url":"`...), l.base...), "/Binary/"...)
		body = after
	}
}

func (l *lines) finish(key lineKind) error {
	f := l.open[key]
	delete(l.open, key)
	if err := f.buf.Flush(); err != nil {
		f.w.Abort()
		return err
	}
	if err := f.w.Close(); err != nil {
		return err
	}
	l.files = append(l.files, f.File)
	return nil
}

// close ends all files and returns them.
func (l *lines) close() ([]jobs.File, error) {
	for key := range l.open {
		if err := l.finish(key); err != nil {
			return nil, err
		}
	}
	return l.files, nil
}

// abort gives up the files that are not whole. Package jobs removes the others with the job.
func (l *lines) abort() {
	for _, f := range l.open {
		f.w.Abort()
	}
}

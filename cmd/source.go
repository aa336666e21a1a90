package main

import (
	"archive/tar"
	"bufio"
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/klauspost/compress/gzip"
	"github.com/klauspost/compress/zstd"
	"golang.org/x/sync/errgroup"
)

// item is the body of one request: a Bundle, a resource, or lines of .ndjson.
type item struct {
	name   string // for people: file, member, line
	key    string // for the state file: name and hash of the content
	data   []byte
	lines  int   // first line of a group of .ndjson lines; 0 for JSON
	weight int64 // bytes of the source file that it stands for, for the progress bar
}

// source is a file to load.
type source struct {
	path string
	size int64
}

// findSources lists the files below paths that can be loaded, and their size.
func findSources(paths []string) (files []source, total int64, err error) {
	for _, path := range paths {
		err := filepath.WalkDir(path, func(p string, d fs.DirEntry, err error) error {
			if err != nil {
				return err
			}
			if d.IsDir() || p != path && kindOf(p) == "" {
				return nil
			}
			info, err := os.Stat(p)
			if err != nil {
				return err
			}
			if kindOf(p) == "" {
				return fmt.Errorf("%s: expected .json, .ndjson, .gz, .tar, .tar.gz or .tar.zst", p)
			}
			files = append(files, source{p, info.Size()})
			total += info.Size()
			return nil
		})
		if err != nil {
			return nil, 0, err
		}
	}
	slices.SortStableFunc(files, func(a, b source) int { return rank(a.path) - rank(b.path) })
	return files, total, nil
}

// kindOf is the kind of a file by its name: json, ndjson, tar, or "" for others;
// compression aside.
func kindOf(path string) string {
	name := strings.ToLower(path)
	for _, ext := range []string{".gz", ".zst"} {
		name = strings.TrimSuffix(name, ext)
	}
	switch {
	case strings.HasSuffix(name, ".json"):
		return "json"
	case strings.HasSuffix(name, ".ndjson"):
		return "ndjson"
	case strings.HasSuffix(name, ".tar"), strings.HasSuffix(name, ".tgz"):
		return "tar"
	}
	return ""
}

// ranks are the files that come before all others, in this order, because others refer to
// them.
var ranks = []string{"hospital", "organization", "location", "practitioner", "medication.", "patient."}

func rank(path string) int {
	name := strings.ToLower(filepath.Base(path))
	for i, r := range ranks {
		if strings.HasPrefix(name, r) {
			return i
		}
	}
	return len(ranks)
}

// handlers are what loadAll calls.
type handlers struct {
	skip   func(item) bool // whether an item is stored already
	post   func(item)
	broken func(name string, err error) // a file that cannot be read
}

// loadAll hands every item to post, parallel ones at a time, until ctx ends. Files of
// one rank are done before the next rank begins; so are the members of an archive. It
// returns when every call has. A file that cannot be read costs no other one.
func loadAll(ctx context.Context, files []source, parallel int, h handlers) {
	var g *errgroup.Group
	start := func() {
		g = new(errgroup.Group)
		g.SetLimit(parallel)
	}
	start()
	give := func(it item) error {
		if ctx.Err() != nil {
			return errStopped
		}
		if !h.skip(it) {
			g.Go(func() error {
				if ctx.Err() == nil { // it may have waited for its turn
					h.post(it)
				}
				return nil
			})
		}
		return nil
	}
	barrier := func() {
		g.Wait()
		start()
	}
	defer func() { g.Wait() }()
	for i, f := range files {
		if i > 0 && rank(f.path) != rank(files[i-1].path) {
			barrier()
		}
		load := readFile
		if kindOf(f.path) == "tar" {
			load = func(f source, give func(item) error) error { return readArchive(f, h, give, barrier) }
		}
		switch err := load(f, give); {
		case errors.Is(err, errStopped):
			return
		case err != nil:
			h.broken(f.path, fmt.Errorf("the file cannot be read: %w", err))
		}
	}
}

// readArchive cuts an archive into items. It is read once to learn the ranks of its
// members, then once for each rank. Members before a damaged place are loaded.
func readArchive(f source, h handlers, give func(item) error, barrier func()) error {
	members := make(map[int]int64)
	broken := readTar(f, func(name string, size int64, _ io.Reader) error {
		members[rank(name)] += max(size, 1)
		return nil
	})
	var all int64
	for _, size := range members {
		all += size
	}
	for r := range len(ranks) + 1 {
		if members[r] == 0 {
			continue
		}
		err := readTar(f, func(name string, size int64, in io.Reader) error {
			if rank(name) != r {
				return nil
			}
			share := int64(float64(f.size) * float64(size) / float64(all))
			err := readMember(f.path+"!"+name, name, share, in, give)
			if err != nil && !errors.Is(err, errStopped) && broken == nil {
				h.broken(f.path+"!"+name, fmt.Errorf("the file cannot be read: %w", err))
				return nil
			}
			return err
		})
		if errors.Is(err, errStopped) {
			return err
		}
		barrier()
	}
	return broken
}

// unpacked opens a file and undoes its compression.
func unpacked(f source) (io.Reader, func(), error) {
	file, err := os.Open(f.path)
	if err != nil {
		return nil, nil, err
	}
	r, done, err := unpack(f.path, bufio.NewReaderSize(file, 1<<20))
	if err != nil {
		file.Close()
		return nil, nil, err
	}
	return r, func() { done(); file.Close() }, nil
}

func unpack(name string, in io.Reader) (io.Reader, func(), error) {
	switch name = strings.ToLower(name); {
	case strings.HasSuffix(name, ".gz"), strings.HasSuffix(name, ".tgz"):
		z, err := gzip.NewReader(in)
		if err != nil {
			return nil, nil, err
		}
		return z, func() { z.Close() }, nil
	case strings.HasSuffix(name, ".zst"):
		z, err := zstd.NewReader(in)
		if err != nil {
			return nil, nil, err
		}
		return z, z.Close, nil
	}
	return in, func() {}, nil
}

func readFile(f source, give func(item) error) error {
	in, done, err := unpacked(f)
	if err != nil {
		return err
	}
	defer done()
	return readItems(f.path, f.path, f.size, in, give)
}

// readTar calls each for every regular member that can be loaded.
func readTar(f source, each func(name string, size int64, in io.Reader) error) error {
	in, done, err := unpacked(f)
	if err != nil {
		return err
	}
	defer done()
	t := tar.NewReader(in)
	for {
		h, err := t.Next()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		if kind := kindOf(h.Name); h.Typeflag != tar.TypeReg || kind == "" || kind == "tar" {
			continue
		}
		if err := each(h.Name, h.Size, t); err != nil {
			return err
		}
	}
}

func readMember(label, name string, share int64, in io.Reader, give func(item) error) error {
	r, done, err := unpack(name, in)
	if err != nil {
		return err
	}
	defer done()
	return readItems(label, name, share, r, give)
}

// keyOf names an item in the state file, from whichever folder it is loaded: by its
// absolute name and a hash of its content, so that a file that was changed is another
// item.
func keyOf(label string, data []byte) string {
	if abs, err := filepath.Abs(label); err == nil {
		label = abs
	}
	sum := sha256.Sum256(data)
	return fmt.Sprintf("%s %x", label, sum[:12])
}

// groupLines is how many lines of .ndjson go into one batch.
const groupLines = 200

// byteOrderMark is what some programs put before the JSON of a file, and JSON does not have.
// RFC 8259 §8.1.
const byteOrderMark = "\ufeff"

// readItems cuts a file into items.
func readItems(label, name string, share int64, file io.Reader, give func(item) error) error {
	in := bufio.NewReader(file)
	if start, _ := in.Peek(len(byteOrderMark)); string(start) == byteOrderMark {
		if _, err := in.Discard(len(byteOrderMark)); err != nil {
			return err
		}
	}
	if kindOf(name) == "json" {
		data, err := io.ReadAll(in)
		if err != nil {
			return err
		}
		return give(item{name: label, key: keyOf(label, data), data: data, weight: share})
	}
	lines := bufio.NewReaderSize(in, 1<<20)
	var group bytes.Buffer
	count, number, first := 0, 0, 1
	flush := func(weight int64) error {
		if count == 0 {
			return nil
		}
		it := item{
			name: fmt.Sprintf("%s:%d", label, first), key: keyOf(fmt.Sprintf("%s:%d", label, first), group.Bytes()),
			data: bytes.Clone(group.Bytes()), lines: first, weight: weight,
		}
		group.Reset()
		count = 0
		return give(it)
	}
	for {
		line, err := lines.ReadBytes('\n')
		if line = bytes.TrimSpace(line); len(line) > 0 {
			if count == 0 {
				first = number + 1
			}
			group.Write(line)
			group.WriteByte('\n')
			count++
		}
		number++
		if count == groupLines {
			if err := flush(0); err != nil {
				return err
			}
		}
		if errors.Is(err, io.EOF) {
			return flush(share)
		}
		if err != nil {
			return err
		}
	}
}

package definitions

import (
	"bufio"
	"bytes"
	"cmp"
	"compress/gzip"
	"encoding/json"
	"fmt"
	"io"
	"io/fs"
	"iter"
	"slices"
	"strings"
)

// Entry names one definition.
type Entry struct {
	Type, ID string
	URL      string // canonical, "" where it has none
	Version  string
	Package  string // "name@version", or "local"
	// Supplement says that it is a CodeSystem that only adds to another one.
	Supplement bool

	chunk, offset, size int
}

// Library finds definitions in a folder. It keeps their names and the compressed
// packages; a definition is decompressed when it is asked for. Any number of
// goroutines may use it.
//
// Where two packages define one URL, or one type and id, local definitions win
// over HL7's core package and that over the rest.
type Library struct {
	entries []Entry
	byURL   map[string]int
	byID    map[string]int
	chunks  []chunk
}

// chunk is a gzip member, or for local definitions the plain text.
type chunk struct {
	packed []byte
	plain  []byte
}

// Open reads the names of all definitions in a folder.
func Open(dir fs.FS) (*Library, error) {
	l := &Library{byURL: map[string]int{}, byID: map[string]int{}}
	packages, err := List(dir)
	if err != nil {
		return nil, err
	}
	slices.SortStableFunc(packages, func(a, b Package) int { return cmp.Compare(rank(a), rank(b)) })

	// Local definitions go in first and so win; those that are differentials are
	// expanded afterwards, when their bases are known.
	local, err := fs.Glob(dir, "local/*.json")
	if err != nil {
		return nil, err
	}
	for _, name := range local {
		b, err := fs.ReadFile(dir, name)
		if err != nil {
			return nil, err
		}
		var line bytes.Buffer
		if err := json.Compact(&line, b); err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
		l.chunks = append(l.chunks, chunk{plain: line.Bytes()})
		if err := l.add(line.Bytes(), "local", 0); err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
	}
	for _, p := range packages {
		b, err := fs.ReadFile(dir, p.File())
		if err != nil {
			return nil, err
		}
		if err := l.addPackage(b, p.Name+"@"+p.Version); err != nil {
			return nil, fmt.Errorf("%s: %w", p.File(), err)
		}
	}
	for i := range local {
		plain, err := l.expand(l.chunks[i].plain)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", local[i], err)
		}
		l.chunks[i].plain = plain
		for j := range l.entries {
			if l.entries[j].chunk == i {
				l.entries[j].size = len(plain)
			}
		}
	}
	return l, nil
}

func rank(p Package) int {
	if p.core() {
		return 0
	}
	return 1
}

// addPackage takes in the gzip members of a package. Each begins with a new
// resource.
func (l *Library) addPackage(packed []byte, name string) error {
	r := bytes.NewReader(packed)
	br := bufio.NewReader(r)
	position := func() int { return len(packed) - r.Len() - br.Buffered() }
	var zr gzip.Reader
	var plain bytes.Buffer
	for position() < len(packed) {
		start := position()
		if err := zr.Reset(br); err != nil {
			return err
		}
		zr.Multistream(false)
		plain.Reset()
		if _, err := plain.ReadFrom(&zr); err != nil {
			return err
		}
		l.chunks = append(l.chunks, chunk{packed: packed[start:position()]})
		offset := 0
		for line := range bytes.Lines(plain.Bytes()) {
			if err := l.add(bytes.TrimSuffix(line, []byte("\n")), name, offset); err != nil {
				return err
			}
			offset += len(line)
		}
	}
	return nil
}

// add notes the definition that lies at offset in the last chunk.
func (l *Library) add(line []byte, from string, offset int) error {
	e := Entry{Package: from, chunk: len(l.chunks) - 1, offset: offset, size: len(line)}
	var err error
	if e.Type, e.ID, e.URL, e.Version, err = head(line); err != nil {
		return err
	}
	e.Supplement = e.Type == "CodeSystem" && bytes.Contains(line, []byte(`"content":"supplement"`))
	if e.Type == "" || e.ID == "" {
		return fmt.Errorf("a definition has no resourceType or id")
	}
	i := len(l.entries)
	if e.URL != "" {
		if _, ok := l.byURL[e.URL]; ok {
			return nil
		}
		l.byURL[e.URL] = i
	}
	if _, ok := l.byID[e.Type+"/"+e.ID]; ok {
		if e.URL == "" {
			return nil
		}
	} else {
		l.byID[e.Type+"/"+e.ID] = i
	}
	l.entries = append(l.entries, e)
	return nil
}

// head reads the first properties of a definition. Condensed ones begin with
// resourceType, id, url, version.
func head(line []byte) (typ, id, url, version string, err error) {
	// As condensed, without escapes: most of the time that Open takes.
	rest := line
	for i, into := range []*string{&typ, &id, &url, &version} {
		after, ok := bytes.CutPrefix(rest, prefixes[i])
		end := bytes.IndexByte(after, '"')
		if !ok || end < 0 {
			continue
		}
		*into, rest = string(after[:end]), after[end+1:]
	}
	if typ != "" && id != "" && bytes.IndexByte(line[:len(line)-len(rest)], '\\') < 0 {
		return
	}
	return headOf(line)
}

var prefixes = [][]byte{[]byte(`{"resourceType":"`), []byte(`,"id":"`), []byte(`,"url":"`), []byte(`,"version":"`)}

// headOf is head for any JSON.
func headOf(line []byte) (typ, id, url, version string, err error) {
	dec := json.NewDecoder(bytes.NewReader(line))
	if _, err = dec.Token(); err != nil {
		return
	}
	for dec.More() {
		var key json.Token
		if key, err = dec.Token(); err != nil {
			return
		}
		var into *string
		switch key {
		case "resourceType":
			into = &typ
		case "id":
			into = &id
		case "url":
			into = &url
		case "version":
			into = &version
		default:
			return
		}
		if err = dec.Decode(into); err != nil {
			return
		}
	}
	return
}

// Entries are the names of the definitions of a resource type, by URL and id; ""
// stands for every type.
func (l *Library) Entries(typ string) []Entry {
	var out []Entry
	for _, e := range l.entries {
		if typ == "" || e.Type == typ {
			out = append(out, e)
		}
	}
	slices.SortFunc(out, func(a, b Entry) int {
		return cmp.Or(cmp.Compare(a.Type, b.Type), cmp.Compare(a.URL, b.URL), cmp.Compare(a.ID, b.ID))
	})
	return out
}

// Resolve returns the definition with a canonical URL as JSON; with |version only
// that version.
func (l *Library) Resolve(canonical string) ([]byte, bool) {
	url, version, versioned := strings.Cut(canonical, "|")
	i, ok := l.byURL[url]
	if !ok || versioned && version != l.entries[i].Version {
		return nil, false
	}
	return l.read(l.entries[i])
}

// Read returns the definition with a resource type and id as JSON.
func (l *Library) Read(typ, id string) ([]byte, bool) {
	i, ok := l.byID[typ+"/"+id]
	if !ok {
		return nil, false
	}
	return l.read(l.entries[i])
}

// All walks the definitions of a resource type, "" for every type, in the order
// in which they are held: cheaper than a Read of each. The bytes are valid until
// the next step.
func (l *Library) All(typ string) iter.Seq2[Entry, []byte] {
	return func(yield func(Entry, []byte) bool) {
		at, plain := -1, []byte(nil)
		for _, e := range l.entries {
			if typ != "" && e.Type != typ {
				continue
			}
			if e.chunk != at {
				at, plain = e.chunk, l.chunks[e.chunk].open()
			}
			if e.offset+e.size > len(plain) || !yield(e, plain[e.offset:e.offset+e.size:e.offset+e.size]) {
				return
			}
		}
	}
}

func (l *Library) read(e Entry) ([]byte, bool) {
	plain := l.chunks[e.chunk].open()
	if e.offset+e.size > len(plain) {
		return nil, false
	}
	return slices.Clone(plain[e.offset : e.offset+e.size]), true
}

// open decompresses the chunk; Open has done so once before, so that it cannot
// fail.
func (c chunk) open() []byte {
	if c.plain != nil {
		return c.plain
	}
	zr, err := gzip.NewReader(bytes.NewReader(c.packed))
	if err != nil {
		return nil
	}
	b, err := io.ReadAll(zr)
	if err != nil {
		return nil
	}
	return b
}

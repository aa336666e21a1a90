package bulk

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/klauspost/compress/gzip"

	"kiln/server/outbound"
)

// blanks are bytes without end.
type blanks struct{ text string }

func (b blanks) Read(p []byte) (int, error) {
	for n := 0; n < len(p); {
		n += copy(p[n:], b.text)
	}
	return len(p), nil
}

// Contract: Bulk data: a source that hangs, lies about its length, or resolves to a private address is an input that
// cannot be read, and so is one that unpacks to blanks without end. None takes much memory, or time without bound.
func TestSources(t *testing.T) {
	t.Parallel()
	released := make(chan struct{})
	src := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/hangs":
			fmt.Fprintln(w, `{"resourceType":"Patient","id":"1"}`)
			_ = http.NewResponseController(w).Flush()
			select {
			case <-r.Context().Done():
			case <-released:
			}
		case "/silent":
			select {
			case <-r.Context().Done():
			case <-released:
			}
		case "/short":
			w.Header().Set("Content-Length", "100000")
			fmt.Fprintln(w, `{"resourceType":"Patient","id":"1"}`)
		case "/bomb", "/line-bomb":
			text := "\n"
			if r.URL.Path == "/line-bomb" {
				text = " "
			}
			z, _ := gzip.NewWriterLevel(w, gzip.BestSpeed)
			_, _ = io.Copy(z, io.LimitReader(blanks{strings.Repeat(text, 64<<10)}, 100<<20))
			z.Close()
		}
	}))
	t.Cleanup(src.Close)
	t.Cleanup(func() { close(released) })
	open := outbound.Rules{AllowPrivate: true, Section: "bulk.import"}
	private := outbound.Rules{AllowHTTP: true, Section: "bulk.import", Lookup: func(string) ([]netip.Addr, error) { return []netip.Addr{netip.MustParseAddr("127.0.0.1")}, nil }}
	for _, tt := range []struct {
		name, url string
		rules     outbound.Rules
		want      string
	}{
		{"hangs in the middle", src.URL + "/hangs", open, "no byte"},
		{"hangs before the answer", src.URL + "/silent", open, "no byte"},
		{"lies about its length", src.URL + "/short", open, "cannot be read"},
		{"a name with a private address", strings.Replace(src.URL, "127.0.0.1", "source.example", 1) + "/short", private, "bulk.import.allow_private_networks"},
		{"blank lines without end", src.URL + "/bomb", open, "unpacks to more"},
		{"a line without end", src.URL + "/line-bomb", open, "unpacks to more"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			f := &fetcher{client: tt.rules.Client(), settings: ImportSettings{Outbound: tt.rules}, idle: 200 * time.Millisecond, pause: time.Millisecond}
			if strings.Contains(tt.url, "bomb") {
				f.idle = 10 * time.Second
			}
			folder := t.TempDir()
			var c *chunks
			err := f.fetch(t.Context(), tt.url, func(in io.Reader) error {
				c = &chunks{ctx: t.Context(), storage: Directory(folder), prefix: "job/1", maxLine: 1 << 20, bomb: 32 << 20}
				return c.split(in)
			})
			bad, ok := errors.AsType[errInput](err)
			if !ok || !strings.Contains(bad.reason, tt.want) {
				t.Errorf("the error is %v, want %q", err, tt.want)
			}
			if c != nil && c.bytes > 1<<20 {
				t.Errorf("%d bytes are stored", c.bytes)
			}
		})
	}
}

// Lines keep their numbers through blank lines, CRLF, lines that are too long, and the borders of files.
func TestChunks(t *testing.T) {
	t.Parallel()
	var text strings.Builder
	want := make(map[int64]int) // lengths by number
	long := make(map[int64]bool)
	for n := int64(1); n <= 3000; n++ {
		switch {
		case n%7 == 0:
			text.WriteString(" \r\n")
		case n%501 == 0:
			long[n] = true
			fmt.Fprintf(&text, "%s\n", strings.Repeat("y", 10_001))
		case n%11 == 0:
			want[n] = 10_000 // as long as a line can be
			fmt.Fprintf(&text, "%s\r\n", strings.Repeat("z", 10_000))
		default:
			want[n] = int(n % 9000)
			fmt.Fprintf(&text, "%s\n", strings.Repeat("x", int(n%9000)))
		}
	}
	ctx := context.Background()
	c := &chunks{ctx: ctx, storage: Directory(t.TempDir()), prefix: "job/1", maxLine: 10_000}
	if err := c.split(strings.NewReader(strings.TrimSuffix(text.String(), "\n"))); err != nil {
		t.Fatal(err)
	}
	if len(c.files) < 1 {
		t.Fatal("there are no files")
	}
	read := 0
	for _, f := range c.files {
		file, err := c.storage.Open(ctx, f.Path)
		if err != nil {
			t.Fatal(err)
		}
		body, err := io.ReadAll(file)
		file.Close()
		if err != nil || int64(len(body)) != f.Bytes {
			t.Fatalf("%s has %d bytes, want %d: %v", f.Path, len(body), f.Bytes, err)
		}
		in, offset := bytes.NewReader(body), int64(0)
		for {
			r, err := readRecord(bufio.NewReaderSize(in, 16), offset)
			if err == io.EOF {
				break
			}
			if err != nil {
				t.Fatal(err)
			}
			if r.long != long[r.number] || !r.long && len(r.text) != want[r.number] {
				t.Errorf("line %d has %d bytes (too long: %t), want %d (%t)", r.number, len(r.text), r.long, want[r.number], long[r.number])
			}
			read++
			offset = r.end
			if _, err := in.Seek(offset, io.SeekStart); err != nil {
				t.Fatal(err)
			}
		}
	}
	if read != len(want)+len(long) {
		t.Errorf("%d lines are stored, want %d", read, len(want)+len(long))
	}
}

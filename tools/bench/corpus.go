package main

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/klauspost/compress/zstd"
	"github.com/tidwall/gjson"

	"kiln/server/fhir"
)

// Corpus is a set of transaction bundles: a folder of .json files or a .tar.zst
// archive of them.
type Corpus struct {
	Path string
	// Limit is how many bundles to read, 0 for all.
	Limit int
}

// Bundle is one transaction of a corpus.
type Bundle struct {
	Name    string
	JSON    []byte
	Entries int
}

var errEnough = errors.New("enough")

// Each calls f for every bundle in the order of names in a folder, or as they
// stand in the archive.
func (c Corpus) Each(ctx context.Context, f func(Bundle) error) error {
	n := 0
	err := c.files(func(name string, read func() ([]byte, error)) error {
		if err := ctx.Err(); err != nil {
			return err
		}
		if !strings.HasSuffix(name, ".json") {
			return nil
		}
		if c.Limit > 0 && n == c.Limit {
			return errEnough
		}
		b, err := read()
		if err != nil {
			return fmt.Errorf("read %s: %w", name, err)
		}
		if gjson.GetBytes(b, "resourceType").Str != "Bundle" {
			return nil
		}
		n++
		return f(Bundle{Name: name, JSON: b, Entries: int(gjson.GetBytes(b, "entry.#").Int())})
	})
	if errors.Is(err, errEnough) {
		err = nil
	}
	if err == nil && n == 0 {
		err = fmt.Errorf("%s holds no FHIR bundles: expected a folder of .json files or a .tar.zst archive", c.Path)
	}
	return err
}

func (c Corpus) files(f func(name string, read func() ([]byte, error)) error) error {
	info, err := os.Stat(c.Path)
	if err != nil {
		return fmt.Errorf("open the bundles: %w", err)
	}
	if info.IsDir() {
		names, err := filepath.Glob(filepath.Join(c.Path, "*.json"))
		if err != nil {
			return err
		}
		slices.Sort(names)
		for _, name := range names {
			if err := f(filepath.Base(name), func() ([]byte, error) { return os.ReadFile(name) }); err != nil {
				return err
			}
		}
		return nil
	}
	file, err := os.Open(c.Path)
	if err != nil {
		return err
	}
	defer file.Close()
	z, err := zstd.NewReader(file)
	if err != nil {
		return fmt.Errorf("decompress %s: %w", c.Path, err)
	}
	defer z.Close()
	for archive := tar.NewReader(z); ; {
		h, err := archive.Next()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("read %s: %w", c.Path, err)
		}
		if h.Typeflag != tar.TypeReg {
			continue
		}
		if err := f(filepath.Base(h.Name), func() ([]byte, error) { return io.ReadAll(archive) }); err != nil {
			return err
		}
	}
}

// Load reads all bundles into memory, so that reading them costs nothing while
// something is measured.
func (c Corpus) Load(ctx context.Context) ([]Bundle, error) {
	var out []Bundle
	err := c.Each(ctx, func(b Bundle) error {
		out = append(out, b)
		return nil
	})
	return out, err
}

// Resources calls f for every resource of a bundle as a server stores it: with
// an id of its own (fhir.NewID) and references to it by that id instead of
// urn:uuid:….
func (b Bundle) Resources(f func(resourceType, id string, json []byte) error) error {
	var pairs []string
	entries := gjson.GetBytes(b.JSON, "entry").Array()
	ids := make([]string, len(entries))
	for i, e := range entries {
		ids[i] = fhir.NewID()
		if full := e.Get("fullUrl").Str; strings.HasPrefix(full, "urn:uuid:") {
			pairs = append(pairs, `"`+full+`"`, `"`+e.Get("resource.resourceType").Str+"/"+ids[i]+`"`)
		}
	}
	literal := strings.NewReplacer(pairs...)
	for i, e := range entries {
		r := e.Get("resource")
		if !r.Exists() {
			continue
		}
		var to bytes.Buffer
		if _, err := literal.WriteString(&to, r.Raw); err != nil {
			return err
		}
		if err := f(r.Get("resourceType").Str, ids[i], to.Bytes()); err != nil {
			return err
		}
	}
	return nil
}

package definitions

import (
	"bytes"
	"compress/gzip"
	"fmt"
	"io"
	"io/fs"
	"slices"
	"strings"
)

// Conflict is a canonical URL that two packages define in different ways.
type Conflict struct {
	URL string
	// Used is the package ("name@version") whose definition counts, Hidden the other.
	Used, Hidden string
}

// Conflicts returns the URLs for which the package p of a folder and another one
// there have different definitions, by URL. See Library for which of them counts.
func Conflicts(dir fs.FS, p Package) ([]Conflict, error) {
	library, err := Open(dir)
	if err != nil {
		return nil, err
	}
	own, err := contentOf(dir, p)
	if err != nil {
		return nil, err
	}
	packages, err := List(dir)
	if err != nil {
		return nil, err
	}
	var out []Conflict
	for _, other := range packages {
		if other.Name == p.Name {
			continue
		}
		content, err := contentOf(dir, other)
		if err != nil {
			return nil, err
		}
		for url, body := range content {
			if mine, ok := own[url]; !ok || bytes.Equal(mine, body) {
				continue
			}
			c := Conflict{URL: url, Used: library.entries[library.byURL[url]].Package, Hidden: p.Name + "@" + p.Version}
			if c.Used == c.Hidden {
				c.Hidden = other.Name + "@" + other.Version
			}
			out = append(out, c)
		}
	}
	slices.SortStableFunc(out, func(a, b Conflict) int { return strings.Compare(a.URL, b.URL) })
	return slices.Compact(out), nil
}

// contentOf is the definitions of a package by URL.
func contentOf(dir fs.FS, p Package) (map[string][]byte, error) {
	b, err := fs.ReadFile(dir, p.File())
	if err != nil {
		return nil, err
	}
	zr, err := gzip.NewReader(bytes.NewReader(b))
	if err != nil {
		return nil, fmt.Errorf("%s: %w", p.File(), err)
	}
	plain, err := io.ReadAll(zr)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", p.File(), err)
	}
	out := map[string][]byte{}
	for line := range bytes.Lines(plain) {
		line = bytes.TrimSuffix(line, []byte("\n"))
		_, _, url, _, err := head(line)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", p.File(), err)
		}
		if _, ok := out[url]; !ok && url != "" {
			out[url] = line
		}
	}
	return out, nil
}

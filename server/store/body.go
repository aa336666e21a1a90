package store

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
	"sync"

	"github.com/klauspost/compress/s2"

	"kiln/queries"
)

// A body is stored as JSON, or as the number of a dictionary and a block of S2 that was
// compressed with it. PostgreSQL compresses no row shorter than 2 kB, and most resources
// are shorter. Resources repeat each other, not themselves, so a shared dictionary
// compresses them to a quarter. It takes 2 µs to compress and half a microsecond to
// decompress, and saves the same share of log, cache and disk.
const (
	dictionaryNumber = 1
	// maxCompressed is the JSON beyond which PostgreSQL's own compression does as
	// well, and SQL's resource_body would take too long.
	maxCompressed = 64 << 10
)

// The number of the dictionary is also the version of this form; the second
// argument is where copies begin, as resource_body knows.
var bodyDictionary = s2.MakeDictManual(queries.BodyDictionary, 0)

// appendBody appends json in the form of the column body.
func appendBody(dst, json []byte) []byte {
	if len(json) > maxCompressed {
		return append(dst, json...)
	}
	at := len(dst)
	dst = append(dst, dictionaryNumber)
	need := s2.MaxEncodedLen(len(json))
	if cap(dst)-len(dst) < need {
		grown := make([]byte, len(dst), 2*cap(dst)+need)
		copy(grown, dst)
		dst = grown
	}
	block := bodyDictionary.Encode(dst[len(dst):cap(dst)], json)
	if len(block)+1 >= len(json) {
		return append(dst[:at], json...)
	}
	return dst[:at+1+len(block)]
}

var errBody = errors.New("store: a body of an unknown form")

// copyBody is decodeBody into memory of its own.
func copyBody(stored []byte) ([]byte, error) {
	json, err := decodeBody(stored)
	if err == nil && len(stored) > 0 && stored[0] == '{' {
		json = bytes.Clone(json)
	}
	return json, err
}

// bodies is memory for the bodies of one page, which is kept and dropped as one. It
// is used again for another page once SearchResult.Release says so.
type bodies struct {
	pieces [][]byte // the used part of each
	at     int      // the piece to fill
}

// The memory is taken in pieces, the first for a few bodies; pages that took more
// than mostKept leave theirs to the collector.
const (
	firstPiece = 4 << 10
	mostPiece  = 64 << 10
	mostKept   = 1 << 20
)

var pageBodies = sync.Pool{New: func() any { return new(bodies) }}

// Decode is copyBody.
func (b *bodies) Decode(stored []byte) ([]byte, error) {
	size := len(stored)
	packed := size > 0 && stored[0] == dictionaryNumber
	if packed {
		var err error
		if size, err = s2.DecodedLen(stored[1:]); err != nil || size > maxCompressed {
			return nil, errBody
		}
	}
	into := b.take(size)
	if !packed {
		if size > 0 && stored[0] != '{' {
			return nil, errBody
		}
		return append(into, stored...), nil
	}
	json, err := bodyDictionary.Decode(into, stored[1:])
	if err != nil {
		return nil, fmt.Errorf("decompress body: %w", err)
	}
	return json, nil
}

// take returns room for size bytes.
func (b *bodies) take(size int) []byte {
	for ; b.at < len(b.pieces); b.at++ {
		if p := b.pieces[b.at]; cap(p)-len(p) >= size {
			b.pieces[b.at] = p[:len(p)+size]
			return p[len(p) : len(p) : len(p)+size]
		}
	}
	piece := firstPiece
	if n := len(b.pieces); n > 0 {
		piece = min(2*cap(b.pieces[n-1]), mostPiece)
	}
	p := make([]byte, size, max(size, piece))
	b.pieces = append(b.pieces, p)
	return p[:0:size]
}

// clear empties the memory, and returns how much it is.
func (b *bodies) clear() (size int) {
	for i, p := range b.pieces {
		b.pieces[i] = p[:0]
		size += cap(p)
	}
	b.at = 0
	return size
}

// Release gives the memory to another page, unless it has grown too large to reuse.
func (b *bodies) Release() {
	if b.clear() <= mostKept {
		pageBodies.Put(b)
	}
}

// decodeBody returns the JSON of the column body. It may share memory with
// stored.
func decodeBody(stored []byte) ([]byte, error) {
	switch {
	case len(stored) == 0, stored[0] == '{':
		return stored, nil
	case stored[0] == dictionaryNumber:
		json, err := bodyDictionary.Decode(nil, stored[1:])
		if err != nil {
			return nil, fmt.Errorf("decompress body: %w", err)
		}
		return json, nil
	}
	return nil, errBody
}

// decodeBodyInto is decodeBody into the memory of dst, where that suffices.
func decodeBodyInto(dst, stored []byte) ([]byte, error) {
	if len(stored) == 0 || stored[0] != dictionaryNumber {
		json, err := decodeBody(stored)
		return append(dst[:0], json...), err
	}
	size, err := s2.DecodedLen(stored[1:])
	if err != nil || size > maxCompressed {
		return nil, errBody
	}
	json, err := bodyDictionary.Decode(slices.Grow(dst[:0], size), stored[1:])
	if err != nil {
		return nil, fmt.Errorf("decompress body: %w", err)
	}
	return json, nil
}

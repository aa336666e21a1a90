package store

import (
	"bytes"
	"errors"
	"fmt"

	"github.com/klauspost/compress/s2"

	"kiln/queries"
)

// A body is stored as JSON, or as the number of a dictionary and a block of S2
// that was compressed with it. PostgreSQL compresses no row that is shorter than
// 2 kB, which most resources are; what they repeat is in other resources, not in
// themselves. The dictionary brings a resource to a quarter of its JSON in 2 µs
// and back in half a microsecond, and saves the same in log, cache and disk.
const (
	dictionaryNumber = 1
	// maxCompressed is the JSON beyond which PostgreSQL's own compression does as
	// well, and SQL's resource_body would take too long.
	maxCompressed = 64 << 10
)

// The number of the dictionary is also that of the version of this form; the
// second argument is where copies begin, as resource_body knows.
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

// bodies decodes the bodies of one page into memory that they share: a page is kept
// and dropped as one.
type bodies struct{ free []byte }

// The memory for the bodies of a page is taken in pieces, the first for a few.
const (
	firstBodies = 4 << 10
	mostBodies  = 32 << 10
)

// decode is copyBody.
func (b *bodies) decode(stored []byte) ([]byte, error) {
	size := len(stored)
	packed := size > 0 && stored[0] == dictionaryNumber
	if packed {
		var err error
		if size, err = s2.DecodedLen(stored[1:]); err != nil || size > maxCompressed {
			return nil, errBody
		}
	}
	if size > cap(b.free) {
		b.free = make([]byte, 0, max(size, min(max(2*cap(b.free), firstBodies), mostBodies)))
	}
	into := b.free[:0:size]
	b.free = b.free[size:size]
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

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

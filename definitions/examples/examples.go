// Package examples holds HL7's example resources of FHIR R4 for tests, except
// the few that are larger than a megabyte. They are CC0.
package examples

import (
	"bytes"
	"compress/gzip"
	_ "embed"
	"io"
)

//go:embed examples.ndjson.gz
var packed []byte

// All returns the examples, compact JSON, sorted by their bytes.
func All() ([][]byte, error) {
	zr, err := gzip.NewReader(bytes.NewReader(packed))
	if err != nil {
		return nil, err
	}
	b, err := io.ReadAll(zr)
	if err != nil {
		return nil, err
	}
	return bytes.Split(bytes.TrimSuffix(b, []byte("\n")), []byte("\n")), nil
}

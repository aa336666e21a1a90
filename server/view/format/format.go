// Package format writes the rows of a view as JSON, NDJSON, CSV or Parquet. A Writer knows the columns,
// not where rows come from: rows are written one by one, and nothing but one row group of Parquet
// is kept in memory.
package format

import (
	"errors"
	"io"

	"kiln/server/view"
)

// Format is one of the formats.
type Format struct {
	Name        string // of _format, and the ending of files
	ContentType string
	// Compressible says that gzip makes it smaller.
	Compressible bool
	open         func(w io.Writer, columns []view.Column, o Options) Writer
}

// The formats.
var (
	JSON    = &Format{"json", "application/json", true, newJSON}
	NDJSON  = &Format{"ndjson", "application/x-ndjson", true, newNDJSON}
	CSV     = &Format{"csv", "text/csv", true, newCSV}
	Parquet = &Format{"parquet", "application/vnd.apache.parquet", false, newParquet}
)

// names are the names and media types of the formats.
var names = map[string]*Format{
	"json": JSON, "application/json": JSON,
	"ndjson": NDJSON, "application/x-ndjson": NDJSON, "application/ndjson": NDJSON, "application/fhir+ndjson": NDJSON,
	"csv": CSV, "text/csv": CSV,
	"parquet": Parquet, "application/vnd.apache.parquet": Parquet, "application/x-parquet": Parquet, "application/parquet": Parquet,
}

// Find returns the format with a name or media type, without parameters.
func Find(name string) (*Format, bool) {
	f, ok := names[name]
	return f, ok
}

// Options are choices of a client; the zero value is the default.
type Options struct {
	NoHeader bool // of CSV
}

// Writer writes rows. Close writes the end of the file, which is not complete without it.
type Writer interface {
	Write(row view.Row) error
	Close() error
}

// Open returns a writer of rows with the given columns.
func (f *Format) Open(w io.Writer, columns []view.Column, o Options) Writer {
	return f.open(w, columns, o)
}

// ValueError says that a value cannot be written in the form of its column.
type ValueError struct {
	Column string
	Reason string
}

// Error names column and reason.
func (e *ValueError) Error() string { return "column " + e.Column + ": " + e.Reason }

// AsViewError returns a ValueError as the fault of a resource.
func AsViewError(err error, resource string) error {
	var v *ValueError
	if errors.As(err, &v) {
		return &view.Error{Resource: resource, Column: v.Column, Reason: v.Reason}
	}
	return err
}

package store

import (
	"context"
	"errors"
	"time"

	"kiln/server/fhir"
)

var errUnfinished = errors.New("store: skeleton")

// Migrate brings the database's schema up to date.
func Migrate(ctx context.Context, url string) error { return errUnfinished }

// Read returns the current version of a resource. It fails with not-found if the
// resource never existed and with deleted if it is deleted.
// Spec: https://hl7.org/fhir/R4/http.html#read.
func (s *Store) Read(ctx context.Context, typ, id string) (fhir.Version, error) {
	return fhir.Version{}, errUnfinished
}

// VRead returns one version of a resource. It fails with not-found if that
// version never existed and with deleted if it marks a deletion.
// Spec: https://hl7.org/fhir/R4/http.html#vread.
func (s *Store) VRead(ctx context.Context, typ, id string, versionID int) (fhir.Version, error) {
	return fhir.Version{}, errUnfinished
}

// Read is Store.Read inside the transaction.
func (t *Tx) Read(ctx context.Context, typ, id string) (fhir.Version, error) {
	return fhir.Version{}, errUnfinished
}

// HistoryQuery asks for versions, newest first.
type HistoryQuery struct {
	ResourceType string    // "" asks for all types
	ID           string    // "" asks for the whole type
	Since        time.Time // versions made at or after this instant; zero means all
	At           time.Time // versions that were current at this instant; zero means all
	Count        int       // versions on a page; 0 asks for the total only
	Cursor       string    // HistoryPage.Next of the page before; "" is the first page
	NoTotal      bool      // leave Total out
}

// HistoryPage is a page of versions.
type HistoryPage struct {
	Versions []fhir.Version
	Total    int    // versions that match, on all pages; -1 with NoTotal
	Next     string // cursor of the next page, "" on the last
}

// History returns versions, deletions included, newest first. The history of a
// resource that never existed is not-found.
// Spec: https://hl7.org/fhir/R4/http.html#history.
func (s *Store) History(ctx context.Context, q HistoryQuery) (HistoryPage, error) {
	return HistoryPage{}, errUnfinished
}

// Write is one change of one resource.
type Write struct {
	Method           fhir.Method
	ResourceType, ID string
	Body             *fhir.Body  // nil for DELETE
	Index            *fhir.Index // finished; nil for DELETE
	// IfMatch is the version that must be current, 0 for any. Another one is a
	// conflict, an absent resource a failed precondition (412).
	IfMatch int
	// IfNoneMatch is `If-None-Match: *`: the resource must not exist, else 412.
	IfNoneMatch bool
	// MustExist refuses to create: not-found or deleted.
	MustExist bool
	// Modify gives body and index from the current version, instead of Body and
	// Index. It runs while the resource is locked.
	Modify func(current fhir.Version) (*fhir.Body, *fhir.Index, error)

	// Result is the version made. Its VersionID is 0 after DELETE of a resource
	// that never existed.
	Result  fhir.Version
	Created bool // there was no current version before
}

// WriteError is a failed write among several.
type WriteError struct {
	Index int // of the write
	Err   error
}

func (e *WriteError) Error() string { return e.Err.Error() }

// Unwrap returns the reason.
func (e *WriteError) Unwrap() error { return e.Err }

// Write makes one change, durable on return.
func (s *Store) Write(ctx context.Context, w *Write) error { return errUnfinished }

// Write makes several changes, of different resources, in a handful of
// statements. The first one that fails is a *WriteError, after which the
// transaction can only be given up.
func (t *Tx) Write(ctx context.Context, ws []*Write) error { return errUnfinished }

// Lock takes transaction locks on arbitrary numbers, in ascending order, and
// waits for them.
func (t *Tx) Lock(ctx context.Context, keys ...int64) error { return errUnfinished }

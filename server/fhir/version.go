package fhir

import "time"

// Method is the HTTP method that made a version, as history reports it.
type Method byte

// The methods that make versions.
const (
	POST   Method = 'C'
	PUT    Method = 'U'
	PATCH  Method = 'P'
	DELETE Method = 'D'
	// Unlogged is a POST that is not in the change log: it raises no event.
	Unlogged Method = 'S'
	// VREAD makes no version: it is in the change log where reading one is an event.
	VREAD Method = 'V'
)

// String returns the HTTP method.
func (m Method) String() string {
	switch m {
	case POST, Unlogged:
		return "POST"
	case PUT:
		return "PUT"
	case PATCH:
		return "PATCH"
	case DELETE:
		return "DELETE"
	}
	return "unknown"
}

// Version is one stored state of a resource, a delete included.
type Version struct {
	ResourceType string
	ID           string
	VersionID    int // 1..n, without gaps
	LastUpdated  time.Time
	Method       Method // DELETE marks a deletion; Body is nil then
	Body         []byte // JSON as it is served, with id and meta
}

// Deleted reports whether the version marks a deletion.
func (v Version) Deleted() bool { return v.Method == DELETE }

package interaction

import (
	"net/http"
	"strconv"

	"kiln/server/fhir"
	"kiln/server/outcome"
	"kiln/server/store"
)

// Response is the answer to an interaction. At most one of Version, Body and
// Bundle is content.
type Response struct {
	Tagged bool // Body has no version: the answer gets an entity tag of its content
	Status int
	// Version is the version read or made; its ResourceType is "" if the answer is about no
	// version.
	Version fhir.Version
	// Written says that Version is the result of a write: Prefer decides whether
	// it is sent back.
	Written bool
	// Existing means that a conditional create found Version and wrote nothing.
	Existing bool
	Body     []byte // a resource made for this answer
	// ContentType is the media type of a Body that is no resource; "" is FHIR's.
	ContentType string
	Bundle      *Bundle
	// Issues are what else there is to say.
	Issues []outcome.Issue

	found *store.SearchResult
}

// Release gives the memory of a page of matches to other searches. It is called when
// the response has been written; nothing of the response may be used afterwards.
func (r *Response) Release() {
	if r.found != nil {
		r.found.Release()
	}
}

// Return is the content that the client wants in the answer to a write.
// Spec: https://hl7.org/fhir/R4/http.html#ops.
type Return string

// The forms of `Prefer: return=`. The empty Return leaves it to the service:
// the resource for a request of its own, nothing for an entry of a Bundle.
const (
	ReturnMinimal        Return = "minimal"
	ReturnRepresentation Return = "representation"
	ReturnOutcome        Return = "OperationOutcome"
)

// Bundle is a Bundle to be written: URLs are relative to the service's base, and
// resources are bytes.
type Bundle struct {
	Type    string // searchset, history, transaction-response, batch-response
	Total   int    // -1 leaves it out
	Links   []Link
	Entries []Entry
}

// Link is one link of a Bundle.
type Link struct {
	Relation string // self, first, previous, next, last
	URL      string // relative to the base: "Patient?name=x&_offset=20"
}

// Entry is one entry of a Bundle.
type Entry struct {
	// Version is the resource; an entry without one has Body, Nested or Failure
	// instead, or no resource at all.
	Version fhir.Version
	// Mode is search.mode: match, include, outcome.
	Mode string
	// Body is a resource that is not a stored version. FullURL is its fullUrl, "" for none.
	Body    []byte
	FullURL string
	Nested  *Bundle
	// Answer is entry.response; nil in a searchset.
	Answer *Answer
	// Request is entry.request of a history; "" elsewhere.
	Request RequestLine
	// NoResource means that Version is the subject of Answer, and not content.
	NoResource bool
}

// RequestLine is a method and a URL.
type RequestLine struct{ Method, URL string }

// Answer is entry.response of a batch, transaction or history.
type Answer struct {
	Status int
	// Located says that Version is named by location, etag and lastModified.
	Located bool
	Issues  []outcome.Issue
}

// Location is the relative URL of a version.
func Location(v fhir.Version) string {
	return v.ResourceType + "/" + v.ID + "/_history/" + strconv.Itoa(v.VersionID)
}

func madeResponse(w fhir.Version, created bool) Response {
	status := http.StatusOK
	if created {
		status = http.StatusCreated
	}
	return Response{Status: status, Version: w, Written: true}
}

// existingResponse is the answer to a conditional create that found v.
func existingResponse(v fhir.Version) Response {
	return Response{Status: http.StatusOK, Version: v, Written: true, Existing: true}
}

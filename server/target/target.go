// Package target reads the target of a FHIR request from its path: an entry of a Bundle, an
// audited request and an explained request are read by the same function.
package target

import (
	"errors"
	"net/http"
	"net/url"
	"strings"

	"kiln/server/fhir"
)

// Target is the resource, type or operation in the path of a request.
type Target struct {
	Type, ID string
	Version  string // of …/_history/{version}
	History  bool
	// Compartment is the type searched in `Patient/1/Observation`, "*" for all.
	Compartment string
	Operation   string // with its $
	Search      bool   // …/_search
	Query       string // the text after `?`
	HasQuery    bool
}

// UnknownTypeError is the error of a path that begins with no resource type.
type UnknownTypeError string

// Error returns a message with the unknown name.
func (e UnknownTypeError) Error() string { return "there is no resource type " + string(e) }

var (
	// ErrURL is the error of a path with a wrong escape.
	ErrURL = errors.New("the path is not part of a URL")
	// ErrInteraction is the error of a path of no interaction.
	ErrInteraction = errors.New("the path names no interaction")
)

// Read reads a path relative to the base URL, with its query: `Patient/1/_history/2`. It fails with
// UnknownTypeError, ErrURL or ErrInteraction.
// Spec: https://hl7.org/fhir/R4/http.html#summary.
func Read(model *fhir.Model, text string) (Target, error) {
	var t Target
	path, query, hasQuery := strings.Cut(text, "?")
	t.Query, t.HasQuery = query, hasQuery
	path = strings.Trim(path, "/")
	var parts []string
	if path != "" {
		parts = strings.Split(path, "/")
	}
	for i, p := range parts {
		var err error
		if parts[i], err = url.PathUnescape(p); err != nil {
			return t, ErrURL
		}
	}
	if len(parts) > 0 && !isReserved(parts[0]) && parts[0] != "metadata" {
		known := model.Resources[parts[0]]
		if known == nil {
			return t, UnknownTypeError(parts[0])
		}
		t.Type, parts = known.Type().Name, parts[1:] // not part of text, which may be a Bundle's: a type is kept for longer
		if len(parts) > 0 && !isReserved(parts[0]) {
			t.ID, parts = parts[0], parts[1:]
		}
	}
	if !t.readRest(model, parts) {
		return t, ErrInteraction
	}
	return t, nil
}

// isReserved reports whether a part of a path is neither a type nor an id.
func isReserved(part string) bool {
	return part == "_history" || part == "_search" || strings.HasPrefix(part, "$")
}

// readRest reads the parts of a path after its type and id. It returns false if they name no interaction.
func (t *Target) readRest(model *fhir.Model, parts []string) bool {
	if len(parts) == 0 {
		return true
	}
	isCompartment := t.ID != "" && (parts[0] == "*" || model.Resources[parts[0]] != nil)
	switch first := parts[0]; len(parts) {
	case 1:
		switch {
		case strings.HasPrefix(first, "$"), first == "metadata":
			t.Operation = first
		case first == "_search" && t.ID == "":
			t.Search = true
		case first == "_history":
			t.History = true
		case isCompartment:
			t.Compartment = first
		default:
			return false
		}
		return true
	case 2:
		switch {
		case first == "_history" && t.ID != "":
			t.History, t.Version = true, parts[1]
		case isCompartment && parts[1] == "_search":
			t.Compartment, t.Search = first, true
		default:
			return false
		}
		return true
	}
	return false
}

// Interaction returns the interaction of a method on the target, in the words of
// http://hl7.org/fhir/restful-interaction.
func (t *Target) Interaction(method string) string {
	switch {
	case t.Operation == "metadata":
		return "capabilities"
	case t.Operation != "":
		return "operation"
	case method == http.MethodPost && t.Type == "" && !t.Search:
		return "batch"
	case method == http.MethodPost && !t.Search:
		return "create"
	case method == http.MethodPut:
		return "update"
	case method == http.MethodPatch:
		return "patch"
	case method == http.MethodDelete:
		return "delete"
	case t.Version != "":
		return "vread"
	case t.History && t.ID != "":
		return "history-instance"
	case t.History && t.Type != "":
		return "history-type"
	case t.History:
		return "history-system"
	case t.Compartment != "":
		return "search"
	case t.ID != "":
		return "read"
	case t.Type != "":
		return "search-type"
	}
	return "search-system"
}

// Resource returns the reference of the resource that the target names, "" for none.
func (t *Target) Resource() string {
	if t.Type == "" || !fhir.ValidID(t.ID) {
		return ""
	}
	return t.Type + "/" + t.ID
}

// Reads reports whether a request with the method changes no resource. An operation may change
// resources.
func (t *Target) Reads(method string) bool {
	return method == http.MethodGet || method == http.MethodHead || method == http.MethodPost && t.Search
}

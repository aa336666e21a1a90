package patch

import (
	"encoding/json"
	"errors"
	"strings"

	jsonpatch "github.com/evanphx/json-patch/v5"

	"kiln/server/outcome"
)

// JSONType is the content type of a JSON Patch. Spec: RFC 6902 §6.
const JSONType = "application/json-patch+json"

// JSON is a JSON Patch: operations on a JSON document. Spec: RFC 6902.
type JSON struct {
	operations jsonpatch.Patch
}

// maxCopied bounds the bytes that the copy operations of one patch add.
const maxCopied = 16 << 20

// ReadJSON reads a JSON Patch. It fails with structure where the content is no array
// of operations, and with invalid for an operation that RFC 6902 does not define or
// that lacks a member; diagnostics name the operation by its position from 0.
func ReadJSON(content []byte) (*JSON, error) {
	// Not with DecodePatch, whose errors do not say which operation is wrong.
	var operations jsonpatch.Patch
	if err := json.Unmarshal(content, &operations); err != nil || operations == nil {
		return nil, outcome.New(outcome.CodeStructure, "the body is not a JSON Patch: expected an array of operations").Because(err)
	}
	for i, op := range operations {
		if err := checkJSON(i, op); err != nil {
			return nil, err
		}
	}
	return &JSON{operations}, nil
}

// Apply returns the resource with the operations applied in order; numbers and
// strings that no operation touches keep their text. It fails with 422 invalid when an
// operation does not apply, a test that does not hold included.
func (p *JSON) Apply(resource []byte) ([]byte, error) {
	options := jsonpatch.NewApplyOptions()
	options.SupportNegativeIndices = false
	options.AccumulatedCopySizeLimit = maxCopied
	options.EscapeHTML = false
	next, err := p.operations.ApplyWithOptions(resource, options)
	if err != nil {
		return nil, notApplied(err)
	}
	return next, nil
}

// checkJSON refuses an operation that RFC 6902 does not define.
func checkJSON(i int, op jsonpatch.Operation) error {
	kind := op.Kind()
	switch kind {
	case "add", "replace", "test":
		if _, ok := op["value"]; !ok { // null is a value
			return outcome.Invalid("operation %d (%s) has no value", i, kind)
		}
	case "remove":
	case "move", "copy":
		if from, err := op.From(); err != nil || from != "" && !strings.HasPrefix(from, "/") {
			return outcome.Invalid("operation %d (%s) has no from, or one that is not a JSON Pointer", i, kind)
		}
	default:
		return outcome.Invalid("operation %d is %q: expected add, remove, replace, move, copy or test", i, clip(kind))
	}
	path, err := op.Path()
	if err != nil || path != "" && !strings.HasPrefix(path, "/") {
		return outcome.Invalid("operation %d (%s) has no path, or one that is not a JSON Pointer", i, kind)
	}
	from, _ := op.From() // "" where there is none
	for _, pointer := range []string{path, from} {
		for step := range strings.SplitSeq(pointer, "/") {
			if len(step) > 1 && step[0] == '0' && strings.Trim(step, "0123456789") == "" {
				return outcome.Invalid("operation %d (%s): %s has leading zeros, which an index of a JSON Pointer has not", i, kind, clip(pointer))
			}
		}
	}
	return nil
}

// notApplied is the error of an operation that does not apply.
func notApplied(err error) error {
	reason := "an operation does not apply to the current version"
	switch {
	case errors.Is(err, jsonpatch.ErrTestFailed):
		reason = "a test operation failed"
	case errors.Is(err, jsonpatch.ErrMissing):
		reason = "an operation's path is not in the current version"
	case errors.Is(err, jsonpatch.ErrInvalidIndex):
		reason = "an operation's array index is out of bounds"
	}
	// The library's own message names the path; it holds nothing else.
	return outcome.Unprocessable([]outcome.Issue{{Severity: outcome.Failure, Code: outcome.CodeInvalid,
		Diagnostics: reason + ": " + clip(err.Error())}})
}

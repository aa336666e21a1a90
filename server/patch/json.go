package patch

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
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
// that lacks a member; diagnostics name the operation by its position from 0. A patch has as many
// operations as a FHIRPath Patch at most.
func ReadJSON(content []byte) (*JSON, error) {
	// Not with DecodePatch, whose errors do not say which operation is wrong.
	var operations jsonpatch.Patch
	if err := json.Unmarshal(content, &operations); err != nil || operations == nil {
		return nil, outcome.New(outcome.CodeStructure, "the body is not a JSON Patch: expected an array of operations").Because(err)
	}
	if len(operations) > maxOperations {
		return nil, outcome.Invalid("the patch has %d operations, more than %d", len(operations), maxOperations)
	}
	for i, op := range operations {
		if err := checkJSON(i, op); err != nil {
			return nil, err
		}
	}
	return &JSON{operations}, nil
}

// Reads names the first operation that tests, copies or moves values of the resource: the outcome of the patch may
// reveal them. It returns "" if all operations add, remove and replace.
func (p *JSON) Reads() string {
	for i, op := range p.operations {
		switch kind := op.Kind(); kind {
		case "add", "remove", "replace":
		default:
			return fmt.Sprintf("operation %d: %s", i, kind)
		}
	}
	return ""
}

// Apply returns the resource with the operations applied in order; numbers and
// strings that no operation touches keep their text. It fails with 422 invalid when an
// operation does not apply, a test that does not hold included.
func (p *JSON) Apply(resource []byte) ([]byte, error) {
	next, err := apply(p.operations, resource)
	if errors.Is(err, jsonpatch.ErrTestFailed) {
		next, err = p.applyInSteps(resource, err)
	}
	if err != nil {
		return nil, notApplied(err)
	}
	return next, nil
}

func apply(operations jsonpatch.Patch, resource []byte) ([]byte, error) {
	options := jsonpatch.NewApplyOptions()
	options.SupportNegativeIndices = false
	options.AccumulatedCopySizeLimit = maxCopied
	options.EscapeHTML = false
	return operations.ApplyWithOptions(resource, options)
}

// maxSteps bounds how often applyInSteps reads the document.
const maxSteps = 50

// applyInSteps applies the operations of which a test failed, comparing numbers by
// their value: to the library 1.1 is not 1.10. Operations between two tests are applied
// together. It fails with failed where the tests are too scattered.
// Spec: RFC 6902 §4.6.
func (p *JSON) applyInSteps(resource []byte, failed error) ([]byte, error) {
	isTest := func(op jsonpatch.Operation) bool { return op.Kind() == "test" }
	for rest, step := p.operations, 0; len(rest) > 0; step++ {
		if step == maxSteps || len(resource) > maxCopied && step > 1 {
			return nil, failed
		}
		n := slices.IndexFunc(rest, isTest)
		if n < 0 {
			n = len(rest)
		}
		if n > 0 {
			var err error
			if resource, err = apply(rest[:n], resource); err != nil {
				return nil, err
			}
			rest = rest[n:]
			continue
		}
		document, err := decodeJSON(resource)
		if err != nil {
			return nil, failed
		}
		for len(rest) > 0 && isTest(rest[0]) {
			path, err := rest[0].Path()
			if err != nil {
				return nil, failed
			}
			var want any
			if text := rest[0]["value"]; text != nil { // nil is null
				if want, err = decodeJSON(*text); err != nil {
					return nil, failed
				}
			}
			if got := valueAt(document, path); !equalJSON(got, want) {
				return nil, fmt.Errorf("testing value %s failed: %w", path, jsonpatch.ErrTestFailed)
			}
			rest = rest[1:]
		}
	}
	return resource, nil
}

func decodeJSON(text []byte) (value any, err error) {
	d := json.NewDecoder(bytes.NewReader(text))
	d.UseNumber()
	return value, d.Decode(&value)
}

// valueAt returns the value at a JSON Pointer, nil for none. Spec: RFC 6901.
func valueAt(value any, pointer string) any {
	if pointer == "" {
		return value
	}
	for name := range strings.SplitSeq(pointer[1:], "/") {
		switch v := value.(type) {
		case map[string]any:
			value = v[strings.NewReplacer("~1", "/", "~0", "~").Replace(name)]
		case []any:
			i, err := strconv.ParseUint(name, 10, 31)
			if err != nil || int(i) >= len(v) {
				return nil
			}
			value = v[i]
		default:
			return nil
		}
	}
	return value
}

// equalJSON reports whether two values of decodeJSON are equal, numbers by their value.
func equalJSON(a, b any) bool {
	switch a := a.(type) {
	case json.Number:
		b, ok := b.(json.Number)
		return ok && numberOf(string(a)) == numberOf(string(b))
	case []any:
		b, ok := b.([]any)
		return ok && slices.EqualFunc(a, b, equalJSON)
	case map[string]any:
		b, ok := b.(map[string]any)
		return ok && maps.EqualFunc(a, b, equalJSON)
	}
	return a == b
}

// number is a JSON number in the one form that its value has.
type number struct {
	negative bool
	digits   string // without zeros at either end
	exponent int64  // of the last digit
	text     string // a number whose exponent is out of range
}

func numberOf(text string) number {
	mantissa, exponent := text, int64(0)
	if i := strings.IndexAny(text, "eE"); i >= 0 {
		var err error
		if exponent, err = strconv.ParseInt(text[i+1:], 10, 32); err != nil {
			return number{text: text}
		}
		mantissa = text[:i]
	}
	mantissa, negative := strings.CutPrefix(mantissa, "-")
	whole, fraction, _ := strings.Cut(mantissa, ".")
	digits := strings.TrimLeft(whole+fraction, "0")
	short := strings.TrimRight(digits, "0")
	if short == "" {
		return number{}
	}
	return number{negative: negative, digits: short, exponent: exponent - int64(len(fraction)) + int64(len(digits)-len(short))}
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
	// The library's own message names the path first; the rest is about its internals.
	text, _, _ := strings.Cut(err.Error(), ": strconv.")
	return outcome.Unprocessable([]outcome.Issue{{Severity: outcome.Failure, Code: outcome.CodeInvalid,
		Diagnostics: reason + ": " + clip(text)}})
}

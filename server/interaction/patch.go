package interaction

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"strings"

	jsonpatch "github.com/evanphx/json-patch/v5"

	"kiln/server/access"
	"kiln/server/fhir"
	"kiln/server/fhirpath"
	"kiln/server/outcome"
	"kiln/server/store"
)

// JSONPatch is the content type of a JSON Patch. Spec: RFC 6902.
const JSONPatch = "application/json-patch+json"

// PatchParams are the inputs of a patch.
type PatchParams struct {
	ResourceType string
	ID           string // "" for a conditional patch
	Criteria     string // the search of a conditional patch, without `?`
	ContentType  string // without parameters
	Patch        []byte
	IfMatch      string
}

// Patch applies a JSON Patch or a FHIRPath Patch to the current version and stores
// the result. What the patch does not touch stays as it was, decimals to the digit.
// An operation that does not apply, a failed test included, is 422; a patch in
// another format is 415.
// Spec: https://hl7.org/fhir/R4/http.html#patch, fhirpatch.html, RFC 6902.
func (s *Service) Patch(ctx context.Context, p PatchParams) (Response, error) {
	if err := s.may(ctx, access.Patch, p.ResourceType, p.ID); err != nil {
		return Response{}, err
	}
	w := &store.Write{Method: fhir.PATCH, ResourceType: p.ResourceType, ID: p.ID, MustExist: true}
	if p.IfMatch != "" && p.IfMatch != "*" {
		n, err := ParseETag(p.IfMatch)
		if err != nil {
			return Response{}, err
		}
		w.IfMatch = n
	}
	var err error
	if w.Modify, err = s.modify(ctx, p.ResourceType, p.ContentType, p.Patch); err != nil {
		return Response{}, err
	}
	if p.ID == "" {
		return s.patchByCriteria(ctx, p, w)
	}
	if !fhir.ValidID(p.ID) {
		return Response{}, outcome.NotFound(p.ResourceType, clip(p.ID))
	}
	if err := s.Store.Write(ctx, w); err != nil {
		return Response{}, err
	}
	return made(w.Result, false), nil
}

func (s *Service) patchByCriteria(ctx context.Context, p PatchParams, w *store.Write) (Response, error) {
	c, err := s.condition(ctx, p.ResourceType, p.Criteria, "a conditional patch")
	if err != nil {
		return Response{}, err
	}
	err = s.Store.InTx(ctx, func(tx *store.Tx) error {
		if err := c.mustMatch(ctx, tx, w); err != nil {
			return err
		}
		return unwrapWrite(tx.Write(ctx, []*store.Write{w}))
	})
	if err != nil {
		return Response{}, err
	}
	return made(w.Result, false), nil
}

// modify returns the function that makes the next version from the current one.
func (s *Service) modify(ctx context.Context, typ, contentType string, patch []byte) (func(fhir.Version) (*fhir.Body, *fhir.Index, error), error) {
	var apply func(body []byte) ([]byte, error)
	switch contentType {
	case JSONPatch:
		var err error
		if apply, err = jsonPatch(patch); err != nil {
			return nil, err
		}
	case "application/fhir+json", "application/json":
		apply = func(body []byte) ([]byte, error) { return fhirpath.Patch(s.Model, body, patch) }
	default:
		return nil, outcome.NotSupported("a patch of type %q is not served; %s (JSON Patch) and application/fhir+json (FHIRPath Patch) are", clip(contentType), JSONPatch).
			WithStatus(http.StatusUnsupportedMediaType)
	}
	return func(current fhir.Version) (*fhir.Body, *fhir.Index, error) {
		next, err := apply(current.Body)
		if err != nil {
			return nil, nil, err
		}
		r, err := fhir.Decode(s.Model, next)
		if err != nil {
			return nil, nil, afterPatch(err)
		}
		if r.Type().Name != typ || r.Header().ID.Text != current.ID {
			return nil, nil, outcome.Unprocessable([]outcome.Issue{{Severity: outcome.Failure, Code: outcome.CodeInvalid,
				Diagnostics: "a patch cannot change resourceType or id"}})
		}
		if err := s.validate(ctx, r); err != nil {
			return nil, nil, err
		}
		body, err := fhir.Splice(r.Header().Raw, nil)
		if err != nil {
			return nil, nil, err
		}
		x, err := s.index(current.ID, r)
		return body, x, err
	}, nil
}

// jsonPatch returns the function that applies a JSON Patch.
func jsonPatch(patch []byte) (func(body []byte) ([]byte, error), error) {
	// Not with DecodePatch, whose errors do not say which operation is wrong.
	var ops jsonpatch.Patch
	if err := json.Unmarshal(patch, &ops); err != nil || ops == nil {
		return nil, outcome.New(outcome.CodeStructure, "the body is not a JSON Patch: expected an array of operations").Because(err)
	}
	for i, op := range ops {
		if err := checkOperation(i, op); err != nil {
			return nil, err
		}
	}
	options := jsonpatch.NewApplyOptions()
	options.SupportNegativeIndices = false
	options.AccumulatedCopySizeLimit = 16 << 20
	options.EscapeHTML = false
	return func(body []byte) ([]byte, error) {
		next, err := ops.ApplyWithOptions(body, options)
		if err != nil {
			return nil, patchFailed(err)
		}
		return next, nil
	}, nil
}

// checkOperation refuses what RFC 6902 does not know before anything is read.
func checkOperation(i int, op jsonpatch.Operation) error {
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
	if path, err := op.Path(); err != nil || path != "" && !strings.HasPrefix(path, "/") {
		return outcome.Invalid("operation %d (%s) has no path, or one that is not a JSON Pointer", i, kind)
	}
	return nil
}

func patchFailed(err error) error {
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

// afterPatch says that it is the patch's result, and not a body, that is wrong.
func afterPatch(err error) error {
	e, ok := outcome.From(err)
	if !ok {
		return err
	}
	e = &outcome.Error{Status: http.StatusUnprocessableEntity, Issues: append([]outcome.Issue(nil), e.Issues...), Cause: e.Cause}
	for i := range e.Issues {
		e.Issues[i].Diagnostics = "after the patch: " + e.Issues[i].Diagnostics
		e.Issues[i].Line, e.Issues[i].Column = 0, 0
	}
	return e
}

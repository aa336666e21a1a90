package interaction

import (
	"context"
	"errors"
	"net/http"
	"slices"
	"strings"

	"kiln/server/access"
	"kiln/server/fhir"
	"kiln/server/outcome"
	"kiln/server/patch"
	"kiln/server/store"
)

// PatchParams are the inputs of a patch.
type PatchParams struct {
	ResourceType string
	ID           string // "" for a conditional patch
	Criteria     string // the search of a conditional patch, without `?`
	ContentType  string // without parameters
	Patch        []byte
	BaseURL      string // as of CreateParams
	Preconditions
}

// Patch applies a JSON Patch or a FHIRPath Patch to the current version and stores the
// result. The rest of the resource stays as it was, decimals to the digit. An operation
// that does not apply, a failed test included, is 422; a patch in another format is 415. An
// empty patch makes no version.
// Spec: https://hl7.org/fhir/R4/http.html#patch, fhirpatch.html, RFC 6902.
func (s *Service) Patch(ctx context.Context, p PatchParams) (Response, error) {
	answer, err := s.patchChecked(ctx, p)
	return s.hideUnreadable(ctx, answer, err)
}

// patchChecked is Patch without checking whether the client may read the answer.
func (s *Service) patchChecked(ctx context.Context, p PatchParams) (Response, error) {
	if err := s.checkAllowed(ctx, access.Patch, p.ResourceType, p.ID); err != nil {
		return Response{}, err
	}
	w := &store.Write{Method: fhir.PATCH, ResourceType: p.ResourceType, ID: p.ID, MustExist: true}
	if err := s.GuardWrite(ctx, w); err != nil {
		return Response{}, err
	}
	if err := p.read(w); err != nil {
		return Response{}, err
	}
	var err error
	if w.Modify, err = s.modify(ctx, p); err != nil {
		return Response{}, err
	}
	if s.isEmptyPatch(p.ContentType, p.Patch) {
		w.Modify = keepCurrent(w, w.Modify)
	}
	if p.ID == "" {
		return s.patchByCriteria(ctx, p, w)
	}
	if !fhir.ValidID(p.ID) {
		return Response{}, outcome.NotFound(p.ResourceType, outcome.Clip(p.ID))
	}
	return patchedResponse(w, s.Store.Write(ctx, w))
}

// patchedResponse is the answer to a patch: the version that was made, or the current one
// where the patch was empty.
func patchedResponse(w *store.Write, err error) (Response, error) {
	if kept, ok := errors.AsType[*keptVersion](err); ok {
		return existingResponse(kept.version), nil
	}
	if err != nil {
		return Response{}, err
	}
	return madeResponse(w.Result, false), nil
}

// keptVersion ends a write whose patch is empty, before a new version is made.
type keptVersion struct{ version fhir.Version }

func (*keptVersion) Error() string { return "the patch has no operations" }

// keepCurrent returns a Modify that fails with keptVersion where modify and the guard of w
// allow the write.
func keepCurrent(w *store.Write, modify func(fhir.Version) (*fhir.Body, *fhir.Index, error)) func(fhir.Version) (*fhir.Body, *fhir.Index, error) {
	return func(current fhir.Version) (*fhir.Body, *fhir.Index, error) {
		_, x, err := modify(current)
		if err != nil {
			return nil, nil, err
		}
		if w.Guard != nil {
			if err := w.Guard.May(&current, w.ID, x); err != nil {
				return nil, nil, err
			}
		}
		current.Body = slices.Clone(current.Body)
		return nil, nil, &keptVersion{current}
	}
}

// isEmptyPatch reports whether a patch has no operations.
func (s *Service) isEmptyPatch(contentType string, content []byte) bool {
	if contentType == patch.JSONType {
		return strings.TrimSpace(string(content)) == "[]"
	}
	r, err := fhir.Decode(s.Model, content)
	return err == nil && r.Type().Name == "Parameters" && len(fhir.NodeOf(r).AppendChild(nil, "parameter")) == 0
}

func (s *Service) patchByCriteria(ctx context.Context, p PatchParams, w *store.Write) (Response, error) {
	c, err := s.parseCondition(ctx, p.ResourceType, p.Criteria, "a conditional patch")
	if err != nil {
		return Response{}, err
	}
	err = s.Store.InTx(ctx, func(tx *store.Tx) error {
		if err := c.mustMatch(ctx, tx, w); err != nil {
			return err
		}
		return unwrapWrite(tx.Write(ctx, []*store.Write{w}))
	})
	return patchedResponse(w, err)
}

// modify returns the function that makes the next version from the current one. A request
// that may not read the current version may only overwrite parts of it, and learns nothing
// of their values.
func (s *Service) modify(ctx context.Context, in PatchParams) (func(fhir.Version) (*fhir.Body, *fhir.Index, error), error) {
	p, err := s.readPatch(in.ContentType, in.Patch)
	if err != nil {
		return nil, err
	}
	p.base = in.BaseURL
	typ := in.ResourceType
	return func(current fhir.Version) (*fhir.Body, *fhir.Index, error) {
		readable, err := s.Readable(ctx, current)
		if err != nil {
			return nil, nil, err
		}
		if !readable {
			if how := p.reads(); how != "" {
				if err := s.checkAllowed(ctx, access.Read, typ, current.ID); err != nil {
					return nil, nil, err // names the scope that would do
				}
				return nil, nil, outcome.New(outcome.CodeForbidden,
					"the patch depends on the content of the %s (%s), which the access token does not allow to read: add, remove and replace at a place need no r", typ, how)
			}
		}
		body, x, err := s.patched(ctx, current, p)
		if e, ok := outcome.From(err); ok && !readable && e.HTTPStatus() == http.StatusUnprocessableEntity {
			err = outcome.Unprocessable([]outcome.Issue{{Severity: outcome.Failure, Code: outcome.CodeInvalid,
				Diagnostics: "the patch does not apply, or its result is not valid; the access token does not allow to read the reason"}})
		}
		return body, x, err
	}, nil
}

// patched is the version that a patch makes of another.
func (s *Service) patched(ctx context.Context, current fhir.Version, p applier) (*fhir.Body, *fhir.Index, error) {
	next, err := p.apply(current.Body)
	if err != nil {
		return nil, nil, err
	}
	in, err := fhir.Read(s.Model, next)
	if err == nil && len(in.Issues) > 0 {
		err = outcome.Unprocessable(append(in.Issues, s.ruleErrors(ctx, in)...))
	}
	if err != nil {
		return nil, nil, afterPatch(err)
	}
	r := in.Resource
	if r.Type().Name != current.ResourceType || r.Header().ID.Text != current.ID {
		return nil, nil, outcome.Unprocessable([]outcome.Issue{{Severity: outcome.Failure, Code: outcome.CodeInvalid,
			Diagnostics: "a patch cannot change resourceType or id"}})
	}
	if err := s.RefuseConditionalReferences(r, p.base); err != nil {
		return nil, nil, afterPatch(err)
	}
	if err := s.validate(ctx, r); err != nil {
		return nil, nil, err
	}
	body, err := fhir.Splice(r.Header().Raw, nil)
	if err != nil {
		return nil, nil, err
	}
	x, err := s.Parameters.Index(current.ID, r)
	return body, x, err
}

// applier is a patch that is read.
type applier struct {
	base  string // CreateParams.BaseURL
	apply func(resource []byte) ([]byte, error)
	reads func() string // how it depends on the resource's content; "" if it does not
}

func (s *Service) readPatch(contentType string, content []byte) (applier, error) {
	switch contentType {
	case patch.JSONType:
		p, err := patch.ReadJSON(content)
		if err != nil {
			return applier{}, err
		}
		return applier{apply: p.Apply, reads: p.Reads}, nil
	case "application/fhir+json", "application/json":
		return applier{
			apply: func(resource []byte) ([]byte, error) { return patch.FHIRPath(s.Model, resource, content) },
			reads: func() string { return patch.FHIRPathReads(s.Model, content) },
		}, nil
	}
	return applier{}, outcome.UnsupportedMediaType("a patch of type %q is not served; %s (JSON Patch) and application/fhir+json (FHIRPath Patch) are", outcome.Clip(contentType), patch.JSONType)
}

// afterPatch says that it is the patch's result, and not a body, that is wrong.
func afterPatch(err error) error {
	e, ok := outcome.From(err)
	if !ok {
		return err
	}
	e = outcome.Unprocessable(slices.Clone(e.Issues)).Because(e.Cause)
	for i := range e.Issues {
		e.Issues[i].Diagnostics = "after the patch: " + e.Issues[i].Diagnostics
		e.Issues[i].Line, e.Issues[i].Column = 0, 0
	}
	return e
}

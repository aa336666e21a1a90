package interaction

import (
	"context"
	"net/http"

	"kiln/server/access"
	"kiln/server/fhir"
	"kiln/server/outcome"
	"kiln/server/store"
)

// DeleteParams are the inputs of a delete.
type DeleteParams struct {
	ResourceType string
	ID           string // "" for a conditional delete
	Criteria     string // the search of a conditional delete, without `?`
	Preconditions
}

// Delete deletes a resource: its next version marks the deletion. Deleting what
// does not exist, or is deleted already, is 204 as well, and makes no version; with an
// If-Match it is 412, RFC 9110 §13.1.1; so it is where the current version does not meet
// an If-None-Match or an If-Unmodified-Since.
// With Criteria, several matches are multiple-matches, 412.
// Spec: https://hl7.org/fhir/R4/http.html#delete, #3.1.0.7.1.
func (s *Service) Delete(ctx context.Context, p DeleteParams) (Response, error) {
	if err := s.mayFind(ctx, access.Delete, p.ResourceType, p.ID); err != nil {
		return Response{}, err
	}
	w := &store.Write{Method: fhir.DELETE, ResourceType: p.ResourceType, ID: p.ID}
	if err := s.GuardWrite(ctx, w); err != nil {
		return Response{}, err
	}
	if err := p.read(w); err != nil {
		return Response{}, err
	}
	if p.ID == "" {
		return s.deleteByCriteria(ctx, p, w)
	}
	if !fhir.ValidID(p.ID) {
		if w.IfExists || len(w.IfMatch) > 0 {
			return Response{}, outcome.Precondition(outcome.CodeConflict, "%s/%s does not exist, and If-Match asks that it does", p.ResourceType, outcome.Clip(p.ID))
		}
		return Response{Status: http.StatusNoContent}, nil
	}
	if err := s.runWrite(ctx, w); err != nil {
		return Response{}, err
	}
	if w.Result.VersionID == 0 {
		if err := s.checkDeletable(ctx, p.ResourceType, p.ID); err != nil {
			return Response{}, err
		}
	}
	return deletedResponse(w), nil
}

// checkDeletable fails with not-supported, 405, for a Definition in whose place nothing was ever stored: it would be
// there after its delete.
func (s *Service) checkDeletable(ctx context.Context, typ, id string) error {
	if s.Definition == nil {
		return nil
	}
	if _, ok, err := s.Definition(typ, id); err != nil || !ok {
		return err
	}
	if _, err := s.Store.Read(ctx, typ, id); !outcome.Is(err, outcome.CodeNotFound) {
		return nil
	}
	return outcome.MethodNotAllowed("%s/%s is a built-in definition, and cannot be deleted; a resource stored under its id replaces it", typ, id)
}

func (s *Service) deleteByCriteria(ctx context.Context, p DeleteParams, w *store.Write) (Response, error) {
	c, err := s.parseCondition(ctx, p.ResourceType, p.Criteria, "a conditional delete")
	if err != nil {
		return Response{}, err
	}
	var answer Response
	err = s.Store.InTx(ctx, func(tx *store.Tx) error {
		answer = Response{Status: http.StatusNoContent}
		match, err := c.findOneLocked(ctx, tx)
		if err != nil || match == nil {
			return err
		}
		w.ID = match.ID
		if err := tx.Write(ctx, []*store.Write{w}); err != nil {
			return unwrapWrite(err)
		}
		answer = deletedResponse(w)
		return nil
	})
	return answer, err
}

// deletedResponse is the answer to a delete: 204 with the version that marks it.
func deletedResponse(w *store.Write) Response {
	if w.Result.VersionID == 0 {
		return Response{Status: http.StatusNoContent}
	}
	return Response{Status: http.StatusNoContent, Version: w.Result}
}

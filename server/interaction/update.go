package interaction

import (
	"context"
	"net/http"

	"kiln/server/fhir"
	"kiln/server/outcome"
	"kiln/server/store"
)

// UpdateParams are the inputs of an update.
type UpdateParams struct {
	ResourceType string
	ID           string // "" for a conditional update
	// Criteria is the search of a conditional update, without `?`.
	Criteria string
	Body     []byte // must not change until Update returns
	BaseURL  string // as of CreateParams
	Preconditions
}

// Update stores a new version of a resource, and creates the resource where
// there is none. It fails with conflict (409) when IfMatch names another version
// and with a failed precondition (412) when there is none to match.
//
// With Criteria, one match is updated; no match is created, under the body's id
// if it has one; several are multiple-matches, 412.
// Spec: https://hl7.org/fhir/R4/http.html#update, #cond-update.
func (s *Service) Update(ctx context.Context, p UpdateParams) (Response, error) {
	if err := s.mayUpdate(ctx, p.ResourceType, p.ID); err != nil {
		return Response{}, err
	}
	r, err := s.decode(ctx, p.ResourceType, p.Body)
	if err != nil {
		return Response{}, err
	}
	return s.update(ctx, p, r)
}

func (s *Service) update(ctx context.Context, p UpdateParams, r fhir.Resource) (Response, error) {
	answer, err := s.updateChecked(ctx, p, r)
	return s.hideUnreadable(ctx, answer, err)
}

// updateChecked is update without checking whether the client may read the answer.
func (s *Service) updateChecked(ctx context.Context, p UpdateParams, r fhir.Resource) (Response, error) {
	if err := s.mayUpdate(ctx, p.ResourceType, p.ID); err != nil {
		return Response{}, err
	}
	w := &store.Write{Method: fhir.PUT, ResourceType: p.ResourceType, ID: p.ID, MustExist: s.now().RefuseUpdateCreate}
	if err := s.GuardWrite(ctx, w); err != nil {
		return Response{}, err
	}
	if err := p.read(w); err != nil {
		return Response{}, err
	}
	r, err := s.markLoaded(r)
	if err != nil {
		return Response{}, err
	}
	if p.ID == "" {
		return s.updateByCriteria(ctx, p, w, r)
	}
	if err := checkID(p.ID); err != nil {
		return Response{}, err
	}
	if err := checkBodyID(r, p.ID); err != nil {
		return Response{}, err
	}
	if err := s.RefuseConditionalReferences(r, p.BaseURL); err != nil {
		return Response{}, err
	}
	if err := s.validate(ctx, r); err != nil {
		return Response{}, err
	}
	if err := s.draftWrite(w, r, nil); err != nil {
		return Response{}, err
	}
	if err := s.runWrite(ctx, w); err != nil {
		return Response{}, s.updateCreateError(w, err)
	}
	return madeResponse(w.Result, w.Created), nil
}

// updateCreateError turns "does not exist" into 405 if update must not create. A missing
// target of a reference is another error, with another status.
func (s *Service) updateCreateError(w *store.Write, err error) error {
	o, ok := outcome.From(err)
	if ok && w.Method == fhir.PUT && w.MustExist && (o.HTTPStatus() == http.StatusNotFound || o.HTTPStatus() == http.StatusGone) {
		return outcome.MethodNotAllowed("%s/%s does not exist and this server chooses the ids of new resources (fhir.update_create is off): POST to %s instead",
			w.ResourceType, w.ID, w.ResourceType)
	}
	return err
}

func (s *Service) updateByCriteria(ctx context.Context, p UpdateParams, w *store.Write, r fhir.Resource) (Response, error) {
	c, err := s.parseCondition(ctx, p.ResourceType, p.Criteria, "a conditional update")
	if err != nil {
		return Response{}, err
	}
	if err := s.RefuseConditionalReferences(r, p.BaseURL); err != nil {
		return Response{}, err
	}
	if err := s.validate(ctx, r); err != nil {
		return Response{}, err
	}
	own := r.Header().ID
	err = s.Store.InTx(ctx, func(tx *store.Tx) error {
		r.Header().ID = own // the client's, should this be another try
		if err := s.resolveUpdate(ctx, tx, c, w, r); err != nil {
			return err
		}
		if err := s.draftWrite(w, r, nil); err != nil {
			return err
		}
		return unwrapWrite(tx.Write(ctx, []*store.Write{w}))
	})
	if err != nil {
		return Response{}, s.updateCreateError(w, err)
	}
	return madeResponse(w.Result, w.Created), nil
}

// resolveUpdate decides which resource a conditional update is about, under the
// lock of its condition.
func (s *Service) resolveUpdate(ctx context.Context, tx *store.Tx, c *condition, w *store.Write, r fhir.Resource) error {
	match, err := c.findOneLocked(ctx, tx)
	if err != nil {
		return err
	}
	own := r.Header().ID.Text
	w.MustExist = s.now().RefuseUpdateCreate
	switch {
	case match != nil && own != "" && own != match.ID:
		return outcome.Invalid("the body has the id %q, the search of the conditional update matches %s/%s", outcome.Clip(own), match.ResourceType, match.ID).
			At(w.ResourceType + ".id")
	case match != nil:
		w.ID = match.ID
	case own != "":
		// The body names a resource that the criteria do not match. If it is
		// there, the client's picture of it is wrong.
		seen, err := s.VisibleReader(ctx, tx)
		if err != nil {
			return err
		}
		if _, err := seen.Read(ctx, w.ResourceType, own); err == nil {
			return outcome.New(outcome.CodeConflict, "no resource matches %s, yet %s/%s, which the body names, exists", c, w.ResourceType, own)
		}
		w.ID = own
	default:
		// The server chooses the id: it is a create.
		// Spec: https://hl7.org/fhir/R4/http.html#cond-update ("No matches, no id provided").
		w.ID, w.MustExist = s.NewID(), false
	}
	return nil
}

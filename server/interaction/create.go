package interaction

import (
	"context"
	"strings"

	"kiln/server/access"
	"kiln/server/fhir"
	"kiln/server/store"
)

// CreateParams are the inputs of a create.
type CreateParams struct {
	ResourceType string
	Body         []byte // must not change until Create returns
	// IfNoneExist is the search of a conditional create; `?` or `Patient?` may
	// stand before it. "" is for a plain one.
	IfNoneExist string
}

// Create stores a new resource under an id of the service's choice; an id in the
// body is ignored. With IfNoneExist, one match is answered with 200 and that
// resource, several are multiple-matches, 412.
// Spec: https://hl7.org/fhir/R4/http.html#create, #ccreate.
func (s *Service) Create(ctx context.Context, p CreateParams) (Response, error) {
	if err := s.may(ctx, access.Create, p.ResourceType, ""); err != nil {
		return Response{}, err
	}
	r, err := s.decode(p.ResourceType, p.Body)
	if err != nil {
		return Response{}, err
	}
	return s.create(ctx, p, r)
}

func (s *Service) create(ctx context.Context, p CreateParams, r fhir.Resource) (Response, error) {
	if err := s.validate(ctx, r); err != nil {
		return Response{}, err
	}
	w := &store.Write{Method: fhir.POST, ResourceType: p.ResourceType, ID: s.NewID()}
	if err := s.draft(w, r, nil); err != nil {
		return Response{}, err
	}
	if p.IfNoneExist != "" {
		return s.createIfNoneExist(ctx, p, w)
	}
	if err := s.write(ctx, w); err != nil {
		return Response{}, err
	}
	return made(w.Result, true), nil
}

func (s *Service) createIfNoneExist(ctx context.Context, p CreateParams, w *store.Write) (Response, error) {
	c, err := s.condition(ctx, p.ResourceType, criteria(p.ResourceType, p.IfNoneExist), "If-None-Exist")
	if err != nil {
		return Response{}, err
	}
	var answer Response
	err = s.Store.InTx(ctx, func(tx *store.Tx) error {
		match, err := c.one(ctx, tx)
		switch {
		case err != nil:
			return err
		case match != nil:
			answer = existing(*match)
			return nil
		}
		if err := tx.Write(ctx, []*store.Write{w}); err != nil {
			return unwrapWrite(err)
		}
		answer = made(w.Result, true)
		return nil
	})
	return answer, err
}

// criteria is the search in the text of an If-None-Exist on typ: people write it
// with and without the URL that it belongs to.
func criteria(typ, text string) string {
	return strings.TrimPrefix(strings.TrimPrefix(strings.TrimPrefix(text, "/"), typ+"?"), "?")
}

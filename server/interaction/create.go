package interaction

import (
	"context"
	"maps"
	"slices"
	"strings"

	"kiln/server/access"
	"kiln/server/fhir"
	"kiln/server/outcome"
	"kiln/server/store"
)

// CreateParams are the inputs of a create.
type CreateParams struct {
	ResourceType string
	Body         []byte // must not change until Create returns
	// IfNoneExist is the search of a conditional create; `?`, `Patient?` or that
	// below the service's base URL may stand before it. "" is for a plain one.
	IfNoneExist string
	// BaseURL is the service's base URL as the client sees it, without a trailing slash; ""
	// uses the Service's own.
	BaseURL string
}

// Create stores a new resource under an id of the service's choice; an id in the
// body is ignored. With IfNoneExist, one match is answered with 200 and that
// resource, several are multiple-matches, 412.
// Spec: https://hl7.org/fhir/R4/http.html#create, #ccreate.
func (s *Service) Create(ctx context.Context, p CreateParams) (Response, error) {
	if err := s.checkAllowed(ctx, access.Create, p.ResourceType, ""); err != nil {
		return Response{}, err
	}
	r, err := s.decode(ctx, p.ResourceType, p.Body)
	if err != nil {
		return Response{}, err
	}
	return s.create(ctx, p, r)
}

func (s *Service) create(ctx context.Context, p CreateParams, r fhir.Resource) (Response, error) {
	answer, err := s.createChecked(ctx, p, r)
	return s.hideUnreadable(ctx, answer, err)
}

// createChecked is create without checking whether the client may read the answer.
func (s *Service) createChecked(ctx context.Context, p CreateParams, r fhir.Resource) (Response, error) {
	if err := s.checkAllowed(ctx, access.Create, p.ResourceType, ""); err != nil {
		return Response{}, err
	}
	if err := s.RefuseConditionalReferences(r, p.BaseURL); err != nil {
		return Response{}, err
	}
	if err := refuseImitation(r); err != nil {
		return Response{}, err
	}
	if err := s.validate(ctx, r); err != nil {
		return Response{}, err
	}
	w := &store.Write{Method: fhir.POST, ResourceType: p.ResourceType, ID: s.NewID()}
	if err := s.GuardWrite(ctx, w); err != nil {
		return Response{}, err
	}
	if err := s.draftWrite(w, r, nil); err != nil {
		return Response{}, err
	}
	if p.IfNoneExist != "" {
		return s.createIfNoneExist(ctx, p, w)
	}
	if err := s.runWrite(ctx, w); err != nil {
		return Response{}, locateCreate(err, w)
	}
	return madeResponse(w.Result, true), nil
}

// locateCreate adds the place of a resource to the error of a create that may have stored it.
func locateCreate(err error, w *store.Write) error {
	if e, ok := outcome.From(err); ok && e.Issues[0].Code == outcome.CodeTimeout {
		e = e.With(err)
		e.Location = Location(fhir.Version{ResourceType: w.ResourceType, ID: w.ID, VersionID: 1})
		return e
	}
	return err
}

// NoCreateQuery refuses a query on the URL of a create: a condition stands in
// If-None-Exist, and would be ignored here, so that a second resource were made.
// Parameters about the answer (_format, _pretty, _summary, _elements) are allowed. Spec: https://hl7.org/fhir/R4/http.html#ccreate.
func NoCreateQuery(query string) error {
	if query == "" {
		return nil
	}
	values, err := ParseQuery(query)
	if err != nil {
		return err
	}
	for _, name := range slices.Sorted(maps.Keys(values)) {
		switch name {
		case "_format", "_pretty", "_summary", "_elements":
		default:
			return outcome.Invalid("a create has no parameter %q; the search of a conditional create stands in If-None-Exist, a search by POST goes to _search", outcome.Clip(name))
		}
	}
	return nil
}

func (s *Service) createIfNoneExist(ctx context.Context, p CreateParams, w *store.Write) (Response, error) {
	c, err := s.parseCondition(ctx, p.ResourceType, s.relativeCriteria(p.BaseURL, p.ResourceType, p.IfNoneExist), "If-None-Exist")
	if err != nil {
		return Response{}, err
	}
	var answer Response
	err = s.Store.InTx(ctx, func(tx *store.Tx) error {
		match, err := c.findOneLocked(ctx, tx)
		switch {
		case err != nil:
			return err
		case match != nil:
			answer = existingResponse(*match)
			return nil
		}
		if err := tx.Write(ctx, []*store.Write{w}); err != nil {
			return unwrapWrite(err)
		}
		answer = madeResponse(w.Result, true)
		return nil
	})
	return answer, locateCreate(err, w)
}

// relativeCriteria is the search in the text of an If-None-Exist on typ: people write it
// with and without the URL that it belongs to. base is as for CreateParams.BaseURL.
func (s *Service) relativeCriteria(base, typ, text string) string {
	text = s.relativeReference(base, text)
	return strings.TrimPrefix(strings.TrimPrefix(strings.TrimPrefix(text, "/"), typ+"?"), "?")
}

// relativeReference returns text without the base URL of this service, or text itself if it has
// none. base is the base URL of the request, or "": the service answers with and without
// /fhir.
func (s *Service) relativeReference(base, text string) string {
	if !strings.HasPrefix(text, "http") {
		return text
	}
	below := func(base string) bool {
		rest, ok := strings.CutPrefix(text, base)
		if ok = ok && base != "" && (rest == "" || rest[0] == '/'); ok {
			text = strings.TrimPrefix(rest, "/")
		}
		return ok
	}
	if slices.ContainsFunc(s.BaseURLs, below) {
		return text
	}
	base = strings.TrimSuffix(base, "/fhir")
	_ = below(base+"/fhir") || below(base)
	return text
}

package interaction

import (
	"context"
	"net/http"
	"slices"
	"strings"

	"kiln/oauth/smart"
	"kiln/server/fhir"
	"kiln/server/outcome"
	"kiln/server/search"
	"kiln/server/search/match"
)

// Definition is a definition that is there without being stored: one that the server is
// built with, or that of an App's operation.
type Definition struct {
	ID        string
	Body      []byte // JSON
	Condensed bool   // something is left out of it: it is marked so
}

// version is a definition as a resource without versions.
func (s *Service) definitionVersion(typ string, d Definition) fhir.Version {
	body := d.Body
	if d.Condensed {
		body = reduce(s.Model.Resources[typ].Type(), body, func(_ *fhir.Field, _ string, value []byte) []byte { return value })
	}
	return fhir.Version{ResourceType: typ, ID: d.ID, Body: body}
}

// builtIn answers a read of what is not stored but is a Definition:
// StructureDefinition/Patient. It fails with missing, the reason why the read does,
// where there is none.
func (s *Service) builtIn(ctx context.Context, p ReadParams, missing error) (Response, error) {
	if s.Definition == nil {
		return Response{}, missing
	}
	d, ok, err := s.Definition(p.ResourceType, p.ID)
	if err != nil {
		return Response{}, err
	}
	if !ok {
		return Response{}, missing
	}
	d.ID = p.ID
	if ok, err := s.seesDefinition(ctx, smart.Read, p.ResourceType, d); err != nil {
		return Response{}, err
	} else if !ok {
		return Response{}, missing
	}
	return Response{Status: http.StatusOK, Version: s.definitionVersion(p.ResourceType, d)}, nil
}

// seesDefinition reports whether the request may have a Definition.
func (s *Service) seesDefinition(ctx context.Context, permission smart.Permissions, typ string, d Definition) (bool, error) {
	rights, err := s.Access.Rights(ctx)
	if err != nil || rights == nil {
		return err == nil, err
	}
	c, err := rights.Condition(permission, typ)
	if err != nil {
		return false, err
	}
	return s.holds(c, fhir.Version{ResourceType: typ, ID: d.ID, Body: d.Body})
}

// addDefinition adds the Definition of a canonical URL to the answer of a search by that
// URL which nothing stored matches: so a client finds what the links of the capability
// statement name. urls are the values of the parameter url.
func (s *Service) addDefinition(ctx context.Context, from Reader, q *search.Query, urls []string, r *Response) error {
	switch {
	case s.Resolve == nil || q.Type == "" || len(urls) != 1 || strings.ContainsAny(urls[0], `,\`):
		return nil
	case q.Cursor != nil || q.Offset > 0 || len(r.found.Matches) > 0 || q.Count == 0 && r.Bundle.Total != 0:
		return nil
	}
	d, ok, err := s.Resolve(q.Type, urls[0])
	if err != nil || !ok {
		return err
	}
	if _, err := from.Read(ctx, q.Type, d.ID); !outcome.Is(err, outcome.CodeNotFound) {
		if outcome.Is(err, outcome.CodeDeleted) {
			err = nil
		}
		return err // another resource has, or had, its id
	}
	if ok, err := s.seesDefinition(ctx, smart.Search, q.Type, d); err != nil || !ok {
		return err
	}
	resource, err := fhir.Decode(s.Model, d.Body)
	if err != nil {
		return err
	}
	x, err := s.Parameters.Index(d.ID, resource)
	if x == nil {
		return err
	}
	defer s.Parameters.Recycle(x)
	if yes, ask := match.Hold(q.Clauses, &match.Resource{Type: q.Type, ID: d.ID, Index: x}); !yes || len(ask) > 0 {
		return nil
	}
	if r.Bundle.Total >= 0 {
		r.Bundle.Total = 1
	}
	if q.Count > 0 {
		v := s.reducer(q.Summary, q.Elements)(s.definitionVersion(q.Type, d))
		r.Bundle.Entries = slices.Insert(r.Bundle.Entries, 0, Entry{Version: v, Mode: "match"})
	}
	return nil
}

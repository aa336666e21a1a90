package interaction

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"

	"kiln/server/fhir"
	"kiln/server/outcome"
	"kiln/server/search"
	"kiln/server/search/match"
	"kiln/server/smart"
)

// Definition is a definition that is served without being stored: a built-in one, or the
// OperationDefinition of an App.
type Definition struct {
	ID        string
	Body      []byte // JSON
	Condensed bool   // something is left out of it: it is marked so
}

// builtInIndexes are the index entries of the built-in definitions, cached for the next
// search of their type. Safe for concurrent use; the zero value is empty.
type builtInIndexes struct {
	mu     sync.Mutex
	byType map[string]builtInIndex
}

type builtInIndex struct {
	params    []*fhir.Parameter // that it was made with
	resources []*match.Resource
}

// builtIns are the definitions of a type that the server is built with, as they are judged.
func (s *Service) builtIns(reg *search.Registry, typ string) ([]*match.Resource, error) {
	x := &s.builtInIndexes
	x.mu.Lock()
	defer x.mu.Unlock()
	params := reg.Parameters(typ)
	if known, ok := x.byType[typ]; ok && slices.Equal(known.params, params) {
		return known.resources, nil
	}
	var list []*match.Resource
	if err := s.BuiltIn(typ, func(id string, body []byte) error {
		resource, err := fhir.Decode(s.Model, body)
		if err != nil {
			return fmt.Errorf("definition %s/%s: %w", typ, id, err)
		}
		index, err := s.Parameters.Index(id, resource)
		if index == nil {
			return err
		}
		list = append(list, &match.Resource{Type: typ, ID: id, Index: index})
		return nil
	}); err != nil {
		return nil, err
	}
	if x.byType == nil {
		x.byType = make(map[string]builtInIndex)
	}
	x.byType[typ] = builtInIndex{params: params, resources: list}
	return list, nil
}

// warnOfBuiltIn tells the number of built-in definitions that match q: a search of their types
// lists stored resources, and a built-in one only for a search by its canonical URL
// (addDefinition).
func (s *Service) warnOfBuiltIn(ctx context.Context, from searcher, reg *search.Registry, q *search.Query) ([]outcome.Issue, error) {
	if s.BuiltIn == nil || q.Cursor != nil || q.Offset > 0 {
		return nil, nil
	}
	var refs []int64
	example := ""
	for _, typ := range q.Types {
		list, err := s.builtIns(reg, typ)
		if err != nil {
			return nil, err
		}
		if len(list) == 0 {
			continue
		}
		clauses := q.Clauses
		rights, err := s.Access.Rights(ctx)
		if err != nil {
			return nil, err
		}
		if rights != nil {
			c, err := rights.Condition(smart.Search, typ)
			if err != nil {
				return nil, err
			}
			if c.None() {
				continue
			}
			clauses = slices.Concat(clauses, c.Clauses())
		}
		for _, r := range list {
			if yes, ask := match.Hold(clauses, r); yes && len(ask) == 0 {
				refs = append(refs, int64(fhir.ValueReference(r.Type, r.ID)))
				if example == "" {
					example = r.Type + "/" + r.ID
				}
			}
		}
	}
	if len(refs) == 0 {
		return nil, nil
	}
	slices.Sort(refs)
	refs = slices.Compact(refs) // packages may have one definition twice
	// A stored resource replaces the built-in one of the same id.
	stored, err := from.Search(ctx, &search.Query{Type: q.Type, Types: q.Types, Total: search.TotalAccurate,
		Clauses: []match.Clause{{Name: "_id", Any: []match.Match{match.IDs{Refs: refs}}}}})
	if err != nil {
		return nil, err
	}
	n := len(refs) - *stored.Total
	if n <= 0 {
		return nil, nil
	}
	return []outcome.Issue{{Severity: outcome.Information, Code: outcome.CodeInformational,
		Diagnostics: fmt.Sprintf("a search lists stored resources; built-in definitions match too (%d), such as %s: read them by id, or search by url", n, example)}}, nil
}

// version is a definition as a resource without versions.
func (s *Service) definitionVersion(typ string, d Definition) fhir.Version {
	body := d.Body
	if d.Condensed {
		body = reduceBody(s.Model.Resources[typ].Type(), body, func(_ *fhir.Field, _ string, value []byte) []byte { return value })
	}
	return fhir.Version{ResourceType: typ, ID: d.ID, Body: body}
}

// builtIn answers a read of a Definition that is not stored, such as
// StructureDefinition/Patient. If there is none, it fails with missing, the error of the
// read.
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

// oneURL reports whether the values of the parameter url name one definition.
func oneURL(urls []string) bool { return len(urls) == 1 && !strings.ContainsAny(urls[0], `,\`) }

// addDefinition adds the Definition of a canonical URL to the answer of a search by that
// URL without stored matches: so a client finds the resources that the CapabilityStatement
// links to. urls are the values of the parameter url.
func (s *Service) addDefinition(ctx context.Context, from Reader, q *search.Query, urls []string, r *Response) error {
	switch {
	case s.Resolve == nil || !oneURL(urls):
		return nil
	case q.Cursor != nil || q.Offset > 0 || len(r.found.Matches) > 0 || q.Count == 0 && r.Bundle.Total != 0:
		return nil
	}
	for _, typ := range q.Types {
		d, ok, err := s.Resolve(typ, urls[0])
		if err != nil {
			return err
		}
		if ok {
			return s.addOne(ctx, from, q, typ, d, r)
		}
	}
	return nil
}

// addOne adds a Definition of a type, where it matches and nothing is stored in its place.
func (s *Service) addOne(ctx context.Context, from Reader, q *search.Query, typ string, d Definition, r *Response) error {
	if _, err := from.Read(ctx, typ, d.ID); !outcome.Is(err, outcome.CodeNotFound) {
		if outcome.Is(err, outcome.CodeDeleted) {
			err = nil
		}
		return err // another resource has, or had, its id
	}
	if ok, err := s.seesDefinition(ctx, smart.Search, typ, d); err != nil || !ok {
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
	if yes, ask := match.Hold(q.Clauses, &match.Resource{Type: typ, ID: d.ID, Index: x}); !yes || len(ask) > 0 {
		return nil
	}
	if r.Bundle.Total >= 0 {
		r.Bundle.Total = 1
	}
	if q.Count > 0 {
		v := s.newReducer(q.Summary, q.Elements)(s.definitionVersion(typ, d))
		r.Bundle.Entries = slices.Insert(r.Bundle.Entries, 0, Entry{Version: v, Mode: "match"})
	}
	return nil
}

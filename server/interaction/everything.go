package interaction

import (
	"context"
	"net/http"
	"net/url"
	"slices"
	"strings"

	"kiln/server/access"
	"kiln/server/fhir"
	"kiln/server/outcome"
	"kiln/server/search"
)

// everythingCount is the size of a page of $everything: most records are one.
const everythingCount = 1000

// EverythingParams are the inputs of $everything.
type EverythingParams struct {
	ResourceType, ID string     // Patient or Encounter
	Values           url.Values // _since, _type, _count, and _offset, _cursor of a page
}

// Everything returns the resources of a compartment, the one it is named after
// included, and what these refer to.
// Spec: https://hl7.org/fhir/R4/operation-patient-everything.html.
func (s *Service) Everything(ctx context.Context, p EverythingParams) (Response, error) {
	return s.everything(ctx, s.Store, p)
}

func (s *Service) everything(ctx context.Context, from reader, p EverythingParams) (Response, error) {
	if err := s.may(ctx, access.Read, p.ResourceType, p.ID); err != nil {
		return Response{}, err
	}
	if !fhir.ValidID(p.ID) {
		return Response{}, outcome.NotFound(p.ResourceType, clip(p.ID))
	}
	if _, err := from.Read(ctx, p.ResourceType, p.ID); err != nil {
		return Response{}, err
	}
	def, ok := s.Registry().Compartment(p.ResourceType)
	if !ok {
		return Response{}, outcome.NotSupported("$everything is served for Patient and Encounter")
	}

	// 1. The search that it is.
	types := compartmentTypes(def)
	if !slices.Contains(types, p.ResourceType) {
		types = append(types, p.ResourceType)
	}
	values := url.Values{"_count": {"1000"}}
	kept := url.Values{}
	for name, v := range p.Values {
		last := v[len(v)-1]
		switch name {
		case "_since":
			if _, err := instant(name, last); err != nil {
				return Response{}, err
			}
			values.Set("_lastUpdated", "ge"+last)
		case "_type":
			asked := strings.Split(strings.Join(v, ","), ",")
			for _, t := range asked {
				if s.Model.Resources[t] == nil {
					return Response{}, outcome.Invalid("_type names %q, which is no resource type", clip(t))
				}
			}
			types = slices.DeleteFunc(types, func(t string) bool { return !slices.Contains(asked, t) })
		case "_count", "_offset", "_cursor":
			values.Set(name, last)
		case "_format", "_pretty":
			continue
		default:
			return Response{}, outcome.NotSupported("$everything has no parameter %q; it has _since, _type and _count", clip(name)).
				WithStatus(http.StatusBadRequest)
		}
		if name != "_offset" && name != "_cursor" {
			kept[name] = v
		}
	}
	path := p.ResourceType + "/" + p.ID + "/$everything"
	if len(types) == 0 {
		return Response{Status: http.StatusOK, Bundle: &Bundle{Type: "searchset", Links: []Link{{"self", withQuery(path, kept)}}}}, nil
	}
	values.Set("_type", strings.Join(types, ","))
	if _, only := p.Values["_type"]; !only {
		values.Set("_include", "*")
	}
	options := s.searchOptions(ctx, false, nil)
	options.MaxCount = everythingCount
	q, err := search.Parse(s.Registry(), "", values, options)
	if err != nil {
		return Response{}, err
	}
	q.And(search.InCompartment(types, p.ResourceType, p.ID))

	// 2. Its result, with links of its own.
	return s.page(ctx, from, q, func(offset int, cursor string) string {
		v := url.Values{}
		for name, value := range kept {
			v[name] = value
		}
		for _, name := range []string{"_offset", "_cursor"} {
			if value := q.PageValues(offset, cursor).Get(name); value != "" {
				v.Set(name, value)
			}
		}
		return withQuery(path, v)
	})
}

package interaction

import (
	"context"
	"strings"

	"kiln/server/fhir"
	"kiln/server/outcome"
	"kiln/server/search"
	"kiln/server/store"
	"kiln/server/terminology"
)

// newExpander answers the terminology modifiers of one search.
func (s *Service) newExpander(ctx context.Context, warnings *[]outcome.Issue) func(search.Expansion) (search.Codes, error) {
	return func(e search.Expansion) (search.Codes, error) {
		if id, ok := s.localValueSet(e.ValueSet); ok {
			var err error
			if e.ValueSet, err = s.canonicalOf(ctx, id); err != nil {
				return search.Codes{}, err
			}
		}
		codes, texts, err := s.Terminology.SearchCodes(ctx, e)
		if err == nil && codes.Set != 0 && isOnReplica(ctx) { // the primary has it already, and the standby perhaps not
			return search.Codes{}, store.ErrUsePrimary()
		}
		for _, w := range texts {
			if warnings != nil {
				*warnings = append(*warnings, outcome.Issue{Severity: outcome.Warning, Code: outcome.CodeInformational, Diagnostics: w})
			}
		}
		return codes, err
	}
}

// localValueSet returns the id of a value set that is named as a resource of this
// server, "ValueSet/123", and not by its canonical URL.
func (s *Service) localValueSet(uri string) (id string, ok bool) {
	for _, base := range s.BaseURLs {
		if rest, ok := strings.CutPrefix(uri, base+"/"); ok {
			uri = rest
			break
		}
	}
	id, ok = strings.CutPrefix(uri, "ValueSet/")
	return id, ok && fhir.ValidID(id)
}

// canonicalOf returns the canonical URL of a value set of this server.
func (s *Service) canonicalOf(ctx context.Context, id string) (string, error) {
	body, err := s.StoredOrBuiltIn(ctx, "ValueSet", id)
	if err != nil {
		return "", err
	}
	vs, err := terminology.ParseValueSet(body)
	if err != nil || vs.URL == "" {
		return "", outcome.UnprocessableContent(outcome.CodeInvalid, "ValueSet/%s has no url, by which a search could use it", id)
	}
	if vs.Version != "" {
		return vs.URL + "|" + vs.Version, nil
	}
	return vs.URL, nil
}

// StoredOrBuiltIn returns the JSON of the resource that an operation on an instance
// is about: the stored one, or else the one of the packages.
func (s *Service) StoredOrBuiltIn(ctx context.Context, typ, id string) ([]byte, error) {
	if !fhir.ValidID(id) {
		return nil, outcome.NotFound(typ, outcome.Clip(id))
	}
	v, err := s.Store.ReadFact(ctx, typ, id)
	if err == nil {
		return v.Body, nil
	}
	if e, ok := outcome.From(err); ok && e.Issues[0].Code == outcome.CodeNotFound {
		body, ok, failed := s.Terminology.Definition(typ, id)
		if ok || failed != nil {
			return body, failed
		}
	}
	return nil, err
}

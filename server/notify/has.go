package notify

import (
	"context"
	"slices"

	"kiln/server/fhir"
	"kiln/server/search"
	"kiln/server/search/match"
)

// has is about what refers to a resource.
type has struct{ match.Has }

func (m has) clauses() []match.Clause { return m.Clauses }

func (m has) want(x *related, ref int64, _ *match.Resource) {
	src := x.sourcesOf(m.Has)
	if _, ok := src.of[ref]; !ok && !src.many[ref] {
		src.wanted[ref] = struct{}{}
	}
}

func (m has) found(x *related, ref int64, _ *match.Resource) (list []*match.Resource, ok bool) {
	src := x.sourcesOf(m.Has)
	return src.of[ref], !src.many[ref]
}

func (m has) asked(ctx context.Context, s *Service, ref int64, _ *match.Resource) (bool, error) {
	q := &search.Query{Type: m.Source, Types: []string{m.Source}, Count: 1, Total: search.TotalNone,
		Clauses: append(slices.Clip(m.Clauses), match.Clause{Name: "_has", Any: []match.Match{match.TermsOf(m.Keys, fhir.Value(ref))}})}
	result, err := s.Store.Search(ctx, q)
	return err == nil && len(result.Matches) > 0, err
}

// sourcesOf are the sources that a _has is about.
func (x *related) sourcesOf(m match.Has) *sources {
	name := []byte(m.Source)
	for _, key := range m.Keys {
		name = append(name, '\n')
		for shift := 0; shift < 64; shift += 8 {
			name = append(name, byte(uint64(key)>>shift))
		}
	}
	src := x.sources[string(name)]
	if src == nil {
		src = &sources{has: m, of: make(map[int64][]*match.Resource), many: make(map[int64]bool), wanted: make(map[int64]struct{})}
		x.sources[string(name)] = src
	}
	return src
}

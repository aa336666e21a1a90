package notify

import (
	"context"
	"slices"
	"strings"

	"kiln/server/fhir"
	"kiln/server/search"
	"kiln/server/search/match"
)

// chain is about what a resource refers to. One along canonical URLs is left to the
// database.
type chain struct{ match.Chain }

func (m chain) clauses() []match.Clause { return m.Clauses }

// types are the resource types that the chain leads to.
func (m chain) types() []string { return strings.Split(m.Target, "|") }

// refs are the targets that r refers to under the keys of the chain.
func (m chain) refs(r *match.Resource) []int64 {
	var list []int64
	for _, target := range r.Index.Targets {
		if slices.ContainsFunc(m.Keys, func(k fhir.Key) bool { return hasTerm(r, k.Term(fhir.Value(target))) }) {
			list = append(list, target)
		}
	}
	return list
}

func (m chain) want(x *related, _ int64, r *match.Resource) {
	if m.CanonicalKeys != nil {
		return
	}
	for _, target := range m.refs(r) {
		if _, ok := x.targets[target]; !ok {
			x.wanted[target] = struct{}{}
		}
	}
}

func (m chain) found(x *related, _ int64, r *match.Resource) (list []*match.Resource, ok bool) {
	if m.CanonicalKeys != nil {
		return nil, false
	}
	for _, target := range m.refs(r) {
		if t := x.targets[target]; t != nil && slices.Contains(m.types(), t.Type) {
			list = append(list, t)
		}
	}
	return list, true
}

func (m chain) asked(ctx context.Context, s *Service, _ int64, r *match.Resource) (bool, error) {
	refs := m.refs(r)
	if len(refs) == 0 {
		return false, nil
	}
	q := &search.Query{Types: m.types(), Count: 1, Total: search.TotalNone,
		Clauses: append(slices.Clip(m.Clauses), match.Clause{Name: "_id", Any: []match.Match{match.IDs{Refs: refs}}})}
	if len(q.Types) == 1 {
		q.Type = q.Types[0]
	}
	result, err := s.Store.Search(ctx, q)
	return err == nil && len(result.Matches) > 0, err
}

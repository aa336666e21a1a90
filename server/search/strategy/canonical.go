package strategy

import (
	"context"
	"slices"

	"kiln/server/fhir"
	"kiln/server/search"
	"kiln/server/search/match"
	"kiln/server/search/plan"
)

// A canonical is a URL, and which resource it names is known by that resource's
// url: what `_include` and `_revinclude` follow stands in the resources, whose
// bodies the page has.

// includeCanonicals adds the includes along canonical URLs, from or to the resources of a round. It returns false if add
// does.
// Spec: https://hl7.org/fhir/R4/search.html#include, references.html#canonical.
func (x *searching) includeCanonicals(ctx context.Context, round []fhir.Version, seen []int64, iterate bool, limit int, add func(rows []row, cut bool) bool) (more bool, err error) {
	for _, in := range x.plan.Canonicals(false, iterate) {
		var named []string
		for _, v := range round {
			some, err := x.s.canonicalsOf(v, in.Keys)
			if err != nil {
				return false, err
			}
			named = append(named, some...)
		}
		st, ok := x.plan.ByCanonical(in, named, seen, limit)
		if !ok {
			continue
		}
		rows, cut, err := x.those(ctx, st, limit, func(v fhir.Version) (bool, error) {
			url, version, err := x.s.canonicalOf(v)
			return slices.ContainsFunc(named, func(c string) bool { return plan.SameCanonical(c, url, version) }), err
		})
		if err != nil || !add(rows, cut) {
			return false, err
		}
	}
	for _, in := range x.plan.Canonicals(true, iterate) {
		var urls, versions []string
		for _, v := range round {
			if !slices.ContainsFunc(in.Canonicals, func(c search.Canonical) bool { return c.Type == v.ResourceType }) {
				continue
			}
			url, version, err := x.s.canonicalOf(v)
			if err != nil {
				return false, err
			}
			if url != "" {
				urls, versions = append(urls, url), append(versions, version)
			}
		}
		st, ok := x.plan.ToCanonical(in, urls, seen, limit)
		if !ok {
			continue
		}
		rows, cut, err := x.those(ctx, st, limit, func(v fhir.Version) (bool, error) {
			named, err := x.s.canonicalsOf(v, in.Keys)
			return slices.ContainsFunc(named, func(c string) bool {
				for i := range urls {
					if plan.SameCanonical(c, urls[i], versions[i]) {
						return true
					}
				}
				return false
			}), err
		})
		if err != nil || !add(rows, cut) {
			return false, err
		}
	}
	return true, nil
}

// those are the rows of a statement for which ok holds; cut is true where the
// statement's limit may have kept some away.
func (x *searching) those(ctx context.Context, st match.Statement, limit int, ok func(fhir.Version) (bool, error)) (out []row, cut bool, err error) {
	rows, err := x.includedRows(ctx, st)
	if err != nil {
		return nil, false, err
	}
	for _, m := range rows {
		is, err := ok(m.v)
		if err != nil {
			return nil, false, err
		}
		if is {
			out = append(out, m)
		}
	}
	return out, len(rows) == limit, nil
}

// canonicalsOf are the canonicals that a resource has under keys.
func (s *Searcher) canonicalsOf(v fhir.Version, keys []fhir.Key) ([]string, error) {
	r, err := s.decode(v)
	if err != nil {
		return nil, err
	}
	by := &fhir.Sorter{Keys: keys, Every: true}
	if err := s.store.Resources().Sort(r, []*fhir.Sorter{by}); err != nil {
		return nil, err
	}
	return by.Values(), nil
}

// canonicalOf is the canonical URL of a resource with its version.
func (s *Searcher) canonicalOf(v fhir.Version) (url, version string, err error) {
	r, err := s.decode(v)
	if err != nil {
		return "", "", err
	}
	url, version = fhir.CanonicalOf(r)
	return url, version, nil
}

func (s *Searcher) decode(v fhir.Version) (fhir.Resource, error) {
	if s.store.Resources() == nil {
		return nil, errNoResources
	}
	return s.store.Resources().Decode(v.Body)
}

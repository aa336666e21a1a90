package strategy

import (
	"context"
	"slices"

	"kiln/server/fhir"
	"kiln/server/search"
	"kiln/server/search/match"
	"kiln/server/search/plan"
	"kiln/server/search/session"
)

// The index contains only hashes of canonical URLs. `_include` and `_revinclude` along a canonical read the URLs from the
// resources, whose bodies the page has.

// addCanonicals adds the includes along canonical URLs, from or to the resources of a round. It returns false after the last
// resource that fits.
// Spec: https://hl7.org/fhir/R4/search.html#include, references.html#canonical.
func (n *includer) addCanonicals(ctx context.Context, round []fhir.Version) (more bool, err error) {
	for _, in := range n.x.plan.ListCanonicals(false, n.iterate) {
		if more, err := n.addByCanonical(ctx, in, round); err != nil || !more {
			return false, err
		}
	}
	for _, in := range n.x.plan.ListCanonicals(true, n.iterate) {
		if more, err := n.addToCanonical(ctx, in, round); err != nil || !more {
			return false, err
		}
	}
	return true, nil
}

// addByCanonical adds the resources that the resources of a round name by canonical URL.
func (n *includer) addByCanonical(ctx context.Context, in search.Include, round []fhir.Version) (more bool, err error) {
	var named []string
	for _, v := range round {
		some, err := readCanonicals(n.x.store, v, in.Keys)
		if err != nil {
			return false, err
		}
		named = append(named, some...)
	}
	st, ok := n.x.plan.SelectByCanonical(in, named, n.seen, n.limit)
	if !ok {
		return true, nil
	}
	return n.addIf(ctx, st, func(v fhir.Version) (bool, error) {
		url, version, err := readOwnCanonical(n.x.store, v)
		return slices.ContainsFunc(named, func(c string) bool { return plan.MatchesCanonical(c, url, version) }), err
	})
}

// addToCanonical adds the resources that name resources of a round by canonical URL.
func (n *includer) addToCanonical(ctx context.Context, in search.Include, round []fhir.Version) (more bool, err error) {
	var urls, versions []string
	for _, v := range round {
		if !slices.ContainsFunc(in.Canonicals, func(c search.Canonical) bool { return c.Type == v.ResourceType }) {
			continue
		}
		url, version, err := readOwnCanonical(n.x.store, v)
		if err != nil {
			return false, err
		}
		if url != "" {
			urls, versions = append(urls, url), append(versions, version)
		}
	}
	st, ok := n.x.plan.SelectToCanonical(in, urls, n.seen, n.limit)
	if !ok {
		return true, nil
	}
	return n.addIf(ctx, st, func(v fhir.Version) (bool, error) {
		named, err := readCanonicals(n.x.store, v, in.Keys)
		return slices.ContainsFunc(named, func(c string) bool {
			for i := range urls {
				if plan.MatchesCanonical(c, urls[i], versions[i]) {
					return true
				}
			}
			return false
		}), err
	})
}

// addIf adds the resources of a statement for which ok returns true. It returns false after the last resource that fits.
func (n *includer) addIf(ctx context.Context, st match.Statement, ok func(fhir.Version) (bool, error)) (more bool, err error) {
	rows, err := n.x.session.ReadIncludes(ctx, st)
	if err != nil {
		return false, err
	}
	var out []session.Row
	for _, row := range rows {
		fits, err := ok(row.Version)
		if err != nil {
			return false, err
		}
		if fits {
			out = append(out, row)
		}
	}
	return n.addRows(out, len(rows) == n.limit), nil
}

// readCanonicals returns the canonicals that a resource contains under keys.
func readCanonicals(store Store, v fhir.Version, keys []fhir.Key) ([]string, error) {
	r, err := decodeVersion(store, v)
	if err != nil {
		return nil, err
	}
	by := &fhir.Sorter{Keys: keys, Every: true}
	if err := store.Resources().Sort(r, []*fhir.Sorter{by}); err != nil {
		return nil, err
	}
	return by.Values(), nil
}

// readOwnCanonical returns the canonical URL of a resource, and its version.
func readOwnCanonical(store Store, v fhir.Version) (url, version string, err error) {
	r, err := decodeVersion(store, v)
	if err != nil {
		return "", "", err
	}
	url, version = fhir.CanonicalOf(r)
	return url, version, nil
}

func decodeVersion(store Store, v fhir.Version) (fhir.Resource, error) {
	if store.Resources() == nil {
		return nil, errNoResources
	}
	return store.Resources().Decode(v.Body)
}

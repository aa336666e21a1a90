package message

import (
	"context"
	"net/url"
	"slices"
	"strings"
	"time"

	"kiln/gen/db"
	"kiln/server/access"
	"kiln/server/fhir"
	"kiln/server/notify/matching"
	"kiln/server/notify/subscription"
	"kiln/server/search"
	"kiln/server/search/match"
	"kiln/server/store"
)

// shaped are the resources that the topic's notification shape adds, as far as the principal
// of ctx may read them: those that the version of the event refers to, and those that refer to
// its resource.
func (s *Composer) shaped(ctx context.Context, c *subscription.Subscription, e *matching.Event) []fhir.Version {
	if len(c.Include) == 0 {
		return nil
	}
	values := url.Values{"_id": {e.Version.ID}, "_count": {"1"}, "_total": {"none"}}
	for _, text := range c.Include {
		name, value, _ := strings.Cut(text, "=")
		if name == "_include" && !strings.HasPrefix(value, e.Version.ResourceType+":") {
			continue
		}
		values.Add(name, value)
	}
	q, err := search.Parse(s.Interactions.Parameters.Current(), e.Version.ResourceType, values, s.Interactions.SearchOptions(ctx, false, nil))
	if err != nil {
		return nil
	}
	list := s.referred(ctx, q.Includes, e)
	if q.Includes = nil; len(q.RevIncludes) > 0 {
		if result, err := s.Store.Search(ctx, q); err == nil {
			list = append(list, result.Includes...)
		}
	}
	seen := make(map[string]bool)
	return slices.DeleteFunc(list, func(v fhir.Version) bool {
		reference := v.ResourceType + "/" + v.ID
		if seen[reference] {
			return true
		}
		seen[reference] = true
		if s.Rights == nil {
			return false
		}
		may, err := s.Rights.Sees(ctx, access.PrincipalFrom(ctx), v, s.Evaluator.IndexEntries(v))
		return err != nil || !may
	})
}

// referred are the resources to which the version of an event refers by some parameters.
func (s *Composer) referred(ctx context.Context, includes []search.Include, e *matching.Event) []fhir.Version {
	_, x := s.Evaluator.IndexedVersion(e, false)
	if x == nil || len(includes) == 0 {
		return nil
	}
	about := &match.Resource{Type: e.Version.ResourceType, ID: e.Version.ID, Index: x}
	var refs []int64
	types := make(map[int64][]string) // that are asked for; "" is every one
	for _, target := range x.Targets {
		for _, in := range includes {
			if slices.ContainsFunc(in.Keys, func(k fhir.Key) bool { return about.HasTerm(k.Term(fhir.Value(target))) }) {
				if types[target] == nil {
					refs = append(refs, target)
				}
				types[target] = append(types[target], in.Target)
			}
		}
	}
	if len(refs) == 0 {
		return nil
	}
	found, err := s.Store.Search(ctx, &search.Query{
		Count: matching.MaxMatches, Total: search.TotalNone, Clauses: []match.Clause{{Name: "_id", Any: []match.Match{match.IDs{Refs: refs}}}},
	})
	if err != nil {
		return nil
	}
	return slices.DeleteFunc(s.asSeen(ctx, refs, found.Matches, e.Version.LastUpdated), func(v fhir.Version) bool {
		wanted := types[int64(fhir.ValueReference(v.ResourceType, v.ID))]
		return !slices.Contains(wanted, "") && !slices.Contains(wanted, v.ResourceType)
	})
}

// asSeen returns the versions that resources had at an instant. current are their current versions,
// which it returns where the history does not reach back. It leaves out a resource whose current
// version the principal of ctx may not read.
func (s *Composer) asSeen(ctx context.Context, refs []int64, current []fhir.Version, at time.Time) []fhir.Version {
	now := make(map[int64]fhir.Version, len(current))
	for _, v := range current {
		now[int64(fhir.ValueReference(v.ResourceType, v.ID))] = v
	}
	rows, err := db.New(s.Store.Pool()).ReferredVersions(ctx, db.ReferredVersionsParams{Refs: refs, At: at})
	if err != nil {
		s.Log.Warn("read the versions of included resources", "error", err)
		return current
	}
	var keys []store.VersionKey
	types := make(map[int64]string)
	for _, r := range rows {
		if v, ok := now[r.Ref]; !ok || v.VersionID != int(r.Version) {
			keys = append(keys, store.VersionKey{Ref: r.Ref, VersionID: int(r.Version)})
			types[r.Ref] = r.Name
		}
	}
	versions, err := s.Store.ChangedVersions(ctx, keys, types)
	if err != nil {
		s.Log.Warn("read the versions of included resources", "error", err)
		return current
	}
	var list []fhir.Version
	for _, ref := range refs {
		v, exists := now[ref]
		if exists && s.Rights != nil {
			if may, err := s.Rights.Sees(ctx, access.PrincipalFrom(ctx), v, s.Evaluator.IndexEntries(v)); err != nil || !may {
				continue
			}
		}
		for key, then := range versions {
			if key.Ref == ref {
				v, exists = then, true
			}
		}
		if exists && len(v.Body) > 0 {
			list = append(list, v)
		}
	}
	return list
}

package searchparam

import (
	"fmt"
	"slices"
	"time"

	"kiln/server/fhir"
	"kiln/server/search"
	"kiln/server/store"
)

// buildRegistry makes the registry of the stored parameters, with the warnings that the jobs cause.
func (s *Service) buildRegistry(at *snapshot, jobs []store.ReindexJob) *search.Registry {
	var warn search.Notice
	if len(jobs) > 0 {
		of := make(map[string][]store.ReindexJob)
		elsewhere := make(map[fhir.Key]store.ReindexJob) // of types that contain such as the key is of
		for _, j := range jobs {
			of[j.ResourceType] = append(of[j.ResourceType], j)
			if j.Finished.IsZero() {
				for _, k := range j.Keys {
					elsewhere[k] = j
				}
			}
		}
		warn = func(typ, code string, keys []fhir.Key) string {
			text := jobNotice(typ, code, keys, of[typ])
			for _, k := range keys {
				if j, ok := elsewhere[k]; ok && text == "" {
					text = building(typ, code, j)
				}
			}
			return text
		}
	}
	in := s.Base.Extended(at.Version, at.customParameters(), s.Value, warn)
	if len(at.sorts) == 0 {
		return in
	}
	list := make([]search.SortIndex, len(at.sorts))
	for i, x := range at.sorts {
		list[i] = search.SortIndex{ResourceType: x.ResourceType, Code: x.Code}
	}
	return in.WithSortIndexes(list, func(x *search.SortIndex) bool {
		row, _ := at.sortIndex(x.ResourceType, x.Code)
		return !row.Removed && row.Key == x.Key && (warn == nil || warn(x.ResourceType, x.Code, []fhir.Key{x.Key}) == "")
	})
}

// jobNotice returns the warning of a search that uses the entries of a resource type under keys, "" for none. code is the
// parameter code, or "" for a compartment. jobs are the jobs of the type, oldest first.
func jobNotice(typ, code string, keys []fhir.Key, jobs []store.ReindexJob) string {
	if len(jobs) == 0 {
		return ""
	}
	in := func(list []fhir.Key) bool {
		return slices.ContainsFunc(keys, func(k fhir.Key) bool { return slices.Contains(list, k) })
	}
	text := ""
	for _, j := range jobs { // each evaluates every parameter: the last one knows best
		switch {
		case j.Finished.IsZero() && in(j.Keys):
			return building(typ, code, j)
		case in(j.FailedKeys):
			text = fmt.Sprintf("some resources could not be indexed by %s and may be missing from the matches; GET /$reindex tells why", whatOf(typ, code))
		case !j.Finished.IsZero():
			text = ""
		}
	}
	return text
}

// building says that a job is not done.
func building(typ, code string, j store.ReindexJob) string {
	return fmt.Sprintf("the index of %s is still being built: resources stored before %s may be missing from the matches; GET /$reindex tells how far it is",
		whatOf(typ, code), j.Created.UTC().Format(time.RFC3339))
}

// whatOf names the parameter of a type, or, with code "", the references of a compartment.
func whatOf(typ, code string) string {
	if code == "" {
		return "compartments and references of " + typ
	}
	return fmt.Sprintf("search parameter %s of %s", code, typ)
}

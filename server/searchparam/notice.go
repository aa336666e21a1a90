package searchparam

import (
	"fmt"
	"slices"
	"time"

	"kiln/server/fhir"
	"kiln/server/search"
	"kiln/server/store"
)

// build makes the registry of what is stored, with what the jobs let searches warn
// of.
func (s *Service) build(at *snapshot, jobs []store.ReindexJob) *search.Registry {
	var warn search.Notice
	if len(jobs) > 0 {
		of := make(map[string][]store.ReindexJob)
		for _, j := range jobs {
			of[j.ResourceType] = append(of[j.ResourceType], j)
		}
		warn = func(typ, code string, keys []fhir.Key) string { return notice(typ, code, keys, of[typ]) }
	}
	in := s.Base.Extended(at.Version, at.customs(), s.Value, warn)
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

// notice is what a search warns of that uses the entries of a resource type under
// keys, "" for nothing: by parameter code, or by "" a compartment. jobs are those
// of the type, oldest first.
func notice(typ, code string, keys []fhir.Key, jobs []store.ReindexJob) string {
	if len(jobs) == 0 {
		return ""
	}
	what := fmt.Sprintf("search parameter %s of %s", code, typ)
	if code == "" {
		what = "compartments and references of " + typ
	}
	in := func(list []fhir.Key) bool {
		return slices.ContainsFunc(keys, func(k fhir.Key) bool { return slices.Contains(list, k) })
	}
	text := ""
	for _, j := range jobs { // each evaluates every parameter: the last one knows best
		switch {
		case j.Finished.IsZero() && in(j.Keys):
			return fmt.Sprintf("the index of %s is still being built: resources stored before %s may be missing from the matches; GET /$reindex tells how far it is",
				what, j.Created.UTC().Format(time.RFC3339))
		case in(j.FailedKeys):
			text = fmt.Sprintf("some resources could not be indexed by %s and may be missing from the matches; GET /$reindex tells why", what)
		case !j.Finished.IsZero():
			text = ""
		}
	}
	return text
}

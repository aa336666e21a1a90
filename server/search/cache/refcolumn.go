package cache

import (
	"slices"

	"kiln/server/fhir"
	"kiln/server/search/match"
)

// References is the kind of a column of references, which no table of the index has: its values are
// the refs of the resources that are referred to.
const References = match.QuantityTable + 1

// refs are the values of a resource for a column of references.
func (c *column) refs(r *match.Resource) []int64 {
	if len(c.keys) == 0 {
		return []int64{ownRef(r)}
	}
	return refsUnder(c.keys, r)
}

func ownRef(r *match.Resource) int64 { return int64(fhir.ValueReference(r.Type, r.ID)) }

// refsUnder returns the targets of a resource's references under some keys.
func refsUnder(keys []fhir.Key, r *match.Resource) (refs []int64) {
	for _, ref := range r.Index.Targets {
		if slices.ContainsFunc(keys, func(k fhir.Key) bool { return r.HasTerm(k.Term(fhir.Value(ref))) }) {
			refs = append(refs, ref)
		}
	}
	return refs
}

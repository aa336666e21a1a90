package search

import (
	"maps"
	"slices"

	"kiln/server/fhir"
	"kiln/server/outcome"
)

// A SortIndex is a search parameter of a resource type, a token, reference or uri,
// whose order an administrator wants the index to keep: entries of each resource under
// a key of their own have what `_sort` compares (fhir.Sorter), and such a search is
// sorted as by a string. Without it all matches are read and sorted in memory.
type SortIndex struct {
	ResourceType string
	Code         string // of the parameter
	// Key is the key of the entries; 0 if no parameter in force has such an order.
	Key fhir.Key
	// Ready says that searches may use it: every stored resource has its entries.
	Ready bool

	keys    []fhir.Key // of the parameter
	targets []string   // Sorter.Targets
}

// Sorters find the values of x in a resource, in either direction.
func (x *SortIndex) Sorters() (ascending, descending *fhir.Sorter) {
	return &fhir.Sorter{Keys: x.keys, Targets: x.targets}, &fhir.Sorter{Keys: x.keys, Targets: x.targets, Descending: true}
}

// WithSortIndexes returns the registry that has list too, of which ResourceType and
// Code are set. ready tells whether the entries of a type under a key are all there.
func (r *Registry) WithSortIndexes(list []SortIndex, ready func(x *SortIndex) bool) *Registry {
	next := *r
	next.sortIndexes = maps.Clone(r.sortIndexes)
	if next.sortIndexes == nil {
		next.sortIndexes = make(map[string][]SortIndex)
	}
	for _, x := range list {
		p, ok := r.Lookup(x.ResourceType, x.Code)
		if !ok || !isText(p.Type) || unsupportedReason(p) != "" {
			continue
		}
		x.keys, x.targets = p.Keys, narrowedTo(p)
		x.Key = fhir.OrderKey(x.ResourceType, x.Code, x.keys, x.targets)
		x.Ready = ready(&x)
		list := next.sortIndexes[x.ResourceType]
		next.sortIndexes[x.ResourceType] = append(list[:len(list):len(list)], x)
	}
	return &next
}

// SortIndexes returns the sort indexes of a resource type with a parameter in force, nil for nearly all types.
func (r *Registry) SortIndexes(typ string) []SortIndex { return r.sortIndexes[typ] }

// SortIndex returns the one of a parameter.
func (r *Registry) SortIndex(typ, code string) (SortIndex, bool) {
	list := r.sortIndexes[typ]
	i := slices.IndexFunc(list, func(x SortIndex) bool { return x.Code == code })
	if i < 0 {
		return SortIndex{}, false
	}
	return list[i], true
}

// CanSortIndex refuses, with invalid, what no SortIndex can be made of.
func (r *Registry) CanSortIndex(typ, code string) error {
	if !r.Has(typ) {
		return outcome.Invalid("there is no resource type %q in FHIR R4%s", outcome.Clip(typ), r.NearestType(typ))
	}
	if code == "_id" || code == "_lastUpdated" {
		return outcome.Invalid("%s needs no index for _sort: every database has that order", code)
	}
	p, ok := r.Lookup(typ, code)
	switch {
	case !ok:
		return outcome.Invalid("%s has no search parameter %q%s", typ, outcome.Clip(code), outcome.DidYouMean(code, r.codesOf(typ)))
	case unsupportedReason(p) != "":
		return outcome.Invalid("parameter %s of %s is not supported: %s", code, typ, unsupportedReason(p))
	case isOrdered(p.Type):
		return outcome.Invalid("parameter %s of %s is of type %s and needs no index for _sort: the index has that order", code, typ, p.Type)
	case !isText(p.Type):
		return outcome.Invalid("parameter %s of %s is of type %s, which has no order", code, typ, p.Type)
	}
	return nil
}

// byIndex gives k the key of entries, like those of a string, if every type has a SortIndex that is ready. The
// compared values stay the same.
func (r *Registry) byIndex(k *SortKey, types []string) {
	if len(types) == 0 {
		types = r.names
	}
	keys := make([]fhir.Key, 0, len(types))
	k.Indexable = true
	for _, typ := range types {
		p, ok := r.Lookup(typ, k.Code)
		if !ok || !slices.Equal(narrowedTo(p), k.Targets) {
			k.Indexable = false // together the types count other references than each of them
			return
		}
		if x, ok := r.SortIndex(typ, k.Code); ok && x.Ready {
			keys = append(keys, x.Key)
		}
	}
	if len(keys) == len(types) {
		k.Type, k.Keys, k.Targets, k.Single, k.Indexed, k.Indexable = fhir.SearchString, keys, nil, false, true, false
	}
}

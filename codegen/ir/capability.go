package ir

import (
	"cmp"
	"slices"
	"strings"

	samply "github.com/samply/golang-fhir-models/fhir-models/fhir"

	"kiln/codegen/definition"
)

// Operation is what an OperationDefinition says of where it is called.
type Operation struct {
	Code, URL              string
	System, Type, Instance bool
	// AffectsState says that it cannot be called by GET.
	AffectsState bool
	Resources    []string // sorted; every type where it is for Resource
}

// capabilities collects what the CapabilityStatement says beyond search.
func capabilities(set *definition.Set, m *Model) {
	m.Profiles = map[string][]string{}
	for _, d := range definition.Sorted(set.Structures) {
		t := m.Lookup(d.Type)
		if t == nil || !t.Resource {
			continue
		}
		if d.Url == t.URL {
			m.Profiles[t.Name] = slices.Insert(m.Profiles[t.Name], 0, d.Url)
		} else if d.Derivation != nil && *d.Derivation == samply.TypeDerivationRuleConstraint {
			m.Profiles[t.Name] = append(m.Profiles[t.Name], d.Url)
		}
	}
	for _, d := range definition.Sorted(set.Operations) {
		if d.Kind != samply.OperationKindOperation {
			continue
		}
		o := Operation{
			Code: d.Code, URL: text(d.Url), System: d.System, Type: d.Type, Instance: d.Instance,
			AffectsState: d.AffectsState != nil && *d.AffectsState,
		}
		for _, r := range d.Resource {
			if t := m.Lookup(r); t != nil && t.Resource || r == "Resource" || r == "DomainResource" {
				o.Resources = append(o.Resources, strings.TrimPrefix(r, "Domain"))
			}
		}
		slices.Sort(o.Resources)
		m.Operations = append(m.Operations, o)
	}
	slices.SortFunc(m.Operations, func(a, b Operation) int {
		return cmp.Or(cmp.Compare(a.Code, b.Code), cmp.Compare(a.URL, b.URL))
	})
}

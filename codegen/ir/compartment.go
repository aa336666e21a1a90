package ir

import (
	"cmp"
	"slices"

	"kiln/codegen/definition"
	"kiln/server/fhir"
)

// compartments turns the CompartmentDefinitions into the table. Definitions for
// anything but a resource type of the model are passed over: HL7's package has
// an example of its own.
func compartments(set *definition.Set, m *Model) []fhir.Compartment {
	var out []fhir.Compartment
	for _, d := range definition.Sorted(set.Compartments) {
		c := fhir.Compartment{Code: d.Code.Code(), By: map[string][]string{}}
		if slices.ContainsFunc(out, func(o fhir.Compartment) bool { return o.Code == c.Code }) {
			continue
		}
		for _, r := range d.Resource {
			if t := m.Lookup(r.Code); t != nil && t.Resource && len(r.Param) > 0 {
				c.By[r.Code] = r.Param
			}
		}
		if t := m.Lookup(c.Code); t == nil || !t.Resource || len(c.By) < 2 {
			continue
		}
		// The focal resource is always in its own compartment.
		if !slices.Contains(c.By[c.Code], "{def}") {
			c.By[c.Code] = append(slices.Clone(c.By[c.Code]), "{def}")
		}
		out = append(out, c)
	}
	slices.SortFunc(out, func(a, b fhir.Compartment) int { return cmp.Compare(a.Code, b.Code) })
	return out
}

package ir

import (
	"cmp"
	"slices"
	"strconv"
	"strings"

	samply "github.com/samply/golang-fhir-models/fhir-models/fhir"

	"kiln/codegen/definition"
	"kiln/server/fhir"
)

// capabilities collects the facts of the CapabilityStatement beside search.
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
		o := fhir.OperationDefinition{
			Code: d.Code, URL: text(d.Url), System: d.System, Type: d.Type, Instance: d.Instance,
			AffectsState: d.AffectsState != nil && *d.AffectsState,
		}
		for i := range d.Parameter {
			p := operationParameter(&d.Parameter[i])
			if d.Parameter[i].Use == samply.OperationParameterUseIn {
				o.In = append(o.In, p)
			} else {
				o.Out = append(o.Out, p)
			}
		}
		for _, r := range d.Resource {
			if t := m.Lookup(r); t != nil && t.Resource || r == "Resource" || r == "DomainResource" {
				o.Resources = append(o.Resources, strings.TrimPrefix(r, "Domain"))
			}
		}
		slices.Sort(o.Resources)
		m.Operations = append(m.Operations, o)
	}
	slices.SortFunc(m.Operations, func(a, b fhir.OperationDefinition) int {
		return cmp.Or(cmp.Compare(a.Code, b.Code), cmp.Compare(a.URL, b.URL))
	})
}

// operationParameter is a parameter of an operation with its parts. A max that is no number sets no limit.
func operationParameter(d *samply.OperationDefinitionParameter) fhir.OperationParameter {
	p := fhir.OperationParameter{Name: d.Name, Min: d.Min, Max: -1, Type: text(d.Type)}
	if n, err := strconv.Atoi(d.Max); err == nil {
		p.Max = n
	}
	for i := range d.Part {
		p.Parts = append(p.Parts, operationParameter(&d.Part[i]))
	}
	return p
}

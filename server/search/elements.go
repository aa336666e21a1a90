package search

import (
	"slices"
	"strings"

	"kiln/server/outcome"
)

// Elements reads the values of `_elements` for an answer of the types given, none
// being every type: names of top-level elements between commas, a type before
// them or not. A choice can be named as in its definition (value[x], value) or as
// in JSON (valueString). It returns the names of the definitions, each once.
// Spec: https://hl7.org/fhir/R4/search.html#elements.
func (r *Registry) Elements(types, values []string) ([]string, error) {
	of := types
	if len(of) == 0 {
		of = r.names
	}
	var out []string
	for _, v := range values {
		for name := range strings.SplitSeq(v, ",") {
			if len(types) == 1 {
				name = strings.TrimPrefix(name, types[0]+".")
			}
			if name == "" {
				return nil, badValue("_elements", v, "expected element names between commas")
			}
			known := name == "resourceType" // which always stays
			for _, t := range of {
				if f := r.model.Resources[t].Type().FieldOf(name); f != nil {
					known = true
					if !slices.Contains(out, f.Name) {
						out = append(out, f.Name)
					}
				}
			}
			if !known {
				var names []string
				for _, f := range r.model.Resources[of[0]].Type().Fields {
					names = append(names, f.Name)
				}
				owner := strings.Join(types, ", ")
				if owner == "" {
					owner = "FHIR"
				}
				return nil, outcome.Invalid("parameter _elements: %s has no element %q%s", owner, outcome.Clip(name), outcome.DidYouMean(name, names))
			}
		}
	}
	return out, nil
}

package search

import (
	"kiln/server/fhir"
	"kiln/server/search/match"
)

// quantity reads `number`, `number|system|code` or `number||code`, with a prefix.
// A UCUM quantity finds every stored unit of the same dimension.
// Spec: https://hl7.org/fhir/R4/search.html#quantity.
func (p *parser) quantity(param *fhir.Parameter, name, modifier, v string) ([]match.Match, error) {
	if modifier != "" {
		return nil, badModifier(name, modifier, "quantity", "missing")
	}
	parts := splitEscaped(v, '|', 0)
	for i := range parts {
		parts[i] = unescapeValue(parts[i])
	}
	const expected = "expected number, number|system|code or number||unit, after an optional prefix"
	m := match.Quantities{}
	switch {
	case len(parts) == 1:
	case len(parts) == 3 && parts[2] != "":
		m.System, m.Code = parts[1], parts[2]
	case len(parts) == 3 && parts[1] == "":
	default:
		return nil, badValue(name, v, expected)
	}
	n, err := numberRange(name, parts[0])
	if err != nil {
		return nil, err
	}
	n.Keys, n.Single = param.Keys, param.Single
	m.Numbers = n
	return []match.Match{m}, nil
}

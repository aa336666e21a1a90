package search

import (
	"slices"
	"strings"

	"kiln/server/fhir"
	"kiln/server/outcome"
	"kiln/server/search/match"
)

// reference reads `id`, `Type/id`, a URL, a canonical, or, with a type as the
// modifier, an id of that type; `:identifier` takes a token.
// Spec: https://hl7.org/fhir/R4/search.html#reference.
func (p *parser) reference(param *fhir.Parameter, name, modifier, v string) ([]match.Match, error) {
	if modifier == "identifier" {
		system, value, ok := cut(v, '|')
		system, value = unescape(system), unescape(value)
		if !ok {
			system, value = fhir.AnySystem, system
		}
		if value == "" && (system == "" || system == fhir.AnySystem) {
			return nil, badValue(name, v, "expected value, system|value, system| or |value")
		}
		return []match.Match{match.TermsOf(param.Keys, fhir.ValueIdentifier(system, value))}, nil
	}
	targets := param.Targets
	if modifier != "" {
		if !p.reg.Has(modifier) {
			return nil, badModifier(name, modifier, "reference", "missing", "identifier", "[a resource type]")
		}
		if len(targets) > 0 && !slices.Contains(targets, modifier) {
			return nil, outcome.Invalid("parameter %s: it refers to %s, not to %s", clip(name), strings.Join(targets, ", "), modifier)
		}
		targets = []string{modifier}
	}
	values, err := p.referenceValues(targets, name, v)
	if err != nil {
		return nil, err
	}
	return []match.Match{match.TermsOf(param.Keys, values...)}, nil
}

// referenceValues are the hashed values that a reference stands for. targets are
// the types it may point at, nil for every type.
func (p *parser) referenceValues(targets []string, name, v string) ([]fhir.Value, error) {
	v = unescape(v)
	if typ, id, ok := fhir.LocalReference(v, p.opt.BaseURLs); ok {
		if !p.reg.Has(typ) {
			return nil, p.reg.typeError(typ)
		}
		if len(targets) > 0 && !slices.Contains(targets, typ) {
			return nil, badValue(name, v, "expected a reference to "+strings.Join(targets, " or "))
		}
		values := []fhir.Value{fhir.ValueReference(typ, id)}
		if strings.Contains(v, ":") { // a canonical that looks like a local URL
			values = append(values, fhir.ValueURI(v))
		}
		return values, nil
	}
	if strings.Contains(v, ":") {
		return []fhir.Value{fhir.ValueURI(v)}, nil
	}
	if !fhir.ValidID(v) {
		return nil, badValue(name, v, "expected id, Type/id or a URL")
	}
	if len(targets) == 0 {
		targets = p.reg.Types()
	}
	values := make([]fhir.Value, len(targets))
	for i, t := range targets {
		values[i] = fhir.ValueReference(t, v)
	}
	return values, nil
}

package search

import (
	"slices"
	"strings"

	"kiln/server/fhir"
	"kiln/server/outcome"
	"kiln/server/search/match"
)

// reference reads `id`, `Type/id`, a URL, a canonical, or, with a type as the
// modifier, an id of that type; `:identifier` takes a token, `:above` and `:below`
// follow a hierarchy.
// Spec: https://hl7.org/fhir/R4/search.html#reference.
func (p *parser) reference(param *fhir.Parameter, name, modifier, v string) ([]match.Match, error) {
	if modifier == "identifier" {
		system, value, ok := cutEscaped(v, '|')
		system, value = unescapeValue(system), unescapeValue(value)
		if !ok {
			system, value = fhir.AnySystem, system
		}
		if value == "" && (system == "" || system == fhir.AnySystem) {
			return nil, badValue(name, v, "expected value, system|value, system| or |value")
		}
		return []match.Match{match.TermsOf(param.Keys, ofTargets(param, fhir.ValueIdentifier(system, value))...)}, nil
	}
	targets := param.Targets
	if modifier == "above" || modifier == "below" {
		return p.hierarchy(param, name, modifier, v)
	}
	if modifier != "" {
		if !p.reg.Has(modifier) {
			return nil, badModifier(name, modifier, "reference", "missing", "identifier", "above", "below", "[a resource type]")
		}
		if !mayPoint(targets, modifier) {
			return nil, outcome.Invalid("parameter %s: it refers to %s, not to %s", outcome.Clip(name), strings.Join(targets, ", "), modifier)
		}
		targets = []string{modifier}
	}
	values, err := p.referenceValues(targets, name, v)
	if err != nil {
		return nil, err
	}
	if last := len(values) - 1; strings.Contains(v, ":") {
		values = append(values[:last], ofTargets(param, values[last])...)
	}
	return []match.Match{match.TermsOf(param.Keys, values...)}, nil
}

// ofTargets is the identifier or the URL of a reference of param: where it is narrowed, of a reference to one
// of its types, or of one that does not say its type.
func ofTargets(param *fhir.Parameter, v fhir.Value) []fhir.Value {
	types := narrowedTo(param)
	if types == nil {
		return []fhir.Value{v}
	}
	values := []fhir.Value{fhir.ValueOfTarget("", v)}
	for _, t := range types {
		values = append(values, fhir.ValueOfTarget(t, v))
	}
	return values
}

// mayPoint reports whether a reference to targets, nil for every type, may point at typ.
// R4's parameters know nothing of Apps: an App stands where other software does, a Device.
func mayPoint(targets []string, typ string) bool {
	return len(targets) == 0 || slices.Contains(targets, typ) || typ == "App" && slices.Contains(targets, "Device")
}

// hierarchy reads `:above` and `:below`. A canonical is compared by the steps of its path and its version. A
// resource is compared with its ancestors or descendants if its type has a hierarchy, such as the
// locations that are part of others. Types without a hierarchy are left out.
// Spec: https://hl7.org/fhir/R4/search.html#recursive.
func (p *parser) hierarchy(param *fhir.Parameter, name, modifier, v string) ([]match.Match, error) {
	text := unescapeValue(v)
	typ, id, local := fhir.LocalReference(text, p.opt.BaseURLs)
	if !local && strings.Contains(text, ":") {
		return p.uri(param, name, modifier, v)
	}
	targets := p.reg.Targets(param)
	if local {
		if _, err := p.referenceValues(param.Targets, name, v); err != nil {
			return nil, err
		}
		targets = []string{typ}
	} else if id = text; !fhir.ValidID(id) {
		return nil, badValue(name, v, "expected id, Type/id or a URL")
	}
	var out []match.Match
	for _, t := range targets {
		if parents := p.reg.hierarchy(t); parents != nil {
			out = append(out, match.Hierarchy{Keys: param.Keys, Target: t, Ref: int64(fhir.ValueReference(t, id)), Parents: parents, Above: modifier == "above"})
		}
	}
	if out == nil {
		return nil, badValue(name, v, ":"+modifier+" needs a canonical, or a reference to a type that has a hierarchy (partOf), and "+strings.Join(targets, ", ")+" has none")
	}
	return out, nil
}

// hierarchy is the keys of the reference from a resource of a type to the one that it
// is part of, nil where the type has none.
func (r *Registry) hierarchy(typ string) []fhir.Key {
	for _, code := range []string{"partof", "part-of"} {
		if p, ok := r.compiled[typ][code]; ok && p.Type == fhir.SearchReference && slices.Contains(r.Targets(p), typ) {
			return p.Keys
		}
	}
	return nil
}

// referenceValues are the hashed values that a reference stands for. targets are
// the types it may point at, nil for every type.
func (p *parser) referenceValues(targets []string, name, v string) ([]fhir.Value, error) {
	v = unescapeValue(v)
	if typ, id, ok := fhir.LocalReference(v, p.opt.BaseURLs); ok {
		if !p.reg.Has(typ) {
			return nil, p.reg.typeError(typ)
		}
		if !mayPoint(targets, typ) {
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

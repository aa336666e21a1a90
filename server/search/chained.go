package search

import (
	"errors"
	"slices"
	"strings"

	"kiln/server/fhir"
	"kiln/server/outcome"
	"kiln/server/search/match"
)

// chained reads `subject:Patient.name=…` and `subject.name=…`: rest is what
// follows the point. Without a type every possible target that has the parameter
// is searched. Spec: https://hl7.org/fhir/R4/search.html#chaining.
func (p *parser) chained(param *fhir.Parameter, c match.Clause, modifier, rest string, depth int) (match.Clause, error) {
	return p.over(param, c, modifier, rest, func(target string) (match.Clause, error) {
		return p.clause([]string{target}, rest, c.Value, depth+1)
	})
}

// over is the chain over param to what read reads for a type of target; rest is
// that in words.
func (p *parser) over(param *fhir.Parameter, c match.Clause, modifier, rest string, read func(target string) (match.Clause, error)) (match.Clause, error) {
	if param.Type != fhir.SearchReference {
		return c, outcome.Invalid("parameter %s: only a reference can be chained, and %s is of type %s", outcome.Clip(c.Name), param.Code, param.Type)
	}
	if param.Base == "Bundle" && strings.HasSuffix(param.Expression, ".resource") {
		// Bundle.entry[0].resource is the resource itself, no reference. Its contents are not in the index.
		return c, outcome.RefusedParameter("parameter %s: %s is a resource within the %s, whose contents are not searched", outcome.Clip(c.Name), param.Code, param.Base)
	}
	targets := p.reg.Targets(param)
	if modifier != "" {
		if !p.reg.Has(modifier) {
			return c, badModifier(c.Name, modifier, "reference", "missing", "identifier", "[a resource type]")
		}
		if !mayPoint(param.Targets, modifier) {
			return c, outcome.Invalid("parameter %s: %s refers to %s, not to %s", outcome.Clip(c.Name), param.Code, strings.Join(param.Targets, ", "), modifier)
		}
		targets = []string{modifier}
	}
	var failure error
	for _, target := range targets {
		if p.chains++; p.chains > maxChains {
			return c, outcome.New(outcome.CodeTooCostly, "parameter %s: its hops lead to more than %d resource types; name the type of a hop (%s:Patient.…)",
				outcome.Clip(c.Name), maxChains, param.Code)
		}
		used, ordered := p.values, p.ordered
		sub, err := read(target)
		if o, ok := outcome.From(err); ok && o.Issues[0].Code == outcome.CodeTooCostly {
			return c, err // whatever the other types say
		}
		if err != nil {
			// An error that is about the value outranks "unknown parameter".
			var unknown unknownParameter
			if failure == nil || errors.As(failure, &unknown) {
				failure = err
			}
			continue
		}
		if c.Any != nil {
			p.values, p.ordered = used, ordered // one list of values, read for several types
		}
		c.Any = append(c.Any, p.link(param, target, sub)...)
	}
	if c.Any == nil {
		var unknown unknownParameter
		if errors.As(failure, &unknown) && len(targets) > 1 {
			return c, unknownParameter{outcome.Invalid("parameter %s: no type that %s may refer to has a parameter %q", outcome.Clip(c.Name), param.Code, outcome.Clip(rest))}
		}
		return c, failure
	}
	c.Any = mergeChains(c.Any)
	return c, nil
}

// link is the chain over param to resources of type target for which sub holds.
// A chain that ends in `_id` is a reference.
func (p *parser) link(param *fhir.Parameter, target string, sub match.Clause) []match.Match {
	if ids, ok := onlyIDs(sub); ok {
		values := make([]fhir.Value, len(ids.Refs))
		for i, ref := range ids.Refs {
			values[i] = fhir.Value(ref)
		}
		return []match.Match{match.TermsOf(param.Keys, values...)}
	}
	m := match.Chain{Keys: param.Keys, Target: target, Clauses: []match.Clause{sub}}
	if url, ok := p.reg.Lookup(target, "url"); ok && url.Type == fhir.SearchURI {
		p.notice(url)
		m.CanonicalKeys = url.Keys
	}
	out := []match.Match{m}
	for _, k := range param.Keys {
		if in, ok := match.ContainedOf(k, target, sub); ok {
			out = append(out, in)
		}
	}
	return out
}

func onlyIDs(c match.Clause) (match.IDs, bool) {
	if c.Not || len(c.Any) != 1 {
		return match.IDs{}, false
	}
	ids, ok := c.Any[0].(match.IDs)
	return ids, ok
}

// mergeChains makes one chain of those that only ask for terms: keys belong to a
// type, so the terms of several types can be asked for at once.
func mergeChains(any []match.Match) []match.Match {
	var out []match.Match
	var merged *match.Chain
	var terms []int64
	for _, m := range any {
		chain, ok := m.(match.Chain)
		if ok && chain.CanonicalKeys == nil && len(chain.Clauses) == 1 && !chain.Clauses[0].Not && len(chain.Clauses[0].Any) == 1 {
			if t, ok := chain.Clauses[0].Any[0].(match.Terms); ok {
				if merged == nil {
					first := chain
					merged = &first
				} else {
					merged.Target += "|" + chain.Target
				}
				terms = append(terms, t.Values...)
				continue
			}
		}
		out = append(out, m)
	}
	if merged != nil {
		c := merged.Clauses[0]
		c.Any = []match.Match{match.Terms{Values: terms}}
		merged.Clauses = []match.Clause{c}
		out = append(out, *merged)
	}
	return out
}

// has reads `_has:Type:reference:parameter=value`: another resource, of Type,
// refers to this one and matches. parameter may be a chain or `_has` again.
// Spec: https://hl7.org/fhir/R4/search.html#has.
func (p *parser) has(types []string, name, value string, depth int) (match.Clause, error) {
	c := match.Clause{Name: name, Value: value}
	parts := strings.SplitN(name, ":", 4)
	if len(parts) < 4 || parts[3] == "" {
		return c, outcome.Invalid("parameter %s: expected _has:Type:reference parameter:search parameter", outcome.Clip(name))
	}
	return p.from(types, c, parts[1], parts[2], func() (match.Clause, error) {
		return p.clause([]string{parts[1]}, parts[3], value, depth+1)
	})
}

// from is the reverse chain from what read reads for type source, whose parameter
// reference refers to a resource of one of types.
func (p *parser) from(types []string, c match.Clause, source, reference string, read func() (match.Clause, error)) (match.Clause, error) {
	if !p.reg.Has(source) {
		return c, p.reg.typeError(source)
	}
	param, err := p.lookup([]string{source}, c.Name, reference)
	if err != nil {
		return c, err
	}
	if param.Type != fhir.SearchReference {
		return c, outcome.Invalid("parameter %s: %s of %s is of type %s, expected a reference", outcome.Clip(c.Name), param.Code, source, param.Type)
	}
	if len(param.Targets) > 0 && len(types) > 0 && !slices.ContainsFunc(types, func(t string) bool { return slices.Contains(param.Targets, t) }) {
		return c, outcome.Invalid("parameter %s: %s of %s refers to %s, not to %s", outcome.Clip(c.Name), param.Code, source,
			strings.Join(param.Targets, ", "), strings.Join(types, ", "))
	}
	sub, err := read()
	if err != nil {
		return c, err
	}
	c.Any = []match.Match{match.Has{Source: source, Keys: param.Keys, Clauses: []match.Clause{sub}}}
	if urls := p.urlKeys(types, param); urls != nil {
		// A canonical is a chain read backwards: from the url to what names it.
		c.Any = append(c.Any, match.Chain{Keys: urls, Target: source, Clauses: []match.Clause{sub}, CanonicalKeys: param.Keys})
	}
	return c, nil
}

// urlKeys are the keys of the urls by which a reference of param may name a resource
// of one of types, nil for every type.
func (p *parser) urlKeys(types []string, param *fhir.Parameter) []fhir.Key {
	if len(types) == 0 {
		types = p.reg.Types()
	}
	var keys []fhir.Key
	for _, t := range types {
		if url, ok := p.reg.Lookup(t, "url"); ok && url.Type == fhir.SearchURI && (len(param.Targets) == 0 || slices.Contains(param.Targets, t)) {
			keys = append(keys, url.Keys...)
		}
	}
	return keys
}

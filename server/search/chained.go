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
	return p.overTargets(param, c, modifier, rest, func(target string) (match.Clause, error) {
		return p.clause([]string{target}, rest, c.Value, depth+1)
	})
}

// overTargets is the chain over param to what read reads for a type of target; rest is
// that in words.
func (p *parser) overTargets(param *fhir.Parameter, c match.Clause, modifier, rest string, read func(target string) (match.Clause, error)) (match.Clause, error) {
	if param.Type != fhir.SearchReference {
		return c, outcome.Invalid("parameter %s: only a reference can be chained, and %s is of type %s", outcome.Clip(c.Name), param.Code, param.Type)
	}
	if param.Base == "Bundle" && strings.HasSuffix(param.Expression, ".resource") && !isEmbedded(param) {
		// Bundle.entry.resource is the resource itself, no reference. Its contents are not in the index.
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
	names := p.names(param, targets)
	var failure error
	for _, target := range targets {
		if p.chains++; p.chains > maxChains {
			return c, outcome.New(outcome.CodeTooCostly, "parameter %s: its hops lead to more than %d resource types; name the type of a hop (%s:Patient.…)",
				outcome.Clip(c.Name), maxChains, param.Code)
		}
		used, ordered := p.values, p.ordered
		sub, err := read(target)
		if err == nil && isEmbedded(param) && !embeds(param, target, sub) {
			err = outcome.RefusedParameter("parameter %s: %s is a resource within the %s: it is searched by its own elements, and by no resource that it refers to", outcome.Clip(c.Name), param.Code, param.Base)
		}
		if o, ok := outcome.From(err); ok && o.Issues[0].Code == outcome.CodeTooCostly {
			return c, err // the other types make no difference
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
		c.Any = append(c.Any, p.link(param, target, sub, names)...)
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

// isEmbedded reports whether a parameter selects a resource that is embedded instead of referenced: the first
// entry of a document or message. Its contents are searched like those of a contained resource.
// Spec: https://hl7.org/fhir/R4/bundle.html#search.
func isEmbedded(param *fhir.Parameter) bool {
	return strings.HasSuffix(param.Expression, ".entry[0].resource")
}

// embeds reports whether sub can be asked of an embedded resource alone. What its references lead to is within the
// Bundle as well, which the index does not follow.
func embeds(param *fhir.Parameter, target string, sub match.Clause) bool {
	if _, ok := onlyIDs(sub); ok {
		return true
	}
	_, ok := match.ContainedOf(param.Keys[0], target, sub)
	return ok && !match.ReachesOut(sub.Any)
}

// link is the chain over param to resources of type target for which sub holds; names says that the reference
// may be a canonical. An embedded resource is known by its `_id` alone.
func (p *parser) link(param *fhir.Parameter, target string, sub match.Clause, names bool) []match.Match {
	var out []match.Match
	if !isEmbedded(param) {
		out = append(out, match.Chain{Keys: param.Keys, Target: target, Clauses: []match.Clause{sub}})
	} else if ids, ok := onlyIDs(sub); ok {
		values := make([]fhir.Value, len(ids.Refs))
		for i, ref := range ids.Refs {
			values[i] = fhir.Value(ref)
		}
		out = append(out, match.TermsOf(param.Keys, values...))
	}
	if url, ok := p.reg.canonical(target); ok && names {
		p.addNotice(url)
		out = append(out, match.Named{Keys: param.Keys, Target: target, Clauses: []match.Clause{sub}})
	}
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

// mergeChains merges the chains that only compare terms or ids into one, and those along canonicals into another.
// Keys and ids belong to a type, so one chain can compare them for several types.
func mergeChains(any []match.Match) []match.Match {
	var out []match.Match
	var chain *match.Chain
	var named *match.Named
	for _, m := range any {
		switch m := m.(type) {
		case match.Chain:
			if ofOneType(m.Clauses) {
				if chain == nil {
					chain = &match.Chain{Keys: m.Keys}
				}
				chain.Target, chain.Clauses = merged(chain.Target, chain.Clauses, m.Target, m.Clauses[0])
				continue
			}
		case match.Named:
			if ofOneType(m.Clauses) {
				if named == nil {
					named = &match.Named{Keys: m.Keys}
				}
				named.Target, named.Clauses = merged(named.Target, named.Clauses, m.Target, m.Clauses[0])
				continue
			}
		}
		out = append(out, m)
	}
	if chain != nil {
		chain.Clauses[0].Any = match.Merge(chain.Clauses[0].Any)
		out = append(out, *chain)
	}
	if named != nil {
		named.Clauses[0].Any = match.Merge(named.Clauses[0].Any)
		out = append(out, *named)
	}
	return out
}

// ofOneType reports whether clauses only ask for terms or ids.
func ofOneType(clauses []match.Clause) bool {
	return len(clauses) == 1 && !clauses[0].Not && match.OfOneType(clauses[0].Any)
}

// merged adds the clauses for one more type of target.
func merged(targets string, clauses []match.Clause, target string, c match.Clause) (string, []match.Clause) {
	if clauses == nil {
		c.Any = slices.Clone(c.Any)
		return target, []match.Clause{c}
	}
	clauses[0].Any = append(clauses[0].Any, c.Any...)
	return targets + "|" + target, clauses
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
	return p.fromSources(types, c, parts[1], parts[2], func() (match.Clause, error) {
		return p.clause([]string{parts[1]}, parts[3], value, depth+1)
	})
}

// fromSources is the reverse chain from what read reads for type source, whose parameter
// reference refers to a resource of one of types.
func (p *parser) fromSources(types []string, c match.Clause, source, reference string, read func() (match.Clause, error)) (match.Clause, error) {
	if !p.reg.Has(source) {
		return c, p.reg.typeError(source)
	}
	param, err := p.lookupParameter([]string{source}, c.Name, reference)
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
	if len(types) == 0 {
		types = p.reg.Types()
	}
	types = slices.DeleteFunc(slices.Clone(types), func(t string) bool { return len(param.Targets) > 0 && !slices.Contains(param.Targets, t) })
	if p.names(param, types) {
		c.Any = append(c.Any, match.Named{Keys: param.Keys, Target: source, Clauses: []match.Clause{sub}, Back: true})
	}
	return c, nil
}

// names reports whether a reference of param may name a resource of one of types by a canonical.
func (p *parser) names(param *fhir.Parameter, types []string) bool {
	return slices.ContainsFunc(types, func(t string) bool { _, ok := p.reg.canonical(t); return ok }) &&
		p.reg.givesDatatype(param, "canonical", "uri", "url", "oid", "uuid")
}

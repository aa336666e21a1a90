package search

import (
	"slices"

	"kiln/server/fhir"
	"kiln/server/outcome"
	"kiln/server/search/match"
)

// composite reads the values of several parameters, joined by `$`, that have to
// hold together: in one repetition of the element where it repeats.
// Spec: https://hl7.org/fhir/R4/search.html#composite.
func (p *parser) composite(param *fhir.Parameter, name, modifier, v string) ([]match.Match, error) {
	if modifier != "" {
		return nil, badModifier(name, modifier, "composite", "missing")
	}
	values := splitEscaped(v, '$', 0)
	if slices.Contains(values, "") {
		return nil, badValue(name, v, "a part of it is empty")
	}
	var any []match.Match
	for _, branch := range param.Composites {
		if len(values) != len(branch.Parts) {
			codes := ""
			for i, part := range branch.Parts {
				if i > 0 {
					codes += "$"
				}
				codes += part.Code
			}
			return nil, badValue(name, v, "expected "+codes)
		}
		var matches []match.Match
		var err error
		if branch.Key == 0 {
			matches, err = p.together(param.Base, branch, name, values)
		} else {
			matches, err = p.repetition(branch, name, values)
		}
		if err != nil {
			return nil, err
		}
		any = append(any, matches...)
	}
	return any, nil
}

// together reads a composite whose parts belong to the resource itself. It returns the conjunction of its
// parts. If one part is a code and the other is ordered, it returns one row of both.
func (p *parser) together(base string, branch fhir.Composite, name string, values []string) ([]match.Match, error) {
	var all match.All
	keyed := codeIn(branch, values)
	for i, part := range branch.Parts {
		sub := fhir.Parameter{Code: part.Code, Type: part.Type, Keys: part.Keys, Words: part.Keys}
		if whole, ok := p.reg.Lookup(base, part.Code); ok && !slices.ContainsFunc(part.Keys, func(k fhir.Key) bool { return !slices.Contains(whole.Keys, k) }) {
			sub.Single, sub.Words = whole.Single, slices.DeleteFunc(slices.Clone(part.Keys), func(k fhir.Key) bool { return !slices.Contains(whole.Words, k) })
		}
		switch {
		case keyed == nil:
		case !isOrdered(part.Type):
			continue
		case keyed.inSystem:
			sub.Keys = []fhir.Key{fhir.CompositeKey(branch.Coded, fhir.ValueCoding(keyed.system, keyed.code))}
		}
		matches, err := p.value(&sub, name, "", values[i])
		if err != nil {
			return nil, err
		}
		if keyed != nil && !keyed.inSystem {
			matches = []match.Match{match.Coded{Key: branch.Coded, Code: keyed.code, Any: matches[0]}}
		}
		if keyed != nil {
			return matches, nil
		}
		all.Clauses = append(all.Clauses, match.Clause{Name: part.Code, Value: values[i], Any: matches})
	}
	return []match.Match{all}, nil
}

// codeIn is the token among the values of a branch that has coded rows; nil where
// it has none, or where the token says no code.
func codeIn(branch fhir.Composite, values []string) *token {
	if branch.Coded == 0 {
		return nil
	}
	for i, part := range branch.Parts {
		if isOrdered(part.Type) {
			continue
		}
		if t := readToken(values[i]); t.code != "" {
			return &t
		}
	}
	return nil
}

// repetition is a branch whose components were indexed together: a term, or an
// ordered row whose key has the hashed part mixed in.
func (p *parser) repetition(branch fhir.Composite, name string, values []string) ([]match.Match, error) {
	ordered, second := -1, -1
	hashed := []fhir.Value{}
	for i, part := range branch.Parts {
		if isOrdered(part.Type) {
			if ordered >= 0 {
				second = i
			} else {
				ordered = i
			}
			continue
		}
		var vs []fhir.Value
		var err error
		switch part.Type {
		case fhir.SearchToken:
			if _, code, ok := cutEscaped(values[i], '|'); ok && code == "" {
				return nil, badValue(name, values[i], "a component needs a code: expected code, system|code or |code")
			}
			vs, err = tokenValues(name, values[i])
		case fhir.SearchReference:
			vs, err = p.referenceValues(nil, name, values[i])
		case fhir.SearchURI:
			vs = []fhir.Value{fhir.ValueURI(unescapeValue(values[i]))}
		default:
			err = outcome.Invalid("parameter %s: a component of type %s is not supported", outcome.Clip(name), part.Type)
		}
		if err != nil {
			return nil, err
		}
		if i == 0 || i == 1 && ordered == 0 {
			hashed = vs
			continue
		}
		var pairs []fhir.Value
		for _, a := range hashed {
			for _, b := range vs {
				pairs = append(pairs, fhir.ValuePair(a, b))
			}
		}
		hashed = pairs
	}
	if ordered < 0 {
		return []match.Match{match.TermsOf([]fhir.Key{branch.Key}, hashed...)}, nil
	}
	keys := make([]fhir.Key, len(hashed))
	for i, v := range hashed {
		keys[i] = fhir.CompositeKey(branch.Key, v)
	}
	if second >= 0 {
		return p.pairOfNumbers(keys, name, values[ordered], values[second])
	}
	part := branch.Parts[ordered]
	sub := fhir.Parameter{Code: part.Code, Type: part.Type, Keys: keys, Words: keys}
	return p.value(&sub, name, "", values[ordered])
}

package search

import (
	"kiln/server/fhir"
	"kiln/server/search/match"
)

// text reads a string: the start of a value or of a word in it, without regard to
// case, accents, punctuation and white space; `:contains` any part of one; `:exact`
// the whole as it is.
// Spec: https://hl7.org/fhir/R4/search.html#string.
func (p *parser) text(param *fhir.Parameter, name, modifier, v string) ([]match.Match, error) {
	v = unescape(v)
	m := match.Strings{Keys: param.Keys, Single: param.Single, Text: fhir.FoldText(v)}
	switch modifier {
	case "":
	case "contains":
		m.Op = match.Contains
	case "exact":
		return []match.Match{match.TermsOf(param.Keys, fhir.ValueExact(v))}, nil
	default:
		return nil, badModifier(name, modifier, "string", "missing", "exact", "contains")
	}
	if m.Text == "" {
		return nil, badValue(name, v, "nothing is left of it without case, accents and white space")
	}
	if joined := fhir.Joined(m.Text); joined != "" { // else punctuation is all that is asked for
		m.Text, m.Single = joined, false
		m.Keys = make([]fhir.Key, 0, 2*len(param.Keys))
		for _, k := range param.Keys {
			m.Keys = append(m.Keys, k, fhir.WordKey(k))
		}
	}
	return []match.Match{m}, nil
}

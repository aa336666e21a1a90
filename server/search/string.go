package search

import (
	"slices"

	"kiln/server/fhir"
	"kiln/server/search/match"
)

// text reads a string: the start of a value, or of any word of a part of a name,
// without regard to case, accents, punctuation and white space; `:contains` any part
// of a value; `:exact` the whole as it is.
// Spec: https://hl7.org/fhir/R4/search.html#string.
func (p *parser) text(param *fhir.Parameter, name, modifier, v string) ([]match.Match, error) {
	v = unescapeValue(v)
	m := match.Strings{Keys: param.Keys, Single: param.Single, Text: fhir.JoinText(v)}
	switch modifier {
	case "":
		if len(param.Words) > 0 {
			m.Keys, m.Single = make([]fhir.Key, 0, len(param.Keys)+len(param.Words)), false
			for _, k := range param.Keys {
				if m.Keys = append(m.Keys, k); slices.Contains(param.Words, k) {
					m.Keys = append(m.Keys, fhir.WordKey(k))
				}
			}
		}
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
	return []match.Match{m}, nil
}

package search

import (
	"strings"

	"kiln/server/fhir"
	"kiln/server/search/match"
)

// date reads a prefix and a date at any precision.
// Spec: https://hl7.org/fhir/R4/search.html#date.
func (p *parser) date(param *fhir.Parameter, name, modifier, v string) ([]match.Match, error) {
	if modifier != "" {
		return nil, badModifier(name, modifier, "date", "missing")
	}
	op, low, high, err := p.dateRange(name, v)
	if err != nil {
		return nil, err
	}
	return []match.Match{match.Dates{Keys: param.Keys, Single: param.Single, Op: op, Low: low, High: high}}, nil
}

// dateRange reads a date value into the half-open range that it stands for. With
// ap the range is widened, at both ends, by a tenth of its distance from now.
func (p *parser) dateRange(name, v string) (op match.Prefix, low, high int64, err error) {
	op, text, ok := match.CutPrefix(unescapeValue(v))
	if !ok {
		return op, 0, 0, badValue(name, v, "expected a prefix of eq, ne, lt, le, gt, ge, sa, eb, ap, or a date")
	}
	// A plus sign of a time zone that was not percent-encoded arrives as a space.
	if i := strings.LastIndexByte(text, ' '); i > 10 {
		text = text[:i] + "+" + text[i+1:]
	}
	low, high, err = fhir.ParseDate(text)
	if err != nil {
		return op, 0, 0, badValue(name, v, "expected YYYY, YYYY-MM, YYYY-MM-DD or YYYY-MM-DDThh:mm:ss with a time zone, after an optional prefix")
	}
	if op == match.AP {
		now := p.opt.Now.UnixMicro()
		margin := max(low-now, now-low) / 10
		low, high = low-margin, high+margin
	}
	return op, low, high, nil
}

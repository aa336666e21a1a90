package search

import (
	"github.com/cockroachdb/apd/v3"

	"kiln/server/fhir"
	"kiln/server/search/match"
)

// number reads a prefix and a decimal.
// Spec: https://hl7.org/fhir/R4/search.html#number.
func (p *parser) number(param *fhir.Parameter, name, modifier, v string) ([]match.Match, error) {
	if modifier != "" {
		return nil, badModifier(name, modifier, "number", "missing")
	}
	m, err := numberRange(name, unescapeValue(v))
	if err != nil {
		return nil, err
	}
	m.Keys, m.Single = param.Keys, param.Single
	return []match.Match{m}, nil
}

// numberRange reads a number: with eq and ne the range of its significant
// figures, with ap the value and a tenth of it to both sides, with the other
// prefixes the value itself.
func numberRange(name, v string) (match.Numbers, error) {
	op, text, ok := match.CutPrefix(v)
	if !ok {
		return match.Numbers{}, badValue(name, v, "expected a prefix of eq, ne, lt, le, gt, ge, sa, eb, ap, or a number")
	}
	low, high, err := fhir.SignificantRange(text)
	if err != nil {
		return match.Numbers{}, badValue(name, v, "expected a number such as 5.4 or 1e3, after an optional prefix")
	}
	value, err := fhir.ParseDecimal(text)
	if err != nil {
		return match.Numbers{}, badValue(name, v, err.Error())
	}
	if op == match.AP {
		margin := new(apd.Decimal)
		if _, err := decimals.Mul(margin, value, apd.New(1, -1)); err != nil {
			return match.Numbers{}, badValue(name, v, "out of bounds")
		}
		margin.Abs(margin)
		l, h := new(apd.Decimal), new(apd.Decimal)
		if _, err := decimals.Sub(l, value, margin); err != nil {
			return match.Numbers{}, badValue(name, v, "out of bounds")
		}
		if _, err := decimals.Add(h, value, margin); err != nil {
			return match.Numbers{}, badValue(name, v, "out of bounds")
		}
		if l.Cmp(low) < 0 {
			low = l
		}
		if h.Cmp(high) > 0 {
			high = h
		}
	}
	return match.Numbers{Op: op, Value: value, Low: low, High: high}, nil
}

// decimals is wide enough for every decimal that fhir.ParseDecimal accepts.
var decimals = apd.BaseContext.WithPrecision(2200)

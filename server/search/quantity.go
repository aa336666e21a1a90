package search

import (
	"math/big"

	"kiln/server/fhir"
	"kiln/server/ucum"

	"github.com/cockroachdb/apd/v3"
)

// quantity reads `number`, `number|system|code` or `number||code`, with a prefix.
// A UCUM quantity finds every stored unit of the same dimension.
// Spec: https://hl7.org/fhir/R4/search.html#quantity.
func (p *parser) quantity(param *fhir.Parameter, name, modifier, v string) ([]Match, error) {
	if modifier != "" {
		return nil, badModifier(name, modifier, "quantity", "missing")
	}
	parts := split(v, '|', 0)
	for i := range parts {
		parts[i] = unescape(parts[i])
	}
	const expected = "expected number, number|system|code or number||unit, after an optional prefix"
	m := Quantities{}
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
	return []Match{m}, nil
}

// ucumSystem is the system of UCUM codes.
const ucumSystem = "http://unitsofmeasure.org"

// convert asks a comparison in another unit; false where the units have different
// dimensions. The factors are exact; a bound whose decimals do not end is rounded
// to 40 digits.
func convert(n Numbers, from, to *ucum.Unit) (Numbers, bool) {
	if !from.Comparable(*to) {
		return n, false
	}
	for _, d := range []**apd.Decimal{&n.Value, &n.Low, &n.High} {
		value, ok := new(big.Rat).SetString((*d).String())
		if !ok {
			return n, false
		}
		converted, err := from.Convert(value, *to)
		if err != nil {
			return n, false
		}
		if *d, ok = decimalOf(converted); !ok {
			return n, false
		}
	}
	return n, true
}

// measure reads a UCUM unit, nil where it is not understood.
func measure(code string) *ucum.Unit {
	u, err := ucum.Parse(code)
	if err != nil {
		return nil
	}
	return &u
}

func decimalOf(r *big.Rat) (*apd.Decimal, bool) {
	numerator, _, err := apd.NewFromString(r.Num().String())
	if err != nil {
		return nil, false
	}
	denominator, _, err := apd.NewFromString(r.Denom().String())
	if err != nil {
		return nil, false
	}
	out := new(apd.Decimal)
	if _, err := apd.BaseContext.WithPrecision(40).Quo(out, numerator, denominator); err != nil {
		return nil, false
	}
	out.Reduce(out)
	return out, out.Exponent > -2000 && out.Exponent < 2000
}

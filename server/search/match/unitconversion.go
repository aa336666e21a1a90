package match

import (
	"math/big"

	"github.com/cockroachdb/apd/v3"

	"kiln/server/ucum"
)

// Unit is a unit that a stored quantity has.
type Unit struct {
	ID                 int64
	System, Code, Unit string
	measure            *ucum.Unit // nil where it is not UCUM's
}

// NewUnit makes a Unit.
func NewUnit(id int64, system, code, unit string) Unit {
	u := Unit{ID: id, System: system, Code: code, Unit: unit}
	if system == ucumSystem {
		u.measure = measure(code)
	}
	return u
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
	out := decimalOfInt(r.Num())
	if !r.IsInt() {
		if _, err := apd.BaseContext.WithPrecision(40).Quo(out, out, decimalOfInt(r.Denom())); err != nil {
			return nil, false
		}
	}
	out.Reduce(out)
	return out, out.Exponent > -2000 && out.Exponent < 2000
}

func decimalOfInt(n *big.Int) *apd.Decimal {
	return apd.NewWithBigInt(new(apd.BigInt).SetMathBigInt(n), 0)
}

package fhirpath

import (
	"math"

	"github.com/cockroachdb/apd/v3"
)

var (
	numberKinds  = []Kind{IntegerKind, DecimalKind}
	decimalKinds = []Kind{DecimalKind}
)

func mathFunctions() map[string]scalarDef {
	// real is a function that apd computes, to 28 digits.
	real := func(f func(d, x *apd.Decimal) (apd.Condition, error)) scalarDef {
		return scalarDef{input: numberKinds, result: decimalKinds,
			apply: func(_ *machine, _ *scalar, v Value, _ []Value) (Value, bool, error) {
				return computed(v, f)
			}}
	}
	whole := func(mode rounding) scalarDef {
		return scalarDef{input: numberKinds, result: integerKinds,
			apply: func(_ *machine, _ *scalar, v Value, _ []Value) (Value, bool, error) {
				r, ok := round(v, 0, mode)
				if !ok {
					return r, false, nil
				}
				r, ok = integerOf(r.apd())
				return r, ok, nil
			}}
	}
	return map[string]scalarDef{
		"abs": {input: []Kind{IntegerKind, DecimalKind, QuantityKind},
			apply: func(_ *machine, _ *scalar, v Value, _ []Value) (Value, bool, error) {
				if v.apd().Negative {
					v = negate(v)
				}
				return v, v.kind != IntegerKind || v.n <= math.MaxInt32, nil
			}},
		"ceiling":  whole(ceiling),
		"floor":    whole(floor),
		"truncate": whole(down),
		"exp":      real(transcendental.Exp),
		"ln":       real(transcendental.Ln),
		"sqrt":     real(transcendental.Sqrt),
		"log": {min: 1, max: 1, input: numberKinds, args: [][]Kind{numberKinds}, result: decimalKinds,
			apply: func(_ *machine, _ *scalar, v Value, args []Value) (Value, bool, error) {
				return logarithm(v, args[0])
			}},
		"power": {min: 1, max: 1, input: numberKinds, args: [][]Kind{numberKinds}, result: []Kind{IntegerKind, DecimalKind},
			apply: func(_ *machine, _ *scalar, v Value, args []Value) (Value, bool, error) {
				return power(v, args[0])
			}},
		"round": {min: 0, max: 1, input: numberKinds, args: [][]Kind{integerKinds}, result: []Kind{IntegerKind, DecimalKind},
			apply: func(m *machine, e *scalar, v Value, args []Value) (Value, bool, error) {
				scale := 0
				if len(args) == 1 {
					if args[0].n < 0 || args[0].n > 100 {
						return v, false, m.fail(Execution, e.at, "round() takes 0 to 100 digits, found %d", args[0].n)
					}
					scale = int(args[0].n)
				}
				r, ok := round(v, scale, halfUp)
				return r, ok, nil
			}},
		"precision": {input: []Kind{IntegerKind, DecimalKind, DateKind, DateTimeKind, TimeKind}, result: integerKinds,
			apply: func(_ *machine, _ *scalar, v Value, _ []Value) (Value, bool, error) {
				n := v.scale()
				if !v.numeric() {
					n = v.digitsOf()
				}
				return Value{kind: IntegerKind, n: int64(n)}, true, nil
			}},
		"lowBoundary":  boundaryFunction(false),
		"highBoundary": boundaryFunction(true),
		"comparable": {min: 1, max: 1, input: []Kind{QuantityKind}, args: [][]Kind{{QuantityKind}}, result: booleanKinds,
			apply: func(_ *machine, _ *scalar, v Value, args []Value) (Value, bool, error) {
				_, how := compareQuantities(v, args[0])
				return Boolean(how == decided), true, nil
			}},
	}
}

// transcendental bounds the work of functions that converge; 28 digits are what
// FHIRPath asks for.
var transcendental = decimalContext(28)

// computed returns f(v) without trailing zeros; empty where f has no value there.
func computed(v Value, f func(d, x *apd.Decimal) (apd.Condition, error)) (Value, bool, error) {
	x := v.apd()
	// Beyond this e^x has more digits than a Decimal may have.
	if x.NumDigits()+int64(x.Exponent) > 4 {
		return Value{}, false, nil
	}
	d := new(apd.Decimal)
	if _, err := f(d, x); err != nil || d.Form != apd.Finite {
		return Value{}, false, nil
	}
	r, ok := tidy(d)
	return r, ok, nil
}

// tidy removes trailing zeros, but not those before the point.
func tidy(d *apd.Decimal) (Value, bool) {
	d.Reduce(d)
	if d.Exponent > 0 && d.Exponent < maxDigits {
		if _, err := exactContext.Quantize(d, d, 0); err != nil {
			return Value{}, false
		}
	}
	return decimalOf(d)
}

func logarithm(v, base Value) (Value, bool, error) {
	x, b := new(apd.Decimal), new(apd.Decimal)
	for _, p := range []struct{ d, of *apd.Decimal }{{x, v.apd()}, {b, base.apd()}} {
		if p.of.Sign() <= 0 {
			return Value{}, false, nil
		}
		if _, err := transcendental.Ln(p.d, p.of); err != nil || p.d.Form != apd.Finite {
			return Value{}, false, nil
		}
	}
	if b.IsZero() {
		return Value{}, false, nil
	}
	d := new(apd.Decimal)
	if _, err := transcendental.Quo(d, x, b); err != nil || d.Form != apd.Finite {
		return Value{}, false, nil
	}
	// Two rounded logarithms: the last digits are noise.
	ctx := decimalContext(25)
	if _, err := ctx.Round(d, d); err != nil {
		return Value{}, false, nil
	}
	r, ok := tidy(d)
	return r, ok, nil
}

func power(v, exponent Value) (Value, bool, error) {
	e := exponent.apd()
	if e.NumDigits()+int64(e.Exponent) > 4 {
		return Value{}, false, nil
	}
	d := new(apd.Decimal)
	if whole, ok := wholeNumber(exponent); ok && exponent.scale() == 0 {
		// The result has about whole times the digits of v.
		if (v.apd().NumDigits()+1)*magnitude(whole) > 4*maxDigits {
			return Value{}, false, nil
		}
		ctx := exactContext
		if whole < 0 {
			ctx = divisionContext
		}
		if _, err := ctx.Pow(d, v.apd(), e); err != nil || d.Form != apd.Finite {
			return Value{}, false, nil
		}
		if v.kind == IntegerKind && exponent.kind == IntegerKind && whole >= 0 {
			r, ok := integerOf(d)
			return r, ok, nil
		}
	} else if _, err := transcendental.Pow(d, v.apd(), e); err != nil || d.Form != apd.Finite {
		return Value{}, false, nil
	}
	r, ok := tidy(d)
	return r, ok, nil
}

// boundaryFunction is lowBoundary() and highBoundary(): the least and the
// greatest value that something known to its precision may have.
func boundaryFunction(high bool) scalarDef {
	return scalarDef{min: 0, max: 1, args: [][]Kind{integerKinds},
		input: []Kind{DecimalKind, DateKind, DateTimeKind, TimeKind, QuantityKind, IntegerKind},
		apply: func(_ *machine, _ *scalar, v Value, args []Value) (Value, bool, error) {
			digits := map[Kind]int{IntegerKind: 8, DecimalKind: 8, QuantityKind: 8, DateKind: 8, DateTimeKind: 17, TimeKind: 9}[v.kind]
			if len(args) == 1 {
				digits = int(args[0].n)
			}
			if v.kind == IntegerKind {
				v.kind = DecimalKind
			}
			if v.kind == DecimalKind || v.kind == QuantityKind {
				r, ok := decimalBoundary(v, digits, high)
				return r, ok, nil
			}
			prec, ok := precisionOf(v.kind, digits)
			if !ok {
				return v, false, nil
			}
			return v.boundary(prec, high), true, nil
		}}
}

// maxScale is the most digits behind the point that a boundary may be asked for.
const maxScale = 31

// decimalBoundary moves v by half a unit of its last digit and rounds outwards.
func decimalBoundary(v Value, digits int, high bool) (Value, bool) {
	if digits < 0 || digits > maxScale {
		return v, false
	}
	half := Value{kind: DecimalKind, n: 5, exp: int16(-v.scale() - 1)}
	mode := ceiling
	if !high {
		half, mode = negate(half), floor
	}
	number := v
	number.kind = DecimalKind
	moved, ok := addNumbers(number, half)
	if !ok {
		return v, false
	}
	r, ok := round(moved, digits, mode)
	r.kind, r.text, r.prec = v.kind, v.text, v.prec
	return r, ok
}

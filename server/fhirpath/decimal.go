package fhirpath

import (
	"math"
	"math/bits"
	"strconv"
	"strings"

	"github.com/cockroachdb/apd/v3"
)

// precision is how many digits a division or a root keeps. FHIRPath asks for 28.
const precision = 34

// maxDigits bounds numbers of any origin.
const maxDigits = 400

var (
	divisionContext = decimalContext(precision)
	exactContext    = decimalContext(2 * maxDigits)
)

// decimalContext returns a context in which no condition is an error: results
// are looked at instead.
func decimalContext(digits uint32) *apd.Context {
	c := apd.BaseContext.WithPrecision(digits)
	c.Traps = 0
	return c
}

// parseDecimal reads digits with an optional sign, fraction and exponent.
func parseDecimal(s string) (Value, bool) {
	v := Value{kind: DecimalKind}
	i, neg := 0, false
	if i < len(s) && (s[i] == '-' || s[i] == '+') {
		neg = s[i] == '-'
		i++
	}
	digits, point := 0, -1
	for ; i < len(s); i++ {
		c := s[i]
		if c == '.' && point < 0 && digits > 0 {
			point = digits
			continue
		}
		if !digit(c) {
			break
		}
		digits++
		if digits <= 18 {
			v.n = v.n*10 + int64(c-'0')
		}
	}
	if digits == 0 || point == digits {
		return v, false
	}
	if i < len(s) || digits > 18 {
		return parseLongDecimal(s)
	}
	if point >= 0 {
		v.exp = int16(point - digits)
	}
	if neg {
		v.n = -v.n
	}
	return v, true
}

func parseLongDecimal(s string) (Value, bool) {
	if len(s) > maxDigits {
		return Value{}, false
	}
	for i := range len(s) {
		if !digit(s[i]) && strings.IndexByte("+-.eE", s[i]) < 0 {
			return Value{}, false
		}
	}
	d, _, err := apd.NewFromString(s)
	if err != nil || d.Form != apd.Finite {
		return Value{}, false
	}
	return decimalOf(d)
}

// decimalOf returns d as a value, in the flat form if it fits. It fails for infinities, NaN
// and numbers that are too large.
func decimalOf(d *apd.Decimal) (Value, bool) {
	v := Value{kind: DecimalKind}
	if d.Form != apd.Finite || d.Exponent > maxDigits || d.Exponent < -maxDigits || d.NumDigits() > maxDigits {
		return v, false
	}
	if d.Coeff.IsInt64() {
		v.n, v.exp = d.Coeff.Int64(), int16(d.Exponent)
		if d.Negative {
			v.n = -v.n
		}
		return v, true
	}
	v.big = d
	return v, true
}

// apd returns the number of an Integer, Decimal or Quantity.
func (v Value) apd() *apd.Decimal {
	if v.big != nil {
		return v.big
	}
	return apd.New(v.n, int32(v.exp))
}

func (v Value) decimalText() string {
	if v.big == nil && v.exp == 0 {
		return strconv.FormatInt(v.n, 10)
	}
	return v.apd().Text('f')
}

// scale is how many digits follow the point.
func (v Value) scale() int {
	if v.big != nil {
		return max(0, -int(v.big.Exponent))
	}
	return max(0, -int(v.exp))
}

// reducedScale is the scale without trailing zeros.
func (v Value) reducedScale() int {
	d := new(apd.Decimal)
	d.Reduce(v.apd())
	return max(0, -int(d.Exponent))
}

var powersOfTen = [...]int64{1, 1e1, 1e2, 1e3, 1e4, 1e5, 1e6, 1e7, 1e8, 1e9, 1e10, 1e11, 1e12, 1e13, 1e14, 1e15, 1e16, 1e17, 1e18}

// times returns a*b, and whether it fits.
func times(a, b int64) (int64, bool) {
	hi, lo := bits.Mul64(uint64(magnitude(a)), uint64(magnitude(b)))
	if hi != 0 || lo > math.MaxInt64 {
		return 0, false
	}
	if (a < 0) != (b < 0) {
		return -int64(lo), true
	}
	return int64(lo), true
}

func magnitude(a int64) int64 {
	if a < 0 {
		return -a
	}
	return a
}

// align returns both coefficients at the smaller exponent.
func align(a, b Value) (x, y int64, exp int16, ok bool) {
	if a.big != nil || b.big != nil {
		return 0, 0, 0, false
	}
	x, y, exp = a.n, b.n, a.exp
	switch d := int(a.exp) - int(b.exp); {
	case d == 0:
		return x, y, exp, true
	case d > 0 && d < len(powersOfTen):
		x, ok = times(x, powersOfTen[d])
		exp = b.exp
	case d < 0 && -d < len(powersOfTen):
		y, ok = times(y, powersOfTen[-d])
	}
	return x, y, exp, ok
}

// compareNumbers returns -1, 0 or 1.
func compareNumbers(a, b Value) int {
	if x, y, _, ok := align(a, b); ok {
		switch {
		case x < y:
			return -1
		case x > y:
			return 1
		}
		return 0
	}
	return a.apd().Cmp(b.apd())
}

// addNumbers returns a+b. Of two Integers the sum is one, and empty (false) where
// it overflows.
func addNumbers(a, b Value) (Value, bool) {
	if x, y, exp, ok := align(a, b); ok {
		if s := x + y; (s > x) == (y > 0) {
			return numberLike(a, b, Value{n: s, exp: exp})
		}
	}
	d := new(apd.Decimal)
	if _, err := exactContext.Add(d, a.apd(), b.apd()); err != nil {
		return Value{}, false
	}
	return decimalOf(d)
}

func negate(v Value) Value {
	if v.big != nil {
		v.big = new(apd.Decimal).Neg(v.big)
	} else {
		v.n = -v.n
	}
	return v
}

func multiplyNumbers(a, b Value) (Value, bool) {
	if a.big == nil && b.big == nil {
		if p, ok := times(a.n, b.n); ok && int(a.exp)+int(b.exp) > -maxDigits {
			return numberLike(a, b, Value{n: p, exp: a.exp + b.exp})
		}
		if a.kind == IntegerKind && b.kind == IntegerKind {
			return Value{}, false
		}
	}
	d := new(apd.Decimal)
	if _, err := exactContext.Mul(d, a.apd(), b.apd()); err != nil {
		return Value{}, false
	}
	return decimalOf(d)
}

// numberLike gives v the kind of an operation on a and b.
func numberLike(a, b, v Value) (Value, bool) {
	v.kind = DecimalKind
	if a.kind == IntegerKind && b.kind == IntegerKind {
		v.kind = IntegerKind
		return v, v.n >= math.MinInt32 && v.n <= math.MaxInt32
	}
	return v, true
}

// divideNumbers returns a/b as a Decimal, without trailing zeros; empty for
// division by zero.
func divideNumbers(a, b Value) (Value, bool) {
	if b.big == nil && b.n == 0 {
		return Value{}, false
	}
	d := new(apd.Decimal)
	if _, err := divisionContext.Quo(d, a.apd(), b.apd()); err != nil || d.Form != apd.Finite {
		return Value{}, false
	}
	d.Reduce(d)
	if d.Exponent > 0 {
		if _, err := exactContext.Quantize(d, d, 0); err != nil {
			return Value{}, false
		}
	}
	return decimalOf(d)
}

// divide is div and mod: the whole part of a/b, and the remainder.
func divideWhole(a, b Value, remainder bool) (Value, bool) {
	if b.big == nil && b.n == 0 {
		return Value{}, false
	}
	if a.kind == IntegerKind && b.kind == IntegerKind {
		q := a.n / b.n
		if remainder {
			q = a.n % b.n
		}
		return numberLike(a, b, Value{n: q})
	}
	d := new(apd.Decimal)
	if remainder {
		if _, err := exactContext.Rem(d, a.apd(), b.apd()); err != nil || d.Form != apd.Finite {
			return Value{}, false
		}
		return decimalOf(d)
	}
	if _, err := exactContext.QuoInteger(d, a.apd(), b.apd()); err != nil || d.Form != apd.Finite {
		return Value{}, false
	}
	return integerOf(d)
}

// integerOf returns a whole d as an Integer; empty where it does not fit one.
func integerOf(d *apd.Decimal) (Value, bool) {
	i, err := d.Int64()
	if err != nil || i < math.MinInt32 || i > math.MaxInt32 {
		return Value{}, false
	}
	return Value{kind: IntegerKind, n: i}, true
}

// rounding is how digits are dropped.
type rounding uint8

const (
	down    rounding = iota // towards zero
	floor                   // towards minus infinity
	ceiling                 // towards plus infinity
	halfUp                  // to the nearest, a half away from zero
)

// round returns v with the given number of digits after the point. (apd's
// Quantize takes a number smaller than the last digit for zero in every mode.)
func round(v Value, scale int, mode rounding) (Value, bool) {
	d := v.apd()
	drop := -int64(scale) - int64(d.Exponent)
	if drop > 2*maxDigits || drop < -2*maxDigits {
		return Value{}, false
	}
	out := &apd.Decimal{Exponent: int32(-scale), Negative: d.Negative}
	var power apd.BigInt
	power.Exp(apd.NewBigInt(10), apd.NewBigInt(max(drop, -drop)), nil)
	if drop <= 0 {
		out.Coeff.Mul(&d.Coeff, &power)
		return decimalOf(out)
	}
	var rest apd.BigInt
	out.Coeff.QuoRem(&d.Coeff, &power, &rest)
	away := false
	switch mode {
	case floor:
		away = d.Negative && rest.Sign() != 0
	case ceiling:
		away = !d.Negative && rest.Sign() != 0
	case halfUp:
		away = rest.Lsh(&rest, 1).Cmp(&power) >= 0
	}
	if away {
		out.Coeff.Add(&out.Coeff, apd.NewBigInt(1))
	}
	return decimalOf(out)
}

package fhir

import (
	"fmt"
	"strings"

	"github.com/cockroachdb/apd/v3"
)

// maxExponent bounds the size of a decimal that is indexed or searched for:
// 10^±maxExponent. FHIR's own limit is 18 digits.
const maxExponent = 1000

// ParseDecimal reads a decimal as FHIR writes it: digits with an optional sign, fraction and exponent. It keeps
// every digit. The error names the expected form.
// Spec: https://hl7.org/fhir/R4/datatypes.html#decimal.
func ParseDecimal(text string) (*apd.Decimal, error) {
	if !decimalSyntax(text) {
		return nil, fmt.Errorf("%q is not a number: expected digits with an optional fraction and exponent, as in 5.40 or 1e3", clip(text))
	}
	d, _, err := apd.NewFromString(text)
	if err != nil || d.Form != apd.Finite || d.Exponent > maxExponent || d.Exponent < -maxExponent || d.NumDigits() > maxExponent {
		return nil, fmt.Errorf("%q is a number out of bounds", clip(text))
	}
	return d, nil
}

// SignificantRange returns the half-open range [low, high) of the numbers that a
// search value stands for: half a unit of its last digit to both sides. "100" is
// [99.5, 100.5), "5.40" is [5.395, 5.405).
//
// The specification reads "1e2" as [95, 105), which are the two significant
// figures of 1.0e2; so a whole number before an exponent counts as having one
// digit after the point. Spec: https://hl7.org/fhir/R4/search.html#number.
func SignificantRange(text string) (low, high *apd.Decimal, err error) {
	d, err := ParseDecimal(text)
	if err != nil {
		return nil, nil, err
	}
	exponent := d.Exponent - 1
	if strings.ContainsAny(text, "eE") && !strings.Contains(text, ".") {
		exponent--
	}
	half := apd.New(5, exponent)
	low, high = new(apd.Decimal), new(apd.Decimal)
	ctx := apd.BaseContext.WithPrecision(2*maxExponent + 10)
	if _, err := ctx.Sub(low, d, half); err != nil {
		return nil, nil, err
	}
	if _, err := ctx.Add(high, d, half); err != nil {
		return nil, nil, err
	}
	return low, high, nil
}

// decimalSyntax accepts JSON numbers, and also a leading plus sign or zeros, which people write in URLs.
func decimalSyntax(s string) bool {
	i := 0
	digits := func() bool {
		start := i
		for i < len(s) && s[i] >= '0' && s[i] <= '9' {
			i++
		}
		return i > start
	}
	if i < len(s) && (s[i] == '-' || s[i] == '+') {
		i++
	}
	if !digits() {
		return false
	}
	if i < len(s) && s[i] == '.' {
		i++
		if !digits() {
			return false
		}
	}
	if i < len(s) && (s[i] == 'e' || s[i] == 'E') {
		i++
		if i < len(s) && (s[i] == '-' || s[i] == '+') {
			i++
		}
		if !digits() || i-strings.IndexAny(s, "eE") > 6 {
			return false
		}
	}
	return i == len(s)
}

// justBelow and justAbove return a number so close to d that nothing people
// measure lies between: the closed end of "< d" and of "> d".
func justBelow(d *apd.Decimal) string { return nudge(d, -1) }
func justAbove(d *apd.Decimal) string { return nudge(d, 1) }

func nudge(d *apd.Decimal, by int64) string {
	out := new(apd.Decimal)
	ctx := apd.BaseContext.WithPrecision(2*maxExponent + 10)
	if _, err := ctx.Add(out, d, apd.New(by, min(d.Exponent, 0)-12)); err != nil {
		return d.Text('f')
	}
	return out.Text('f')
}

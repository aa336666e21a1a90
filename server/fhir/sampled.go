package fhir

import (
	"strconv"
	"strings"

	"github.com/cockroachdb/apd/v3"
)

// SampledBounds returns the least and the greatest value of a SampledData: its
// data, decimals separated by blanks, times factor ("" is 1) plus origin. In data
// L and U stand for lower and upper, E for an error, which is no value. Both are
// "" where there is no value.
// Spec: https://hl7.org/fhir/R4/datatypes.html#SampledData.
func SampledBounds(origin, factor, lower, upper, data string) (low, high string) {
	var least, greatest float64
	for token := range strings.FieldsSeq(data) {
		switch token {
		case "E":
			continue
		case "L":
			token = lower
		case "U":
			token = upper
		}
		v, err := strconv.ParseFloat(token, 64)
		if err != nil || !decimalSyntax(token) {
			continue
		}
		if low == "" || v < least {
			low, least = token, v
		}
		if high == "" || v > greatest {
			high, greatest = token, v
		}
	}
	low, high = scale(low, factor, origin), scale(high, factor, origin)
	if strings.HasPrefix(factor, "-") {
		return high, low
	}
	return low, high
}

// scale is value * factor + origin, exactly; "" where one of them is no decimal.
func scale(value, factor, origin string) string {
	v, err := ParseDecimal(value)
	if err != nil {
		return ""
	}
	o, err := ParseDecimal(origin)
	if err != nil {
		return ""
	}
	ctx := apd.BaseContext.WithPrecision(2 * maxExponent)
	if factor != "" {
		f, err := ParseDecimal(factor)
		if err != nil {
			return ""
		}
		if _, err := ctx.Mul(v, v, f); err != nil {
			return ""
		}
	}
	if _, err := ctx.Add(v, v, o); err != nil {
		return ""
	}
	return v.Text('f')
}

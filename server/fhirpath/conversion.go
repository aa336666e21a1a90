package fhirpath

import (
	"math"
	"strings"

	"kiln/server/ucum"
)

// conversionFunctions are toX() and convertsToX(). What cannot be converted is
// empty. Spec: https://hl7.org/fhirpath/N1/#conversion.
func conversionFunctions() map[string]scalarDef {
	t := map[string]scalarDef{}
	for _, c := range []struct {
		kind    Kind
		convert func(Value) (Value, bool)
	}{
		{BooleanKind, toBoolean}, {IntegerKind, toInteger}, {DecimalKind, toDecimal}, {StringKind, toString},
		{DateKind, toDate}, {DateTimeKind, toDateTime}, {TimeKind, toTime},
	} {
		t["to"+c.kind.String()] = scalarDef{result: []Kind{c.kind},
			apply: func(_ *machine, _ *scalar, v Value, _ []Value) (Value, bool, error) {
				r, ok := convertItem(v, c.convert)
				return r, ok, nil
			}}
		t["convertsTo"+c.kind.String()] = scalarDef{result: booleanKinds,
			apply: func(_ *machine, _ *scalar, v Value, _ []Value) (Value, bool, error) {
				_, ok := convertItem(v, c.convert)
				return Boolean(ok), true, nil
			}}
	}
	quantity := func(v Value, args []Value) (Value, bool) {
		q, ok := convertItem(v, toQuantity)
		if ok && len(args) == 1 {
			return convertQuantity(q, args[0].text)
		}
		return q, ok
	}
	t["toQuantity"] = scalarDef{max: 1, args: [][]Kind{stringKinds}, result: []Kind{QuantityKind},
		apply: func(_ *machine, _ *scalar, v Value, args []Value) (Value, bool, error) {
			q, ok := quantity(v, args)
			return q, ok, nil
		}}
	t["convertsToQuantity"] = scalarDef{max: 1, args: [][]Kind{stringKinds}, result: booleanKinds,
		apply: func(_ *machine, _ *scalar, v Value, args []Value) (Value, bool, error) {
			_, ok := quantity(v, args)
			return Boolean(ok), true, nil
		}}
	return t
}

func convertItem(v Value, convert func(Value) (Value, bool)) (Value, bool) {
	s, ok := v.system()
	if !ok {
		return v, false
	}
	return convert(s)
}

func toBoolean(v Value) (Value, bool) {
	switch v.kind {
	case BooleanKind:
		return v, true
	case IntegerKind:
		return Boolean(v.n == 1), v.n == 0 || v.n == 1
	case DecimalKind:
		one := compareNumbers(v, Value{n: 1}) == 0
		return Boolean(one), one || compareNumbers(v, Value{}) == 0
	case StringKind:
		switch strings.ToLower(v.text) {
		case "true", "t", "yes", "y", "1", "1.0":
			return Boolean(true), true
		case "false", "f", "no", "n", "0", "0.0":
			return Boolean(false), true
		}
	}
	return v, false
}

func toInteger(v Value) (Value, bool) {
	switch v.kind {
	case IntegerKind:
		return v, true
	case BooleanKind:
		return Value{kind: IntegerKind, n: v.n}, true
	case StringKind:
		n, ok := parseDecimal(v.text)
		if !ok || n.big != nil || strings.ContainsAny(v.text, ".eE") || n.n < math.MinInt32 || n.n > math.MaxInt32 {
			return v, false
		}
		return Value{kind: IntegerKind, n: n.n}, true
	}
	return v, false
}

func toDecimal(v Value) (Value, bool) {
	switch v.kind {
	case DecimalKind:
		return v, true
	case IntegerKind, BooleanKind:
		return Value{kind: DecimalKind, n: v.n}, true
	case StringKind:
		n, ok := parseDecimal(v.text)
		return n, ok && !strings.ContainsAny(v.text, "eE")
	}
	return v, false
}

func toString(v Value) (Value, bool) {
	return String(v.lexical()), v.kind != TypeInfoKind
}

func toDate(v Value) (Value, bool) {
	switch v.kind {
	case DateKind:
		return v, true
	case DateTimeKind:
		v.kind, v.prec, v.zoned, v.exp, v.text = DateKind, min(v.prec, dayPrecision), false, 0, ""
		v.n = cut(v.n, v.prec)
		return v, true
	case StringKind:
		if d, ok := parseDate(v.text); ok {
			return d, true
		}
		if d, ok := parseDateTime(v.text); ok {
			return toDate(d)
		}
	}
	return v, false
}

func toDateTime(v Value) (Value, bool) {
	switch v.kind {
	case DateTimeKind:
		return v, true
	case DateKind:
		v.kind = DateTimeKind
		return v, true
	case StringKind:
		return parseDateTime(v.text)
	}
	return v, false
}

func toTime(v Value) (Value, bool) {
	switch v.kind {
	case TimeKind:
		return v, true
	case StringKind:
		return parseTime(strings.TrimPrefix(v.text, "T"))
	}
	return v, false
}

// toQuantity reads a number with an optional unit: a UCUM code in quotes or a
// calendar duration. Spec: https://hl7.org/fhirpath/N1/#toquantityunit-string-quantity.
func toQuantity(v Value) (Value, bool) {
	switch v.kind {
	case QuantityKind:
		return v, true
	case IntegerKind, DecimalKind:
		return asQuantity(v), true
	case BooleanKind:
		return asQuantity(Value{kind: DecimalKind, n: v.n, exp: 0}), true
	case StringKind:
		end := strings.IndexAny(v.text, " '\t")
		number, unit := v.text, ""
		if end >= 0 {
			number, unit = v.text[:end], strings.TrimSpace(v.text[end:])
		}
		q, ok := parseDecimal(number)
		if !ok || strings.ContainsAny(number, "eE") {
			return v, false
		}
		q = asQuantity(q)
		switch {
		case end < 0:
		case len(unit) > 2 && unit[0] == '\'' && unit[len(unit)-1] == '\'':
			q.text = unit[1 : len(unit)-1]
			if _, err := ucum.Parse(q.text); err != nil {
				return v, false
			}
		case calendarUnit(unit):
			q.text, q.prec = unit, uint8(calendarUnitKind)
		default:
			return v, false
		}
		return q, true
	}
	return v, false
}

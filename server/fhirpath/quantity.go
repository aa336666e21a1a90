package fhirpath

import (
	"math/big"
	"strings"

	"github.com/cockroachdb/apd/v3"

	"kiln/server/fhir"
	"kiln/server/ucum"
)

// unitKind is the kind of the unit of a Quantity.
type unitKind uint8

const (
	ucumUnitKind     unitKind = iota // a UCUM code; "1" is none
	calendarUnitKind                 // a calendar duration, as written: "day", "days"
	foreignUnitKind                  // text of another system: only equal to itself
)

const ucumSystem = "http://unitsofmeasure.org"

// quantityOfNode converts a FHIR Quantity. One without value, or with a
// comparator, has no System value.
func quantityOfNode(n fhir.Node) (Value, bool) {
	var buf [1]fhir.Node
	text := func(name string) string {
		if c := n.AppendChild(buf[:0], name); len(c) == 1 {
			return c[0].Text()
		}
		return ""
	}
	v, ok := parseDecimal(text("value"))
	if !ok || text("comparator") != "" {
		return v, false
	}
	v.kind = QuantityKind
	code, system := text("code"), text("system")
	switch {
	case system == ucumSystem && code != "":
		v.text = code
	case code != "" && system != "":
		v.text, v.prec = system+"|"+code, uint8(foreignUnitKind)
	default:
		unit := text("unit")
		if code != "" {
			unit = code
		}
		if unit == "" {
			unit = "1"
		} else if _, err := ucum.Parse(unit); err != nil {
			v.prec = uint8(foreignUnitKind)
		}
		v.text = unit
	}
	return v, true
}

// asQuantity makes a number a Quantity with unit '1'.
func asQuantity(v Value) Value {
	if v.kind != QuantityKind {
		v.kind, v.prec, v.text = QuantityKind, uint8(ucumUnitKind), "1"
	}
	return v
}

// comparison says whether two quantities have an order.
type comparison uint8

const (
	decided      comparison = iota
	undecided               // calendar years against the year of UCUM, a: N1 defines no order
	incomparable            // different dimensions, or units that are not UCUM
)

// calendarCodes are the UCUM codes of calendar durations. Years and months have
// no exact one.
var calendarCodes = map[string]string{"week": "wk", "day": "d", "hour": "h", "minute": "min", "second": "s", "millisecond": "ms"}

func singular(unit string) string { return strings.TrimSuffix(unit, "s") }

// compareQuantities orders two quantities.
// Spec: https://hl7.org/fhirpath/N1/#quantity.
func compareQuantities(a, b Value) (order int, how comparison) {
	ka, kb := unitKind(a.prec), unitKind(b.prec)
	ua, ub := a.text, b.text
	if ka == kb && ua == ub {
		return compareNumbers(a, b), decided
	}
	if ka == foreignUnitKind || kb == foreignUnitKind {
		return 0, incomparable
	}
	if ka == calendarUnitKind && kb == calendarUnitKind {
		ma, oka := months(a)
		mb, okb := months(b)
		if oka && okb {
			return compareNumbers(ma, mb), decided
		}
		if singular(ua) == singular(ub) {
			return compareNumbers(a, b), decided
		}
	}
	ua, oka := a.ucumCode()
	ub, okb := b.ucumCode()
	if !oka || !okb {
		return 0, undecided
	}
	x, errx := ucum.Parse(ua)
	y, erry := ucum.Parse(ub)
	if errx != nil || erry != nil || !x.Comparable(y) {
		return 0, incomparable
	}
	return x.Base(a.rational()).Cmp(y.Base(b.rational())), decided
}

// months of a calendar duration of years or months.
func months(v Value) (Value, bool) {
	switch singular(v.text) {
	case "year":
		return multiplyNumbers(Value{kind: DecimalKind, n: v.n, exp: v.exp, big: v.big}, Value{kind: DecimalKind, n: 12})
	case "month":
		return v, true
	}
	return v, false
}

// ucumCode is the unit as UCUM has it; ok is false for calendar years and months.
func (v Value) ucumCode() (string, bool) {
	if unitKind(v.prec) != calendarUnitKind {
		return v.text, true
	}
	code, ok := calendarCodes[singular(v.text)]
	return code, ok
}

// rational is the number as an exact fraction.
func (v Value) rational() *big.Rat {
	r, ok := new(big.Rat).SetString(v.apd().Text('f'))
	if !ok {
		return new(big.Rat)
	}
	return r
}

// rationalValue returns r as a Decimal: exact where it has a finite form of few
// digits, else to the precision of a division.
func rationalValue(r *big.Rat) (Value, bool) {
	num, _, err := apd.NewFromString(r.Num().String())
	if err != nil {
		return Value{}, false
	}
	den, _, err := apd.NewFromString(r.Denom().String())
	if err != nil {
		return Value{}, false
	}
	d := new(apd.Decimal)
	if _, err := divisionContext.Quo(d, num, den); err != nil {
		return Value{}, false
	}
	d.Reduce(d)
	if d.Exponent > 0 && d.Exponent < maxDigits {
		if _, err := exactContext.Quantize(d, d, 0); err != nil {
			return Value{}, false
		}
	}
	return decimalOf(d)
}

// convertQuantity returns v in the unit to.
func convertQuantity(v Value, to string) (Value, bool) {
	code, ok := v.ucumCode()
	if calendar := unitKind(v.prec) == calendarUnitKind; calendar && singular(v.text) == singular(to) || !calendar && code == to {
		return v, true
	}
	if singular(to) == "month" && singular(v.text) == "year" && unitKind(v.prec) == calendarUnitKind {
		out, _ := months(v)
		out.kind, out.text, out.prec = QuantityKind, to, v.prec
		return out, true
	}
	target := to
	prec := ucumUnitKind
	if calendarUnit(to) {
		prec = calendarUnitKind
		var known bool
		if target, known = calendarCodes[singular(to)]; !known {
			return v, false
		}
	}
	if !ok {
		return v, false
	}
	x, errx := ucum.Parse(code)
	y, erry := ucum.Parse(target)
	if errx != nil || erry != nil {
		return v, false
	}
	r, err := x.Convert(v.rational(), y)
	if err != nil {
		return v, false
	}
	out, ok := rationalValue(r)
	out.kind, out.text, out.prec = QuantityKind, to, uint8(prec)
	return out, ok
}

// equivalentQuantities compares at the precision of the less precise of both, in
// its unit. A calendar year is equivalent to an 'a', a month to a 'mo'.
func equivalentQuantities(a, b Value) bool {
	loose := func(v Value) (string, bool) {
		if unitKind(v.prec) == calendarUnitKind {
			switch singular(v.text) {
			case "year":
				return "a", true
			case "month":
				return "mo", true
			}
		}
		return v.ucumCode()
	}
	if unitKind(a.prec) == foreignUnitKind || unitKind(b.prec) == foreignUnitKind {
		return a.prec == b.prec && a.text == b.text && equivalentNumbers(a, b)
	}
	ua, _ := loose(a)
	ub, _ := loose(b)
	if ua == ub {
		return equivalentNumbers(a, b)
	}
	x, errx := ucum.Parse(ua)
	y, erry := ucum.Parse(ub)
	if errx != nil || erry != nil || !x.Comparable(y) {
		return false
	}
	// The coarser of both steps decides: 4 'g' counts grams, 4040 'mg' milligrams.
	step := func(v Value, u ucum.Unit) *big.Rat {
		one := Value{kind: DecimalKind, n: 1, exp: int16(-v.reducedScale())}
		zero := u.Base(new(big.Rat))
		return new(big.Rat).Sub(u.Base(one.rational()), zero)
	}
	coarse, other, unit, from := a, b, x, y
	if step(a, x).Cmp(step(b, y)) < 0 {
		coarse, other, unit, from = b, a, y, x
	}
	r, err := from.Convert(other.rational(), unit)
	if err != nil {
		return false
	}
	converted, ok := rationalValue(r)
	if !ok {
		return false
	}
	rounded, ok := round(converted, coarse.reducedScale(), halfUp)
	return ok && compareNumbers(rounded, coarse) == 0
}

// calendarOf returns the calendar duration, in the singular, that may be added to
// a value of the kind, or why it may not.
func calendarOf(q Value, kind Kind) (unit, reason string) {
	unit = singular(q.text)
	if !calendarUnit(q.text) {
		unit = ""
		for name, code := range calendarCodes {
			if code == q.text && unitKind(q.prec) == ucumUnitKind {
				unit = name
			}
		}
	}
	switch {
	case unit == "" && (q.text == "a" || q.text == "mo"):
		return "", "a date does not move by '" + q.text + "', which is no whole number of days; write year or month"
	case unit == "":
		return "", "'" + clip(q.text) + "' is not a duration"
	case kind == TimeKind && (unit == "year" || unit == "month" || unit == "week" || unit == "day"):
		return "", "a Time does not move by " + unit + "s"
	}
	return unit, ""
}

// quantities computes a op b. ok is false where op does not work on quantities.
func quantities(op string, a, b Value) (v Value, found, ok bool) {
	switch op {
	case "+", "-":
		if a.text != b.text || a.prec != b.prec {
			if finer(b, a) {
				a, ok = convertQuantity(a, b.text)
			} else {
				b, ok = convertQuantity(b, a.text)
			}
			if !ok {
				return v, false, true
			}
		}
		if op == "-" {
			b = negate(b)
		}
		v, found = addNumbers(a, b)
	case "*", "/":
		ua, oka := a.ucumCode()
		ub, okb := b.ucumCode()
		if !oka || !okb || unitKind(a.prec) == foreignUnitKind || unitKind(b.prec) == foreignUnitKind {
			// Years times a plain number are years, and so is a plain number times years.
			if ub != "1" && (ua != "1" || op != "*") {
				return v, false, true
			}
		}
		if op == "*" {
			v, found = multiplyNumbers(a, b)
		} else {
			v, found = divideNumbers(a, b)
		}
		switch {
		case ub == "1":
			v.text, v.prec = a.text, a.prec
		case ua == "1" && op == "*":
			v.text, v.prec = b.text, b.prec
		case op == "*":
			v.text = ua + "." + factor(ub)
		case ua == ub:
			v.text = "1"
		case ua == "1":
			v.text = "/" + factor(ub)
		default:
			v.text = ua + "/" + factor(ub)
		}
		if len(v.text) > 100 {
			return v, false, true
		}
		v.kind = QuantityKind
		return v, found, true
	default:
		return v, false, false
	}
	v.kind, v.text, v.prec = QuantityKind, a.text, a.prec
	return v, found, true
}

// finer reports whether the unit of a is more granular than the unit of b: the sum of both
// has that unit. Units that do not convert to each other are not finer.
// Spec: https://hl7.org/fhirpath/N1/#addition.
func finer(a, b Value) bool {
	if yearly, ok := yearsAndMonths(a, b); ok {
		return yearly
	}
	ua, oka := a.ucumCode()
	ub, okb := b.ucumCode()
	if !oka || !okb {
		return false
	}
	x, errx := ucum.Parse(ua)
	y, erry := ucum.Parse(ub)
	return errx == nil && erry == nil && x.Comparable(y) && x.Step().Cmp(y.Step()) < 0
}

// yearsAndMonths reports whether both are calendar years or months, and whether a is
// months and b years.
func yearsAndMonths(a, b Value) (finer, ok bool) {
	if unitKind(a.prec) != calendarUnitKind || unitKind(b.prec) != calendarUnitKind {
		return false, false
	}
	_, oka := months(a)
	_, okb := months(b)
	return singular(a.text) == "month" && singular(b.text) == "year", oka && okb
}

// factor returns a unit as the right side of an operator.
func factor(unit string) string {
	if strings.ContainsAny(unit, "./") {
		return "(" + unit + ")"
	}
	return unit
}

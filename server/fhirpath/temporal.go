package fhirpath

import (
	"strconv"
	"time"

	"kiln/server/fhir"
)

// Precisions of a Date, DateTime or Time. Seconds and their fractions are one
// precision in comparisons; fraction+n has n digits.
const (
	yearPrecision uint8 = iota + 1
	monthPrecision
	dayPrecision
	hourPrecision
	minutePrecision
	secondPrecision // secondPrecision+n: n digits of a fraction, at most six
)

const (
	microsPerSecond = int64(1_000_000)
	microsPerMinute = 60 * microsPerSecond
	microsPerHour   = 60 * microsPerMinute
	microsPerDay    = 24 * microsPerHour
)

// civil is a date and time of day in parts.
type civil struct {
	year, month, day int
	micros           int64 // since midnight
}

// daysFrom returns days since 1970-01-01 in the proleptic Gregorian calendar.
func (c civil) days() int64 {
	y, m := int64(c.year), int64(c.month)
	if m <= 2 {
		y--
	}
	era := floorDiv(y, 400)
	yoe := y - era*400
	mp := (m + 9) % 12
	doy := (153*mp+2)/5 + int64(c.day) - 1
	doe := yoe*365 + yoe/4 - yoe/100 + doy
	return era*146097 + doe - 719468
}

func (c civil) total() int64 { return c.days()*microsPerDay + c.micros }

// civilOf is the inverse of total.
func civilOf(n int64) civil {
	days := floorDiv(n, microsPerDay)
	c := civil{micros: n - days*microsPerDay}
	z := days + 719468
	era := floorDiv(z, 146097)
	doe := z - era*146097
	yoe := (doe - doe/1460 + doe/36524 - doe/146096) / 365
	y := yoe + era*400
	doy := doe - (365*yoe + yoe/4 - yoe/100)
	mp := (5*doy + 2) / 153
	c.day = int(doy - (153*mp+2)/5 + 1)
	c.month = int(mp + 3)
	if mp >= 10 {
		c.month = int(mp - 9)
	}
	if c.month <= 2 {
		y++
	}
	c.year = int(y)
	return c
}

func floorDiv(a, b int64) int64 {
	q := a / b
	if a%b < 0 {
		q--
	}
	return q
}

// reader reads fixed digits.
type reader struct {
	s  string
	i  int
	ok bool
}

func (r *reader) number(n int) int {
	if len(r.s)-r.i < n {
		r.ok = false
		return 0
	}
	v := 0
	for range n {
		c := r.s[r.i]
		if !digit(c) {
			r.ok = false
			return 0
		}
		v = v*10 + int(c-'0')
		r.i++
	}
	return v
}

func (r *reader) next(c byte) bool {
	if r.i < len(r.s) && r.s[r.i] == c {
		r.i++
		return true
	}
	return false
}

func (r *reader) end() bool { return r.i == len(r.s) }

// parseDate reads YYYY[-MM[-DD]].
func parseDate(s string) (Value, bool) {
	r := reader{s: s, ok: true}
	v, ok := r.date()
	v.kind = DateKind
	return v, ok && r.end()
}

// parseDateTime reads a date with an optional time after T: hh[:mm[:ss[.f]]] and
// an optional zone. "2015T" is a year.
func parseDateTime(s string) (Value, bool) {
	r := reader{s: s, ok: true}
	v, ok := r.date()
	v.kind = DateTimeKind
	if !ok || r.end() {
		return v, ok
	}
	if !r.next('T') {
		return v, false
	}
	if r.end() {
		v.text = s[:len(s)-1]
		return v, true
	}
	if v.prec != dayPrecision {
		return v, false
	}
	micros, prec := r.time()
	v.n += micros
	v.prec = prec
	v.text = s
	if r.ok && !r.end() {
		v.zoned = true
		if !r.next('Z') {
			sign := 1
			if r.next('-') {
				sign = -1
			} else if !r.next('+') {
				return v, false
			}
			h := r.number(2)
			colon := r.next(':')
			m := r.number(2)
			if !colon || !fhir.ValidOffset(h, m) {
				return v, false
			}
			v.exp = int16(sign * (h*60 + m))
		}
	}
	return v, r.ok && r.end()
}

// parseTime reads hh[:mm[:ss[.f]]].
func parseTime(s string) (Value, bool) {
	r := reader{s: s, ok: true}
	v := Value{kind: TimeKind, text: s}
	v.n, v.prec = r.time()
	return v, r.ok && r.end()
}

func (r *reader) date() (Value, bool) {
	c := civil{month: 1, day: 1}
	c.year = r.number(4)
	prec := yearPrecision
	if r.ok && r.next('-') {
		c.month = r.number(2)
		prec = monthPrecision
		if r.ok && r.next('-') {
			c.day = r.number(2)
			prec = dayPrecision
		}
	}
	if !r.ok || c.year < 1 || c.month < 1 || c.month > 12 || c.day < 1 || c.day > fhir.DaysIn(c.year, c.month) {
		return Value{}, false
	}
	return Value{prec: prec, n: c.total(), text: r.s}, true
}

func (r *reader) time() (micros int64, prec uint8) {
	h := r.number(2)
	prec = hourPrecision
	if h > 23 {
		r.ok = false
	}
	micros = int64(h) * microsPerHour
	if !r.next(':') {
		return
	}
	m := r.number(2)
	prec = minutePrecision
	if m > 59 {
		r.ok = false
	}
	micros += int64(m) * microsPerMinute
	if !r.next(':') {
		return
	}
	s := r.number(2)
	prec = secondPrecision
	if s > 60 {
		r.ok = false
	}
	micros += int64(s) * microsPerSecond // 60, a leap second, is the next minute
	if !r.next('.') {
		return
	}
	unit := microsPerSecond
	start := r.i
	for r.i < len(r.s) && digit(r.s[r.i]) {
		if unit > 1 {
			unit /= 10
			micros += int64(r.s[r.i]-'0') * unit
			prec++
		}
		r.i++
	}
	if r.i == start {
		r.ok = false
	}
	return
}

// temporalText writes what n, prec and the zone say.
func (v Value) temporalText() string {
	b := make([]byte, 0, 32)
	pad := func(n, width int) {
		s := strconv.Itoa(n)
		for range width - len(s) {
			b = append(b, '0')
		}
		b = append(b, s...)
	}
	c := civilOf(v.n)
	if v.kind != TimeKind {
		pad(c.year, 4)
		if v.prec >= monthPrecision {
			b = append(b, '-')
			pad(c.month, 2)
		}
		if v.prec >= dayPrecision {
			b = append(b, '-')
			pad(c.day, 2)
		}
		if v.prec < hourPrecision {
			return string(b)
		}
		b = append(b, 'T')
	}
	pad(int(c.micros/microsPerHour), 2)
	if v.prec >= minutePrecision {
		b = append(b, ':')
		pad(int(c.micros/microsPerMinute%60), 2)
	}
	if v.prec >= secondPrecision {
		b = append(b, ':')
		pad(int(c.micros/microsPerSecond%60), 2)
	}
	if v.prec > secondPrecision {
		b = append(b, '.')
		digits := int(v.prec - secondPrecision)
		pad(int(c.micros%microsPerSecond/powersOfTen[6-digits]), digits)
	}
	if v.zoned {
		if v.exp == 0 {
			return string(append(b, 'Z'))
		}
		sign, off := byte('+'), int(v.exp)
		if off < 0 {
			sign, off = '-', -off
		}
		b = append(b, sign)
		pad(off/60, 2)
		b = append(b, ':')
		pad(off%60, 2)
	}
	return string(b)
}

// utc moves a zoned value to UTC.
func (v Value) utc() int64 {
	if v.zoned && v.prec >= hourPrecision {
		return v.n - int64(v.exp)*microsPerMinute
	}
	return v.n
}

// cut sets everything below prec to its first value.
func cut(n int64, prec uint8) int64 {
	switch prec {
	case yearPrecision, monthPrecision:
		c := civilOf(n)
		c.day, c.micros = 1, 0
		if prec == yearPrecision {
			c.month = 1
		}
		return c.total()
	case dayPrecision:
		return floorDiv(n, microsPerDay) * microsPerDay
	case hourPrecision:
		return floorDiv(n, microsPerHour) * microsPerHour
	case minutePrecision:
		return floorDiv(n, microsPerMinute) * microsPerMinute
	}
	return n
}

// Bounds of the zones that exist, for values that name none.
const (
	eastmost = 14 * microsPerHour
	westmost = 12 * microsPerHour
)

// compareTemporal compares two Dates or DateTimes, or two Times. known is false
// where the precision of one, or its missing time zone, leaves it open.
// Spec: https://hl7.org/fhirpath/N1/#datetime-equality.
func compareTemporal(a, b Value) (order int, known bool) {
	x, y := a.n, b.n
	pa, pb := min(a.prec, secondPrecision), min(b.prec, secondPrecision)
	if pa >= hourPrecision && pb >= hourPrecision && a.kind != TimeKind {
		if a.zoned != b.zoned {
			// Decided only where it is so in every zone.
			x, y = a.utc(), b.utc()
			low, high := x-y, x-y
			if !a.zoned {
				low, high = low-eastmost, high+westmost
			} else {
				low, high = low-westmost, high+eastmost
			}
			switch {
			case low > 0:
				return 1, true
			case high < 0:
				return -1, true
			}
			return 0, false
		}
		x, y = a.utc(), b.utc()
	}
	p := min(pa, pb)
	if pa != pb {
		x, y = cut(x, p), cut(y, p)
	}
	switch {
	case x < y:
		return -1, true
	case x > y:
		return 1, true
	}
	return 0, pa == pb
}

// durations in microseconds, by the singular name of a calendar duration.
func durationOf(unit string) (micros int64, ok bool) {
	switch unit {
	case "week":
		return 7 * microsPerDay, true
	case "day":
		return microsPerDay, true
	case "hour":
		return microsPerHour, true
	case "minute":
		return microsPerMinute, true
	case "second":
		return microsPerSecond, true
	case "millisecond":
		return 1000, true
	}
	return 0, false
}

// addDuration adds count units (a calendar duration in the singular) to a Date,
// DateTime or Time. A unit finer than the value's precision is counted in whole
// steps of that precision: @2014 + 23 months is @2015. Digits after the point
// count for seconds only. It is empty (false) outside the years 1 to 9999.
// Spec: https://hl7.org/fhirpath/N1/#datetime-arithmetic.
func addDuration(v Value, amount Value, unit string) (Value, bool) {
	whole, ok := wholeNumber(amount)
	if !ok {
		return v, false
	}
	v.text = ""
	if v.kind == TimeKind {
		d, _ := durationOf(unit)
		step, ok := times(whole, d)
		if !ok {
			return v, false
		}
		if unit == "second" {
			step = secondsOf(amount)
		}
		v.n = cut(((v.n+step)%microsPerDay+microsPerDay)%microsPerDay, min(v.prec, secondPrecision))
		return v, true
	}
	var months int64
	switch unit {
	case "year":
		months, ok = times(whole, 12)
	case "month":
		months = whole
	default:
		d, _ := durationOf(unit)
		var step int64
		if step, ok = times(whole, d); !ok {
			return v, false
		}
		if unit == "second" {
			step = secondsOf(amount)
		}
		switch v.prec {
		case yearPrecision:
			return addMonths(v, step/(365*microsPerDay)*12)
		case monthPrecision:
			return addMonths(v, step/(30*microsPerDay))
		case dayPrecision:
			step = step / microsPerDay * microsPerDay
		case hourPrecision:
			step = step / microsPerHour * microsPerHour
		case minutePrecision:
			step = step / microsPerMinute * microsPerMinute
		}
		if magnitude(step) > 20_000*366*microsPerDay {
			return v, false
		}
		v.n += step
		year := civilOf(v.n).year
		return v, year >= 1 && year <= 9999
	}
	if !ok {
		return v, false
	}
	if v.prec == yearPrecision {
		months = months / 12 * 12
	}
	return addMonths(v, months)
}

// addMonths keeps the day of the month, or the last one where the month is
// shorter.
func addMonths(v Value, months int64) (Value, bool) {
	if magnitude(months) > 20_000*12 {
		return v, false
	}
	c := civilOf(v.n)
	m := int64(c.year)*12 + int64(c.month-1) + months
	c.year, c.month = int(floorDiv(m, 12)), int(m-floorDiv(m, 12)*12)+1
	if c.year < 1 || c.year > 9999 {
		return v, false
	}
	c.day = min(c.day, fhir.DaysIn(c.year, c.month))
	v.n = c.total()
	v.text = ""
	return v, true
}

// wholeNumber is the amount without its fraction.
func wholeNumber(v Value) (int64, bool) {
	if v.big == nil && v.exp == 0 {
		return v.n, true
	}
	r, ok := round(v, 0, down)
	return r.n, ok && r.big == nil && r.exp == 0
}

// secondsOf is an amount of seconds in microseconds.
func secondsOf(v Value) int64 {
	p, ok := multiplyNumbers(v, Value{kind: DecimalKind, n: microsPerSecond})
	if !ok {
		return 0
	}
	n, _ := wholeNumber(p)
	return n
}

// instantValue returns t as a DateTime with milliseconds and its zone.
func instantValue(t time.Time) Value {
	_, offset := t.Zone()
	return Value{
		kind: DateTimeKind, prec: secondPrecision + 3, zoned: true, exp: int16(offset / 60),
		n: (t.UnixMilli() + int64(offset)*1000) * 1000,
	}
}

// digitsOf is the precision of a value as precision() counts it: 4 for a year, 17
// for a DateTime with milliseconds, 9 for such a Time.
func (v Value) digitsOf() int {
	digits := 0
	if v.kind != TimeKind {
		digits = [...]int{0, 4, 6, 8, 8, 8, 8}[min(v.prec, secondPrecision)]
	}
	if v.prec >= hourPrecision {
		digits += 2 * int(min(v.prec, secondPrecision)-hourPrecision+1)
	}
	if v.prec > secondPrecision {
		digits += 3
	}
	return digits
}

// precisionOf is the inverse of digitsOf.
func precisionOf(kind Kind, digits int) (uint8, bool) {
	if kind == TimeKind {
		digits += 8
	}
	p, ok := map[int]uint8{
		4: yearPrecision, 6: monthPrecision, 8: dayPrecision, 10: hourPrecision,
		12: minutePrecision, 14: secondPrecision, 17: secondPrecision + 3,
	}[digits]
	return p, ok && !(kind == TimeKind && p < hourPrecision) && !(kind == DateKind && p > dayPrecision)
}

// boundary returns the first (or last) moment that v may stand for, with the
// given precision. A DateTime without zone gets the zone where that moment comes
// first (or last).
func (v Value) boundary(prec uint8, last bool) Value {
	have := v.prec
	v.text = ""
	if last {
		end := v.n
		switch {
		case have <= monthPrecision:
			c := civilOf(v.n)
			if have == yearPrecision {
				c.month = 12
			}
			c.day = fhir.DaysIn(c.year, c.month)
			end = c.total() + microsPerDay
		case have == dayPrecision:
			end += microsPerDay
		case have == hourPrecision:
			end += microsPerHour
		case have == minutePrecision:
			end += microsPerMinute
		case have < secondPrecision+6:
			end += powersOfTen[6-(have-secondPrecision)]
		default:
			end++
		}
		v.n = end - 1
	}
	v.prec = prec
	if prec > secondPrecision {
		v.n = floorDiv(v.n, 1000) * 1000
	} else {
		v.n = cut(v.n, prec)
	}
	if v.kind == DateTimeKind && prec >= hourPrecision && !v.zoned {
		v.zoned, v.exp = true, 14*60
		if last {
			v.exp = -12 * 60
		}
	}
	if prec < hourPrecision {
		v.zoned, v.exp = false, 0
	}
	return v
}

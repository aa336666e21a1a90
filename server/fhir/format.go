package fhir

import (
	"strconv"
	"strings"
)

var primitiveNames = [...]string{
	Base64BinaryKind: "base64Binary", BooleanKind: "boolean", CanonicalKind: "canonical", CodeKind: "code",
	DateKind: "date", DateTimeKind: "dateTime", DecimalKind: "decimal", IDKind: "id", InstantKind: "instant",
	IntegerKind: "integer", MarkdownKind: "markdown", OIDKind: "oid", PositiveIntKind: "positiveInt",
	StringKind: "string", TimeKind: "time", UnsignedIntKind: "unsignedInt", URIKind: "uri", URLKind: "url",
	UUIDKind: "uuid", XHTMLKind: "xhtml", SystemStringKind: "string", JSONKind: "json", Integer64Kind: "integer64",
}

// Valid reports whether text is a value of primitive type k. JSON syntax (a
// number, a boolean) is taken as given.
// Spec: https://hl7.org/fhir/R4/datatypes.html#primitive.
func (k Kind) Valid(text string) bool {
	switch k {
	case IntegerKind:
		return validInteger(text, -1<<31)
	case UnsignedIntKind:
		return validInteger(text, 0)
	case PositiveIntKind:
		return validInteger(text, 1)
	case Integer64Kind:
		_, err := strconv.ParseInt(text, 10, 64)
		return err == nil && text[0] != '+'
	case DecimalKind:
		return validDecimal(text)
	case IDKind:
		return ValidID(text)
	case CodeKind:
		return validCode(text)
	case DateKind:
		return validDate(text) == len(text)
	case DateTimeKind:
		return validDateTime(text, false)
	case InstantKind:
		return validDateTime(text, true)
	case TimeKind:
		return validTime(text) == len(text)
	case OIDKind:
		return validOID(text)
	case UUIDKind:
		return validUUID(text)
	case CanonicalKind, URIKind, URLKind:
		return !strings.ContainsAny(text, " \t\n\r")
	case Base64BinaryKind:
		return validBase64(text)
	}
	return true
}

// ValidID reports whether id can be a logical id: [A-Za-z0-9\-\.]{1,64}.
// Spec: https://hl7.org/fhir/R4/datatypes.html#id.
func ValidID(id string) bool {
	if id == "" || len(id) > 64 {
		return false
	}
	for i := 0; i < len(id); i++ {
		c := id[i]
		if !(c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || c == '-' || c == '.') {
			return false
		}
	}
	return true
}

func validInteger(s string, least int64) bool {
	if len(s) > 11 {
		return false
	}
	var n int64
	for i := 0; i < len(s); i++ {
		c := s[i]
		if c == '-' && i == 0 {
			continue
		}
		if c < '0' || c > '9' {
			return false
		}
		n = n*10 + int64(c-'0')
	}
	if s[0] == '-' {
		n = -n
	}
	return n >= least && n <= 1<<31-1
}

// validDecimal bounds the exponent: within it PostgreSQL's numeric and every
// search range can hold the value exactly.
func validDecimal(s string) bool {
	e := strings.IndexAny(s, "eE")
	if e < 0 {
		return true
	}
	exponent := strings.TrimLeft(s[e+1:], "+-0")
	return len(exponent) < 3 || (len(exponent) == 3 && exponent <= "300")
}

func validCode(s string) bool {
	if s[0] == ' ' || s[len(s)-1] == ' ' {
		return false
	}
	for i := 0; i < len(s); i++ {
		if c := s[i]; c < ' ' || (c == ' ' && s[i-1] == ' ') {
			return false
		}
	}
	return true
}

// number2 reads two digits at i, -1 when there are none.
func number2(s string, i int) int {
	if i+2 > len(s) || s[i] < '0' || s[i] > '9' || s[i+1] < '0' || s[i+1] > '9' {
		return -1
	}
	return int(s[i]-'0')*10 + int(s[i+1]-'0')
}

func between(n, low, high int) bool { return n >= low && n <= high }

// validDate reads YYYY, YYYY-MM or YYYY-MM-DD and returns its length, -1 when it
// is none or no day of the calendar.
func validDate(s string) int {
	century, rest := number2(s, 0), number2(s, 2)
	if century < 0 || rest < 0 || century+rest == 0 {
		return -1
	}
	year := century*100 + rest
	if len(s) == 4 || s[4] != '-' {
		return 4
	}
	month := number2(s, 5)
	if !between(month, 1, 12) {
		return -1
	}
	if len(s) == 7 || s[7] != '-' {
		return 7
	}
	if !between(number2(s, 8), 1, DaysIn(year, month)) {
		return -1
	}
	return 10
}

// DaysIn is how many days a month has.
func DaysIn(year, month int) int {
	switch month {
	case 4, 6, 9, 11:
		return 30
	case 2:
		if year%4 == 0 && (year%100 != 0 || year%400 == 0) {
			return 29
		}
		return 28
	}
	return 31
}

// validTime reads hh:mm:ss with an optional fraction and returns its length.
func validTime(s string) int {
	if len(s) < 8 || s[2] != ':' || s[5] != ':' ||
		!between(number2(s, 0), 0, 23) || !between(number2(s, 3), 0, 59) || !between(number2(s, 6), 0, 60) {
		return -1
	}
	i := 8
	if i < len(s) && s[i] == '.' {
		for i++; i < len(s) && s[i] >= '0' && s[i] <= '9'; i++ {
		}
		if i == 9 {
			return -1
		}
	}
	return i
}

func validDateTime(s string, instant bool) bool {
	n := validDate(s)
	if n < 0 {
		return false
	}
	if n == len(s) {
		return !instant
	}
	if n != 10 || s[10] != 'T' {
		return false
	}
	t := validTime(s[11:])
	if t < 0 {
		return false
	}
	zone := s[11+t:]
	if zone == "Z" {
		return true
	}
	return len(zone) == 6 && (zone[0] == '+' || zone[0] == '-') && zone[3] == ':' &&
		ValidOffset(number2(zone, 1), number2(zone, 4))
}

// ValidOffset reports whether a time zone can be that far from UTC: 14:00 at most.
// Spec: https://hl7.org/fhir/R4/datatypes.html#dateTime (the regular expression).
func ValidOffset(hours, minutes int) bool {
	return between(hours, 0, 13) && between(minutes, 0, 59) || hours == 14 && minutes == 0
}

func validOID(s string) bool {
	rest, ok := strings.CutPrefix(s, "urn:oid:")
	if !ok || rest == "" || rest[0] < '0' || rest[0] > '2' {
		return false
	}
	for i, arc := range strings.Split(rest, ".") {
		if arc == "" || (i > 0 && len(arc) > 1 && arc[0] == '0') || strings.Trim(arc, "0123456789") != "" {
			return false
		}
	}
	return strings.Contains(rest, ".")
}

func validUUID(s string) bool {
	rest, ok := strings.CutPrefix(s, "urn:uuid:")
	if !ok || len(rest) != 36 {
		return false
	}
	for i := 0; i < len(rest); i++ {
		c := rest[i]
		if i == 8 || i == 13 || i == 18 || i == 23 {
			if c != '-' {
				return false
			}
		} else if !(c >= '0' && c <= '9' || c >= 'a' && c <= 'f') {
			return false
		}
	}
	return true
}

func validBase64(s string) bool {
	n, pad := 0, 0
	for i := 0; i < len(s); i++ {
		c := s[i]
		switch {
		case c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || c == '+' || c == '/':
			if pad > 0 {
				return false
			}
			n++
		case c == '=':
			pad++
		case c == ' ' || c == '\n' || c == '\r' || c == '\t':
		default:
			return false
		}
	}
	return (n+pad)%4 == 0 && pad <= 2 && n > 0
}

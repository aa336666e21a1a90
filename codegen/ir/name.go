package ir

import (
	"strings"
	"unicode"
)

// initialisms are the words that Go writes in capitals.
var initialisms = map[string]bool{
	"api": true, "cql": true, "fhir": true, "html": true, "http": true, "id": true, "json": true,
	"md5": true, "oid": true, "sha1": true, "sql": true, "udi": true, "uri": true, "url": true,
	"uuid": true, "xml": true,
}

// GoName turns an element or type name into an exported Go identifier: birthDate
// is BirthDate, fullUrl FullURL, id ID. Several names are joined.
func GoName(names ...string) string {
	var b strings.Builder
	for _, n := range names {
		for _, w := range words(n) {
			if initialisms[strings.ToLower(w)] {
				b.WriteString(strings.ToUpper(w))
			} else {
				b.WriteString(strings.ToUpper(w[:1]) + w[1:])
			}
		}
	}
	return b.String()
}

// words splits a camel-case name at its humps. Whatever Go does not allow in an
// identifier ends a word.
func words(name string) []string {
	var out []string
	for _, part := range strings.FieldsFunc(name, func(r rune) bool { return !unicode.IsLetter(r) && !unicode.IsDigit(r) }) {
		start := 0
		for i := 1; i < len(part); i++ {
			up := unicode.IsUpper(rune(part[i]))
			lowBefore := !unicode.IsUpper(rune(part[i-1]))
			lowAfter := i+1 < len(part) && unicode.IsLower(rune(part[i+1]))
			if up && (lowBefore || lowAfter) {
				out = append(out, part[start:i])
				start = i
			}
		}
		out = append(out, part[start:])
	}
	return out
}

package search

import (
	"strings"

	"kiln/server/outcome"
)

// Values are split before they are unescaped: `\,` `\|` `\$` and `\\` stand for
// the character itself. Spec: https://hl7.org/fhir/R4/search.html#escaping.

// splitEscaped cuts s at every sep that has no backslash before it. The parts keep their
// escapes. At most limit parts are made, the last with the rest, if limit > 0.
func splitEscaped(s string, sep byte, limit int) []string {
	if strings.IndexByte(s, sep) < 0 {
		return []string{s}
	}
	var out []string
	start := 0
	for i := 0; i < len(s); i++ {
		switch s[i] {
		case '\\':
			i++
		case sep:
			if limit > 0 && len(out) == limit-1 {
				break
			}
			out = append(out, s[start:i])
			start = i + 1
		}
	}
	return append(out, s[start:])
}

// cutEscaped splits s at its first unescaped sep.
func cutEscaped(s string, sep byte) (before, after string, found bool) {
	for i := 0; i < len(s); i++ {
		switch s[i] {
		case '\\':
			i++
		case sep:
			return s[:i], s[i+1:], true
		}
	}
	return s, "", false
}

// unescapeValue drops the backslash of every escape.
func unescapeValue(s string) string {
	if strings.IndexByte(s, '\\') < 0 {
		return s
	}
	var b strings.Builder
	b.Grow(len(s))
	for i := 0; i < len(s); i++ {
		if s[i] == '\\' && i+1 < len(s) && strings.IndexByte(`,|$\`, s[i+1]) >= 0 {
			i++
		}
		b.WriteByte(s[i])
	}
	return b.String()
}

// badEscape reports whether a backslash stands before something that needs none,
// which is illegal. Spec: https://hl7.org/fhir/R4/search.html#escaping.
func badEscape(s string) bool {
	for {
		_, after, found := strings.Cut(s, `\`)
		if !found {
			return false
		}
		if after == "" || strings.IndexByte(`,|$\`, after[0]) < 0 {
			return true
		}
		s = after[1:]
	}
}

// badValue rejects a value: it names the parameter, the expected and the received value.
func badValue(name, came, expected string) *outcome.Error {
	return outcome.Invalid("parameter %s: %q is not accepted: %s", outcome.Clip(name), outcome.Clip(came), expected)
}

// badModifier refuses a modifier.
func badModifier(name, modifier string, typ string, allowed ...string) *outcome.Error {
	for i := range allowed {
		allowed[i] = ":" + allowed[i]
	}
	return outcome.Invalid("parameter %s: modifier %q does not apply to a parameter of type %s, which takes %s",
		outcome.Clip(name), ":"+outcome.Clip(modifier), typ, strings.Join(allowed, ", "))
}

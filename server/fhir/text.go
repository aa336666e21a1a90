package fhir

import (
	"strings"
	"unicode"
	"unicode/utf8"

	"golang.org/x/text/cases"
	"golang.org/x/text/unicode/norm"
)

// Fold returns a code, an identifier value or a media type as it is hashed: in
// lower case. Tokens are compared without case unless their code system says
// otherwise, which a server rarely knows; folding both sides finds too much
// rather than too little. Spec: https://hl7.org/fhir/R4/search.html#token.
func Fold(s string) string { return strings.ToLower(s) }

// FoldText returns a text as strings are compared: without case, without accents
// and other combining marks, runs of white space as one space, none at either
// end. "Müller-Straße  3" and "muller-strasse 3" fold alike. Folding is
// idempotent, and the fold of a prefix that ends between two words is a prefix of
// the fold. Spec: https://hl7.org/fhir/R4/search.html#string.
func FoldText(s string) string {
	if plain(s) {
		return s
	}
	if !ascii(s) {
		s = norm.NFKD.String(s)
		s = cases.Fold().String(s)
	}
	var b strings.Builder
	b.Grow(len(s))
	space := false
	for _, r := range s {
		switch {
		case r >= 'A' && r <= 'Z':
			r += 'a' - 'A'
		case r < utf8.RuneSelf && r > ' ':
		case unicode.IsSpace(r) || r < ' ':
			space = true
			continue
		case unicode.Is(unicode.Mn, r):
			continue
		}
		if space {
			if b.Len() > 0 {
				b.WriteByte(' ')
			}
			space = false
		}
		if r >= utf8.RuneSelf {
			if t, ok := letters[r]; ok {
				b.WriteString(t)
				continue
			}
		}
		b.WriteRune(r)
	}
	return b.String()
}

// letters are those that carry a stroke or are two letters in one, which Unicode
// does not decompose, in lower case.
var letters = map[rune]string{
	'ø': "o", 'đ': "d", 'ð': "d", 'ł': "l", 'ħ': "h", 'ŧ': "t", 'ı': "i",
	'æ': "ae", 'œ': "oe", 'þ': "th", 'ŋ': "n",
}

// plain reports whether s folds to itself and one look at each byte shows it.
func plain(s string) bool {
	before := byte(' ')
	for i := range len(s) {
		c := s[i]
		if c >= utf8.RuneSelf || c < ' ' || c >= 'A' && c <= 'Z' || c == ' ' && before == ' ' || c == 0x7f {
			return false
		}
		before = c
	}
	return before != ' ' || s == ""
}

func ascii(s string) bool {
	for i := range len(s) {
		if s[i] >= utf8.RuneSelf {
			return false
		}
	}
	return true
}

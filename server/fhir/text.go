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

// JoinText returns a text as strings are indexed and searched for: folded, and without
// the punctuation and white space between its letters: "Mary-Ann" and "Mary Ann" are
// "maryann". Between two digits nothing is dropped: 5.5 is not 55. A text of nothing but
// punctuation stays. Spec: https://hl7.org/fhir/R4/search.html#string.
func JoinText(s string) string { return joined(FoldText(s)) }

// joined is JoinText of a folded text.
func joined(folded string) string {
	if !strings.ContainsFunc(folded, separates) {
		return folded
	}
	var b strings.Builder
	b.Grow(len(folded))
	if joinInto(&b, folded, 0); b.Len() == 0 {
		return folded
	}
	return b.String()
}

// joinInto writes folded joined, up to most characters where that is above 0.
func joinInto(b *strings.Builder, folded string, most int) {
	before, n := rune(0), 0 // the last rune that is no separator
	for i, r := range folded {
		if separates(r) {
			after := next(folded[i:])
			if !unicode.IsDigit(before) || !unicode.IsDigit(after) {
				continue
			}
		} else {
			before = r
		}
		if n++; most > 0 && n > most {
			return
		}
		b.WriteRune(r)
	}
}

// next is the first rune of s that is no separator, or 0.
func next(s string) rune {
	for _, r := range s {
		if !separates(r) {
			return r
		}
	}
	return 0
}

// separates reports whether a rune stands between words.
func separates(r rune) bool {
	if r < utf8.RuneSelf {
		return r == ' ' || r >= '!' && r <= '/' && r != '$' && r != '+' || r == ':' || r == ';' || r == '?' || r == '@' ||
			r >= '[' && r <= ']' || r == '_' || r == '{' || r == '}'
	}
	return unicode.IsPunct(r) || unicode.IsSpace(r)
}

// Limits of the entries of a text beside its start.
const (
	maxWords   = 64 // words after the first
	wordLength = 64 // characters from a word on
)

// furtherWords are a folded text from each word after the first on, joined, so that
// "quinones" finds "carreno quinones". Of a long text the first words count.
func furtherWords(folded string) (further []string) {
	if !strings.ContainsFunc(folded, separates) {
		return nil
	}
	inWord, n := false, -1 // words after the first
	for i, r := range folded {
		switch {
		case separates(r):
			inWord = inWord && unicode.IsDigit(before(folded[:i])) && unicode.IsDigit(next(folded[i:]))
		case !inWord:
			inWord = true
			if n++; n == 0 {
				continue // the whole begins with it
			}
			if n > maxWords {
				return further
			}
			var b strings.Builder
			joinInto(&b, folded[i:], wordLength)
			further = append(further, b.String())
		}
	}
	return further
}

// before is the last rune of s.
func before(s string) rune {
	r, _ := utf8.DecodeLastRuneInString(s)
	return r
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

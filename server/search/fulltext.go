package search

import (
	"strings"
	"unicode"

	"kiln/server/fhir"
	"kiln/server/outcome"
	"kiln/server/search/match"
)

// fullText reads `_text`, words of the narrative, and `_content`, words anywhere in
// the resource: all of the words, in any order; values between commas are
// alternatives.
// Spec: https://hl7.org/fhir/R4/search.html#content.
func (p *parser) fullText(c match.Clause, code, modifier string, depth int) (match.Clause, error) {
	if modifier != "" {
		return c, outcome.Invalid("parameter %s: %s takes no modifier", outcome.Clip(c.Name), code)
	}
	if code == "_content" && depth > 0 {
		return c, outcome.RefusedParameter("parameter %s: _content reads whole resources, and is not supported at the end of a chain", outcome.Clip(c.Name))
	}
	values, err := p.split(fhir.SearchString, c)
	if err != nil {
		return c, err
	}
	for _, v := range values {
		words := unescape(v)
		if code == "_text" {
			words = fhir.FoldText(words) // as narratives are
		}
		if !strings.ContainsFunc(words, func(r rune) bool { return unicode.IsLetter(r) || unicode.IsDigit(r) }) {
			return c, badValue(c.Name, v, "expected words")
		}
		c.Any = append(c.Any, match.FullText{Words: words, Content: code == "_content"})
	}
	return c, nil
}

package search

import (
	"slices"
	"strings"
	"unicode"

	"kiln/server/fhir"
	"kiln/server/outcome"
	"kiln/server/search/match"
)

// fullText reads `_text`, words of the narrative, and `_content`, words anywhere in
// the resource: `(bone OR liver) and metastases`, `"breast cancer" NOT suspected`;
// values between commas are alternatives.
// Spec: https://hl7.org/fhir/R4/search.html#content.
func (p *parser) fullText(c match.Clause, code, modifier string, depth int) (match.Clause, error) {
	if modifier != "" {
		return c, outcome.Invalid("parameter %s: %s takes no modifier", outcome.Clip(c.Name), code)
	}
	if code == "_content" && depth > 0 {
		return c, outcome.RefusedParameter("parameter %s: _content reads whole resources, and is not supported at the end of a chain", outcome.Clip(c.Name))
	}
	values, err := p.splitValues(fhir.SearchString, c)
	if err != nil {
		return c, err
	}
	for _, v := range values {
		fold := func(text string) string { return text }
		if code == "_text" {
			fold = fhir.FoldText // as narratives are
		}
		query, mistake := parseText(unescapeValue(v), fold)
		if mistake != "" {
			return c, badValue(c.Name, v, mistake)
		}
		c.Any = append(c.Any, match.FullText{Query: query, Content: code == "_content"})
	}
	return c, nil
}

// maxTextParts bounds the parts of a query for a text, and how deep they lie in each other.
const maxTextParts = 50

// parseText reads a full-text query: words, which must all occur; "phrases"; AND and OR in any case; NOT before a
// term; and parentheses. AND binds before OR. NOT in other letters is a word. fold normalises the
// words. mistake is "" or describes the expected text.
func parseText(text string, fold func(string) string) (q match.TextQuery, mistake string) {
	p := textParser{tokens: textTokens(text), fold: fold}
	q, ok := p.either(0)
	switch {
	case p.parts > maxTextParts:
		return q, "expected fewer words and parentheses"
	case !ok || len(p.tokens) > 0:
		return q, "expected words, with AND, OR, NOT, parentheses and \"phrases\" around them"
	case !affirms(&q):
		return q, "expected words that are to be there beside those behind NOT"
	}
	return q, ""
}

// textTokens are words, parentheses and phrases, which begin with a quotation mark.
func textTokens(text string) (tokens []string) {
	for text = strings.TrimSpace(text); text != ""; text = strings.TrimSpace(text) {
		n := 1
		switch text[0] {
		case '(', ')':
		case '"':
			if end := strings.IndexByte(text[1:], '"'); end >= 0 {
				tokens, text = append(tokens, text[:end+1]), text[end+2:]
				continue
			}
			n = len(text)
		default:
			if n = strings.IndexFunc(text, func(r rune) bool { return unicode.IsSpace(r) || strings.ContainsRune("()\"", r) }); n < 0 {
				n = len(text)
			}
		}
		tokens, text = append(tokens, text[:n]), text[n:]
	}
	return tokens
}

type textParser struct {
	tokens []string
	fold   func(string) string
	parts  int
}

// next is the next token, "" at the end.
func (p *textParser) next() string {
	if len(p.tokens) == 0 {
		return ""
	}
	return p.tokens[0]
}

// either reads the terms between ORs.
func (p *textParser) either(depth int) (q match.TextQuery, ok bool) {
	return p.list(match.OneOf, depth, p.every, func(t string) bool {
		if !strings.EqualFold(t, "or") {
			return false
		}
		p.tokens = p.tokens[1:]
		return true
	})
}

// every reads the terms between ANDs; AND may be absent.
func (p *textParser) every(depth int) (q match.TextQuery, ok bool) {
	return p.list(match.AllOf, depth, p.one, func(t string) bool {
		if strings.EqualFold(t, "and") {
			p.tokens = p.tokens[1:]
			return true
		}
		return t != "" && t != ")" && !strings.EqualFold(t, "or")
	})
}

// list reads parts for as long as there is another.
func (p *textParser) list(op match.TextQueryOp, depth int, part func(int) (match.TextQuery, bool), another func(token string) bool) (q match.TextQuery, ok bool) {
	var of []match.TextQuery
	for {
		if q, ok = part(depth); !ok {
			return q, false
		}
		if of = append(of, q); !another(p.next()) {
			break
		}
	}
	if len(of) == 1 {
		return of[0], true
	}
	return match.TextQuery{Op: op, Of: of}, true
}

// one reads a word and its successors, a phrase, a NOT, or a query in parentheses.
func (p *textParser) one(depth int) (q match.TextQuery, ok bool) {
	t := p.next()
	if p.parts++; t == "" || p.parts > maxTextParts || depth > maxTextParts || strings.EqualFold(t, "and") || strings.EqualFold(t, "or") {
		return q, false
	}
	p.tokens = p.tokens[1:]
	switch {
	case t == "(":
		if q, ok = p.either(depth + 1); !ok || p.next() != ")" {
			return q, false
		}
		p.tokens = p.tokens[1:]
		return q, true
	case t == ")":
		return q, false
	case t == "NOT":
		q, ok = p.one(depth + 1)
		return match.TextQuery{Op: match.NoneOf, Of: []match.TextQuery{q}}, ok
	case t[0] == '"':
		q = match.TextQuery{Op: match.Phrase, Text: p.fold(t[1:])}
	default:
		words := []string{t}
		for isWord(p.next()) {
			words, p.tokens = append(words, p.next()), p.tokens[1:]
		}
		q = match.TextQuery{Text: p.fold(strings.Join(words, " "))}
	}
	return q, strings.ContainsFunc(q.Text, func(r rune) bool { return unicode.IsLetter(r) || unicode.IsDigit(r) })
}

// isWord reports whether a token is neither an operator nor a parenthesis nor a phrase.
func isWord(t string) bool {
	return t != "" && !strings.ContainsRune("()\"", rune(t[0])) && t != "NOT" && !strings.EqualFold(t, "and") && !strings.EqualFold(t, "or")
}

// affirms reports whether a text without any word does not match. Otherwise most texts match.
func affirms(q *match.TextQuery) bool {
	has := func(q match.TextQuery) bool { return affirms(&q) }
	switch q.Op {
	case match.AllOf:
		return slices.ContainsFunc(q.Of, has)
	case match.OneOf:
		return !slices.ContainsFunc(q.Of, func(q match.TextQuery) bool { return !has(q) })
	case match.NoneOf:
		return false
	}
	return true
}

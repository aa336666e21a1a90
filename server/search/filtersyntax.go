package search

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"

	"kiln/server/outcome"
)

// The syntax of `_filter`:
//
//	filter     = term *( ("and" / "or") term )         from left to right, neither binds tighter
//	term       = "not" "(" filter ")" / "(" filter ")" / comparison
//	comparison = path operator value
//	path       = name [ "[" filter "]" ] [ "." path ]
//	value      = JSON string / characters up to white space, ")" or "]"
//
// A name is a search parameter's code; with `:Type` it is a reference to that
// type, and `_has:Type:reference:parameter` is reverse chaining.
// Spec: https://hl7.org/fhir/R4/search_filter.html.

// Limits of one `_filter`.
const (
	maxFilterBytes = 16 << 10
	maxFilterDepth = 32  // parentheses and brackets, one inside the other
	maxComparisons = 200 // all together
)

// filterOperators are the operators of R4.
var filterOperators = []string{
	"eq", "ne", "co", "sw", "ew", "gt", "lt", "ge", "le", "ap", "sa", "eb", "pr", "po", "ss", "sb", "in", "ni", "re",
}

// filterNode is a filter, read: *filterLogic, *filterNot or *filterComparison.
type filterNode interface{ filter() }

// filterLogic is two filters joined by "and" or "or".
type filterLogic struct {
	op          string
	left, right filterNode
}

type filterNot struct{ of filterNode }

// filterComparison is one test.
type filterComparison struct {
	path  []filterStep
	op    string
	value string
	text  string // as written
}

// filterStep is one name of a path. Its filter where, if present, narrows the targets of the name.
type filterStep struct {
	name  string
	where filterNode
}

func (*filterLogic) filter()      {}
func (*filterNot) filter()        {}
func (*filterComparison) filter() {}

// filterError is a mistake at a column, counted in characters from 1.
type filterError struct {
	column int
	what   string
	costly bool
}

func (e *filterError) Error() string { return fmt.Sprintf("column %d: %s", e.column, e.what) }

// filterReader reads a filter.
type filterReader struct {
	text        string
	at          int
	depth       int
	comparisons int
}

// parseFilter reads the whole of text.
func parseFilter(text string) (filterNode, *filterError) {
	r := &filterReader{text: text}
	if len(text) > maxFilterBytes {
		return nil, &filterError{1, fmt.Sprintf("it has %d bytes, at most %d are accepted", len(text), maxFilterBytes), true}
	}
	n, err := r.filter()
	if err != nil {
		return nil, err
	}
	if r.at < len(r.text) {
		return nil, r.fail("expected and, or, or the end")
	}
	return n, nil
}

// fail reports the expected and the received text.
func (r *filterReader) fail(expected string) *filterError {
	came := "the end"
	if rest := r.text[r.at:]; rest != "" {
		came = fmt.Sprintf("%q", outcome.Clip(r.wordAt(r.at)))
		if came == `""` {
			c, _ := utf8.DecodeRuneInString(rest)
			came = fmt.Sprintf("%q", string(c))
		}
	}
	return &filterError{column: utf8.RuneCountInString(r.text[:r.at]) + 1, what: expected + ", got " + came}
}

// wordAt is what lies before the next white space, parenthesis or bracket.
func (r *filterReader) wordAt(at int) string {
	rest := r.text[at:]
	if i := strings.IndexFunc(rest, func(c rune) bool { return unicode.IsSpace(c) || strings.ContainsRune("()[]", c) }); i >= 0 {
		return rest[:i]
	}
	return rest
}

// space skips white space and reports whether there was any.
func (r *filterReader) space() bool {
	rest := strings.TrimLeftFunc(r.text[r.at:], unicode.IsSpace)
	skipped := len(r.text) - len(rest) - r.at
	r.at += skipped
	return skipped > 0
}

func (r *filterReader) take(c byte) bool {
	if r.at < len(r.text) && r.text[r.at] == c {
		r.at++
		return true
	}
	return false
}

func (r *filterReader) filter() (filterNode, *filterError) {
	if r.depth++; r.depth > maxFilterDepth {
		return nil, &filterError{utf8.RuneCountInString(r.text[:r.at]) + 1, fmt.Sprintf("more than %d parentheses and brackets inside each other", maxFilterDepth), true}
	}
	defer func() { r.depth-- }()
	left, err := r.term()
	for err == nil {
		r.space()
		op := r.wordAt(r.at)
		if op != "and" && op != "or" {
			return left, nil
		}
		r.at += len(op)
		var right filterNode
		if right, err = r.term(); err == nil {
			left = &filterLogic{op, left, right}
		}
	}
	return nil, err
}

func (r *filterReader) term() (filterNode, *filterError) {
	r.space()
	start := r.at
	not := false
	if r.wordAt(r.at) == "not" {
		r.at += len("not")
		r.space()
		if not = r.at < len(r.text) && r.text[r.at] == '('; !not {
			r.at = start // a parameter of that name, or a mistake
		}
	}
	if !r.take('(') {
		return r.comparison()
	}
	n, err := r.enclosed(')')
	if err == nil && not {
		n = &filterNot{n}
	}
	return n, err
}

// enclosed reads a filter and its closing bracket.
func (r *filterReader) enclosed(end byte) (filterNode, *filterError) {
	n, err := r.filter()
	if err != nil {
		return nil, err
	}
	r.space()
	if !r.take(end) {
		return nil, r.fail(fmt.Sprintf("expected and, or, or %q", string(end)))
	}
	return n, nil
}

func (r *filterReader) comparison() (filterNode, *filterError) {
	if r.comparisons++; r.comparisons > maxComparisons {
		return nil, &filterError{utf8.RuneCountInString(r.text[:r.at]) + 1, fmt.Sprintf("more than %d comparisons", maxComparisons), true}
	}
	start := r.at
	c := &filterComparison{}
	for {
		name := r.name()
		if name == "" {
			return nil, r.fail("expected the name of a search parameter")
		}
		step := filterStep{name: name}
		if r.take('[') {
			var err *filterError
			if step.where, err = r.enclosed(']'); err != nil {
				return nil, err
			}
		}
		c.path = append(c.path, step)
		if !r.take('.') {
			break
		}
	}
	if last := c.path[len(c.path)-1]; last.where != nil {
		return nil, r.fail("expected . and the name of a search parameter after ]")
	}
	if !r.space() {
		return nil, r.fail("expected white space and an operator")
	}
	c.op = r.wordAt(r.at)
	if !slices.Contains(filterOperators, c.op) {
		return nil, r.fail("expected one of " + strings.Join(filterOperators, ", "))
	}
	r.at += len(c.op)
	if !r.space() {
		return nil, r.fail("expected white space and a value")
	}
	if err := r.value(c); err != nil {
		return nil, err
	}
	c.text = r.text[start:r.at]
	return c, nil
}

// name takes letters, digits, - and _, and colons inside.
func (r *filterReader) name() string {
	start := r.at
	for r.at < len(r.text) {
		switch c := r.text[r.at]; {
		case c >= 'a' && c <= 'z', c >= 'A' && c <= 'Z', c == '_':
		case (c >= '0' && c <= '9' || c == '-' || c == ':') && r.at > start:
		default:
			return r.text[start:r.at]
		}
		r.at++
	}
	return r.text[start:r.at]
}

func (r *filterReader) value(c *filterComparison) *filterError {
	if r.at < len(r.text) && r.text[r.at] == '"' {
		end := r.at + 1
		for end < len(r.text) && r.text[end] != '"' {
			if r.text[end] == '\\' {
				end++
			}
			end++
		}
		if end >= len(r.text) || json.Unmarshal([]byte(r.text[r.at:end+1]), &c.value) != nil {
			return r.fail("expected a JSON string that ends")
		}
		r.at = end + 1
		return nil
	}
	rest := r.text[r.at:]
	n := strings.IndexFunc(rest, func(c rune) bool { return unicode.IsSpace(c) || c == ')' || c == ']' })
	if n < 0 {
		n = len(rest)
	}
	if n == 0 {
		return r.fail("expected a value")
	}
	c.value = rest[:n]
	r.at += n
	return nil
}

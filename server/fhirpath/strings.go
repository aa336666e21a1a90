package fhirpath

import (
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"html"
	"regexp"
	"strings"
	"unicode/utf8"
)

var (
	stringKinds  = []Kind{StringKind}
	integerKinds = []Kind{IntegerKind}
	booleanKinds = []Kind{BooleanKind}
)

// text returns a scalar function from a String and Strings to a String.
func textFunction(args int, f func(m *machine, s string, args []Value) (string, bool, error)) scalarDef {
	d := scalarDef{min: args, max: args, input: stringKinds, result: stringKinds}
	for range args {
		d.args = append(d.args, stringKinds)
	}
	d.apply = func(m *machine, e *scalar, v Value, args []Value) (Value, bool, error) {
		s, ok, err := f(m, v.text, args)
		var limit *Error
		if errors.As(err, &limit) {
			limit.Pos = e.at
		}
		return String(s), ok, err
	}
	return d
}

// predicate returns a scalar function from two Strings to a Boolean.
func predicate(f func(s, arg string) bool) scalarDef {
	return scalarDef{min: 1, max: 1, input: stringKinds, args: [][]Kind{stringKinds}, result: booleanKinds,
		apply: func(_ *machine, _ *scalar, v Value, args []Value) (Value, bool, error) {
			return Boolean(f(v.text, args[0].text)), true, nil
		}}
}

// characters is the byte offset of the n-th character of s, or -1.
func characters(s string, n int64) int {
	i := 0
	for ; n > 0 && i < len(s); n-- {
		_, size := utf8.DecodeRuneInString(s[i:])
		i += size
	}
	if n > 0 {
		return -1
	}
	return i
}

func stringFunctions() map[string]scalarDef {
	plain := func(f func(string) string) scalarDef {
		return textFunction(0, func(_ *machine, s string, _ []Value) (string, bool, error) { return f(s), true, nil })
	}
	index := func(f func(s, sub string) int) scalarDef {
		return scalarDef{min: 1, max: 1, input: stringKinds, args: [][]Kind{stringKinds}, result: integerKinds,
			apply: func(_ *machine, _ *scalar, v Value, args []Value) (Value, bool, error) {
				i := f(v.text, args[0].text)
				if i > 0 {
					i = utf8.RuneCountInString(v.text[:i])
				}
				return Value{kind: IntegerKind, n: int64(i)}, true, nil
			}}
	}
	t := map[string]scalarDef{
		"upper":       plain(strings.ToUpper),
		"lower":       plain(strings.ToLower),
		"trim":        plain(strings.TrimSpace),
		"startsWith":  predicate(strings.HasPrefix),
		"endsWith":    predicate(strings.HasSuffix),
		"contains":    predicate(strings.Contains),
		"indexOf":     index(strings.Index),
		"lastIndexOf": index(strings.LastIndex),
		"encode":      textFunction(1, encode),
		"decode":      textFunction(1, decode),
		"escape":      textFunction(1, escape),
		"unescape":    textFunction(1, unescape),
		"replace": textFunction(2, func(m *machine, s string, args []Value) (string, bool, error) {
			// The result is bounded before it is made.
			if grown := (1 + len(s)) * len(args[1].text); grown > 1<<24 && strings.Count(s, args[0].text)*len(args[1].text) > 1<<24 {
				return "", false, m.fail(Limit, 0, "replace() would make more than 16 MB")
			}
			return strings.ReplaceAll(s, args[0].text, args[1].text), true, nil
		}),
	}
	t["length"] = scalarDef{input: stringKinds, result: integerKinds,
		apply: func(_ *machine, _ *scalar, v Value, _ []Value) (Value, bool, error) {
			return Value{kind: IntegerKind, n: int64(utf8.RuneCountInString(v.text))}, true, nil
		}}
	// An empty length is none: https://hl7.org/fhirpath/N1/#substringstart-integer-length-integer-string.
	t["substring"] = scalarDef{min: 1, max: 2, optional: 1, input: stringKinds, args: [][]Kind{integerKinds, integerKinds}, result: stringKinds,
		apply: func(_ *machine, _ *scalar, v Value, args []Value) (Value, bool, error) {
			start := characters(v.text, args[0].n)
			if args[0].n < 0 || start < 0 || start >= len(v.text) {
				return Value{}, false, nil
			}
			s := v.text[start:]
			if len(args) == 2 {
				if args[1].n <= 0 {
					return String(""), true, nil
				}
				if end := characters(s, args[1].n); end >= 0 {
					s = s[:end]
				}
			}
			return String(s), true, nil
		}}
	for _, name := range []string{"matches", "matchesFull"} {
		full := name == "matchesFull"
		t[name] = scalarDef{min: 1, max: 1, input: stringKinds, args: [][]Kind{stringKinds}, result: booleanKinds,
			prepare: func(args []expr) (any, error) { return preparePattern(args, full) },
			apply: func(m *machine, e *scalar, v Value, args []Value) (Value, bool, error) {
				re, err := m.pattern(e, args[0].text, full)
				if err != nil {
					return Value{}, false, err
				}
				return Boolean(re.MatchString(v.text)), true, m.spendText(v.text, e.at)
			}}
	}
	t["replaceMatches"] = scalarDef{min: 2, max: 2, input: stringKinds, args: [][]Kind{stringKinds, stringKinds}, result: stringKinds,
		prepare: func(args []expr) (any, error) { return preparePattern(args, false) },
		apply: func(m *machine, e *scalar, v Value, args []Value) (Value, bool, error) {
			if args[0].text == "" {
				return v, true, nil
			}
			re, err := m.pattern(e, args[0].text, false)
			if err != nil {
				return Value{}, false, err
			}
			if len(v.text)*(1+len(args[1].text)) > 1<<24 {
				return Value{}, false, m.fail(Limit, e.at, "replaceMatches() would make more than 16 MB")
			}
			return String(re.ReplaceAllString(v.text, groups.ReplaceAllString(args[1].text, "$${$1}"))), true, nil
		}}
	return t
}

// groups finds $1 in a substitution. Go reads $1x as a group named 1x.
var groups = regexp.MustCompile(`\$(\d+)`)

// compilePattern compiles a regular expression. In single-line mode a point
// matches line feeds too. Spec: https://hl7.org/fhirpath/N1/#matchesregex--string--boolean.
func compilePattern(s string, full bool) (*regexp.Regexp, error) {
	if len(s) > 4096 {
		return nil, fmt.Errorf("the regular expression is longer than 4096 bytes")
	}
	p := "(?s)" + s
	if full {
		p = "(?s)^(?:" + s + ")$"
	}
	re, err := regexp.Compile(p)
	if err != nil {
		return nil, fmt.Errorf("'%s' is not a regular expression: %w", clip(s), err)
	}
	return re, nil
}

func preparePattern(args []expr, full bool) (any, error) {
	if c, ok := args[0].(constant); ok && len(c) == 1 && c[0].kind == StringKind {
		return compilePattern(c[0].text, full)
	}
	return nil, nil
}

// pattern returns the prepared expression, or compiles the pattern in the data.
func (m *machine) pattern(e *scalar, s string, full bool) (*regexp.Regexp, error) {
	if re, ok := e.data.(*regexp.Regexp); ok {
		return re, nil
	}
	if err := m.spend(200+len(s)*10, e.at); err != nil {
		return nil, err
	}
	re, err := compilePattern(s, full)
	if err != nil {
		return nil, m.fail(Execution, e.at, "%v", err)
	}
	return re, nil
}

func encode(m *machine, s string, args []Value) (string, bool, error) {
	switch args[0].text {
	case "base64":
		return base64.StdEncoding.EncodeToString([]byte(s)), true, nil
	case "urlbase64":
		return base64.URLEncoding.EncodeToString([]byte(s)), true, nil
	case "hex":
		return hex.EncodeToString([]byte(s)), true, nil
	}
	return "", false, nil
}

func decode(m *machine, s string, args []Value) (string, bool, error) {
	var b []byte
	var err error
	switch args[0].text {
	case "base64":
		b, err = base64.StdEncoding.DecodeString(s)
	case "urlbase64":
		b, err = base64.URLEncoding.DecodeString(s)
	case "hex":
		b, err = hex.DecodeString(s)
	default:
		return "", false, nil
	}
	return string(b), err == nil && utf8.Valid(b), nil
}

var htmlEscapes = strings.NewReplacer("&", "&amp;", "<", "&lt;", ">", "&gt;", `"`, "&quot;", "'", "&#39;")

func escape(m *machine, s string, args []Value) (string, bool, error) {
	switch args[0].text {
	case "html":
		return htmlEscapes.Replace(s), true, nil
	case "json":
		var b strings.Builder
		enc := json.NewEncoder(&b)
		enc.SetEscapeHTML(false)
		if err := enc.Encode(s); err != nil {
			return "", false, nil
		}
		return strings.TrimSuffix(b.String()[1:], "\"\n"), true, nil
	}
	return "", false, nil
}

func unescape(m *machine, s string, args []Value) (string, bool, error) {
	switch args[0].text {
	case "html":
		return html.UnescapeString(s), true, nil
	case "json":
		// A quote that is not escaped is a quote.
		quoted := `"` + bareQuotes.ReplaceAllString(s, `$1\"`) + `"`
		var out string
		if err := json.Unmarshal([]byte(quoted), &out); err != nil {
			return "", false, nil
		}
		return out, true, nil
	}
	return "", false, nil
}

var bareQuotes = regexp.MustCompile(`((?:^|[^\\])(?:\\\\)*)"`)

// splitExpr is split(separator).
type splitExpr struct {
	in, sep expr
	at      int
}

func (e *splitExpr) eval(m *machine) error {
	v, ok, err := m.one(e.in, e.at, "split()")
	if err != nil || !ok {
		return err
	}
	s, ok := v.stringText()
	if !ok {
		if v.valueless() {
			return nil
		}
		return m.fail(Execution, e.at, "split() needs a String, found %s", v.describe())
	}
	sep, err := m.text(e.sep, e.at, "split()")
	if err != nil {
		return err
	}
	parts := strings.Split(s, sep)
	for _, p := range parts {
		m.push(String(p))
	}
	return m.spend(len(parts), e.at)
}

// toCharsExpr is toChars().
type toCharsExpr struct {
	in expr
	at int
}

func (e *toCharsExpr) eval(m *machine) error {
	v, ok, err := m.one(e.in, e.at, "toChars()")
	if err != nil || !ok {
		return err
	}
	s, ok := v.stringText()
	if !ok {
		if v.valueless() {
			return nil
		}
		return m.fail(Execution, e.at, "toChars() needs a String, found %s", v.describe())
	}
	for i, r := range s {
		m.push(String(s[i : i+utf8.RuneLen(r)]))
	}
	return m.spend(len(s), e.at)
}

// joinExpr is join(separator).
type joinExpr struct {
	in, sep expr // sep may be nil
	at      int
	always  bool // nothing gives ''
}

func (e *joinExpr) eval(m *machine) error {
	sep := ""
	if e.sep != nil {
		var err error
		if sep, err = m.text(e.sep, e.at, "join()"); err != nil {
			return err
		}
	}
	base := len(m.stack)
	if err := e.in.eval(m); err != nil {
		return err
	}
	var b strings.Builder
	n := 0
	for _, v := range m.stack[base:] {
		s, ok := v.stringText()
		if !ok {
			if v.valueless() {
				continue
			}
			return m.fail(Execution, e.at, "join() needs Strings, found %s", v.describe())
		}
		if n > 0 {
			b.WriteString(sep)
		}
		n++
		b.WriteString(s)
		if err := m.spend(1+(len(s)+len(sep))/64, e.at); err != nil {
			return err
		}
	}
	m.stack = m.stack[:base]
	if n > 0 || e.always {
		m.push(String(b.String()))
	}
	return nil
}

package fhirpath

import (
	"fmt"
	"strings"
	"unicode/utf16"
	"unicode/utf8"
)

type tokenKind uint8

const (
	endToken tokenKind = iota
	nameToken
	delimitedToken // `name`
	stringToken
	integerToken
	decimalToken
	dateToken
	dateTimeToken
	timeToken
	specialToken // $this
	signToken    // operator or punctuation
)

// token is one word of the source. text has quotes, escapes, @ and $ removed.
type token struct {
	kind tokenKind
	pos  int
	text string
}

func (t token) String() string {
	switch t.kind {
	case endToken:
		return "end of expression"
	case stringToken:
		return "string " + quote(t.text, '\'')
	}
	return "'" + t.text + "'"
}

func letter(c byte) bool { return c|0x20 >= 'a' && c|0x20 <= 'z' || c == '_' }
func digit(c byte) bool  { return c >= '0' && c <= '9' }

// lexer cuts a source into tokens.
type lexer struct {
	src string
	pos int
}

func (l *lexer) fail(pos int, format string, args ...any) error {
	return &Error{Phase: Syntax, Source: l.src, Pos: pos, Reason: fmt.Sprintf(format, args...)}
}

// at returns the byte i places ahead, 0 behind the end.
func (l *lexer) at(i int) byte {
	if l.pos+i < len(l.src) {
		return l.src[l.pos+i]
	}
	return 0
}

func (l *lexer) next() (token, error) {
	if err := l.skip(); err != nil {
		return token{}, err
	}
	start := l.pos
	if start >= len(l.src) {
		return token{kind: endToken, pos: start}, nil
	}
	switch c := l.src[start]; {
	case letter(c):
		l.name()
		return token{nameToken, start, l.src[start:l.pos]}, nil
	case digit(c):
		return l.number()
	case c == '\'' || c == '`':
		return l.quoted(c)
	case c == '"': // the form of older expressions, `%"vs-name"`
		return l.quoted(c)
	case c == '@':
		return l.temporal()
	case c == '$':
		l.pos++
		l.name()
		switch name := l.src[start+1 : l.pos]; name {
		case "this", "index", "total":
			return token{specialToken, start, name}, nil
		}
		return token{}, l.fail(start, "'%s' is not $this, $index or $total", l.src[start:l.pos])
	}
	for _, sign := range [...]string{"!=", "!~", "<=", ">=", "<", ">", "=", "~", "|", "+", "-", "*", "/", "&", "(", ")", "[", "]", "{", "}", ".", ",", "%"} {
		if strings.HasPrefix(l.src[start:], sign) {
			l.pos += len(sign)
			return token{signToken, start, sign}, nil
		}
	}
	r, _ := utf8.DecodeRuneInString(l.src[start:])
	return token{}, l.fail(start, "unexpected character %q", r)
}

// skip passes white space and comments.
func (l *lexer) skip() error {
	for l.pos < len(l.src) {
		switch c := l.src[l.pos]; {
		case c == ' ' || c == '\t' || c == '\n' || c == '\r':
			l.pos++
		case c == 0xC2 && l.at(1) == 0xA0: // no-break space, found in published expressions
			l.pos += 2
		case c == '/' && l.at(1) == '/':
			end := strings.IndexByte(l.src[l.pos:], '\n')
			if end < 0 {
				l.pos = len(l.src)
			} else {
				l.pos += end + 1
			}
		case c == '/' && l.at(1) == '*':
			end := strings.Index(l.src[l.pos+2:], "*/")
			if end < 0 {
				return l.fail(l.pos, "comment is not closed with */")
			}
			l.pos += 2 + end + 2
		default:
			return nil
		}
	}
	return nil
}

func (l *lexer) name() {
	for l.pos < len(l.src) && (letter(l.src[l.pos]) || digit(l.src[l.pos])) {
		l.pos++
	}
}

func (l *lexer) digits() {
	for digit(l.at(0)) {
		l.pos++
	}
}

func (l *lexer) number() (token, error) {
	start := l.pos
	kind := integerToken
	l.digits()
	if l.at(0) == '.' && digit(l.at(1)) {
		kind = decimalToken
		l.pos++
		l.digits()
	}
	if letter(l.at(0)) {
		return token{}, l.fail(l.pos, "a number is followed by '%c'", l.at(0))
	}
	return token{kind, start, l.src[start:l.pos]}, nil
}

// quoted reads a string, or an identifier between two backticks or (as older
// expressions write them) double quotes.
func (l *lexer) quoted(q byte) (token, error) {
	start := l.pos
	kind := delimitedToken
	if q == '\'' {
		kind = stringToken
	}
	l.pos++
	// Most strings have no escape and are a part of the source.
	end := strings.IndexByte(l.src[l.pos:], q)
	if end < 0 {
		return token{}, l.fail(start, "%c is not closed", q)
	}
	if body := l.src[l.pos : l.pos+end]; strings.IndexByte(body, '\\') < 0 {
		l.pos += end + 1
		return token{kind, start, body}, nil
	}
	var b strings.Builder
	for l.pos < len(l.src) {
		c := l.src[l.pos]
		switch {
		case c == q:
			l.pos++
			return token{kind, start, b.String()}, nil
		case c == '\\':
			if err := l.escape(&b); err != nil {
				return token{}, err
			}
		default:
			b.WriteByte(c)
			l.pos++
		}
	}
	return token{}, l.fail(start, "%c is not closed", q)
}

func (l *lexer) escape(b *strings.Builder) error {
	switch c := l.at(1); c {
	case '\'', '"', '`', '\\', '/':
		b.WriteByte(c)
	case 'f':
		b.WriteByte('\f')
	case 'n':
		b.WriteByte('\n')
	case 'r':
		b.WriteByte('\r')
	case 't':
		b.WriteByte('\t')
	case 'u':
		r, err := l.codeUnit(2)
		if err != nil {
			return err
		}
		l.pos += 4
		if utf16.IsSurrogate(r) {
			// A character beyond the first 65,536 is two code units, as in JSON.
			if l.at(2) != '\\' || l.at(3) != 'u' {
				return l.fail(l.pos, `\u with half of a surrogate pair`)
			}
			low, err := l.codeUnit(4)
			if err != nil {
				return err
			}
			if r = utf16.DecodeRune(r, low); r == utf8.RuneError {
				return l.fail(l.pos, `\u with half of a surrogate pair`)
			}
			l.pos += 6
		}
		b.WriteRune(r)
	default:
		return l.fail(l.pos, `\ is not followed by one of ' " %s \ / f n r t u`, "`")
	}
	l.pos += 2
	return nil
}

// codeUnit reads four hexadecimal digits, i bytes behind the position.
func (l *lexer) codeUnit(i int) (rune, error) {
	var r rune
	for end := i + 4; i < end; i++ {
		d := strings.IndexByte("0123456789abcdef", l.at(i)|0x20)
		if l.at(i) == 0 || d < 0 {
			return 0, l.fail(l.pos, `\u is not followed by four hexadecimal digits`)
		}
		r = r<<4 | rune(d)
	}
	return r, nil
}

// temporal reads @date, @dateTime or @Ttime. Whether the date exists is checked
// when it becomes a value.
func (l *lexer) temporal() (token, error) {
	start := l.pos
	l.pos++
	if l.at(0) == 'T' {
		l.pos++
		if !l.timePart() {
			return token{}, l.fail(start, "a time is written @Thh:mm:ss.fff")
		}
		if c := l.at(0); c == 'Z' || c == '+' && digit(l.at(1)) && digit(l.at(2)) && l.at(3) == ':' {
			return token{}, l.fail(l.pos, "a time has no time zone")
		}
		return token{timeToken, start, l.src[start+2 : l.pos]}, nil
	}
	bad := l.fail(start, "a date is written @YYYY-MM-DD, a date and time @YYYY-MM-DDThh:mm:ss.fff+hh:mm")
	if !l.fixed(4) {
		return token{}, bad
	}
	for range 2 {
		if l.at(0) == '-' && digit(l.at(1)) && digit(l.at(2)) {
			l.pos += 3
		}
	}
	if digit(l.at(0)) {
		return token{}, bad
	}
	if l.at(0) != 'T' {
		return token{dateToken, start, l.src[start+1 : l.pos]}, nil
	}
	l.pos++
	if digit(l.at(0)) {
		if !l.timePart() {
			return token{}, bad
		}
	}
	switch c := l.at(0); {
	case c == 'Z':
		l.pos++
	case (c == '+' || c == '-') && digit(l.at(1)) && digit(l.at(2)) && l.at(3) == ':':
		l.pos++
		if !l.fixed(2) {
			return token{}, bad
		}
		l.pos++
		if !l.fixed(2) {
			return token{}, bad
		}
	}
	return token{dateTimeToken, start, l.src[start+1 : l.pos]}, nil
}

// timePart reads hh[:mm[:ss[.f+]]].
func (l *lexer) timePart() bool {
	if !l.fixed(2) {
		return false
	}
	for range 2 {
		if l.at(0) != ':' {
			return true
		}
		l.pos++
		if !l.fixed(2) {
			return false
		}
	}
	if l.at(0) == '.' && digit(l.at(1)) {
		l.pos++
		l.digits()
	}
	return true
}

// fixed reads exactly n digits.
func (l *lexer) fixed(n int) bool {
	for range n {
		if !digit(l.at(0)) {
			return false
		}
		l.pos++
	}
	return true
}

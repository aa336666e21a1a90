package fhirpath

import "fmt"

// Bounds of an expression. The longest one that HL7 publishes for R4 has 1,300
// characters.
const (
	maxSource = 64 << 10 // bytes
	maxDepth  = 200      // nested parentheses, arguments, signs
	maxNodes  = 5_000
)

// Parse parses an expression. It knows no model: element names, functions and
// types are looked up by Compile. It fails with an *Error of phase Syntax that
// names the position.
// Spec: https://hl7.org/fhirpath/N1/#formal-specifications.
func Parse(expr string) (*Expr, error) {
	p := parser{lexer: lexer{src: expr}}
	if len(expr) > maxSource {
		return nil, p.fail(maxSource, "expression is longer than %d bytes", maxSource)
	}
	if err := p.advance(); err != nil {
		return nil, err
	}
	root, err := p.expression(0)
	if err != nil {
		return nil, err
	}
	if p.tok.kind != endToken {
		return nil, p.unexpected("an operator or the end")
	}
	return &Expr{Source: expr, Root: root}, nil
}

// parser is a Pratt parser: expression reads a term and then every operator that
// binds at least as tight as asked for.
type parser struct {
	lexer
	tok   token
	depth int
	nodes int
}

func (p *parser) advance() error {
	t, err := p.next()
	p.tok = t
	return err
}

func (p *parser) unexpected(want string) error {
	return p.fail(p.tok.pos, "expected %s, found %s", want, p.tok)
}

// is reports whether the current token is the sign or the keyword text.
func (p *parser) is(text string) bool {
	return (p.tok.kind == signToken || p.tok.kind == nameToken) && p.tok.text == text
}

// expect passes the sign text.
func (p *parser) expect(text string) error {
	if p.tok.kind != signToken || p.tok.text != text {
		return p.unexpected("'" + text + "'")
	}
	return p.advance()
}

func (p *parser) enter() error {
	p.depth++
	if p.depth > maxDepth {
		return p.fail(p.tok.pos, "expression is nested deeper than %d levels", maxDepth)
	}
	return nil
}

func (p *parser) count() error {
	p.nodes++
	if p.nodes > maxNodes {
		return p.fail(p.tok.pos, "expression has more than %d parts", maxNodes)
	}
	return nil
}

// expression reads an expression of operators that bind tighter than floor.
func (p *parser) expression(floor int) (Node, error) {
	if err := p.enter(); err != nil {
		return nil, err
	}
	defer func() { p.depth-- }()
	left, err := p.prefix()
	if err != nil {
		return nil, err
	}
	for {
		if p.tok.kind != signToken && p.tok.kind != nameToken {
			return left, nil
		}
		op := p.tok
		level, ok := precedences[op.text]
		if !ok || level <= floor {
			return left, nil
		}
		if err := p.count(); err != nil {
			return nil, err
		}
		if err := p.advance(); err != nil {
			return nil, err
		}
		if op.text == "is" || op.text == "as" {
			t, err := p.typeName()
			if err != nil {
				return nil, err
			}
			left = &TypeOp{At: op.pos, Op: op.text, X: left, Type: t}
			continue
		}
		right, err := p.expression(level)
		if err != nil {
			return nil, err
		}
		left = &Binary{At: op.pos, Op: op.text, Left: left, Right: right}
	}
}

// prefix reads a term with its signs before and its path behind.
func (p *parser) prefix() (Node, error) {
	if err := p.count(); err != nil {
		return nil, err
	}
	if p.tok.kind == signToken && (p.tok.text == "+" || p.tok.text == "-") {
		op := p.tok
		if err := p.enter(); err != nil {
			return nil, err
		}
		defer func() { p.depth-- }()
		if err := p.advance(); err != nil {
			return nil, err
		}
		x, err := p.prefix()
		if err != nil {
			return nil, err
		}
		return &Polarity{At: op.pos, Op: op.text, X: x}, nil
	}
	left, err := p.term()
	if err != nil {
		return nil, err
	}
	for p.tok.kind == signToken {
		at := p.tok.pos
		switch p.tok.text {
		case ".":
			if err := p.advance(); err != nil {
				return nil, err
			}
			if left, err = p.invocation(left); err != nil {
				return nil, err
			}
		case "[":
			if err := p.advance(); err != nil {
				return nil, err
			}
			index, err := p.expression(0)
			if err != nil {
				return nil, err
			}
			if err := p.expect("]"); err != nil {
				return nil, err
			}
			left = &Indexer{At: at, Left: left, Index: index}
		default:
			return left, nil
		}
		if err := p.count(); err != nil {
			return nil, err
		}
	}
	return left, nil
}

func (p *parser) term() (Node, error) {
	t := p.tok
	literal := func(kind LiteralKind) (Node, error) {
		return &Literal{At: t.pos, Kind: kind, Text: t.text}, p.advance()
	}
	switch t.kind {
	case stringToken:
		return literal(StringLiteral)
	case dateToken:
		return literal(DateLiteral)
	case dateTimeToken:
		return literal(DateTimeLiteral)
	case timeToken:
		return literal(TimeLiteral)
	case integerToken, decimalToken:
		return p.number()
	case specialToken:
		return &Special{At: t.pos, Name: t.text}, p.advance()
	case delimitedToken:
		return p.invocation(nil)
	case nameToken:
		if t.text == "true" || t.text == "false" {
			return literal(BooleanLiteral)
		}
		if _, operator := precedences[t.text]; operator && keyword(t.text) {
			return nil, p.unexpected("a value before the operator")
		}
		return p.invocation(nil)
	}
	switch {
	case p.is("("):
		if err := p.advance(); err != nil {
			return nil, err
		}
		x, err := p.expression(0)
		if err != nil {
			return nil, err
		}
		return x, p.expect(")")
	case p.is("{"):
		if err := p.advance(); err != nil {
			return nil, err
		}
		return &Literal{At: t.pos, Kind: EmptyLiteral}, p.expect("}")
	case p.is("%"):
		return p.variable()
	}
	return nil, p.unexpected("a value, a name or '('")
}

// number reads a number, with its unit where it is a quantity.
func (p *parser) number() (Node, error) {
	n := &Literal{At: p.tok.pos, Kind: IntegerLiteral, Text: p.tok.text}
	if p.tok.kind == decimalToken {
		n.Kind = DecimalLiteral
	}
	if err := p.advance(); err != nil {
		return nil, err
	}
	switch {
	case p.tok.kind == stringToken:
		n.Kind, n.Unit = QuantityLiteral, p.tok.text
	case p.tok.kind == nameToken && calendarUnit(p.tok.text):
		n.Kind, n.Unit, n.Calendar = QuantityLiteral, p.tok.text, true
	default:
		return n, nil
	}
	return n, p.advance()
}

// variable reads %name, %`name` or %'name'.
func (p *parser) variable() (Node, error) {
	at := p.tok.pos
	if err := p.advance(); err != nil {
		return nil, err
	}
	switch p.tok.kind {
	case nameToken, delimitedToken, stringToken:
	default:
		return nil, p.unexpected("the name of a variable")
	}
	v := &Variable{At: at, Name: p.tok.text}
	if err := p.advance(); err != nil {
		return nil, err
	}
	// Older expressions write %vs-name and %ext-name without quotes.
	for (v.Name == "vs" || v.Name == "ext") && p.is("-") {
		if err := p.advance(); err != nil {
			return nil, err
		}
		v.Name += "-"
		for p.tok.kind == nameToken || p.is("-") {
			v.Name += p.tok.text
			if err := p.advance(); err != nil {
				return nil, err
			}
		}
	}
	return v, nil
}

// invocation reads a name or a function call; left is the expression before its point, or
// nil.
func (p *parser) invocation(left Node) (Node, error) {
	t := p.tok
	switch t.kind {
	case nameToken, delimitedToken:
	case specialToken:
		return nil, p.fail(t.pos, "$%s stands only at the start of a path", t.text)
	default:
		return nil, p.unexpected("a name")
	}
	if err := p.advance(); err != nil {
		return nil, err
	}
	if !(p.tok.kind == signToken && p.tok.text == "(") {
		return &Member{At: t.pos, Left: left, Name: t.text}, nil
	}
	if err := p.advance(); err != nil {
		return nil, err
	}
	call := &Call{At: t.pos, Left: left, Name: t.text}
	for !p.is(")") {
		if len(call.Args) > 0 {
			if err := p.expect(","); err != nil {
				return nil, err
			}
		}
		arg, err := p.expression(0)
		if err != nil {
			return nil, err
		}
		call.Args = append(call.Args, arg)
	}
	return call, p.advance()
}

// typeName reads Name or Namespace.Name.
func (p *parser) typeName() (TypeName, error) {
	t := TypeName{At: p.tok.pos, Name: p.tok.text}
	if p.tok.kind != nameToken && p.tok.kind != delimitedToken {
		return t, p.unexpected("the name of a type")
	}
	if err := p.advance(); err != nil {
		return t, err
	}
	if !p.is(".") {
		return t, nil
	}
	if err := p.advance(); err != nil {
		return t, err
	}
	if p.tok.kind != nameToken && p.tok.kind != delimitedToken {
		return t, p.unexpected("the name of a type")
	}
	t.Namespace, t.Name = t.Name, p.tok.text
	return t, p.advance()
}

// typeArgument reads the argument of is(), as() and ofType(), which the grammar
// sees as a path.
func typeArgument(n Node) (TypeName, error) {
	if m, ok := n.(*Member); ok {
		switch left := m.Left.(type) {
		case nil:
			return TypeName{At: m.At, Name: m.Name}, nil
		case *Member:
			if left.Left == nil {
				return TypeName{At: left.At, Namespace: left.Name, Name: m.Name}, nil
			}
		}
	}
	return TypeName{}, fmt.Errorf("expected the name of a type, found %s", n)
}

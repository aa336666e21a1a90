package fhirpath

import (
	"strconv"
	"strings"
)

// Expr is a parsed expression. It is never changed after Parse, so any number of
// goroutines may read it.
type Expr struct {
	Source string
	Root   Node
}

// String returns the expression in canonical form: single blanks around
// operators, parentheses only where precedence needs them, no comments.
func (e *Expr) String() string { return e.Root.String() }

// Node is one node of a parsed expression: *Literal, *Variable, *Special,
// *Member, *Call, *Indexer, *Polarity, *Binary or *TypeOp. Parentheses leave no
// node behind.
type Node interface {
	// Pos is the byte offset in the source of the token that makes the node: the
	// name of a member, the sign of an operator.
	Pos() int
	// String returns the canonical form, see Expr.String.
	String() string
	precedence() int
}

// LiteralKind is the form in which a Literal is written.
type LiteralKind uint8

// The kinds of literals.
const (
	EmptyLiteral    LiteralKind = iota // {}
	BooleanLiteral                     // Text is "true" or "false"
	StringLiteral                      // Text is the string, escapes resolved
	IntegerLiteral                     // Text is the digits
	DecimalLiteral                     // Text is the digits with their point
	DateLiteral                        // Text without the leading @
	DateTimeLiteral                    // Text without the leading @; "2015T" is a year
	TimeLiteral                        // Text without the leading @T
	QuantityLiteral                    // Text is the number, Unit its unit
)

// Literal is a constant.
type Literal struct {
	At   int
	Kind LiteralKind
	Text string
	Unit string // of a QuantityLiteral
	// Calendar says that Unit is a calendar duration (day, months), not a UCUM
	// code.
	Calendar bool
}

// Variable is an environment variable, %name.
type Variable struct {
	At   int
	Name string // without %
}

// Special is $this, $index or $total.
type Special struct {
	At   int
	Name string // without $
}

// Member is an element name, or a type name at the start of a path. Left is nil
// where the name stands first.
type Member struct {
	At   int
	Left Node
	Name string
}

// Call is a function call. Left is nil where the function stands first: its
// input is $this then.
type Call struct {
	At   int
	Left Node
	Name string
	Args []Node
}

// Indexer is Left[Index].
type Indexer struct {
	At          int
	Left, Index Node
}

// Polarity is a sign before an expression.
type Polarity struct {
	At int
	Op string // + or -
	X  Node
}

// Binary is an operator between two expressions.
type Binary struct {
	At          int
	Op          string // as written: "|", "=", "and", …
	Left, Right Node
}

// TypeOp is `X is Type` or `X as Type`.
type TypeOp struct {
	At   int
	Op   string // is or as
	X    Node
	Type TypeName
}

// TypeName is a type specifier.
type TypeName struct {
	At        int
	Namespace string // FHIR, System or ""
	Name      string
}

// String returns the name with its namespace.
func (t TypeName) String() string {
	if t.Namespace == "" {
		return identifier(t.Name)
	}
	return t.Namespace + "." + identifier(t.Name)
}

// Walk calls visit for n and, where visit returns true, for the nodes below it.
func Walk(n Node, visit func(Node) bool) {
	if n == nil || !visit(n) {
		return
	}
	switch n := n.(type) {
	case *Member:
		Walk(n.Left, visit)
	case *Call:
		Walk(n.Left, visit)
		for _, a := range n.Args {
			Walk(a, visit)
		}
	case *Indexer:
		Walk(n.Left, visit)
		Walk(n.Index, visit)
	case *Polarity:
		Walk(n.X, visit)
	case *Binary:
		Walk(n.Left, visit)
		Walk(n.Right, visit)
	case *TypeOp:
		Walk(n.X, visit)
	}
}

// RootOf is the name that a path starts with, "" if it starts with none.
func RootOf(n Node) string {
	for {
		switch m := n.(type) {
		case *Member:
			if m.Left == nil {
				return m.Name
			}
			n = m.Left
		case *Call:
			if m.Left == nil {
				return ""
			}
			n = m.Left
		case *Indexer:
			n = m.Left
		case *TypeOp:
			n = m.X
		case *Binary:
			n = m.Left
		default:
			return ""
		}
	}
}

// Branches splits n at its unions, left to right: those at the top, and those below
// steps that look at each item by itself, so that (a | b).c is a.c and b.c.
func Branches(n Node) []Node {
	switch n := n.(type) {
	case *Binary:
		if n.Op == "|" {
			return append(Branches(n.Left), Branches(n.Right)...)
		}
	case *Member:
		return eachBranch(n, n.Left, func(left Node) Node { c := *n; c.Left = left; return &c })
	case *TypeOp:
		if n.Op == "as" {
			return eachBranch(n, n.X, func(x Node) Node { c := *n; c.X = x; return &c })
		}
	case *Call:
		switch n.Name {
		case "where", "select", "ofType", "as", "extension", "resolve":
			return eachBranch(n, n.Left, func(left Node) Node { c := *n; c.Left = left; return &c })
		}
	}
	return []Node{n}
}

// eachBranch returns the step n once for each branch of its input.
func eachBranch(n, input Node, step func(Node) Node) []Node {
	if input == nil {
		return []Node{n}
	}
	inputs := Branches(input)
	if len(inputs) == 1 {
		return []Node{n}
	}
	out := make([]Node, len(inputs))
	for i, in := range inputs {
		out[i] = step(in)
	}
	return out
}

// Pos returns where the literal starts.
func (n *Literal) Pos() int { return n.At }

// Pos returns where the variable's % stands.
func (n *Variable) Pos() int { return n.At }

// Pos returns where the $ stands.
func (n *Special) Pos() int { return n.At }

// Pos returns where the name starts.
func (n *Member) Pos() int { return n.At }

// Pos returns where the function's name starts.
func (n *Call) Pos() int { return n.At }

// Pos returns where the bracket opens.
func (n *Indexer) Pos() int { return n.At }

// Pos returns where the sign stands.
func (n *Polarity) Pos() int { return n.At }

// Pos returns where the operator stands.
func (n *Binary) Pos() int { return n.At }

// Pos returns where the operator stands.
func (n *TypeOp) Pos() int { return n.At }

// Precedence levels, loosest first.
// Spec: https://hl7.org/fhirpath/N1/#operator-precedence.
const (
	precedenceImplies = iota + 1
	precedenceOr
	precedenceAnd
	precedenceMembership
	precedenceEquality
	precedenceInequality
	precedenceUnion
	precedenceType
	precedenceAdditive
	precedenceMultiplicative
	precedencePolarity
	precedenceTerm
)

var precedences = map[string]int{
	"implies": precedenceImplies,
	"or":      precedenceOr, "xor": precedenceOr,
	"and": precedenceAnd,
	"in":  precedenceMembership, "contains": precedenceMembership,
	"=": precedenceEquality, "~": precedenceEquality, "!=": precedenceEquality, "!~": precedenceEquality,
	"<": precedenceInequality, "<=": precedenceInequality, ">": precedenceInequality, ">=": precedenceInequality,
	"|":  precedenceUnion,
	"is": precedenceType, "as": precedenceType,
	"+": precedenceAdditive, "-": precedenceAdditive, "&": precedenceAdditive,
	"*": precedenceMultiplicative, "/": precedenceMultiplicative,
	"div": precedenceMultiplicative, "mod": precedenceMultiplicative,
}

func (*Literal) precedence() int  { return precedenceTerm }
func (*Variable) precedence() int { return precedenceTerm }
func (*Special) precedence() int  { return precedenceTerm }
func (*Member) precedence() int   { return precedenceTerm }
func (*Call) precedence() int     { return precedenceTerm }
func (*Indexer) precedence() int  { return precedenceTerm }
func (*Polarity) precedence() int { return precedencePolarity }
func (n *Binary) precedence() int { return precedences[n.Op] }
func (*TypeOp) precedence() int   { return precedenceType }

// String returns the canonical form.
func (n *Literal) String() string {
	switch n.Kind {
	case EmptyLiteral:
		return "{}"
	case StringLiteral:
		return quote(n.Text, '\'')
	case DateLiteral, DateTimeLiteral:
		return "@" + n.Text
	case TimeLiteral:
		return "@T" + n.Text
	case QuantityLiteral:
		if n.Calendar {
			return n.Text + " " + n.Unit
		}
		return n.Text + " " + quote(n.Unit, '\'')
	}
	return n.Text
}

// String returns the canonical form.
func (n *Variable) String() string { return "%" + identifier(n.Name) }

// String returns the canonical form.
func (n *Special) String() string { return "$" + n.Name }

// String returns the canonical form.
func (n *Member) String() string {
	if n.Left == nil {
		return identifier(n.Name)
	}
	return below(n.Left, precedenceTerm) + "." + identifier(n.Name)
}

// String returns the canonical form.
func (n *Call) String() string {
	args := make([]string, len(n.Args))
	for i, a := range n.Args {
		args[i] = a.String()
	}
	s := identifier(n.Name) + "(" + strings.Join(args, ", ") + ")"
	if n.Left == nil {
		return s
	}
	return below(n.Left, precedenceTerm) + "." + s
}

// String returns the canonical form.
func (n *Indexer) String() string {
	return below(n.Left, precedenceTerm) + "[" + n.Index.String() + "]"
}

// String returns the canonical form.
func (n *Polarity) String() string { return n.Op + below(n.X, precedencePolarity) }

// String returns the canonical form.
func (n *Binary) String() string {
	p := n.precedence()
	return below(n.Left, p) + " " + n.Op + " " + below(n.Right, p+1)
}

// String returns the canonical form.
func (n *TypeOp) String() string {
	return below(n.X, precedenceType) + " " + n.Op + " " + n.Type.String()
}

// below returns n, in parentheses where it binds looser than level.
func below(n Node, level int) string {
	if n.precedence() < level {
		return "(" + n.String() + ")"
	}
	return n.String()
}

// identifier returns name as it can stand in an expression.
func identifier(name string) string {
	plain := name != "" && !keyword(name)
	for i := 0; plain && i < len(name); i++ {
		plain = letter(name[i]) || i > 0 && digit(name[i])
	}
	if plain {
		return name
	}
	return quote(name, '`')
}

// keyword reports whether name is taken by the grammar in every position.
func keyword(name string) bool {
	switch name {
	case "true", "false", "and", "or", "xor", "implies", "div", "mod":
		return true
	}
	return calendarUnit(name)
}

// calendarUnit reports whether name is a calendar duration.
func calendarUnit(name string) bool {
	switch strings.TrimSuffix(name, "s") {
	case "year", "month", "week", "day", "hour", "minute", "second", "millisecond":
		return true
	}
	return false
}

// quote returns s between two q, escaped.
func quote(s string, q rune) string {
	var b strings.Builder
	b.WriteRune(q)
	for _, r := range s {
		switch {
		case r == q || r == '\\':
			b.WriteByte('\\')
			b.WriteRune(r)
		case r == '\n':
			b.WriteString(`\n`)
		case r == '\r':
			b.WriteString(`\r`)
		case r == '\t':
			b.WriteString(`\t`)
		case r == '\f':
			b.WriteString(`\f`)
		case r < ' ':
			b.WriteString(`\u`)
			b.WriteString(strconv.FormatInt(0x10000+int64(r), 16)[1:])
		default:
			b.WriteRune(r)
		}
	}
	b.WriteRune(q)
	return b.String()
}

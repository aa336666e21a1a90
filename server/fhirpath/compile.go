package fhirpath

import (
	"fmt"
	"strings"

	"kiln/server/fhir"
	"kiln/server/outcome"
)

// compiler turns a parsed expression into exprs.
type compiler struct {
	program *Program
	opts    Options
	input   static
	this    static  // of $this
	total   *static // of $total inside aggregate, or nil
	loop    bool    // inside a function that sets $index
	// choices collects the names that mean a choice element, see ReplaceChoiceNames.
	// Where it is nil such a name is an error.
	choices map[*Member]ChoiceName
}

func (c *compiler) fail(at int, format string, args ...any) error {
	return &Error{Phase: Semantic, Source: c.program.source, Pos: at, Reason: fmt.Sprintf(format, args...)}
}

func (c *compiler) compile(n Node) (expr, static, error) {
	switch n := n.(type) {
	case *Literal:
		return c.literal(n)
	case *Variable:
		return c.variable(n)
	case *Special:
		return c.special(n)
	case *Member:
		return c.member(n)
	case *Call:
		return c.call(n)
	case *Indexer:
		return c.indexer(n)
	case *Polarity:
		return c.polarity(n)
	case *Binary:
		return c.binary(n)
	case *TypeOp:
		x, st, err := c.compile(n.X)
		if err != nil {
			return nil, st, err
		}
		return c.typeOp(n.Op, n.At, n.X, x, st, n.Type)
	}
	return nil, static{}, c.fail(n.Pos(), "unknown syntax")
}

// condition compiles n where a Boolean is wanted.
func (c *compiler) condition(n Node) (condition, error) {
	x, _, err := c.compile(n)
	if err != nil {
		return condition{}, err
	}
	cond := conditionOf(x)
	cond.at = n.Pos()
	return cond, nil
}

// lambda compiles body with this as $this.
func (c *compiler) lambda(this static, body func() error) error {
	saved, loop := c.this, c.loop
	c.this, c.loop = this.single(), true
	err := body()
	c.this, c.loop = saved, loop
	return err
}

func (s static) describe() string {
	if list := s.names(); len(list) > 0 {
		return strings.Join(list, " or ")
	}
	return "nothing"
}

func (c *compiler) literal(n *Literal) (expr, static, error) {
	if n.Kind == EmptyLiteral {
		return constant(nil), static{}, nil
	}
	v, ok := literalValue(n)
	if !ok {
		return nil, static{}, c.fail(n.At, "%s is out of range", n)
	}
	return constant{v}, kindStatic(v.kind), nil
}

func literalValue(n *Literal) (Value, bool) {
	switch n.Kind {
	case BooleanLiteral:
		return Boolean(n.Text == "true"), true
	case StringLiteral:
		return String(n.Text), true
	case IntegerLiteral:
		v, ok := parseDecimal(n.Text)
		v.kind = IntegerKind
		// 2147483648 is allowed for the sake of -2147483648.
		return v, ok && v.big == nil && v.n <= 1<<31
	case DecimalLiteral:
		return parseDecimal(n.Text)
	case DateLiteral:
		return parseDate(n.Text)
	case DateTimeLiteral:
		return parseDateTime(n.Text)
	case TimeLiteral:
		return parseTime(n.Text)
	case QuantityLiteral:
		v, ok := parseDecimal(n.Text)
		v.kind, v.text = QuantityKind, n.Unit
		if n.Calendar {
			v.prec = uint8(calendarUnitKind)
		}
		return v, ok
	}
	return Value{}, false
}

func (c *compiler) variable(n *Variable) (expr, static, error) {
	text := func(s string) (expr, static, error) {
		return constant{String(s)}, kindStatic(StringKind), nil
	}
	switch n.Name {
	case "context":
		return variableExpr{kind: contextVariable}, c.input, nil
	case "resource":
		if c.opts.Resource != nil {
			return variableExpr{kind: resourceVariable}, typeStatic(c.opts.Resource), nil
		}
		return variableExpr{kind: resourceVariable}, unknownStatic(false), nil
	case "rootResource":
		return variableExpr{kind: rootResourceVariable}, unknownStatic(false), nil
	case "sct":
		return text("http://snomed.info/sct")
	case "loinc":
		return text("http://loinc.org")
	case "ucum":
		return text("http://unitsofmeasure.org")
	}
	if v, ok := c.opts.Constants[n.Name]; ok {
		if v.kind == NodeKind {
			return constant{v}, typeStatic(v.node.T), nil
		}
		return constant{v}, kindStatic(v.kind), nil
	}
	if c.opts.View && n.Name == "rowIndex" {
		return rowIndexExpr{}, kindStatic(IntegerKind), nil
	}
	known := c.opts.Variables == nil
	for _, v := range c.opts.Variables {
		known = known || v == n.Name
	}
	if !known || c.opts.Variables == nil {
		if s, ok := strings.CutPrefix(n.Name, "vs-"); ok {
			return text("http://hl7.org/fhir/ValueSet/" + s)
		}
		if s, ok := strings.CutPrefix(n.Name, "ext-"); ok {
			return text("http://hl7.org/fhir/StructureDefinition/" + s)
		}
	}
	if !known {
		return nil, static{}, c.fail(n.At, "there is no variable %%%s", n.Name)
	}
	return variableExpr{kind: suppliedVariable, name: n.Name, at: n.At}, unknownStatic(true), nil
}

func (c *compiler) special(n *Special) (expr, static, error) {
	switch n.Name {
	case "this":
		return thisExpr{}, c.this, nil
	case "index":
		if !c.loop {
			return nil, static{}, c.fail(n.At, "$index has a value only inside a function that goes through a collection")
		}
		return indexExpr{}, kindStatic(IntegerKind), nil
	}
	if c.total == nil {
		return nil, static{}, c.fail(n.At, "$total has a value only inside aggregate()")
	}
	return totalExpr{}, *c.total, nil
}

// member compiles an element name; where it stands first it may be the type of
// $this.
func (c *compiler) member(n *Member) (expr, static, error) {
	if n.Left == nil {
		if upper(n.Name) {
			if c.this.any {
				root := &rootExpr{name: n.Name, at: n.At}
				st := unknownStatic(false)
				if t, ok := c.program.types.types[n.Name]; ok && t.Kind == fhir.ResourceKind {
					st = typeStatic(t)
				}
				return root, st, nil
			}
			for _, t := range c.this.types {
				if c.program.types.is(t, n.Name) {
					return thisExpr{}, c.this, nil
				}
			}
			if len(c.this.types) > 0 {
				if _, ok := c.program.types.types[n.Name]; ok {
					return nil, static{}, c.fail(n.At, "the path starts at %s, the input is %s", n.Name, c.this.describe())
				}
			}
		}
		s, st, err := c.step(c.this, n)
		return &pathExpr{steps: []step{s}}, st, err
	}
	left, ls, err := c.compile(n.Left)
	if err != nil {
		return nil, ls, err
	}
	s, st, err := c.step(ls, n)
	if err != nil {
		return nil, st, err
	}
	switch left := left.(type) {
	case *pathExpr:
		// One path for a chain of names.
		return &pathExpr{start: left.start, steps: append(left.steps[:len(left.steps):len(left.steps)], s)}, st, nil
	case thisExpr:
		return &pathExpr{steps: []step{s}}, st, nil
	}
	return &pathExpr{start: left, steps: []step{s}}, st, nil
}

func upper(name string) bool { return name != "" && name[0] >= 'A' && name[0] <= 'Z' }

// step resolves an element name against the types that the left side can have.
func (c *compiler) step(left static, n *Member) (step, static, error) {
	s := step{name: n.Name, at: n.At}
	if left.any {
		return s, unknownStatic(true), nil
	}
	out := static{unordered: left.unordered}
	found := left.nothing()
	add := func(st static) {
		unordered := out.unordered
		if found && !out.nothing() {
			st = st.or(out)
		}
		many := out.many || st.many
		out = st
		out.many, out.unordered = many || left.many, unordered
		found = true
	}
	for _, t := range left.types {
		if t.Kind.Primitive() {
			switch n.Name {
			case "id":
				add(kindStatic(StringKind))
			case "extension":
				add(unknownStatic(true))
			case "value":
				add(kindStatic(systemKind(t)))
			}
			continue
		}
		if f := t.Field(n.Name); f != nil {
			if len(left.types) == 1 {
				s.typ, s.field = t, f
			}
			add(fieldStatic(f, false))
		} else if c.choices != nil {
			if choice, of, ok := c.choiceName(t, n.Name); ok {
				c.choices[n] = choice
				add(typeStatic(of))
			}
		}
	}
	if left.kinds&(1<<TypeInfoKind) != 0 && (n.Name == "name" || n.Name == "namespace" || n.Name == "baseType") {
		add(kindStatic(StringKind))
	}
	if left.kinds&(1<<QuantityKind) != 0 {
		switch n.Name {
		case "value":
			add(kindStatic(DecimalKind))
		case "unit", "code":
			add(kindStatic(StringKind))
		}
	}
	if !found && c.opts.Missing {
		return s, static{many: true}, nil
	}
	if !found {
		return s, out, c.fail(n.At, "%s has no element '%s'%s", left.describe(), n.Name, c.hint(left, n.Name))
	}
	return s, out, nil
}

// hint says how to reach valueQuantity, or which element was meant.
func (c *compiler) hint(left static, name string) string {
	var names []string
	for _, t := range left.types {
		for i := range t.Fields {
			f := &t.Fields[i]
			if rest, ok := strings.CutPrefix(name, f.Name); ok && f.Choice() && upper(rest) {
				typ := rest
				if low := strings.ToLower(rest[:1]) + rest[1:]; c.program.types.names[low] {
					typ = low
				}
				return fmt.Sprintf("; write %s.ofType(%s)", f.Name, typ)
			}
			names = append(names, f.Name)
		}
	}
	if best := outcome.Nearest(name, names); best != "" {
		return "; did you mean '" + best + "'?"
	}
	return ""
}

func (c *compiler) indexer(n *Indexer) (expr, static, error) {
	left, st, err := c.compile(n.Left)
	if err != nil {
		return nil, st, err
	}
	if err := c.ordered(st, n.At, "an index"); err != nil {
		return nil, st, err
	}
	index, is, err := c.compile(n.Index)
	if err != nil {
		return nil, st, err
	}
	if !is.couldBe(IntegerKind) {
		return nil, st, c.fail(n.Index.Pos(), "an index is an Integer, found %s", is.describe())
	}
	return &indexerExpr{in: left, index: index, at: n.At}, st.single(), nil
}

// ordered refuses, in strict mode, what depends on the order of a collection that
// has none.
func (c *compiler) ordered(st static, at int, what string) error {
	if c.opts.Strict && st.unordered {
		return c.fail(at, "%s depends on an order that children() and descendants() do not have", what)
	}
	return nil
}

func (c *compiler) polarity(n *Polarity) (expr, static, error) {
	x, st, err := c.compile(n.X)
	if err != nil {
		return nil, st, err
	}
	if !st.couldBe(IntegerKind, DecimalKind, QuantityKind) {
		return nil, st, c.fail(n.At, "'%s' needs a number, found %s", n.Op, st.describe())
	}
	if k, ok := x.(constant); ok && len(k) == 1 && k[0].kind != NodeKind {
		if n.Op == "-" {
			return constant{negate(k[0])}, st, nil
		}
		return x, st, nil
	}
	return &polarityExpr{x: x, minus: n.Op == "-", at: n.At}, st.single(), nil
}

func (c *compiler) binary(n *Binary) (expr, static, error) {
	boolean := kindStatic(BooleanKind)
	switch n.Op {
	case "and", "or", "xor", "implies":
		l, err := c.condition(n.Left)
		if err != nil {
			return nil, boolean, err
		}
		r, err := c.condition(n.Right)
		if err != nil {
			return nil, boolean, err
		}
		switch n.Op {
		case "and":
			return &andExpr{l, r}, boolean, nil
		case "or":
			return &orExpr{l, r}, boolean, nil
		case "xor":
			return &xorExpr{l, r}, boolean, nil
		}
		return &impliesExpr{l, r}, boolean, nil
	}
	l, ls, err := c.compile(n.Left)
	if err != nil {
		return nil, boolean, err
	}
	r, rs, err := c.compile(n.Right)
	if err != nil {
		return nil, boolean, err
	}
	switch n.Op {
	case "|":
		u := &unionExpr{l: l, r: r, at: n.At}
		st := ls.or(rs)
		if l, ok := l.(constant); ok {
			if r, ok := r.(constant); ok {
				m := &machine{program: c.program, ctx: &Context{}, steps: DefaultMaxSteps}
				m.stack = append(append(m.stack, l...), r...)
				if err := m.distinct(0, n.At); err != nil {
					return nil, st, err
				}
				return constant(m.stack), st, nil
			}
		}
		return u, st, nil
	case "=", "!=":
		return &equalExpr{l: l, r: r, not: n.Op == "!=", at: n.At}, boolean, nil
	case "~", "!~":
		return &equivalentExpr{l: l, r: r, not: n.Op == "!~", at: n.At}, boolean, nil
	case "in":
		return &membershipExpr{item: l, in: r, at: n.At, what: "the item of '" + n.Op + "'"}, boolean, nil
	case "contains":
		return &membershipExpr{item: r, in: l, at: n.At, what: "the item of '" + n.Op + "'"}, boolean, nil
	case "<", "<=", ">", ">=":
		if !comparable(ls, rs) {
			return nil, boolean, c.fail(n.At, "%s and %s cannot be compared", ls.describe(), rs.describe())
		}
		return &compareExpr{l: l, r: r, op: n.Op, what: "'" + n.Op + "'", at: n.At}, boolean, nil
	case "&":
		return &concatExpr{l: l, r: r, at: n.At}, kindStatic(StringKind), nil
	}
	return c.arithmetic(n, l, r, ls, rs)
}

// comparable reports whether some pair of types of both sides has an order.
func comparable(l, r static) bool {
	groups := [][]Kind{{StringKind}, {IntegerKind, DecimalKind, QuantityKind}, {DateKind, DateTimeKind}, {TimeKind}}
	if l.nothing() || r.nothing() {
		return true
	}
	for _, g := range groups {
		if l.couldBeAny(g) && r.couldBeAny(g) {
			return true
		}
	}
	return false
}

func (c *compiler) arithmetic(n *Binary, l, r expr, ls, rs static) (expr, static, error) {
	numbers := []Kind{IntegerKind, DecimalKind, QuantityKind}
	temporal := []Kind{DateKind, DateTimeKind, TimeKind}
	ok := ls.couldBeAny(numbers) && rs.couldBeAny(numbers)
	if n.Op == "+" || n.Op == "-" {
		ok = ok || ls.couldBeAny(temporal) && rs.couldBe(QuantityKind)
	}
	if n.Op == "+" {
		ok = ok || ls.couldBe(StringKind) && rs.couldBe(StringKind)
	}
	if !ok {
		return nil, ls, c.fail(n.At, "'%s' does not work on %s and %s", n.Op, ls.describe(), rs.describe())
	}
	st := unknownStatic(false)
	switch {
	case ls.onlyKind(IntegerKind) && rs.onlyKind(IntegerKind) && n.Op != "/":
		st = kindStatic(IntegerKind)
	case ls.onlyKind(StringKind):
		st = kindStatic(StringKind)
	case n.Op == "div":
		st = kindStatic(IntegerKind)
	default:
		st = static{}
		for k := IntegerKind; k <= QuantityKind; k++ {
			st.kinds |= 1 << k
		}
		if n.Op == "+" {
			st.kinds |= 1 << StringKind
		}
	}
	return &arithmeticExpr{l: l, r: r, op: n.Op, what: "'" + n.Op + "'", at: n.At}, st, nil
}

// typeOp compiles is, as, is(), as() and ofType().
func (c *compiler) typeOp(op string, at int, xn Node, x expr, st static, name TypeName) (expr, static, error) {
	t, ok := c.program.types.resolve(name)
	if !ok {
		return nil, st, c.fail(name.At, "there is no type %s", name)
	}
	if op == "is" {
		if call, ok := xn.(*Call); ok && call.Name == "resolve" && t.fhir != "" {
			if re, ok := x.(*resolveExpr); ok {
				return &resolvesToExpr{resolve: re, want: t}, kindStatic(BooleanKind), nil
			}
		}
		return &isExpr{in: x, want: t, at: at}, kindStatic(BooleanKind), nil
	}
	out := static{many: st.many, unordered: st.unordered}
	switch {
	case t.system != NodeKind:
		out.kinds = 1 << t.system
	default:
		if ft, ok := c.program.types.types[t.fhir]; ok {
			out.types = []*fhir.Type{ft}
		} else {
			out.any = true
		}
		// Specialisations have elements of their own.
		if !out.any && t.fhir != "Quantity" {
			for ty := range c.program.types.bases {
				if ty != out.types[0] && ty.Base == t.fhir && !ty.Kind.Primitive() && ty.Kind != fhir.Complex {
					out.any = true
				}
			}
		}
	}
	single := op == "as" && !c.opts.CollectionAs
	if single {
		out = out.single()
	}
	return &castExpr{in: x, want: t, single: single, op: op, at: at}, out, nil
}

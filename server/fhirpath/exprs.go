package fhirpath

import (
	"kiln/server/fhir"
)

// constant is a literal, or a union of literals.
type constant []Value

func (e constant) eval(m *machine) error {
	m.stack = append(m.stack, e...)
	return nil
}

type thisExpr struct{}

func (thisExpr) eval(m *machine) error {
	m.pushThis()
	return nil
}

// pushThis pushes $this, which is nothing where the input is.
func (m *machine) pushThis() {
	if m.this.kind != NodeKind || m.this.node.T != nil {
		m.push(m.this)
	}
}

type indexExpr struct{}

func (indexExpr) eval(m *machine) error {
	m.push(Value{kind: IntegerKind, n: int64(m.index)})
	return nil
}

type totalExpr struct{}

func (totalExpr) eval(m *machine) error {
	m.stack = append(m.stack, m.total...)
	return nil
}

type variableKind uint8

const (
	contextVariable variableKind = iota
	resourceVariable
	rootResourceVariable
	suppliedVariable
)

type variableExpr struct {
	kind variableKind
	name string
	at   int
}

func (e variableExpr) eval(m *machine) error {
	var n fhir.Node
	switch e.kind {
	case contextVariable:
		if m.input.node.T != nil {
			m.push(m.input)
		}
		return nil
	case resourceVariable:
		n = m.resource()
	case rootResourceVariable:
		n = m.rootResource()
	default:
		c, ok := m.ctx.Env[e.name]
		if !ok {
			return m.fail(Execution, e.at, "the environment has no variable %%%s", e.name)
		}
		if err := m.spend(len(c), e.at); err != nil {
			return err
		}
		m.stack = append(m.stack, c...)
		return nil
	}
	if n.T != nil {
		m.push(Value{node: n})
	}
	return nil
}

// rootExpr is a name with a capital at the start of a path whose input type is
// not known: the type of $this, or an element.
type rootExpr struct {
	name string
	at   int
}

func (e *rootExpr) eval(m *machine) error {
	if m.this.kind != NodeKind || m.this.node.T == nil {
		return nil
	}
	if m.program.types.is(m.this.node.T, e.name) {
		m.push(m.this)
		return nil
	}
	base := len(m.stack)
	m.push(m.this)
	return m.values(base, step{name: e.name, at: e.at})
}

// step is one element name of a path. Where the type on its left is known, field
// is its field of that type.
type step struct {
	name  string
	typ   *fhir.Type
	field *fhir.Field
	at    int
}

// pathExpr is a chain of element names from start, or from $this.
type pathExpr struct {
	start expr // nil: $this
	steps []step
}

func (e *pathExpr) eval(m *machine) error {
	nodes := len(m.nodes)
	ok, err := e.walk(m)
	if err != nil || !ok {
		return err
	}
	for _, n := range m.nodes[nodes:] {
		m.stack = append(m.stack, Value{node: n})
	}
	m.nodes = m.nodes[:nodes]
	return nil
}

// walk leaves the result on m.nodes. Where values that are no nodes take part it
// returns false, and the result is on the stack.
func (e *pathExpr) walk(m *machine) (bool, error) {
	nodes, base := len(m.nodes), len(m.stack)
	if e.start == nil {
		if m.this.kind != NodeKind {
			m.push(m.this)
			return false, e.slow(m, base)
		}
		if m.this.node.T == nil {
			return true, nil
		}
		m.nodes = append(m.nodes, m.this.node)
	} else {
		if err := e.start.eval(m); err != nil {
			return false, err
		}
		for _, v := range m.stack[base:] {
			if v.kind != NodeKind {
				m.nodes = m.nodes[:nodes]
				return false, e.slow(m, base)
			}
			m.nodes = append(m.nodes, v.node)
		}
	}
	for i := range e.steps {
		s := &e.steps[i]
		end := len(m.nodes)
		for j := nodes; j < end; j++ {
			n := m.nodes[j]
			switch {
			case n.T == s.typ:
				m.nodes = n.AppendField(m.nodes, s.field)
			case s.name == "value" && n.T.Kind.Primitive():
				if e.start == nil {
					m.push(m.this)
				}
				m.nodes = m.nodes[:nodes]
				return false, e.slow(m, base)
			default:
				m.nodes = n.AppendChild(m.nodes, s.name)
			}
		}
		if err := m.spend(len(m.nodes)-nodes, s.at); err != nil {
			return false, err
		}
		k := copy(m.nodes[nodes:], m.nodes[end:])
		m.nodes = m.nodes[:nodes+k]
		if k == 0 {
			break
		}
	}
	m.stack = m.stack[:base]
	return true, nil
}

// slow walks with values: the stack from base on.
func (e *pathExpr) slow(m *machine, base int) error {
	for _, s := range e.steps {
		if err := m.values(base, s); err != nil {
			return err
		}
	}
	return nil
}

// values replaces the stack from base on by the children of its values.
func (m *machine) values(base int, s step) error {
	end := len(m.stack)
	for i := base; i < end; i++ {
		m.pushChild(m.stack[i], s.name)
	}
	if err := m.spend(len(m.stack)-base, s.at); err != nil {
		return err
	}
	m.slide(base, end)
	return nil
}

func (m *machine) pushChild(v Value, name string) {
	switch v.kind {
	case NodeKind:
		if name == "value" && v.node.T.Kind.Primitive() {
			if s, ok := v.system(); ok {
				m.push(s)
			}
			return
		}
		nodes := len(m.nodes)
		m.nodes = v.node.AppendChild(m.nodes, name)
		for _, n := range m.nodes[nodes:] {
			m.push(Value{node: n})
		}
		m.nodes = m.nodes[:nodes]
	case TypeInfoKind:
		switch name {
		case "name":
			m.push(String(v.text))
		case "namespace":
			m.push(String([...]string{"System", "FHIR"}[v.n]))
		case "baseType":
			if v.n == 0 {
				m.push(String("System.Any"))
			} else if bases := m.program.types.named(v.text); len(bases) > 1 {
				m.push(String("FHIR." + bases[1]))
			}
		}
	case QuantityKind:
		switch name {
		case "value":
			v.kind, v.prec, v.text = DecimalKind, 0, ""
			m.push(v)
		case "unit", "code":
			m.push(String(v.text))
		}
	}
}

// named returns the bases of the type with that name.
func (h *hierarchy) named(name string) []string {
	if t, ok := h.types[name]; ok {
		return h.bases[t]
	}
	return nil
}

type indexerExpr struct {
	in, index expr
	at        int
}

func (e *indexerExpr) eval(m *machine) error {
	base := len(m.stack)
	i, ok, err := m.integer(e.index, e.at, "an index")
	if err != nil || !ok {
		return err
	}
	if err := e.in.eval(m); err != nil {
		return err
	}
	if i < 0 || i >= int64(len(m.stack)-base) {
		m.stack = m.stack[:base]
		return nil
	}
	m.stack[base] = m.stack[base+int(i)]
	m.stack = m.stack[:base+1]
	return nil
}

// one evaluates e to at most one item; ok is false when there is none.
func (m *machine) one(e expr, at int, what string) (v Value, ok bool, err error) {
	base := len(m.stack)
	if err := e.eval(m); err != nil {
		return v, false, err
	}
	switch n := len(m.stack) - base; n {
	case 0:
		return v, false, nil
	case 1:
		v = m.stack[base]
		m.stack = m.stack[:base]
		return v, true, nil
	default:
		return v, false, m.fail(Execution, at, "%s needs one item, there are %d", what, n)
	}
}

// integer evaluates e to at most one Integer.
func (m *machine) integer(e expr, at int, what string) (int64, bool, error) {
	v, ok, err := m.one(e, at, what)
	if err != nil || !ok {
		return 0, false, err
	}
	s, ok := v.system()
	if !ok || s.kind != IntegerKind {
		return 0, false, m.fail(Execution, at, "%s is an Integer, found %s", what, v.describe())
	}
	return s.n, true, nil
}

type polarityExpr struct {
	x     expr
	minus bool
	at    int
}

func (e *polarityExpr) eval(m *machine) error {
	v, ok, err := m.one(e.x, e.at, "a sign")
	if err != nil || !ok {
		return err
	}
	s, ok := v.system()
	if !ok || s.kind != IntegerKind && s.kind != DecimalKind && s.kind != QuantityKind {
		return m.fail(Execution, e.at, "a sign needs a number, found %s", v.describe())
	}
	if e.minus {
		s = negate(s)
	}
	m.push(s)
	return nil
}

type isExpr struct {
	in   expr
	want typeTest
	at   int
}

func (e *isExpr) test(m *machine) (tri, error) {
	v, ok, err := m.one(e.in, e.at, "is")
	if err != nil || !ok {
		return unknown, err
	}
	return triOf(m.program.types.matches(v, e.want)), nil
}

func (e *isExpr) eval(m *machine) error { return m.pushTest(e) }

// pushTest pushes the result of a tester.
func (m *machine) pushTest(e tester) error {
	t, err := e.test(m)
	if err == nil {
		m.pushTri(t)
	}
	return err
}

// resolvesToExpr is `resolve() is Type`: the reference itself tells the type of
// its target, so nothing is read.
type resolvesToExpr struct {
	resolve *resolveExpr
	want    typeTest
}

type castExpr struct {
	in     expr
	want   typeTest
	single bool
	op     string
	at     int
}

func (e *castExpr) eval(m *machine) error {
	base := len(m.stack)
	if err := e.in.eval(m); err != nil {
		return err
	}
	n := len(m.stack) - base
	if e.single && n > 1 {
		return m.fail(Execution, e.at, "%s needs one item, there are %d; ofType() takes several", e.op, n)
	}
	if err := m.spend(n, e.at); err != nil {
		return err
	}
	k := base
	for i := base; i < base+n; i++ {
		if m.program.types.casts(m.stack[i], e.want) {
			m.stack[k] = m.stack[i]
			k++
		}
	}
	m.stack = m.stack[:k]
	return nil
}

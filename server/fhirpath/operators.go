package fhirpath

// The Boolean operators follow the three-valued logic of the specification and
// leave out the right side where the left one decides.
// Spec: https://hl7.org/fhirpath/N1/#boolean-logic.

type andExpr struct{ l, r condition }

func (e *andExpr) eval(m *machine) error { return m.pushTest(e) }

func (e *andExpr) test(m *machine) (tri, error) {
	l, err := e.l.test(m)
	if err != nil || l == no {
		return no, err
	}
	r, err := e.r.test(m)
	if err != nil || r == no {
		return no, err
	}
	return min(l, r), nil
}

type orExpr struct{ l, r condition }

func (e *orExpr) eval(m *machine) error { return m.pushTest(e) }

func (e *orExpr) test(m *machine) (tri, error) {
	l, err := e.l.test(m)
	if err != nil || l == yes {
		return yes, err
	}
	r, err := e.r.test(m)
	if err != nil || r == yes {
		return yes, err
	}
	return min(l, r), nil
}

type xorExpr struct{ l, r condition }

func (e *xorExpr) eval(m *machine) error { return m.pushTest(e) }

func (e *xorExpr) test(m *machine) (tri, error) {
	l, err := e.l.test(m)
	if err != nil || l == unknown {
		return unknown, err
	}
	r, err := e.r.test(m)
	if err != nil || r == unknown {
		return unknown, err
	}
	return triOf(l != r), nil
}

type impliesExpr struct{ l, r condition }

func (e *impliesExpr) eval(m *machine) error { return m.pushTest(e) }

func (e *impliesExpr) test(m *machine) (tri, error) {
	l, err := e.l.test(m)
	if err != nil || l == no {
		return yes, err
	}
	r, err := e.r.test(m)
	if err != nil || r == yes || l == yes {
		return r, err
	}
	return unknown, nil
}

type equalExpr struct {
	l, r expr
	not  bool
	at   int
}

func (e *equalExpr) eval(m *machine) error { return m.pushTest(e) }

func (e *equalExpr) test(m *machine) (tri, error) {
	base := len(m.stack)
	if err := e.l.eval(m); err != nil {
		return unknown, err
	}
	middle := len(m.stack)
	if middle == base {
		return unknown, nil
	}
	if err := e.r.eval(m); err != nil {
		return unknown, err
	}
	l, r := m.stack[base:middle], m.stack[middle:]
	m.stack = m.stack[:base]
	if len(r) == 0 {
		return unknown, nil
	}
	result := yes
	if len(l) != len(r) {
		result = no
	} else {
		if err := m.spend(len(l), e.at); err != nil {
			return unknown, err
		}
		for i := range l {
			t := equal(l[i], r[i])
			if t == no {
				result = no
				break
			}
			if t == unknown {
				result = unknown
			}
		}
	}
	if e.not && result != unknown {
		result = triOf(result == no)
	}
	return result, nil
}

type equivalentExpr struct {
	l, r expr
	not  bool
	at   int
}

func (e *equivalentExpr) eval(m *machine) error { return m.pushTest(e) }

func (e *equivalentExpr) test(m *machine) (tri, error) {
	base := len(m.stack)
	if err := e.l.eval(m); err != nil {
		return unknown, err
	}
	middle := len(m.stack)
	if err := e.r.eval(m); err != nil {
		return unknown, err
	}
	same, err := m.equivalentLists(m.stack[base:middle], m.stack[middle:], e.at)
	m.stack = m.stack[:base]
	return triOf(same != e.not), err
}

type compareExpr struct {
	l, r expr
	op   string
	what string // op in quotes, for messages
	at   int
}

func (e *compareExpr) eval(m *machine) error { return m.pushTest(e) }

func (e *compareExpr) test(m *machine) (tri, error) {
	a, oka, err := m.one(e.l, e.at, e.what)
	if err != nil {
		return unknown, err
	}
	b, okb, err := m.one(e.r, e.at, e.what)
	if err != nil || !oka || !okb {
		return unknown, err
	}
	order, known, ok := order(a, b)
	if !ok {
		return unknown, m.fail(Execution, e.at, "'%s' does not compare %s with %s", e.op, a.describe(), b.describe())
	}
	if !known {
		return unknown, nil
	}
	switch e.op {
	case "<":
		return triOf(order < 0), nil
	case "<=":
		return triOf(order <= 0), nil
	case ">":
		return triOf(order > 0), nil
	}
	return triOf(order >= 0), nil
}

// order compares two items. known is false where the data leave it open; ok is
// false where their types have no common order.
func order(a, b Value) (order int, known, ok bool) {
	x, okx := a.system()
	y, oky := b.system()
	if !okx || !oky {
		// A primitive without a value compares to nothing.
		return 0, false, (okx || a.valueless()) && (oky || b.valueless())
	}
	switch {
	case x.numeric() && y.numeric():
		return compareNumbers(x, y), true, true
	case x.kind == StringKind && y.kind == StringKind:
		switch {
		case x.text < y.text:
			return -1, true, true
		case x.text > y.text:
			return 1, true, true
		}
		return 0, true, true
	case x.dated() && y.dated(), x.kind == TimeKind && y.kind == TimeKind:
		order, known = compareTemporal(x, y)
		return order, known, true
	case x.kind == QuantityKind && (y.kind == QuantityKind || y.numeric()),
		y.kind == QuantityKind && x.numeric():
		order, how := compareQuantities(asQuantity(x), asQuantity(y))
		return order, how == decided, true
	}
	return 0, false, false
}

// valueless reports whether v is an element that could convert to a System value
// and has none: a primitive with extensions only, a Quantity without value.
func (v Value) valueless() bool {
	return v.kind == NodeKind && v.node.T != nil && (v.node.T.Kind.Primitive() && v.node.Text() == "" || systemKind(v.node.T) == QuantityKind)
}

type membershipExpr struct {
	item, in expr
	what     string // the operator, for messages
	at       int
}

func (e *membershipExpr) eval(m *machine) error { return m.pushTest(e) }

func (e *membershipExpr) test(m *machine) (tri, error) {
	v, ok, err := m.one(e.item, e.at, e.what)
	if err != nil || !ok {
		return unknown, err
	}
	if c, ok := e.in.(constant); ok {
		for i := range c {
			if equal(c[i], v) == yes {
				return yes, nil
			}
		}
		return no, nil
	}
	base := len(m.stack)
	if err := e.in.eval(m); err != nil {
		return unknown, err
	}
	list := m.stack[base:]
	m.stack = m.stack[:base]
	if err := m.spend(len(list)/4, e.at); err != nil {
		return unknown, err
	}
	for i := range list {
		if equal(list[i], v) == yes {
			return yes, nil
		}
	}
	return no, nil
}

type unionExpr struct {
	l, r expr
	at   int
}

func (e *unionExpr) eval(m *machine) error {
	base := len(m.stack)
	if err := e.l.eval(m); err != nil {
		return err
	}
	if err := e.r.eval(m); err != nil {
		return err
	}
	return m.distinct(base, e.at)
}

type concatExpr struct {
	l, r expr
	at   int
}

func (e *concatExpr) eval(m *machine) error {
	l, err := m.text(e.l, e.at, "'&'")
	if err != nil {
		return err
	}
	r, err := m.text(e.r, e.at, "'&'")
	if err != nil {
		return err
	}
	s := l + r
	m.push(String(s))
	return m.spendText(s, e.at)
}

// text evaluates e to at most one String; nothing is the empty string.
func (m *machine) text(e expr, at int, what string) (string, error) {
	v, ok, err := m.one(e, at, what)
	if err != nil || !ok {
		return "", err
	}
	s, ok := v.stringText()
	if !ok && !v.valueless() {
		return "", m.fail(Execution, at, "%s needs a String, found %s", what, v.describe())
	}
	return s, nil
}

type arithmeticExpr struct {
	l, r expr
	op   string
	what string // op in quotes, for messages
	at   int
}

func (e *arithmeticExpr) eval(m *machine) error {
	a, oka, err := m.one(e.l, e.at, e.what)
	if err != nil {
		return err
	}
	b, okb, err := m.one(e.r, e.at, e.what)
	if err != nil || !oka || !okb {
		return err
	}
	if a.valueless() && !a.quantity() || b.valueless() && !b.quantity() {
		return nil
	}
	x, okx := a.system()
	y, oky := b.system()
	if okx && oky {
		v, found, ok, err := e.apply(m, x, y)
		if err != nil {
			return err
		}
		if ok {
			if found {
				m.push(v)
				return m.spendText(v.text, e.at)
			}
			return nil
		}
	}
	return m.fail(Execution, e.at, "'%s' does not work on %s and %s", e.op, a.describe(), b.describe())
}

// quantity reports whether v is a Quantity with a value.
func (v Value) quantity() bool {
	s, ok := v.system()
	return ok && s.kind == QuantityKind
}

// apply computes x op y. found is false for an empty result, ok where op does not
// work on these types.
func (e *arithmeticExpr) apply(m *machine, x, y Value) (v Value, found, ok bool, err error) {
	switch {
	case x.numeric() && y.numeric():
		v, found = numbers(e.op, x, y)
		return v, found, true, nil
	case x.kind == StringKind && y.kind == StringKind:
		return String(x.text + y.text), true, e.op == "+", nil
	case (x.dated() || x.kind == TimeKind) && y.kind == QuantityKind:
		if e.op != "+" && e.op != "-" {
			return v, false, false, nil
		}
		unit, reason := calendarOf(y, x.kind)
		if reason != "" {
			return v, false, true, m.fail(Execution, e.at, "%s", reason)
		}
		y.kind = DecimalKind
		if e.op == "-" {
			y = negate(y)
		}
		v, found = addDuration(x, y, unit)
		return v, found, true, nil
	case x.kind == QuantityKind || y.kind == QuantityKind:
		if !(x.kind == QuantityKind || x.numeric()) || !(y.kind == QuantityKind || y.numeric()) {
			return v, false, false, nil
		}
		v, found, ok = quantities(e.op, asQuantity(x), asQuantity(y))
		return v, found, ok, nil
	}
	return v, false, false, nil
}

func numbers(op string, x, y Value) (Value, bool) {
	switch op {
	case "+":
		return addNumbers(x, y)
	case "-":
		return addNumbers(x, negate(y))
	case "*":
		return multiplyNumbers(x, y)
	case "/":
		return divideNumbers(x, y)
	}
	return divideWhole(x, y, op == "mod")
}

package fhirpath

import (
	"slices"

	"kiln/server/fhir"
)

// existsExpr is exists() and empty() without criteria.
type existsExpr struct {
	in   expr
	want bool // exists
}

func (e *existsExpr) eval(m *machine) error { return m.pushTest(e) }

func (e *existsExpr) test(m *machine) (tri, error) {
	n, err := m.countOf(e.in)
	return triOf((n > 0) == e.want), err
}

// countOf is how many items e has.
func (m *machine) countOf(e expr) (int, error) {
	base, nodes := len(m.stack), len(m.nodes)
	if p, ok := e.(*pathExpr); ok {
		onNodes, err := p.walk(m)
		if err != nil {
			return 0, err
		}
		if onNodes {
			n := len(m.nodes) - nodes
			m.nodes = m.nodes[:nodes]
			return n, nil
		}
	} else if err := e.eval(m); err != nil {
		return 0, err
	}
	n := len(m.stack) - base
	m.stack = m.stack[:base]
	return n, nil
}

type countExpr struct{ in expr }

func (e *countExpr) eval(m *machine) error {
	n, err := m.countOf(e.in)
	if err == nil {
		m.push(Value{kind: IntegerKind, n: int64(n)})
	}
	return err
}

// each calls body for every item of in, with $this and $index set. Items lie on
// the stack from base on; body may push behind them.
func (m *machine) each(in expr, at int, body func(base, i int) (more bool, err error)) (base, n int, err error) {
	base = len(m.stack)
	if err := in.eval(m); err != nil {
		return base, 0, err
	}
	n = len(m.stack) - base
	this, index := m.this, m.index
	for i := range n {
		if err := m.spend(1, at); err != nil {
			return base, n, err
		}
		m.this, m.index = m.stack[base+i], i
		more, err := body(base, i)
		if err != nil {
			return base, n, err
		}
		if !more {
			break
		}
	}
	m.this, m.index = this, index
	return base, n, nil
}

type whereExpr struct {
	in   expr
	cond condition
	at   int
}

func (e *whereExpr) eval(m *machine) error {
	k := 0
	base, _, err := m.each(e.in, e.at, func(base, i int) (bool, error) {
		t, err := e.cond.test(m)
		if t == yes {
			m.stack[base+k] = m.stack[base+i]
			k++
		}
		return true, err
	})
	if err != nil {
		return err
	}
	m.stack = m.stack[:base+k]
	return nil
}

type selectExpr struct {
	in, body expr
	at       int
}

func (e *selectExpr) eval(m *machine) error {
	base, n, err := m.each(e.in, e.at, func(int, int) (bool, error) { return true, e.body.eval(m) })
	if err != nil {
		return err
	}
	m.slide(base, base+n)
	return m.spend(len(m.stack)-base, e.at)
}

// quantifier is exists(criteria) and all(criteria): it ends at the first item
// that decides.
type quantifier struct {
	in   expr
	cond condition
	all  bool
	at   int
}

func (e *quantifier) eval(m *machine) error { return m.pushTest(e) }

func (e *quantifier) test(m *machine) (tri, error) {
	result := e.all
	base, _, err := m.each(e.in, e.at, func(int, int) (bool, error) {
		t, err := e.cond.test(m)
		if (t == yes) != e.all {
			result = !e.all
			return false, err
		}
		return true, err
	})
	m.stack = m.stack[:base]
	return triOf(result), err
}

// booleans is allTrue(), anyTrue(), allFalse() and anyFalse().
type booleans struct {
	in        expr
	all, want bool
	name      string
	at        int
}

func (e *booleans) eval(m *machine) error { return m.pushTest(e) }

func (e *booleans) test(m *machine) (tri, error) {
	base := len(m.stack)
	if err := e.in.eval(m); err != nil {
		return unknown, err
	}
	list := m.stack[base:]
	m.stack = m.stack[:base]
	result := e.all
	for i := range list {
		b, ok := list[i].Bool()
		if !ok {
			return unknown, m.fail(Execution, e.at, "%s() needs Booleans, found %s", e.name, list[i].describe())
		}
		if (b == e.want) != e.all {
			result = !e.all
		}
	}
	return triOf(result), nil
}

type notExpr struct {
	in condition
}

func (e *notExpr) eval(m *machine) error { return m.pushTest(e) }

func (e *notExpr) test(m *machine) (tri, error) {
	t, err := e.in.test(m)
	switch t {
	case yes:
		return no, err
	case no:
		return yes, err
	}
	return unknown, err
}

type repeatExpr struct {
	in, body expr
	at       int
}

func (e *repeatExpr) eval(m *machine) error {
	base := len(m.stack)
	if err := e.in.eval(m); err != nil {
		return err
	}
	this, index := m.this, m.index
	n := len(m.stack) - base
	var found set
	// The queue is the input and then the found items themselves.
	for i := 0; i < n+len(found.items); i++ {
		if i < n {
			m.this = m.stack[base+i]
		} else {
			m.this = found.items[i-n]
		}
		m.index = i
		from := len(m.stack)
		if err := e.body.eval(m); err != nil {
			return err
		}
		if err := m.spend(1, e.at); err != nil {
			return err
		}
		for _, v := range m.stack[from:] {
			if _, err := found.insert(m, v, e.at); err != nil {
				return err
			}
		}
		m.stack = m.stack[:from]
	}
	m.this, m.index = this, index
	m.stack = append(m.stack[:base], found.items...)
	return nil
}

type childrenExpr struct {
	in          expr
	descendants bool
	at          int
}

func (e *childrenExpr) eval(m *machine) error {
	base, nodes := len(m.stack), len(m.nodes)
	if err := e.in.eval(m); err != nil {
		return err
	}
	for _, v := range m.stack[base:] {
		if v.kind == NodeKind {
			m.nodes = v.node.AppendChildren(m.nodes)
		}
	}
	m.stack = m.stack[:base]
	if e.descendants {
		for i := nodes; i < len(m.nodes); i++ {
			if err := m.spend(1, e.at); err != nil {
				return err
			}
			m.nodes = m.nodes[i].AppendChildren(m.nodes)
		}
	}
	for _, n := range m.nodes[nodes:] {
		m.push(Value{node: n})
	}
	if err := m.spend(len(m.nodes)-nodes, e.at); err != nil {
		return err
	}
	m.nodes = m.nodes[:nodes]
	return nil
}

// part is first(), last(), tail(), single(), skip(n) and take(n).
type part struct {
	in   expr
	n    expr // of skip and take
	name string
	at   int
}

func (e *part) eval(m *machine) error {
	var count int64
	if e.n != nil {
		var ok bool
		var err error
		if count, ok, err = m.integer(e.n, e.at, "the argument of "+e.name+"()"); err != nil {
			return err
		} else if !ok {
			return nil
		}
	}
	base := len(m.stack)
	if err := e.in.eval(m); err != nil {
		return err
	}
	n := len(m.stack) - base
	low, high := 0, n
	switch e.name {
	case "first":
		high = min(1, n)
	case "last":
		low = max(0, n-1)
	case "tail":
		low = min(1, n)
	case "single":
		if n > 1 {
			return m.fail(Execution, e.at, "single() found %d items", n)
		}
	case "skip":
		low = int(min(max(count, 0), int64(n)))
	case "take":
		high = int(min(max(count, 0), int64(n)))
	}
	m.stack = m.stack[:base+high]
	m.slide(base, base+low)
	return nil
}

type distinctExpr struct {
	in expr
	at int
}

func (e *distinctExpr) eval(m *machine) error {
	base := len(m.stack)
	if err := e.in.eval(m); err != nil {
		return err
	}
	return m.distinct(base, e.at)
}

type isDistinctExpr struct {
	in expr
	at int
}

func (e *isDistinctExpr) eval(m *machine) error { return m.pushTest(e) }

func (e *isDistinctExpr) test(m *machine) (tri, error) {
	base := len(m.stack)
	if err := e.in.eval(m); err != nil {
		return unknown, err
	}
	n := len(m.stack) - base
	err := m.distinct(base, e.at)
	same := len(m.stack)-base == n
	m.stack = m.stack[:base]
	return triOf(same), err
}

// setExpr is union(), combine(), intersect(), exclude(), subsetOf() and
// supersetOf().
type setExpr struct {
	in, other expr
	name      string
	at        int
}

func (e *setExpr) eval(m *machine) error {
	base := len(m.stack)
	if err := e.in.eval(m); err != nil {
		return err
	}
	middle := len(m.stack)
	if err := e.other.eval(m); err != nil {
		return err
	}
	switch e.name {
	case "combine":
		return nil
	case "union":
		return m.distinct(base, e.at)
	}
	left, right := m.stack[base:middle], slices.Clone(m.stack[middle:])
	if e.name == "supersetOf" {
		left, right = right, slices.Clone(left)
	}
	others := setOf(right)
	k := 0
	for i := range left {
		j, err := others.find(m, left[i], e.at)
		if err != nil {
			return err
		}
		switch e.name {
		case "subsetOf", "supersetOf":
			if j < 0 {
				m.stack = m.stack[:base]
				m.push(Boolean(false))
				return nil
			}
		case "intersect":
			if j >= 0 {
				left[k] = left[i]
				k++
			}
		case "exclude":
			if j < 0 {
				left[k] = left[i]
				k++
			}
		}
	}
	switch e.name {
	case "subsetOf", "supersetOf":
		m.stack = m.stack[:base]
		m.push(Boolean(true))
		return nil
	}
	m.stack = m.stack[:base+k]
	if e.name == "intersect" {
		return m.distinct(base, e.at)
	}
	return nil
}

type aggregateExpr struct {
	in, body, init expr // init may be nil
	at             int
}

func (e *aggregateExpr) eval(m *machine) error {
	saved := m.total
	var total Collection
	start := len(m.stack)
	if e.init != nil {
		if err := e.init.eval(m); err != nil {
			return err
		}
		total = slices.Clone(m.stack[start:])
		m.stack = m.stack[:start]
	}
	base, _, err := m.each(e.in, e.at, func(int, int) (bool, error) {
		from := len(m.stack)
		m.total = total
		if err := e.body.eval(m); err != nil {
			return false, err
		}
		total = append(total[:0:0], m.stack[from:]...)
		m.stack = m.stack[:from]
		return true, m.spend(len(total), e.at)
	})
	if err != nil {
		return err
	}
	m.total = saved
	m.stack = append(m.stack[:base], total...)
	return nil
}

type iifExpr struct {
	in          expr // nil where iif stands first
	cond        condition
	then, else_ expr // else_ may be nil
	at          int
}

func (e *iifExpr) eval(m *machine) error {
	this := m.this
	if e.in != nil {
		v, ok, err := m.one(e.in, e.at, "iif()")
		if err != nil {
			return err
		}
		if !ok {
			v = Value{}
		}
		m.this = v
	}
	t, err := e.cond.test(m)
	if err != nil {
		return err
	}
	switch {
	case t == yes:
		err = e.then.eval(m)
	case e.else_ != nil:
		err = e.else_.eval(m)
	}
	m.this = this
	return err
}

type traceExpr struct {
	in         expr
	name       expr
	projection expr // may be nil
	at         int
}

func (e *traceExpr) eval(m *machine) error {
	name, err := m.text(e.name, e.at, "trace()")
	if err != nil {
		return err
	}
	base := len(m.stack)
	if m.ctx.Trace == nil {
		return e.in.eval(m)
	}
	if e.projection == nil {
		if err := e.in.eval(m); err != nil {
			return err
		}
		m.ctx.Trace(name, slices.Clone(Collection(m.stack[base:])))
		return nil
	}
	_, n, err := m.each(e.in, e.at, func(int, int) (bool, error) { return true, e.projection.eval(m) })
	if err != nil {
		return err
	}
	m.ctx.Trace(name, slices.Clone(Collection(m.stack[base+n:])))
	m.stack = m.stack[:base+n]
	return nil
}

// sortExpr is sort(): by the items themselves or by criteria, each with its
// direction. An item without a value comes last going up and first going down.
type sortExpr struct {
	in   expr
	keys []sortKey
	at   int
}

type sortKey struct {
	expr expr // nil: the item
	down bool
	at   int
}

func (e *sortExpr) eval(m *machine) error {
	type row struct {
		item Value
		keys []Value
		has  []bool
	}
	var rows []row
	base, _, err := m.each(e.in, e.at, func(base, i int) (bool, error) {
		r := row{item: m.stack[base+i]}
		for _, k := range e.keys {
			v, ok := r.item, true
			if k.expr != nil {
				var err error
				if v, ok, err = m.one(k.expr, k.at, "a sort criterion"); err != nil {
					return false, err
				}
			}
			r.keys, r.has = append(r.keys, v), append(r.has, ok)
		}
		rows = append(rows, r)
		return true, nil
	})
	if err != nil {
		return err
	}
	if err := m.spend(8*len(rows), e.at); err != nil {
		return err
	}
	var bad error
	slices.SortStableFunc(rows, func(a, b row) int {
		for i, k := range e.keys {
			c := 0
			switch {
			case a.has[i] && b.has[i]:
				o, _, ok := order(a.keys[i], b.keys[i])
				if !ok && bad == nil {
					bad = m.fail(Execution, k.at, "sort() does not compare %s with %s", a.keys[i].describe(), b.keys[i].describe())
				}
				c = o
			case a.has[i]:
				c = -1
			case b.has[i]:
				c = 1
			}
			if k.down {
				c = -c
			}
			if c != 0 {
				return c
			}
		}
		return 0
	})
	if bad != nil {
		return bad
	}
	m.stack = m.stack[:base]
	for _, r := range rows {
		m.push(r.item)
	}
	return nil
}

// extensionExpr is extension(url), the most used function of R4.
type extensionExpr struct {
	in, url expr
	at      int
}

func (e *extensionExpr) eval(m *machine) error {
	url, err := m.text(e.url, e.at, "extension()")
	if err != nil {
		return err
	}
	base, nodes := len(m.stack), len(m.nodes)
	if err := e.in.eval(m); err != nil {
		return err
	}
	for _, v := range m.stack[base:] {
		if v.kind == NodeKind && v.node.T != nil {
			m.nodes = v.node.AppendChild(m.nodes, "extension")
		}
	}
	m.stack = m.stack[:base]
	for _, n := range m.nodes[nodes:] {
		if x, ok := n.Element().(*fhir.Extension); ok && x.URL.Text == url {
			m.push(Value{node: n})
		}
	}
	err = m.spend(len(m.nodes)-nodes, e.at)
	m.nodes = m.nodes[:nodes]
	return err
}

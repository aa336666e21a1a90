package fhirpath

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"kiln/server/outcome"
)

// function is one entry of the table of functions.
type function struct {
	min, max int // arguments; max -1 is any number
	compile  func(c *compiler, f *invocation) (expr, static, error)
}

// invocation is a function call being compiled.
type invocation struct {
	*Call
	in      expr   // the input
	st      static // of the input
	implied bool   // the input is $this, not written
}

func (c *compiler) call(n *Call) (expr, static, error) {
	fn, ok := functions()[n.Name]
	if !ok && c.opts.View {
		fn, ok = viewFunctions()[n.Name]
	}
	if !ok {
		return nil, static{}, c.fail(n.At, "there is no function %s()%s", n.Name, nearestFunction(n.Name))
	}
	if len(n.Args) < fn.min || fn.max >= 0 && len(n.Args) > fn.max {
		return nil, static{}, c.fail(n.At, "%s() takes %s, found %d", n.Name, argumentCount(fn.min, fn.max), len(n.Args))
	}
	f := &invocation{Call: n, in: thisExpr{}, st: c.this, implied: true}
	if n.Left != nil {
		var err error
		if f.in, f.st, err = c.compile(n.Left); err != nil {
			return nil, f.st, err
		}
		f.implied = false
	}
	return fn.compile(c, f)
}

func argumentCount(low, high int) string {
	word := func(n int) string {
		if n == 1 {
			return "1 argument"
		}
		return fmt.Sprintf("%d arguments", n)
	}
	switch {
	case low == high && low == 0:
		return "no argument"
	case low == high:
		return word(low)
	case high < 0:
		return "at least " + word(low)
	}
	return fmt.Sprintf("%d to %s", low, word(high))
}

func nearestFunction(name string) string {
	if best := outcome.Nearest(name, slices.Sorted(maps.Keys(functions()))); best != "" {
		return "; did you mean " + best + "()?"
	}
	return ""
}

// arg compiles the i-th argument as a plain value, or returns nil.
func (c *compiler) arg(f *invocation, i int) (expr, static, error) {
	if i >= len(f.Args) {
		return nil, static{}, nil
	}
	return c.compile(f.Args[i])
}

// typed compiles the i-th argument, which must be able to be one of kinds.
func (c *compiler) typed(f *invocation, i int, kinds ...Kind) (expr, error) {
	x, st, err := c.arg(f, i)
	if err != nil || x == nil {
		return x, err
	}
	if !st.couldBeAny(kinds) {
		return nil, c.fail(f.Args[i].Pos(), "argument %d of %s() is a %s, found %s", i+1, f.Name, kindList(kinds), st.describe())
	}
	return x, nil
}

func kindList(kinds []Kind) string {
	var list []string
	for _, k := range kinds {
		list = append(list, k.String())
	}
	return strings.Join(list, " or ")
}

var booleanStatic = kindStatic(BooleanKind)

// collectionFunctions are those that work on whole collections.
func collectionFunctions() map[string]function {
	t := map[string]function{}
	define := func(name string, low, high int, compile func(c *compiler, f *invocation) (expr, static, error)) {
		t[name] = function{low, high, compile}
	}

	define("empty", 0, 0, func(c *compiler, f *invocation) (expr, static, error) {
		return &existsExpr{in: f.in}, booleanStatic, nil
	})
	define("exists", 0, 1, func(c *compiler, f *invocation) (expr, static, error) {
		if len(f.Args) == 0 {
			return &existsExpr{in: f.in, want: true}, booleanStatic, nil
		}
		return c.quantifier(f, false)
	})
	define("all", 1, 1, func(c *compiler, f *invocation) (expr, static, error) { return c.quantifier(f, true) })
	for _, name := range []string{"allTrue", "anyTrue", "allFalse", "anyFalse"} {
		define(name, 0, 0, func(c *compiler, f *invocation) (expr, static, error) {
			if !f.st.couldBe(BooleanKind) {
				return nil, f.st, c.fail(f.At, "%s() needs Booleans, found %s", name, f.st.describe())
			}
			return &booleans{in: f.in, all: name[:3] == "all", want: strings.HasSuffix(name, "True"), name: name, at: f.At}, booleanStatic, nil
		})
	}
	define("not", 0, 0, func(c *compiler, f *invocation) (expr, static, error) {
		in := conditionOf(f.in)
		in.at = f.At
		return &notExpr{in}, booleanStatic, nil
	})
	define("count", 0, 0, func(c *compiler, f *invocation) (expr, static, error) {
		return &countExpr{f.in}, kindStatic(IntegerKind), nil
	})
	define("distinct", 0, 0, func(c *compiler, f *invocation) (expr, static, error) {
		return &distinctExpr{f.in, f.At}, f.st, nil
	})
	define("isDistinct", 0, 0, func(c *compiler, f *invocation) (expr, static, error) {
		return &isDistinctExpr{f.in, f.At}, booleanStatic, nil
	})
	for _, name := range []string{"first", "last", "tail", "skip", "take"} {
		args := 0
		if name == "skip" || name == "take" {
			args = 1
		}
		define(name, args, args, func(c *compiler, f *invocation) (expr, static, error) {
			if err := c.ordered(f.st, f.At, name+"()"); err != nil {
				return nil, f.st, err
			}
			n, err := c.typed(f, 0, IntegerKind)
			if err != nil {
				return nil, f.st, err
			}
			st := f.st
			if name == "first" || name == "last" {
				st = st.single()
			}
			return &part{in: f.in, n: n, name: name, at: f.At}, st, nil
		})
	}
	define("single", 0, 0, func(c *compiler, f *invocation) (expr, static, error) {
		return &part{in: f.in, name: "single", at: f.At}, f.st.single(), nil
	})
	for _, name := range []string{"union", "combine", "intersect", "exclude", "subsetOf", "supersetOf"} {
		define(name, 1, 1, func(c *compiler, f *invocation) (expr, static, error) {
			other, st, err := c.arg(f, 0)
			if err != nil {
				return nil, st, err
			}
			switch name {
			case "subsetOf", "supersetOf":
				st = booleanStatic
			case "union", "combine":
				st = f.st.or(st)
			default:
				st = f.st
			}
			return &setExpr{in: f.in, other: other, name: name, at: f.At}, st, nil
		})
	}
	define("where", 1, 1, func(c *compiler, f *invocation) (expr, static, error) {
		e := &whereExpr{in: f.in, at: f.At}
		err := c.lambda(f.st, func() (err error) { e.cond, err = c.condition(f.Args[0]); return err })
		return e, f.st, err
	})
	define("select", 1, 1, func(c *compiler, f *invocation) (expr, static, error) {
		e := &selectExpr{in: f.in, at: f.At}
		var st static
		err := c.lambda(f.st, func() (err error) { e.body, st, err = c.compile(f.Args[0]); return err })
		return e, st.several(), err
	})
	define("repeat", 1, 1, func(c *compiler, f *invocation) (expr, static, error) {
		e := &repeatExpr{in: f.in, at: f.At}
		var st static
		err := c.lambda(f.st, func() (err error) { e.body, st, err = c.compile(f.Args[0]); return err })
		if err != nil {
			return nil, st, err
		}
		// What the body finds becomes its input.
		err = c.lambda(f.st.or(st), func() (err error) { e.body, st, err = c.compile(f.Args[0]); return err })
		if err != nil {
			err = c.lambda(unknownStatic(true), func() (err error) { e.body, _, err = c.compile(f.Args[0]); return err })
			st = unknownStatic(true)
		}
		return e, st.several(), err
	})
	define("aggregate", 1, 2, func(c *compiler, f *invocation) (expr, static, error) {
		e := &aggregateExpr{in: f.in, at: f.At}
		var err error
		if e.init, _, err = c.arg(f, 1); err != nil {
			return nil, f.st, err
		}
		saved, total := c.total, unknownStatic(true)
		c.total = &total
		err = c.lambda(f.st, func() (err error) { e.body, _, err = c.compile(f.Args[0]); return err })
		c.total = saved
		return e, unknownStatic(true), err
	})
	define("iif", 2, 3, (*compiler).iif)
	define("trace", 1, 2, func(c *compiler, f *invocation) (expr, static, error) {
		e := &traceExpr{in: f.in, at: f.At}
		var err error
		if e.name, err = c.typed(f, 0, StringKind); err != nil {
			return nil, f.st, err
		}
		if len(f.Args) == 2 {
			err = c.lambda(f.st, func() (err error) { e.projection, _, err = c.compile(f.Args[1]); return err })
		}
		return e, f.st, err
	})
	define("sort", 0, -1, func(c *compiler, f *invocation) (expr, static, error) {
		e := &sortExpr{in: f.in, at: f.At}
		err := c.lambda(f.st, func() error {
			for _, a := range f.Args {
				k := sortKey{at: a.Pos()}
				// A leading minus is the direction, whatever the type.
				if p, ok := a.(*Polarity); ok && p.Op == "-" {
					a, k.down = p.X, true
				}
				var err error
				if k.expr, _, err = c.compile(a); err != nil {
					return err
				}
				e.keys = append(e.keys, k)
			}
			return nil
		})
		if len(e.keys) == 0 {
			e.keys = []sortKey{{at: f.At}}
		}
		st := f.st
		st.unordered = false
		return e, st, err
	})
	for _, name := range []string{"children", "descendants"} {
		define(name, 0, 0, func(c *compiler, f *invocation) (expr, static, error) {
			st := unknownStatic(true)
			st.unordered = true
			return &childrenExpr{in: f.in, descendants: name == "descendants", at: f.At}, st, nil
		})
	}
	for _, name := range []string{"is", "as", "ofType"} {
		define(name, 1, 1, func(c *compiler, f *invocation) (expr, static, error) {
			t, err := typeArgument(f.Args[0])
			if err != nil {
				return nil, f.st, c.fail(f.Args[0].Pos(), "%v", err)
			}
			return c.typeOp(name, f.At, f.Left, f.in, f.st, t)
		})
	}
	return t
}

func (c *compiler) quantifier(f *invocation, all bool) (expr, static, error) {
	e := &quantifier{in: f.in, all: all, at: f.At}
	err := c.lambda(f.st, func() (err error) { e.cond, err = c.condition(f.Args[0]); return err })
	return e, booleanStatic, err
}

func (c *compiler) iif(f *invocation) (expr, static, error) {
	e := &iifExpr{at: f.At}
	this := c.this
	if !f.implied {
		e.in = f.in
		c.this = f.st.single()
	}
	defer func() { c.this = this }()
	criterion, st, err := c.compile(f.Args[0])
	if err != nil {
		return nil, f.st, err
	}
	if c.opts.Strict && !st.couldBe(BooleanKind) {
		return nil, f.st, c.fail(f.Args[0].Pos(), "the criterion of iif() is a Boolean, found %s", st.describe())
	}
	e.cond = conditionOf(criterion)
	e.cond.at = f.Args[0].Pos()
	var a, b static
	if e.then, a, err = c.compile(f.Args[1]); err != nil {
		return nil, a, err
	}
	if len(f.Args) == 3 {
		if e.else_, b, err = c.compile(f.Args[2]); err != nil {
			return nil, b, err
		}
	}
	st = a.or(b)
	st.many = a.many || b.many
	return e, st, nil
}

// scalar is a function from one item, and arguments of one item each, to one
// item.
type scalar struct {
	in   expr
	args []expr
	def  *scalarDef
	name string
	what string // the name with parentheses, for messages
	at   int
	data any // prepared at compile time, such as a regular expression
}

// scalarDef is what a scalar function does.
type scalarDef struct {
	min, max int
	// input and arguments are the kinds accepted; an empty list is any. The
	// value is converted to its System type where kinds are given.
	input  []Kind
	args   [][]Kind
	result []Kind // empty: the kind of the input
	// lenient returns empty for an input of another kind, instead of failing.
	lenient bool
	// each applies the function to every item of the input.
	each bool
	// optional are the arguments from this one on that may be empty: they are absent
	// then. 0 means none.
	optional int
	// apply computes the result; ok is false for an empty one. An absent
	// optional argument has kind NodeKind.
	apply func(m *machine, e *scalar, v Value, args []Value) (result Value, ok bool, err error)
	// prepare looks at constant arguments at compile time.
	prepare func(args []expr) (any, error)
}

// defineScalar makes the table entry of a scalar function.
func defineScalar(name string, d scalarDef) function {
	return function{d.min, d.max, func(c *compiler, f *invocation) (expr, static, error) {
		if len(d.input) > 0 && !d.lenient && !f.st.couldBeAny(d.input) {
			return nil, f.st, c.fail(f.At, "%s() needs a %s, found %s", name, kindList(d.input), f.st.describe())
		}
		e := &scalar{in: f.in, def: &d, name: name, what: name + "()", at: f.At}
		for i := range f.Args {
			var a expr
			var err error
			if i < len(d.args) && len(d.args[i]) > 0 {
				a, err = c.typed(f, i, d.args[i]...)
			} else {
				a, _, err = c.arg(f, i)
			}
			if err != nil {
				return nil, f.st, err
			}
			e.args = append(e.args, a)
		}
		if d.prepare != nil {
			data, err := d.prepare(e.args)
			if err != nil {
				at := f.At
				if len(f.Args) > 0 {
					at = f.Args[0].Pos()
				}
				return nil, f.st, c.fail(at, "%v", err)
			}
			e.data = data
		}
		st := static{many: d.each && f.st.many}
		for _, k := range d.result {
			st.kinds |= 1 << k
		}
		if len(d.result) == 0 {
			st = unknownStatic(d.each && f.st.many)
		}
		return e, st, nil
	}}
}

func (e *scalar) eval(m *machine) error {
	if e.def.each {
		return e.evalEach(m)
	}
	v, ok, err := m.one(e.in, e.at, e.what)
	if err != nil || !ok {
		return err
	}
	return e.evalOne(m, v)
}

// evalEach applies a function of one item to every item of the input.
func (e *scalar) evalEach(m *machine) error {
	base := len(m.stack)
	if err := e.in.eval(m); err != nil {
		return err
	}
	end := len(m.stack)
	for i := base; i < end; i++ {
		if err := e.evalOne(m, m.stack[i]); err != nil {
			return err
		}
	}
	m.slide(base, end)
	return nil
}

// evalOne pushes what the function gives for one item.
func (e *scalar) evalOne(m *machine, v Value) error {
	if len(e.def.input) > 0 {
		in, fits := convertTo(v, e.def.input)
		if !fits {
			if e.def.lenient || v.valueless() {
				return nil
			}
			return m.fail(Execution, e.at, "%s needs a %s, found %s", e.what, kindList(e.def.input), v.describe())
		}
		v = in
	}
	var buf [3]Value
	args := buf[:0]
	for i, a := range e.args {
		x, ok, err := m.one(a, e.at, "an argument of "+e.what)
		if err != nil {
			return err
		}
		if !ok {
			if e.def.optional > 0 && i >= e.def.optional {
				break
			}
			return nil
		}
		if i < len(e.def.args) && len(e.def.args[i]) > 0 {
			in, fits := convertTo(x, e.def.args[i])
			if !fits {
				if x.valueless() {
					return nil
				}
				return m.fail(Execution, e.at, "argument %d of %s is a %s, found %s", i+1, e.what, kindList(e.def.args[i]), x.describe())
			}
			x = in
		}
		args = append(args, x)
	}
	r, ok, err := e.def.apply(m, e, v, args)
	if err != nil || !ok {
		return err
	}
	m.push(r)
	return m.spend(1+len(r.text)/64, e.at)
}

// convertTo converts v implicitly to one of kinds.
func convertTo(v Value, kinds []Kind) (Value, bool) {
	s, ok := v.system()
	if !ok {
		return v, false
	}
	for _, k := range kinds {
		if s.kind == k {
			return s, true
		}
	}
	for _, k := range kinds {
		switch {
		case s.kind == IntegerKind && k == DecimalKind:
			s.kind = DecimalKind
			return s, true
		case s.kind == DateKind && k == DateTimeKind:
			s.kind = DateTimeKind
			return s, true
		case s.numeric() && k == QuantityKind:
			return asQuantity(s), true
		}
	}
	return v, false
}

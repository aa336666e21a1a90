package fhirpath

import (
	"context"
	"fmt"
	"sync"
	"time"

	"kiln/server/fhir"
)

// Options say what Compile may assume. The zero value assumes nothing: every
// element name is accepted and looked up at evaluation.
type Options struct {
	// Model has the types that is, as, ofType and paths name. Without it only
	// System types are known.
	Model *fhir.Model
	// Input is the type of the input; nil when it is not known. With it an
	// unknown element is a semantic error.
	Input *fhir.Type
	// Focus is the shape of the input, in the place of Input, where it has no single type.
	Focus *Shape
	// Resource is the type of %resource; nil when it is not known.
	Resource *fhir.Type
	// CollectionAs lets `as` and as() filter a collection of several items, as
	// ofType() does. HL7's R4 search parameters and invariants need it; N1 makes
	// it an error.
	CollectionAs bool
	// Strict refuses also what works but has no defined result: a function that
	// depends on order after children() or descendants(), a criterion of iif()
	// that is no Boolean.
	Strict bool
	// Variables are the names, beside those that FHIR defines, that the
	// environment will hold. With nil an unknown name fails at evaluation.
	Variables []string
	// Constants are further variables, whose values are known.
	Constants map[string]Value
	// View compiles a path of a ViewDefinition: getResourceKey(), getReferenceKey() and %rowIndex
	// exist, and join() of nothing is ''.
	View bool
	// Missing lets a path name an element that its input lacks: it is empty.
	Missing bool
}

// Program is a compiled expression. It is immutable: any number of goroutines
// may evaluate it.
type Program struct {
	source string
	model  *fhir.Model
	types  *hierarchy
	root   condition
	result static
}

// Compile parses expr and resolves functions, types and elements. It fails with
// an *Error of phase Syntax or Semantic that names the position.
func Compile(expr string, opts Options) (*Program, error) {
	e, err := Parse(expr)
	if err != nil {
		return nil, err
	}
	return CompileExpr(e, opts)
}

// CompileExpr is Compile for an expression that is parsed already.
func CompileExpr(e *Expr, opts Options) (*Program, error) {
	p := &Program{source: e.Source, model: opts.Model, types: hierarchyOf(opts.Model)}
	c := compiler{program: p, opts: opts, input: unknownStatic(false)}
	if opts.Input != nil {
		c.input = typeStatic(opts.Input)
	}
	if opts.Focus != nil {
		c.input = opts.Focus.static
	}
	c.this = c.input
	root, st, err := c.compile(e.Root)
	if err != nil {
		return nil, err
	}
	p.root, p.result = conditionOf(root), st
	return p, nil
}

// String returns the source.
func (p *Program) String() string { return p.source }

// Types returns the names of the types the result can have ("FHIR.HumanName",
// "System.String"), or nil when that is not known before evaluation.
func (p *Program) Types() []string { return p.result.names() }

// Context is the environment of an evaluation. The zero value works: %resource
// and %rootResource are the input then, and functions that need a Resolver, Terminology or
// Profiles fail.
type Context struct {
	// Context cancels a long evaluation; nil never.
	Context context.Context
	// Resource is the resource that holds the input (%resource), RootResource
	// the one that contains it, where it is a contained one.
	Resource, RootResource fhir.Node
	// Now is what now(), today() and timeOfDay() tell, with its zone; the zero
	// time is the time of evaluation in UTC.
	Now time.Time
	// LocalBases are the URLs below which the resources of this server are, for getReferenceKey().
	LocalBases []string
	// RowIndex is %rowIndex.
	RowIndex int
	// Env are further variables, without %.
	Env         map[string]Collection
	Resolver    Resolver
	Terminology Terminology
	Profiles    Profiles
	// Trace is called by trace().
	Trace func(name string, c Collection)
	// MaxSteps bounds the evaluation: items visited plus 64 bytes of text made
	// are a step. 0 means DefaultMaxSteps.
	MaxSteps int
}

// DefaultMaxSteps takes some tenths of a second.
const DefaultMaxSteps = 5_000_000

// Resolver finds the target of a reference, for resolve(). A reference without a target is
// nil without error. Contained resources and entries of the same Bundle are found without
// it.
type Resolver interface {
	Resolve(ctx context.Context, reference string) (fhir.Resource, error)
}

// Terminology answers memberOf(), subsumes() and subsumedBy(). known is false
// where the value set or the codes are not known: the result is empty then.
type Terminology interface {
	MemberOf(ctx context.Context, system, code, valueSet string) (member, known bool, err error)
	Subsumes(ctx context.Context, system, general, special string) (subsumes, known bool, err error)
}

// Profiles answers conformsTo(). known is false for an unknown profile, which is
// an error. The base definitions of the model are answered without it.
type Profiles interface {
	ConformsTo(ctx context.Context, n fhir.Node, profile string) (conforms, known bool, err error)
}

// Eval evaluates the program with input as focus. The result shares the model's
// memory. It fails with an *Error of phase Execution or Limit.
func (p *Program) Eval(ctx *Context, input fhir.Node) (Collection, error) {
	m := newMachine(p, ctx, input)
	defer m.release()
	if err := p.root.expr.eval(m); err != nil {
		return nil, err
	}
	if len(m.stack) == 0 {
		return nil, nil
	}
	return append(Collection(nil), m.stack...), nil
}

// Test evaluates the program and reports whether the result is true: a Boolean
// true, or one item of any other type. An empty result is false. It fails as Eval
// does, and for several items.
func (p *Program) Test(ctx *Context, input fhir.Node) (bool, error) {
	m := newMachine(p, ctx, input)
	defer m.release()
	t, err := p.root.test(m)
	return t == yes, err
}

// Holds evaluates the program as an invariant: it is broken by false, and left
// open by an empty result (a date known to the month, compared with a day).
func (p *Program) Holds(ctx *Context, input fhir.Node) (bool, error) {
	m := newMachine(p, ctx, input)
	defer m.release()
	t, err := p.root.test(m)
	return t != no, err
}

// machine is the state of one evaluation. Expressions push their results onto
// stack; the caller remembers the height of the stack and cuts it back.
type machine struct {
	program *Program
	ctx     *Context
	input   Value
	this    Value // input of a path that starts with a name; kind and node zero when empty
	index   int
	total   Collection
	stack   []Value
	nodes   []fhir.Node // the same for paths, which need no Values on the way
	steps   int
	now     Value
	empty   Context
}

var machines = sync.Pool{New: func() any { return new(machine) }}

func newMachine(p *Program, ctx *Context, input fhir.Node) *machine {
	m := machines.Get().(*machine)
	if ctx == nil {
		ctx = &m.empty
	}
	m.program, m.ctx = p, ctx
	m.input = Value{node: input}
	m.this = m.input
	m.steps = ctx.MaxSteps
	if m.steps == 0 {
		m.steps = DefaultMaxSteps
	}
	return m
}

// release gives the machine back.
func (m *machine) release() {
	stack, nodes := m.stack[:0], m.nodes[:0]
	if cap(stack) > 1024 {
		stack = nil
	}
	if cap(nodes) > 4096 {
		nodes = nil
	}
	*m = machine{stack: stack, nodes: nodes}
	machines.Put(m)
}

func (m *machine) push(v Value) { m.stack = append(m.stack, v) }

// slide moves what lies above from down to base.
func (m *machine) slide(base, from int) {
	n := copy(m.stack[base:], m.stack[from:])
	m.stack = m.stack[:base+n]
}

// spend counts steps; at is where the expression stands.
func (m *machine) spend(n, at int) error {
	before := m.steps
	m.steps -= n
	if m.steps < 0 {
		return m.fail(Limit, at, "stopped after %d steps", m.limit())
	}
	if before>>12 != m.steps>>12 && m.ctx.Context != nil && m.ctx.Context.Err() != nil {
		return &Error{Phase: Limit, Source: m.program.source, Pos: at, Reason: "stopped: " + m.ctx.Context.Err().Error(), Cause: m.ctx.Context.Err()}
	}
	return nil
}

func (m *machine) limit() int {
	if m.ctx.MaxSteps != 0 {
		return m.ctx.MaxSteps
	}
	return DefaultMaxSteps
}

// spendText counts text that an expression made.
func (m *machine) spendText(s string, at int) error { return m.spend(len(s)/64, at) }

func (m *machine) fail(phase Phase, at int, format string, args ...any) error {
	return &Error{Phase: phase, Source: m.program.source, Pos: at, Reason: fmt.Sprintf(format, args...)}
}

func (m *machine) wrap(at int, doing string, err error) error {
	return &Error{Phase: Execution, Source: m.program.source, Pos: at, Reason: doing + ": " + err.Error(), Cause: err}
}

// background is the Go context for calls to others.
func (m *machine) background() context.Context {
	if m.ctx.Context != nil {
		return m.ctx.Context
	}
	return context.Background()
}

// resource and rootResource are the variables, by default the input.
func (m *machine) resource() fhir.Node {
	if m.ctx.Resource.T != nil {
		return m.ctx.Resource
	}
	return m.input.node
}

func (m *machine) rootResource() fhir.Node {
	if m.ctx.RootResource.T != nil {
		return m.ctx.RootResource
	}
	return m.resource()
}

// instant is now(), the same during the whole evaluation.
func (m *machine) instant() Value {
	if m.now.kind == NodeKind {
		t := m.ctx.Now
		if t.IsZero() {
			t = time.Now().UTC()
		}
		m.now = instantValue(t)
	}
	return m.now
}

// tri is a Boolean that may be empty.
type tri int8

const (
	unknown tri = iota
	no
	yes
)

func triOf(b bool) tri {
	if b {
		return yes
	}
	return no
}

func (m *machine) pushTri(t tri) {
	if t != unknown {
		m.push(Boolean(t == yes))
	}
}

// expr is a compiled expression: eval pushes its result onto the stack.
type expr interface{ eval(m *machine) error }

// tester is an expr whose result is at most one Boolean and which can tell it
// without the stack.
type tester interface {
	test(m *machine) (tri, error)
}

// condition is an expr where a Boolean is wanted.
type condition struct {
	expr   expr
	tester tester // nil when expr is none
	at     int
}

func conditionOf(e expr) condition {
	t, _ := e.(tester)
	return condition{expr: e, tester: t}
}

// test evaluates by the rules of singleton evaluation: empty, a Boolean, or one
// item of any other type, which counts as true.
// Spec: https://hl7.org/fhirpath/N1/#singleton-evaluation-of-collections.
func (c *condition) test(m *machine) (tri, error) {
	if c.tester != nil {
		return c.tester.test(m)
	}
	base := len(m.stack)
	if err := c.expr.eval(m); err != nil {
		return unknown, err
	}
	t, ok := booleanOf(m.stack[base:])
	if !ok {
		return unknown, m.fail(Execution, c.at, "a Boolean is needed, there are %d items", len(m.stack)-base)
	}
	m.stack = m.stack[:base]
	return t, nil
}

func booleanOf(c []Value) (t tri, ok bool) {
	switch len(c) {
	case 0:
		return unknown, true
	case 1:
		v := c[0]
		if v.kind == NodeKind && v.node.T != nil && v.node.T.Kind == fhir.BooleanKind {
			switch v.node.Text() {
			case "true":
				return yes, true
			case "false":
				return no, true
			}
			return unknown, true
		}
		return triOf(v.kind != BooleanKind || v.n == 1), true
	}
	return unknown, false
}

package ir

import (
	"fmt"
	"go/token"
	"maps"
	"slices"
	"strconv"
	"strings"

	samply "github.com/samply/golang-fhir-models/fhir-models/fhir"

	"kiln/codegen/definition"
	"kiln/server/constraint"
	"kiln/server/fhirpath"
)

// TypeInvariants are the invariants of one type: of all of it, and the ones that
// its definition adds to elements.
type TypeInvariants struct {
	Name     string
	Of       *Type // nil for DomainResource
	Own      []*Invariant
	Elements []ElementInvariants
}

// ElementInvariants are the invariants of one element.
type ElementInvariants struct {
	Name string // without [x]
	Own  []*Invariant
}

// Invariant is one constraint, compiled.
type Invariant struct {
	Key, Human, Expression string
	Warning                bool
	Func                   string    // Go name of the function
	Condition              Condition // nil where it has to be interpreted
	Reason                 string    // why it has
	Receiver               Ref       // of the element; zero for one of any type
	Resource               *Type     // of %resource, where Condition uses it
}

// domainResource is the type that every resource but three specialises. Its
// invariants are compiled once.
const domainResource = "DomainResource"

// invariants compiles the constraints of every type of the model.
func invariants(set *definition.Set, m *Model) error {
	inherited := map[string]bool{}
	if d := set.Structures[base+domainResource]; d != nil {
		t := &TypeInvariants{Name: domainResource}
		list, err := m.constraints(d.Snapshot.Element[0].Constraint, domainResource, nil, Ref{})
		if err != nil {
			return fmt.Errorf("%s: %w", d.Url, err)
		}
		for _, i := range list {
			inherited[i.Key+" "+i.Expression] = true
		}
		t.Own = list
		m.Invariants = append(m.Invariants, t)
	}
	for _, d := range definition.Sorted(set.Structures) {
		if !generated(d) {
			continue
		}
		if err := m.typeInvariants(set, d, inherited); err != nil {
			return fmt.Errorf("%s: %w", d.Url, err)
		}
	}
	slices.SortFunc(m.Invariants, func(a, b *TypeInvariants) int { return strings.Compare(a.Name, b.Name) })
	return nil
}

func (m *Model) typeInvariants(set *definition.Set, d *samply.StructureDefinition, inherited map[string]bool) error {
	root := m.byName[d.Type]
	byType := map[*Type]*TypeInvariants{}
	of := func(t *Type) *TypeInvariants {
		if byType[t] == nil {
			byType[t] = &TypeInvariants{Name: t.Name, Of: t}
			m.Invariants = append(m.Invariants, byType[t])
		}
		return byType[t]
	}
	for i := range d.Snapshot.Element {
		e := &d.Snapshot.Element[i]
		constraints := slices.Concat(e.Constraint, profiled(set, e))
		if len(constraints) == 0 || strings.Contains(text(e.Id), ":") {
			continue
		}
		// A backbone element has the constraints of its type.
		if t := m.byName[e.Path]; t != nil {
			list, err := m.constraints(constraints, t.Name, root, Ref{Name: t.Name, Go: t.Go})
			if err != nil {
				return fmt.Errorf("element %s: %w", e.Path, err)
			}
			list = slices.DeleteFunc(list, func(i *Invariant) bool { return root.Resource && inherited[i.Key+" "+i.Expression] })
			if len(list) > 0 {
				of(t).Own = append(of(t).Own, list...)
			}
			continue
		}
		dot := strings.LastIndexByte(e.Path, '.')
		t := m.byName[e.Path[:max(dot, 0)]]
		if t == nil {
			continue
		}
		f := t.Field(strings.TrimSuffix(e.Path[dot+1:], "[x]"))
		if f == nil || m.byName[f.Type.Name] != nil && strings.Contains(f.Type.Name, ".") {
			continue // a contentReference: its type has them
		}
		list, err := m.elementConstraints(constraints, root, t, f)
		if err != nil {
			return fmt.Errorf("element %s: %w", e.Path, err)
		}
		if len(list) > 0 {
			of(t).Elements = append(of(t).Elements, ElementInvariants{Name: f.Name, Own: list})
		}
	}
	return nil
}

// profiled are the constraints that the profiles of an element's types add:
// SimpleQuantity is the one that R4's own types use.
// Spec: https://hl7.org/fhir/R4/datatypes.html#SimpleQuantity.
func profiled(set *definition.Set, e *samply.ElementDefinition) []samply.ElementDefinitionConstraint {
	var out []samply.ElementDefinitionConstraint
	for _, t := range e.Type {
		for _, url := range t.Profile {
			p := set.Structures[url]
			if p == nil || p.Type == "Extension" {
				continue
			}
			for _, c := range p.Snapshot.Element[0].Constraint {
				if source := text(c.Source); source == "" || source == url {
					out = append(out, c)
				}
			}
		}
	}
	return out
}

func (m *Model) elementConstraints(list []samply.ElementDefinitionConstraint, root, t *Type, f *Field) ([]*Invariant, error) {
	at := f.Type
	if f.Choice() {
		at = Ref{}
	}
	out, err := m.constraints(list, t.Name+"."+f.Name, root, at)
	if err != nil || !f.Choice() {
		return out, err
	}
	// The value of a choice is what its datatypes have in common.
	for _, i := range out {
		c := &conditions{model: m, root: root}
		c.receiver = operand{value: Receiver{}, open: f}
		c.compile(i)
	}
	return out, nil
}

// constraints compiles the constraints of one element, those left out that are not
// evaluated as FHIRPath.
func (m *Model) constraints(list []samply.ElementDefinitionConstraint, name string, root *Type, at Ref) ([]*Invariant, error) {
	var out []*Invariant
	for _, c := range list {
		if c.Expression == nil || constraint.Walked[c.Key] != "" {
			continue
		}
		i := &Invariant{Key: c.Key, Human: c.Human, Expression: *c.Expression, Warning: c.Severity == samply.ConstraintSeverityWarning, Receiver: at}
		if e, ok := constraint.Corrected[c.Key]; ok {
			i.Expression = e
		}
		i.Func = strings.ToLower(name[:1]) + GoName(strings.Split(name, ".")...)[1:] + GoName(strings.Split(c.Key, "-")...)
		k := &conditions{model: m, root: root, receiver: operand{value: Receiver{}, ref: at}}
		k.compile(i)
		out = append(out, i)
	}
	return out, nil
}

// operand is a value while an expression is compiled: one item, which is there.
type operand struct {
	value Value
	ref   Ref    // its type; zero where it is open or of any type
	open  *Field // the choice or resource element that holds it
	text  bool   // a Go string
}

// conditions compiles one FHIRPath expression. Conditions come in two forms:
// certain is whether it is true, its negation that it is false or empty; possible
// is whether it is not false.
type conditions struct {
	model    *Model
	root     *Type // of %resource
	receiver operand
	resource bool // %resource was used
	names    map[string]int
}

// certainty says which of the two forms is wanted.
type certainty bool

const (
	certain  certainty = true
	possible certainty = false
)

// compile gives i its condition, or the reason why there is none.
func (c *conditions) compile(i *Invariant) {
	i.Condition, i.Reason, i.Resource = nil, "", nil
	c.names = map[string]int{}
	expr, err := fhirpath.Parse(i.Expression)
	if err == nil {
		i.Condition, err = c.condition(expr.Root, c.receiver, possible)
	}
	if err != nil {
		i.Condition, i.Reason = nil, err.Error()
		return
	}
	if c.resource {
		i.Resource = c.root
	}
}

func notCompiled(n fhirpath.Node) error { return fmt.Errorf("%s is not compiled", n) }

// condition compiles n, whose result is at most one Boolean, with this as $this.
func (c *conditions) condition(n fhirpath.Node, this operand, form certainty) (Condition, error) {
	switch n := n.(type) {
	case *fhirpath.Binary:
		return c.binary(n, this, form)
	case *fhirpath.TypeOp:
		if n.Op == "is" {
			return c.isType(n, n.X, n.Type, this, form)
		}
	case *fhirpath.Call:
		return c.call(n, this, form)
	case *fhirpath.Member:
		// One boolean element.
		if err := c.single(n, this); err != nil {
			return nil, err
		}
		return c.open(form, func(other bool) (Condition, error) {
			return c.each(n, this, func(v operand) (Condition, error) {
				if v.ref.Name != "boolean" {
					return nil, notCompiled(n)
				}
				return &TextIs{v.value, []string{strconv.FormatBool(!other)}}, nil
			})
		})
	}
	return nil, notCompiled(n)
}

// open compiles an expression that is true, false or empty: find looks for a case of true or,
// with other, of false.
func (c *conditions) open(form certainty, find func(other bool) (Condition, error)) (Condition, error) {
	if form == certain {
		return find(false)
	}
	x, err := find(true)
	if err != nil {
		return nil, err
	}
	return not(x), nil
}

func (c *conditions) both(l, r fhirpath.Node, this operand, left, right certainty) (x, y Condition, err error) {
	if x, err = c.condition(l, this, left); err != nil {
		return nil, nil, err
	}
	y, err = c.condition(r, this, right)
	return x, y, err
}

func (c *conditions) binary(n *fhirpath.Binary, this operand, form certainty) (Condition, error) {
	switch n.Op {
	case "and", "or":
		x, y, err := c.both(n.Left, n.Right, this, form, form)
		if err != nil {
			return nil, err
		}
		if n.Op == "and" {
			return all(x, y), nil
		}
		return anyOf(x, y), nil
	case "implies":
		// It is false where the left side is true and the right one false.
		x, y, err := c.both(n.Left, n.Right, this, !form, form)
		if err != nil {
			return nil, err
		}
		return anyOf(not(x), y), nil
	case "xor":
		return c.differ(n, this, form)
	case "=", "!=":
		return c.equality(n, this, form)
	case "in":
		return c.in(n, this, form)
	case "contains":
		return c.contains(n, this, form)
	case "<", "<=", ">", ">=":
		return c.order(n, this, form)
	}
	return nil, notCompiled(n)
}

// determined reports whether n is never empty.
func determined(n fhirpath.Node) bool {
	switch n := n.(type) {
	case *fhirpath.Binary:
		switch n.Op {
		case "and", "or", "xor", "implies":
			return determined(n.Left) && determined(n.Right)
		}
	case *fhirpath.Call:
		switch n.Name {
		case "exists", "empty", "all", "isDistinct", "hasValue":
			return true
		case "not":
			return n.Left != nil && determined(n.Left)
		}
	}
	return false
}

// boolean reports whether n can only give a Boolean.
func boolean(n fhirpath.Node) bool {
	switch n := n.(type) {
	case *fhirpath.Binary:
		switch n.Op {
		case "|", "&", "+", "-", "*", "/", "div", "mod":
			return false
		}
		return true
	case *fhirpath.Call:
		return determined(n) || n.Name == "not" || n.Name == "startsWith" || n.Name == "matches" || n.Name == "contains" || n.Name == "endsWith"
	case *fhirpath.TypeOp:
		return n.Op == "is"
	}
	return false
}

// differ compiles xor, and != between Booleans.
func (c *conditions) differ(n *fhirpath.Binary, this operand, form certainty) (Condition, error) {
	if determined(n.Left) && determined(n.Right) {
		x, y, err := c.both(n.Left, n.Right, this, certain, certain)
		return Differ{x, y}, err
	}
	lt, rt, err := c.both(n.Left, n.Right, this, certain, certain)
	if err != nil {
		return nil, err
	}
	lp, rp, err := c.both(n.Left, n.Right, this, possible, possible)
	if err != nil {
		return nil, err
	}
	if form == certain {
		return anyOf(all(lt, not(rp)), all(not(lp), rt)), nil
	}
	return not(anyOf(all(lt, rt), all(not(lp), not(rp)))), nil
}

func (c *conditions) equality(n *fhirpath.Binary, this operand, form certainty) (Condition, error) {
	if boolean(n.Left) && boolean(n.Right) {
		if n.Op == "!=" {
			return c.differ(n, this, form)
		}
		x, err := c.differ(n, this, !form)
		if err != nil {
			return nil, err
		}
		return not(x), nil
	}
	if sum, ok := c.sum(n.Left, this); ok && n.Op == "=" {
		if number, err := strconv.Atoi(n.Right.String()); err == nil {
			return &Total{sum, "==", number}, nil
		}
	}
	if err := c.single(n.Left, this); err != nil {
		return nil, err
	}
	if err := c.single(n.Right, this); err != nil {
		return nil, err
	}
	// The condition is true, or with other false, where both sides are there and
	// are the same or not.
	return c.open(form, func(other bool) (Condition, error) {
		wanted := (n.Op == "=") != other
		return c.each(n.Left, this, func(l operand) (Condition, error) {
			return c.each(n.Right, this, func(r operand) (Condition, error) {
				x, err := same(n, l, r)
				if err == nil && !wanted {
					x = not(x)
				}
				return x, err
			})
		})
	})
}

// textual are the types that are compared as texts.
var textual = []string{"code", "string", "uri", "url", "canonical", "id", "markdown", "oid", "uuid", systemString}

func isTextual(r Ref) bool { return slices.Contains(textual, r.Name) }

// same compiles the equality of two items.
func same(n fhirpath.Node, l, r operand) (Condition, error) {
	if _, ok := l.value.(Literal); ok {
		l, r = r, l
	}
	lit, literal := r.value.(Literal)
	switch {
	case literal && l.text:
	case literal && isTextual(l.ref) && r.ref.Name == "string",
		literal && l.ref.Name == "boolean" && r.ref.Name == "boolean",
		literal && slices.Contains([]string{"integer", "positiveInt", "unsignedInt"}, l.ref.Name) && r.ref.Name == "integer":
		return &TextIs{l.value, []string{lit.Text}}, nil
	case literal && l.open == nil && !l.ref.Primitive && r.ref.Name == "string":
		// A structure is no String.
		return Constant(false), nil
	case !literal && !l.text && !r.text && isTextual(l.ref) && isTextual(r.ref):
		return all(&HasText{l.value}, &Same{l.value, r.value}), nil
	}
	return nil, notCompiled(n)
}

func (c *conditions) in(n *fhirpath.Binary, this operand, form certainty) (Condition, error) {
	if err := c.single(n.Left, this); err != nil {
		return nil, err
	}
	var list []string
	for _, b := range fhirpath.Branches(n.Right) {
		l, ok := b.(*fhirpath.Literal)
		if !ok || l.Kind != fhirpath.StringLiteral {
			return nil, notCompiled(n)
		}
		list = append(list, l.Text)
	}
	return c.open(form, func(other bool) (Condition, error) {
		return c.each(n.Left, this, func(v operand) (Condition, error) {
			if !isTextual(v.ref) {
				return nil, notCompiled(n)
			}
			if other {
				return not(&TextIs{v.value, list}), nil
			}
			return &TextIs{v.value, list}, nil
		})
	})
}

func (c *conditions) contains(n *fhirpath.Binary, _ operand, _ certainty) (Condition, error) {
	// Each item of one list in another: the engine counts the steps of that.
	return nil, notCompiled(n)
}

// order compiles a comparison by <, <=, > and >=.
func (c *conditions) order(n *fhirpath.Binary, this operand, form certainty) (Condition, error) {
	number, err := strconv.ParseInt(n.Right.String(), 10, 32)
	literal := err == nil
	if sum, ok := c.sum(n.Left, this); ok && literal {
		return &Total{sum, n.Op, int(number)}, nil
	}
	if err := c.single(n.Left, this); err != nil {
		return nil, err
	}
	if !literal {
		if err := c.single(n.Right, this); err != nil {
			return nil, err
		}
	}
	compare := func(x, y Value) Condition {
		o := &Order{Certain: form == certain, X: x, Y: y, Op: n.Op, Number: int32(number)}
		if form == certain {
			return o
		}
		return not(o)
	}
	x, err := c.each(n.Left, this, func(l operand) (Condition, error) {
		if literal {
			return compare(l.value, nil), ordered(n, l)
		}
		return c.each(n.Right, this, func(r operand) (Condition, error) {
			if err := ordered(n, r); err != nil {
				return nil, err
			}
			return compare(l.value, r.value), ordered(n, l)
		})
	})
	if err != nil || form == certain {
		return x, err
	}
	return not(x), nil
}

// ordered refuses items that the engine could fail to compare.
func ordered(n fhirpath.Node, v operand) error {
	switch v.ref.Name {
	case "decimal", "integer", "positiveInt", "unsignedInt", "date", "dateTime", "instant", "Quantity":
		return nil
	}
	return notCompiled(n)
}

// sum returns the elements that n adds the counts of.
func (c *conditions) sum(n fhirpath.Node, this operand) ([]*Select, bool) {
	switch n := n.(type) {
	case *fhirpath.Binary:
		if n.Op != "+" {
			return nil, false
		}
		l, ok1 := c.sum(n.Left, this)
		r, ok2 := c.sum(n.Right, this)
		return append(l, r...), ok1 && ok2
	case *fhirpath.Call:
		m, ok := n.Left.(*fhirpath.Member)
		t := c.model.Lookup(this.ref.Name)
		if !ok || n.Name != "count" || m.Left != nil || t == nil || t.Field(m.Name) == nil {
			return nil, false
		}
		return []*Select{{this.value, t.Field(m.Name)}}, true
	}
	return nil, false
}

func (c *conditions) call(n *fhirpath.Call, this operand, form certainty) (Condition, error) {
	switch n.Name {
	case "startsWith", "endsWith", "contains", "matches":
		return c.predicate(n, this, form)
	}
	if n.Left == nil {
		return nil, notCompiled(n)
	}
	found := func(operand) (Condition, error) { return Constant(true), nil }
	switch n.Name {
	case "not":
		return negate(c.condition(n.Left, this, !form))
	case "trace":
		return c.condition(n.Left, this, form)
	case "empty":
		if len(n.Args) == 0 {
			return negate(c.each(n.Left, this, found))
		}
	case "exists":
		if len(n.Args) == 0 {
			return c.each(n.Left, this, found)
		}
		return c.each(n.Left, this, func(v operand) (Condition, error) { return c.condition(n.Args[0], v, certain) })
	case "all":
		return negate(c.each(n.Left, this, func(v operand) (Condition, error) { return negate(c.condition(n.Args[0], v, certain)) }))
	case "hasValue":
		return c.hasValue(n, this)
	case "isDistinct":
		return c.isDistinct(n, this)
	case "is":
		if m, ok := n.Args[0].(*fhirpath.Member); ok && m.Left == nil {
			return c.isType(n, n.Left, fhirpath.TypeName{Name: m.Name}, this, form)
		}
	}
	return nil, notCompiled(n)
}

// negate negates a condition that compiled.
func negate(x Condition, err error) (Condition, error) {
	if err != nil {
		return nil, err
	}
	return not(x), nil
}

// hasValue compiles x.hasValue().
func (c *conditions) hasValue(n *fhirpath.Call, this operand) (Condition, error) {
	if err := c.single(n.Left, this); err != nil {
		return nil, err
	}
	return c.each(n.Left, this, func(v operand) (Condition, error) {
		if !v.ref.Primitive {
			return nil, notCompiled(n)
		}
		return &HasText{v.value}, nil
	})
}

// isDistinct compiles x.isDistinct().
func (c *conditions) isDistinct(n *fhirpath.Call, this operand) (Condition, error) {
	x, err := c.each(n.Left, this, func(v operand) (Condition, error) {
		if !v.text && !isTextual(v.ref) {
			return nil, notCompiled(n)
		}
		return &Again{v.value}, nil
	})
	if err != nil {
		return nil, err
	}
	return &Distinct{x}, nil
}

// predicate compiles a function of two strings.
func (c *conditions) predicate(n *fhirpath.Call, this operand, form certainty) (Condition, error) {
	lit, ok := n.Args[0].(*fhirpath.Literal)
	if !ok || lit.Kind != fhirpath.StringLiteral {
		return nil, notCompiled(n)
	}
	left := n.Left
	if left == nil {
		left = &fhirpath.Special{Name: "this"}
	}
	if err := c.single(left, this); err != nil {
		return nil, err
	}
	p := Predicate{Func: map[string]string{"startsWith": "HasPrefix", "endsWith": "HasSuffix", "contains": "Contains", "matches": "Matches"}[n.Name], Arg: Literal{lit.Text}}
	if n.Name == "matches" {
		if _, err := fhirpath.Pattern(lit.Text); err != nil {
			return nil, err
		}
		p.Arg = PatternValue{lit.Text}
	}
	return c.open(form, func(other bool) (Condition, error) {
		return c.each(left, this, func(v operand) (Condition, error) {
			if !isTextual(v.ref) {
				return nil, notCompiled(n)
			}
			p := p
			p.X = v.value
			if other {
				return all(&HasText{v.value}, not(&p)), nil
			}
			return all(&HasText{v.value}, &p), nil
		})
	})
}

// isType compiles `x is T`: empty where x is.
func (c *conditions) isType(n, x fhirpath.Node, t fhirpath.TypeName, this operand, form certainty) (Condition, error) {
	if err := c.single(x, this); err != nil {
		return nil, err
	}
	return c.open(form, func(other bool) (Condition, error) {
		return c.each(x, this, func(v operand) (Condition, error) {
			to, err := c.to(n, v, t)
			if err != nil {
				return nil, err
			}
			is := Condition(&As{X: v.value, To: to, Body: Constant(true)})
			if other {
				is = not(is)
			}
			return is, nil
		})
	})
}

// to finds the type that a choice or resource is asked for. It refuses a type that
// others specialise.
func (c *conditions) to(n fhirpath.Node, v operand, name fhirpath.TypeName) (Ref, error) {
	if v.open == nil || name.Namespace == "System" {
		return Ref{}, notCompiled(n)
	}
	specialised := func(t *Type) bool { return t.Base == name.Name }
	if slices.ContainsFunc(c.model.Types, specialised) || name.Name == "string" || name.Name == "uri" || name.Name == "integer" {
		return Ref{}, fmt.Errorf("%s has specialisations: %w", name, notCompiled(n))
	}
	if r, ok := shared[name.Name]; ok {
		return r, nil
	}
	if t := c.model.Lookup(name.Name); t != nil {
		return Ref{Name: t.Name, Go: t.Go}, nil
	}
	return Ref{}, notCompiled(n)
}

// single refuses an expression that can have several items where the engine takes
// one.
func (c *conditions) single(n fhirpath.Node, this operand) error {
	names := maps.Clone(c.names)
	defer func() { c.names = names }()
	several := false
	_, err := c.walk(n, this, func(operand) (Condition, error) { return Constant(true), nil }, func() { several = true })
	if err == nil && several {
		return fmt.Errorf("%s can have several items: %w", n, notCompiled(n))
	}
	return err
}

// each compiles whether found is true of an item that the path n leads to.
func (c *conditions) each(n fhirpath.Node, this operand, found func(operand) (Condition, error)) (Condition, error) {
	return c.walk(n, this, found, func() {})
}

// walk is each; several is called where there can be more than one item.
func (c *conditions) walk(n fhirpath.Node, this operand, found func(operand) (Condition, error), several func()) (Condition, error) {
	switch n := n.(type) {
	case *fhirpath.Literal:
		if typ := literalTypes[n.Kind]; typ != "" {
			return found(operand{value: Literal{n.Text}, ref: shared[typ]})
		}
	case *fhirpath.Special:
		if n.Name == "this" {
			return found(this)
		}
	case *fhirpath.Variable:
		switch n.Name {
		case "ucum":
			return found(operand{value: Literal{"http://unitsofmeasure.org"}, ref: shared["string"]})
		case "context":
			return found(c.receiver)
		case "resource":
			if c.root != nil && c.root.Resource {
				c.resource = true
				return found(operand{value: ResourceValue{}, ref: Ref{Name: c.root.Name, Go: c.root.Go}})
			}
		}
	case *fhirpath.Member:
		if n.Left == nil && (n.Name == this.ref.Name && this.ref.Name != "") {
			return found(this)
		}
		if this.ref.Name == "" && this.open == nil {
			return c.dynamic(n, found)
		}
		if n.Left == nil {
			return c.step(n, this, found, several)
		}
		return c.walk(n.Left, this, func(v operand) (Condition, error) { return c.step(n, v, found, several) }, several)
	case *fhirpath.TypeOp:
		if n.Op == "as" {
			return c.walk(n.X, this, func(v operand) (Condition, error) { return c.cast(n, v, n.Type, found) }, several)
		}
	case *fhirpath.Binary:
		switch n.Op {
		case "|":
			return c.walkUnion(n, this, found, several)
		case "&":
			return c.walkText(n, this, found)
		}
	case *fhirpath.Call:
		return c.walkCall(n, this, found, several)
	}
	return nil, notCompiled(n)
}

// literalTypes are the types of the literals that conditions have.
var literalTypes = map[fhirpath.LiteralKind]string{
	fhirpath.StringLiteral: "string", fhirpath.BooleanLiteral: "boolean", fhirpath.IntegerLiteral: "integer",
}

// walkUnion is walk for x | y.
func (c *conditions) walkUnion(n *fhirpath.Binary, this operand, found func(operand) (Condition, error), several func()) (Condition, error) {
	// Equal items count once. This makes no difference if one of them is enough.
	several()
	x, err := c.walk(n.Left, this, found, several)
	if err != nil {
		return nil, err
	}
	y, err := c.walk(n.Right, this, found, several)
	return anyOf(x, y), err
}

// walkText is walk for x & y.
func (c *conditions) walkText(n *fhirpath.Binary, this operand, found func(operand) (Condition, error)) (Condition, error) {
	l, err := c.text(n.Left, this)
	if err != nil {
		return nil, err
	}
	r, err := c.text(n.Right, this)
	if err != nil {
		return nil, err
	}
	return found(operand{value: Concat{[]Value{l, r}}, text: true})
}

func (c *conditions) walkCall(n *fhirpath.Call, this operand, found func(operand) (Condition, error), several func()) (Condition, error) {
	left := n.Left
	if left == nil {
		left = &fhirpath.Special{Name: "this"}
	}
	switch {
	case n.Name == "trace":
		return c.walk(left, this, found, several)
	case n.Name == "where":
		return c.walk(left, this, func(v operand) (Condition, error) {
			cond, err := c.condition(n.Args[0], v, certain)
			if err != nil {
				return nil, err
			}
			x, err := found(v)
			return all(cond, x), err
		}, several)
	case n.Name == "select" && boolean(n.Args[0]):
		// Booleans are only tested for existence.
		return c.walk(left, this, func(v operand) (Condition, error) {
			x, err := found(operand{})
			if err != nil || x != Constant(true) {
				return nil, notCompiled(n)
			}
			t, err := c.condition(n.Args[0], v, certain)
			if err != nil {
				return nil, err
			}
			p, err := c.condition(n.Args[0], v, possible)
			return anyOf(t, not(p)), err
		}, several)
	case n.Name == "select":
		return c.walk(left, this, func(v operand) (Condition, error) { return c.walk(n.Args[0], v, found, several) }, several)
	case n.Name == "first", n.Name == "tail":
		if n.Name == "tail" {
			several()
		}
		return c.list(left, this, func(list *Select) (Condition, error) {
			return c.some(list, GoName(n.Name), found)
		})
	case n.Name == "intersect":
		return c.list(left, this, func(x *Select) (Condition, error) {
			return c.list(n.Args[0], this, func(y *Select) (Condition, error) {
				cond, err := found(operand{})
				if err != nil || cond != Constant(true) || x.Field.Type != y.Field.Type || x.Field.Type.Shared {
					return nil, notCompiled(n)
				}
				return &Share{x, y}, nil
			})
		})
	case n.Name == "ofType" || n.Name == "as":
		if m, ok := n.Args[0].(*fhirpath.Member); ok && m.Left == nil {
			return c.walk(left, this, func(v operand) (Condition, error) {
				return c.cast(n, v, fhirpath.TypeName{Name: m.Name}, found)
			}, several)
		}
	}
	return nil, notCompiled(n)
}

func (c *conditions) cast(n fhirpath.Node, v operand, t fhirpath.TypeName, found func(operand) (Condition, error)) (Condition, error) {
	to, err := c.to(n, v, t)
	if err != nil {
		return nil, err
	}
	name := c.variable("value")
	body, err := found(operand{value: Variable{name}, ref: to})
	return &As{X: v.value, To: to, Variable: name, Body: body}, err
}

// list compiles a path to one element that repeats, as a whole.
func (c *conditions) list(n fhirpath.Node, this operand, found func(*Select) (Condition, error)) (Condition, error) {
	m, ok := n.(*fhirpath.Member)
	if !ok {
		return nil, notCompiled(n)
	}
	last := func(v operand) (Condition, error) {
		t := c.model.Lookup(v.ref.Name)
		if t == nil || t.Field(m.Name) == nil || !t.Field(m.Name).Repeats() || t.Field(m.Name).AnyResource {
			return nil, notCompiled(n)
		}
		return found(&Select{v.value, t.Field(m.Name)})
	}
	if m.Left == nil {
		return last(this)
	}
	if err := c.single(m.Left, this); err != nil {
		return nil, err
	}
	return c.each(m.Left, this, last)
}

func (c *conditions) some(list *Select, part string, found func(operand) (Condition, error)) (Condition, error) {
	name := c.variable(list.Field.Name)
	body, err := found(operand{value: Variable{name}, ref: list.Field.Type})
	switch {
	case err != nil:
		return nil, err
	case body == Constant(true) && part != "Tail":
		return &Present{list}, nil
	case body == Constant(false):
		return body, nil
	}
	return &Some{List: list, Part: part, Variable: name, Body: body}, nil
}

// step goes into an element.
func (c *conditions) step(n *fhirpath.Member, v operand, found func(operand) (Condition, error), several func()) (Condition, error) {
	if v.open != nil {
		return c.stepOpen(n, v, found, several)
	}
	t := c.model.Lookup(v.ref.Name)
	if t == nil || t.Field(n.Name) == nil {
		return nil, fmt.Errorf("%s has no element %s", v.ref.Name, n.Name)
	}
	f := t.Field(n.Name)
	at := &Select{v.value, f}
	if f.Repeats() {
		several()
		if f.AnyResource {
			return nil, notCompiled(n)
		}
		return c.some(at, "", found)
	}
	next := operand{value: at, ref: f.Type}
	if f.Choice() || f.AnyResource {
		next = operand{value: at, open: f}
	}
	x, err := found(next)
	return all(&Present{at}, x), err
}

// stepOpen goes into an element that some datatypes of a choice have.
func (c *conditions) stepOpen(n *fhirpath.Member, v operand, found func(operand) (Condition, error), several func()) (Condition, error) {
	if v.open.AnyResource || v.open.Open {
		return nil, notCompiled(n)
	}
	var list []Condition
	for _, r := range v.open.Choices {
		if t := c.model.Lookup(r.Name); t == nil || t.Field(n.Name) == nil {
			continue
		}
		name := c.variable("value")
		body, err := c.step(n, operand{value: Variable{name}, ref: r}, found, several)
		if err != nil {
			return nil, err
		}
		list = append(list, &As{X: v.value, To: r, Variable: name, Body: body})
	}
	if len(list) == 0 {
		return nil, notCompiled(n)
	}
	return anyOf(list...), nil
}

// text compiles n as a Go string, "" where it has no item.
func (c *conditions) text(n fhirpath.Node, this operand) (Value, error) {
	switch n := n.(type) {
	case *fhirpath.Literal:
		if n.Kind == fhirpath.StringLiteral {
			return Literal{n.Text}, nil
		}
	case *fhirpath.Member:
		var path []string
		at := fhirpath.Node(n)
		for m, ok := at.(*fhirpath.Member); ok; m, ok = at.(*fhirpath.Member) {
			path = append(path, m.Name)
			at = m.Left
		}
		if at != nil {
			return nil, notCompiled(n)
		}
		slices.Reverse(path)
		t := c.model.Lookup(this.ref.Name)
		if t == nil || t.Field(path[0]) == nil {
			return nil, notCompiled(n)
		}
		f := t.Field(path[0])
		switch at := (&Select{this.value, f}); {
		case len(path) == 1 && !f.Repeats() && isTextual(f.Type):
			return TextValue{at}, nil
		case f.AnyResource && !f.Repeats() && len(path) == 3 && path[1] == "meta" && path[2] == "versionId":
			return TextAt{at, path[1:]}, nil
		}
	}
	return nil, notCompiled(n)
}

// dynamic compiles a path of a resource of any type, of which only whether it
// leads somewhere can be asked.
func (c *conditions) dynamic(n *fhirpath.Member, found func(operand) (Condition, error)) (Condition, error) {
	x, err := found(operand{})
	if err != nil || x != Constant(true) {
		return nil, notCompiled(n)
	}
	var path []string
	for at := fhirpath.Node(n); at != nil; {
		m, ok := at.(*fhirpath.Member)
		if !ok {
			return nil, notCompiled(n)
		}
		path = append(path, m.Name)
		at = m.Left
	}
	slices.Reverse(path)
	return &Has{path}, nil
}

// variable names the value of an element, each once in an expression.
func (c *conditions) variable(element string) string {
	c.names[element]++
	if n := c.names[element]; n > 1 || goKeyword(element) {
		return element + strconv.Itoa(n)
	}
	return element
}

// goKeyword reports whether an element's name means something else in a compiled
// condition.
func goKeyword(name string) bool {
	return token.IsKeyword(name) || slices.Contains([]string{"c", "e", "r", "resource", "seen", "fhir", "constraint", "strings", "len", "string"}, name)
}

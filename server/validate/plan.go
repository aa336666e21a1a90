package validate

import (
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"

	"kiln/gen/r4"
	"kiln/server/fhir"
	"kiln/server/fhirpath"
)

// plan is what is asked of the values of one type.
type plan struct {
	typ        *fhir.Type
	fields     []fieldPlan
	invariants []*invariant
	special    special
}

// special marks the types that the walk knows by name.
type special uint8

const (
	ordinary special = iota
	extensionType
	referenceType
	narrativeType
)

// fieldPlan is what is asked of one element of a type.
type fieldPlan struct {
	field      *fhir.Field
	invariants []*invariant // on each value, from the element's own definition
	binding    *binding
	child      atomic.Pointer[plan] // of a complex element with one type
}

// binding is a value set that codes are checked against.
type binding struct {
	required bool
	valueSet string
	codes    atomic.Pointer[codeSet]
}

// invariant is one compiled constraint.
type invariant struct {
	key, human string
	warning    bool
	contained  bool // says something only where there are contained resources
	program    *fhirpath.Program
}

// native are the constraints that are not evaluated as FHIRPath.
var native = map[string]bool{
	"ele-1": true,                                                             // Decode accepts no empty element
	"ext-1": true, "ref-1": true, "txt-1": true, "txt-2": true, "dom-3": true, // the walk checks them
	// Best practice only, and true of hardly any resource a program writes: the
	// warning would stand in nearly every answer.
	"dom-6": true,
}

// corrected are expressions of R4 that cannot mean what they say, by key.
var corrected = map[string]string{
	// An answer is a FHIR boolean, which is no System.Boolean; R4B writes it so.
	"que-7": "operator = 'exists' implies (answer is boolean)",
}

// additional are rules that the specification states in prose only, by type.
var additional = map[string][]struct{ key, human, expression string }{
	// https://hl7.org/fhir/R4/bundle-definitions.html#Bundle.entry.fullUrl
	"Bundle.entry": {{"fullUrl", "fullUrl must not disagree with the id of the resource",
		"fullUrl.startsWith('http').not() or resource.id.empty() or fullUrl.endsWith('/' & resource.id)"}},
}

// plans makes and keeps the plans of a model.
type plans struct {
	model       *fhir.Model
	definitions Definitions
	byType      sync.Map // *fhir.Type -> *plan
	mu          sync.Mutex
	programs    map[programKey]*fhirpath.Program // shared invariants such as dom-3
	failures    []string                         // invariants that cannot be compiled
}

type programKey struct {
	expression string
	input      *fhir.Type
}

// of returns the plan of a type.
func (ps *plans) of(t *fhir.Type) *plan {
	if p, ok := ps.byType.Load(t); ok {
		return p.(*plan)
	}
	ps.mu.Lock()
	defer ps.mu.Unlock()
	if p, ok := ps.byType.Load(t); ok {
		return p.(*plan)
	}
	ps.build(t)
	if p, ok := ps.byType.Load(t); ok {
		return p.(*plan)
	}
	// A backbone type belongs to the definition of its root.
	root, _, _ := strings.Cut(t.Name, ".")
	if rt := ps.named(root); rt != nil && rt != t {
		ps.build(rt)
	}
	p, ok := ps.byType.Load(t)
	if !ok {
		p = ps.structural(t)
		ps.byType.Store(t, p)
	}
	return p.(*plan)
}

func (ps *plans) named(name string) *fhir.Type {
	if r, ok := ps.model.Resources[name]; ok {
		return r.Type()
	}
	if e, ok := ps.model.Datatypes[name]; ok {
		return e.Type()
	}
	return nil
}

// structural is the plan of a type without a definition: what its table says.
func (ps *plans) structural(t *fhir.Type) *plan {
	p := &plan{typ: t, fields: make([]fieldPlan, len(t.Fields))}
	switch t.Name {
	case "Extension":
		p.special = extensionType
	case "Reference":
		p.special = referenceType
	case "Narrative":
		p.special = narrativeType
	}
	for i := range t.Fields {
		f := &t.Fields[i]
		p.fields[i].field = f
		if s := f.Binding.Strength; (s == "required" || s == "extensible") && f.Binding.ValueSet != "" {
			p.fields[i].binding = &binding{required: s == "required", valueSet: f.Binding.ValueSet}
		}
	}
	return p
}

// build makes the plans of t and of its backbone types from t's definition.
func (ps *plans) build(t *fhir.Type) {
	if strings.Contains(t.Name, ".") {
		return
	}
	elements := map[string][]r4.ElementDefinitionConstraint{}
	if b, ok := ps.definitions.Read("StructureDefinition", t.Name); ok {
		if r, err := fhir.Decode(ps.model, b); err == nil {
			if sd, ok := r.(*r4.StructureDefinition); ok && sd.Snapshot != nil {
				for i := range sd.Snapshot.Element {
					e := &sd.Snapshot.Element[i]
					elements[e.Path.Text] = e.Constraint
				}
			}
		}
	}
	ps.tree(t, elements, map[*fhir.Type]bool{})
}

func (ps *plans) tree(t *fhir.Type, elements map[string][]r4.ElementDefinitionConstraint, seen map[*fhir.Type]bool) {
	if seen[t] {
		return
	}
	seen[t] = true
	p := ps.structural(t)
	for _, c := range elements[t.Name] {
		if inv := ps.invariant(c, t); inv != nil {
			p.invariants = append(p.invariants, inv)
		}
	}
	for _, a := range additional[t.Name] {
		var c r4.ElementDefinitionConstraint
		c.Key.Text, c.Human.Text, c.Expression.Text, c.Severity.Text = a.key, a.human, a.expression, "warning"
		if inv := ps.invariant(c, t); inv != nil {
			p.invariants = append(p.invariants, inv)
		}
	}
	root, _, _ := strings.Cut(t.Name, ".")
	for i := range p.fields {
		fp := &p.fields[i]
		path := t.Name + "." + fp.field.Name
		if fp.field.Choice() {
			path += "[x]"
		}
		var input *fhir.Type
		if fp.field.Of != nil {
			input = fp.field.Of.Type()
			if strings.HasPrefix(input.Name, root+".") {
				// The constraints of a backbone element are those of its type.
				ps.tree(input, elements, seen)
				continue
			}
		}
		for _, c := range elements[path] {
			if inv := ps.invariant(c, input); inv != nil {
				fp.invariants = append(fp.invariants, inv)
			}
		}
	}
	ps.byType.Store(t, p)
}

// invariant compiles a constraint, nil for one that needs no evaluation.
func (ps *plans) invariant(c r4.ElementDefinitionConstraint, input *fhir.Type) *invariant {
	if native[c.Key.Text] || c.Expression.Text == "" {
		return nil
	}
	inv := &invariant{key: strings.Clone(c.Key.Text), human: strings.Clone(c.Human.Text), warning: c.Severity.Text == "warning"}
	if strings.HasPrefix(inv.key, "dom-") {
		// The same for every resource: compiled once.
		input = nil
		inv.contained = true
	}
	expression := c.Expression.Text
	if e, ok := corrected[inv.key]; ok {
		expression = e
	}
	var err error
	if inv.program, err = ps.compile(expression, input); err != nil {
		ps.failures = append(ps.failures, fmt.Sprintf("%s: %v", inv.key, err))
		return nil
	}
	return inv
}

func (ps *plans) compile(expression string, input *fhir.Type) (*fhirpath.Program, error) {
	key := programKey{expression, input}
	if p, ok := ps.programs[key]; ok {
		return p, nil
	}
	expression = strings.Clone(expression)
	opts := fhirpath.Options{Model: ps.model, Input: input, CollectionAs: true}
	p, err := fhirpath.Compile(expression, opts)
	if err != nil && input != nil {
		opts.Input = nil
		p, err = fhirpath.Compile(expression, opts)
	}
	if err != nil {
		return nil, err
	}
	ps.programs[programKey{expression, input}] = p
	return p, nil
}

// child is the plan of the field's type, where it has one.
func (fp *fieldPlan) planOf(ps *plans, t *fhir.Type) *plan {
	if p := fp.child.Load(); p != nil && p.typ == t {
		return p
	}
	p := ps.of(t)
	fp.child.Store(p)
	return p
}

// targets returns whether a reference to typ is allowed.
func (fp *fieldPlan) allows(typ string) bool {
	return len(fp.field.Targets) == 0 || slices.Contains(fp.field.Targets, typ) || slices.Contains(fp.field.Targets, "Resource")
}

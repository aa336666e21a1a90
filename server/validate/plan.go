package validate

import (
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"

	compiled "kiln/gen/invariant"
	"kiln/gen/r4"
	"kiln/server/constraint"
	"kiln/server/fhir"
	"kiln/server/fhirpath"
)

// plan is the rules for the values of one type.
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
	codingType
	quantityType
	bundleType
	responseType // QuestionnaireResponse
)

// specials are the types that the walk knows, by name.
var specials = map[string]special{
	"Extension": extensionType, "Reference": referenceType, "Narrative": narrativeType, "Coding": codingType,
	"Quantity": quantityType, "Bundle": bundleType, "QuestionnaireResponse": responseType,
}

// absolute are the elements of type uri that hold an absolute URI, beside the url of
// every resource that has one. Every canonical is absolute.
// Spec: https://hl7.org/fhir/R4/datatypes.html#Coding, #Identifier, references.html#canonical.
var absolute = map[string]bool{"Coding.system": true, "Identifier.system": true, "Quantity.system": true}

// optional are the elements that R4 requires and this service does not (docs/contract.md,
// Specification: SearchParameter). Their absence is a warning.
var optional = map[string]bool{"SearchParameter.name": true, "SearchParameter.status": true, "SearchParameter.description": true}

// fieldPlan is the rules for one element of a type.
type fieldPlan struct {
	field      *fhir.Field
	invariants []*invariant // on each value, from the element's own definition
	binding    *binding
	maximum    string               // the maximum value set, "" for none
	child      atomic.Pointer[plan] // of a complex element with one type
	id         bool                 // Element.id
	absolute   bool                 // an absolute URI
	optional   bool                 // see optional
	plain      bool                 // a primitive of which nothing is asked but its format
}

// binding is a value set that codes are checked against.
type binding struct {
	required bool
	valueSet string
}

// maximum are the maximum value sets of R4's own definitions for coded elements, by the preferred value set.
// Spec: https://hl7.org/fhir/R4/extension-elementdefinition-maxvalueset.html.
var maximum = map[string]string{"http://hl7.org/fhir/ValueSet/languages": "http://hl7.org/fhir/ValueSet/all-languages"}

// maximumExtension names the maximum value set of a binding.
const maximumExtension = "http://hl7.org/fhir/StructureDefinition/elementdefinition-maxValueSet"

// invariant is one constraint, compiled by codegen or, where check is nil, by the
// FHIRPath engine.
type invariant struct {
	key, human string
	warning    bool
	contained  bool // says something only where there are contained resources
	check      func(*constraint.Context, fhir.Element) bool
	program    *fhirpath.Program
}

// plans makes and keeps the plans of a model.
type plans struct {
	model    *fhir.Model
	byType   sync.Map // *fhir.Type -> *plan
	mu       sync.Mutex
	programs map[programKey]*fhirpath.Program
	failures []string // invariants that cannot be compiled
}

type programKey struct {
	expression string
	input      *fhir.Type
}

// planOf returns the plan of a type.
func (ps *plans) planOf(t *fhir.Type) *plan {
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
	if rt := ps.typeNamed(root); rt != nil && rt != t {
		ps.build(rt)
	}
	p, ok := ps.byType.Load(t)
	if !ok {
		p = ps.structural(t)
		ps.byType.Store(t, p)
	}
	return p.(*plan)
}

func (ps *plans) typeNamed(name string) *fhir.Type {
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
	name := t.Name
	if t.Base == "Quantity" {
		name = t.Base // Age, Duration, …: Quantities under another name
	}
	p.special = specials[name]
	for i := range t.Fields {
		f := &t.Fields[i]
		fp := &p.fields[i]
		fp.field = f
		fp.id = f.Name == "id" && t.Kind != fhir.ResourceKind
		fp.absolute = absolute[name+"."+f.Name] || f.Name == "url" && t.Kind == fhir.ResourceKind && f.Of != nil && f.Of.Type().Kind == fhir.URIKind
		fp.optional = optional[t.Name+"."+f.Name]
		fp.plain = !fp.id && !fp.absolute && f.Of != nil && f.Of.Type().Kind != fhir.CanonicalKind
		if s := f.Binding.Strength; (s == "required" || s == "extensible") && f.Binding.ValueSet != "" {
			fp.binding = &binding{required: s == "required", valueSet: f.Binding.ValueSet}
		}
		fp.maximum = maximum[f.Binding.ValueSet]
	}
	return p
}

// build makes the plans of t and of its backbone types.
func (ps *plans) build(t *fhir.Type) {
	if !strings.Contains(t.Name, ".") {
		ps.tree(t, map[*fhir.Type]bool{})
	}
}

func (ps *plans) tree(t *fhir.Type, seen map[*fhir.Type]bool) {
	if seen[t] {
		return
	}
	seen[t] = true
	p := ps.structural(t)
	own := compiled.Of(t.Name)
	if own == nil {
		own = &constraint.Type{}
	}
	for i := range own.Invariants {
		p.invariants = ps.add(p.invariants, &own.Invariants[i], t)
	}
	if domain := compiled.Of(domainResource); t.Base == domainResource && domain != nil {
		from := len(p.invariants)
		for i := range domain.Invariants {
			p.invariants = ps.add(p.invariants, &domain.Invariants[i], nil)
		}
		for _, inv := range p.invariants[from:] {
			inv.contained = true
		}
	}
	root, _, _ := strings.Cut(t.Name, ".")
	for i := range p.fields {
		fp := &p.fields[i]
		var input *fhir.Type
		if fp.field.Of != nil {
			input = fp.field.Of.Type()
			if strings.HasPrefix(input.Name, root+".") {
				// A backbone element has the constraints of its type.
				ps.tree(input, seen)
				continue
			}
		}
		for _, e := range own.Elements {
			for j := range e.Invariants {
				if e.Name == fp.field.Name {
					fp.invariants = ps.add(fp.invariants, &e.Invariants[j], input)
				}
			}
		}
	}
	ps.byType.Store(t, p)
}

// domainResource has the invariants that nearly every resource type inherits.
const domainResource = "DomainResource"

// add appends an invariant; one that the engine cannot compile is a failure.
func (ps *plans) add(list []*invariant, c *constraint.Invariant, input *fhir.Type) []*invariant {
	inv, err := ps.invariant(c, input)
	if err != nil {
		ps.failures = append(ps.failures, fmt.Sprintf("%s: %v", c.Key, err))
		return list
	}
	return append(list, inv)
}

func (ps *plans) invariant(c *constraint.Invariant, input *fhir.Type) (*invariant, error) {
	inv := &invariant{key: c.Key, human: c.Human, warning: c.Warning, check: c.Check}
	if c.Check != nil {
		return inv, nil
	}
	var err error
	inv.program, err = ps.compileExpression(c.Expression, input)
	return inv, err
}

// interpretInvariant compiles a constraint of a profile, nil for one that needs no
// evaluation.
func (ps *plans) interpretInvariant(c r4.ElementDefinitionConstraint) (*invariant, error) {
	if constraint.Walked[c.Key.Text] != "" || c.Expression.Text == "" {
		return nil, nil
	}
	i := constraint.Invariant{Key: strings.Clone(c.Key.Text), Human: strings.Clone(c.Human.Text), Warning: c.Severity.Text == "warning", Expression: c.Expression.Text}
	if e, ok := constraint.Corrected[i.Key]; ok {
		i.Expression = e
	}
	inv, err := ps.invariant(&i, nil)
	if err != nil {
		return nil, err
	}
	inv.contained = strings.HasPrefix(i.Key, "dom-")
	return inv, nil
}

func (ps *plans) compileExpression(expression string, input *fhir.Type) (*fhirpath.Program, error) {
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
	p := ps.planOf(t)
	fp.child.Store(p)
	return p
}

// targets returns whether a reference to typ is allowed.
func (fp *fieldPlan) allowsType(typ string) bool {
	return len(fp.field.Targets) == 0 || slices.Contains(fp.field.Targets, typ) || slices.Contains(fp.field.Targets, "Resource")
}

// Package ir decides the Go shape of definitions: every identifier, the form
// of every field, and the way to read each search parameter. codegen/emit prints
// its model without further decisions.
//
//	definition.Set --Build--> Model
//	                            Types                 Type and Field: names, cardinalities, choices
//	                            Searches              search.go, path.go: an expression as steps over fields
//	                            Compartments          compartment.go
//	                            Invariants            invariant.go, condition.go: FHIRPath as conditions over fields
//	                            Operations            parameters of OperationDefinitions
//	                            Interpreted, Omitted  expressions left to the FHIRPath engine, or left out, each with a Remark
//
// name.go decides identifiers: initialisms, words of Go, clashes. Build fails on a
// definition that it cannot shape, and names it and the element.
package ir

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"

	samply "github.com/samply/golang-fhir-models/fhir-models/fhir"

	"kiln/codegen/definition"
	"kiln/server/fhir"
)

// Model is every type to generate.
type Model struct {
	Types     []*Type // by name; backbone elements after the type they belong to
	Resources []*Type // the resource types among them
	Datatypes []*Type // the datatypes among them

	Compartments []fhir.Compartment
	Searches     []*Search // one for each resource type
	Interpreted  []Remark  // branches that are left to the FHIRPath engine
	Omitted      []Remark  // parameters that cannot be searched
	// Profiles are, by resource type, the canonical of its definition and of each
	// profile on it.
	Profiles   map[string][]string
	Operations []fhir.OperationDefinition
	Invariants []*TypeInvariants // by type

	byName map[string]*Type
}

// Type is one struct.
type Type struct {
	Go       string // Go identifier
	Name     string // FHIR type, or path of a backbone element
	Base     string
	Resource bool
	Doc      string
	Fields   []*Field
	// Source names the StructureDefinition, with its version.
	Source string
	URL    string // canonical
	// Backbones are the backbone elements below, in definition order; only set
	// for resources and datatypes.
	Backbones []*Type

	byName map[string]*Field
}

// Field is one element.
type Field struct {
	Name        string // element name, without [x]
	Go          string
	Type        Ref // unless it is a choice or any resource
	Choices     []Ref
	Open        bool // choice of every datatype
	AnyResource bool
	Min, Max    int
	Summary     bool
	Modifier    bool
	Targets     []string
	Binding     fhir.Binding
	Short       string
}

// Ref is a type as a field refers to it.
type Ref struct {
	Name      string // FHIR name
	Go        string
	Shared    bool // lives in server/fhir, not in the generated package
	Primitive bool
}

// Choice reports whether the field is a choice element.
func (f *Field) Choice() bool { return f.Open || len(f.Choices) > 0 }

// Repeats reports whether the field is a slice.
func (f *Field) Repeats() bool { return f.Max != 1 }

// Lookup returns the type with the FHIR name or backbone path, or nil.
func (m *Model) Lookup(name string) *Type { return m.byName[name] }

// Field returns the element with the name, or nil.
func (t *Type) Field(name string) *Field { return t.byName[name] }

// shared are the types that server/fhir defines by hand, by FHIR name.
var shared = func() map[string]Ref {
	out := map[string]Ref{"Extension": {Name: "Extension", Go: "Extension", Shared: true}}
	for _, n := range Primitives {
		out[n] = Ref{Name: n, Go: primitiveGo(n), Shared: true, Primitive: true}
	}
	return out
}()

// Primitives are R4's primitive types.
var Primitives = []string{
	"base64Binary", "boolean", "canonical", "code", "date", "dateTime", "decimal", "id", "instant",
	"integer", "markdown", "oid", "positiveInt", "string", "time", "unsignedInt", "uri", "url", "uuid", "xhtml",
}

func primitiveGo(name string) string {
	if name == "xhtml" {
		return "XHTML"
	}
	return GoName(name)
}

const (
	base         = "http://hl7.org/fhir/StructureDefinition/"
	systemString = "http://hl7.org/fhirpath/System.String"
	// jsonType is the datatype of an element that holds a JSON object of any shape.
	jsonType = "http://kiln/fhir/StructureDefinition/json"
	// openChoice is the number of types from which a choice is open to all.
	openChoice = 40
)

// Build returns the model of a set of definitions. It fails on anything that it cannot represent, and names
// the element.
func Build(set *definition.Set) (*Model, error) {
	m := &Model{byName: map[string]*Type{}}
	b := &builder{set: set, model: m, taken: map[string]string{}}
	for _, d := range definition.Sorted(set.Structures) {
		if !generated(d) {
			continue
		}
		if err := b.declare(d); err != nil {
			return nil, fmt.Errorf("%s: %w", d.Url, err)
		}
	}
	slices.SortFunc(m.Resources, func(a, b *Type) int { return cmp.Compare(a.Name, b.Name) })
	slices.SortFunc(m.Datatypes, func(a, b *Type) int { return cmp.Compare(a.Name, b.Name) })
	for _, d := range definition.Sorted(set.Structures) {
		if !generated(d) {
			continue
		}
		if err := b.fill(d); err != nil {
			return nil, fmt.Errorf("%s: %w", d.Url, err)
		}
	}
	for _, t := range append(slices.Clone(m.Resources), m.Datatypes...) {
		m.Types = append(m.Types, t)
		m.Types = append(m.Types, t.Backbones...)
	}
	m.Compartments = compartments(set, m)
	m.byName["Extension"] = extension()
	if err := search(set, m); err != nil {
		return nil, err
	}
	capabilities(set, m)
	return m, invariants(set, m)
}

// generated reports whether a StructureDefinition gives a struct: resources and
// complex datatypes that are not abstract, and Extension not, which is
// hand-written.
func generated(d *samply.StructureDefinition) bool {
	if d.Abstract || d.Derivation == nil || *d.Derivation != samply.TypeDerivationRuleSpecialization || d.Type == "Extension" {
		return false
	}
	if d.Type == "Element" || d.Type == "BackboneElement" {
		return false
	}
	return d.Kind == samply.StructureDefinitionKindResource || d.Kind == samply.StructureDefinitionKindComplexType
}

type builder struct {
	set   *definition.Set
	model *Model
	taken map[string]string // Go identifier -> FHIR name
}

// declare makes the types of a definition, without fields.
func (b *builder) declare(d *samply.StructureDefinition) error {
	if d.Snapshot == nil || len(d.Snapshot.Element) == 0 {
		return fmt.Errorf("has no snapshot")
	}
	version := ""
	if d.Version != nil {
		version = "|" + *d.Version
	}
	top := &Type{
		Name: d.Type, Resource: d.Kind == samply.StructureDefinitionKindResource,
		Doc:    text(d.Snapshot.Element[0].Short),
		Source: "StructureDefinition/" + d.Type + version, URL: d.Url,
	}
	if d.BaseDefinition != nil {
		top.Base = (*d.BaseDefinition)[strings.LastIndexByte(*d.BaseDefinition, '/')+1:]
	}
	if err := b.name(top, GoName(d.Type)); err != nil {
		return err
	}
	for i := range d.Snapshot.Element[1:] {
		e := &d.Snapshot.Element[i+1]
		if !backbone(e) {
			continue
		}
		t := &Type{Name: e.Path, Base: e.Type[0].Code, Doc: text(e.Short), Source: top.Source}
		if err := b.name(t, GoName(strings.Split(e.Path, ".")...)); err != nil {
			return err
		}
		top.Backbones = append(top.Backbones, t)
	}
	if top.Resource {
		b.model.Resources = append(b.model.Resources, top)
	} else {
		b.model.Datatypes = append(b.model.Datatypes, top)
	}
	return nil
}

// name sets the identifier of a type. If the name of a backbone element equals the name of another type
// ("Foo.bar" and "FooBar"), the element gets the suffix Element.
func (b *builder) name(t *Type, id string) error {
	if _, ok := b.model.byName[t.Name]; ok {
		return fmt.Errorf("type %s is defined twice", t.Name)
	}
	if !strings.Contains(t.Name, ".") {
		if other, ok := b.taken[id]; ok && !strings.Contains(other, ".") {
			return fmt.Errorf("types %s and %s would both be named %s", other, t.Name, id)
		}
	} else if b.isTop(id) || b.taken[id] != "" {
		id += "Element"
	}
	if other, ok := b.taken[id]; ok {
		return fmt.Errorf("types %s and %s would both be named %s", other, t.Name, id)
	}
	t.Go = id
	b.taken[id] = t.Name
	b.model.byName[t.Name] = t
	return nil
}

// isTop reports whether a resource or datatype will have the identifier.
func (b *builder) isTop(id string) bool {
	for _, d := range b.set.Structures {
		if generated(d) && GoName(d.Type) == id {
			return true
		}
	}
	return id == "Model"
}

// backbone reports whether an element holds its children in place.
func backbone(e *samply.ElementDefinition) bool {
	return len(e.Type) == 1 && (e.Type[0].Code == "BackboneElement" || e.Type[0].Code == "Element")
}

// fill gives the types of a definition their fields.
func (b *builder) fill(d *samply.StructureDefinition) error {
	for i := range d.Snapshot.Element[1:] {
		e := &d.Snapshot.Element[i+1]
		if strings.Contains(text(e.Id), ":") {
			continue // a slice
		}
		dot := strings.LastIndexByte(e.Path, '.')
		if dot < 0 {
			return fmt.Errorf("element %s stands outside of the type", e.Path)
		}
		t := b.model.byName[e.Path[:dot]]
		if t == nil {
			return fmt.Errorf("element %s: nothing is known of %s", e.Path, e.Path[:dot])
		}
		f, err := b.field(e, e.Path[dot+1:], t)
		if err != nil {
			return fmt.Errorf("element %s: %w", e.Path, err)
		}
		if f == nil {
			continue
		}
		if t.byName == nil {
			t.byName = map[string]*Field{}
		}
		for _, other := range t.Fields {
			if other.Go == f.Go {
				return fmt.Errorf("element %s: %s.%s would be named %s as well", e.Path, t.Name, other.Name, f.Go)
			}
		}
		t.Fields = append(t.Fields, f)
		t.byName[f.Name] = f
	}
	return nil
}

// field makes a field of an element; nil for one that is prohibited.
func (b *builder) field(e *samply.ElementDefinition, name string, t *Type) (*Field, error) {
	name, choice := strings.CutSuffix(name, "[x]")
	f := &Field{Name: name, Go: GoName(name), Short: text(e.Short)}
	// Every type has the method Type, and every resource the method Header and
	// the embedded fields of fhir.Header.
	if f.Go == "Type" || t.Resource && (f.Go == "Head" || f.Go == "Header" || f.Go == "Raw") {
		f.Go += "_"
	}
	if e.Min != nil {
		f.Min = *e.Min
	}
	var err error
	if f.Max, err = parseMax(text(e.Max)); err != nil || f.Max == 0 {
		return nil, err
	}
	f.Summary = e.IsSummary != nil && *e.IsSummary
	f.Modifier = e.IsModifier != nil && *e.IsModifier
	f.Targets = targets(e)
	if e.Binding != nil && e.Binding.ValueSet != nil {
		url, _, _ := strings.Cut(*e.Binding.ValueSet, "|")
		f.Binding = fhir.Binding{Strength: e.Binding.Strength.Code(), ValueSet: url}
		if e.Binding.Strength == samply.BindingStrengthRequired {
			f.Binding.System = b.set.System(url)
		}
	}

	if err := b.setType(f, e, name, choice, t); err != nil {
		return nil, err
	}
	return f, nil
}

// parseMax reads the maximal cardinality of an element; 0 is prohibited.
func parseMax(limit string) (int, error) {
	if limit == "*" {
		return fhir.Many, nil
	}
	n, err := strconv.Atoi(limit)
	if err != nil {
		return 0, fmt.Errorf("max is %q", limit)
	}
	return n, nil
}

// setType sets the type of a field, or its choices.
func (b *builder) setType(f *Field, e *samply.ElementDefinition, name string, choice bool, t *Type) error {
	if e.ContentReference != nil {
		target := b.model.byName[(*e.ContentReference)[strings.IndexByte(*e.ContentReference, '#')+1:]]
		if target == nil {
			return fmt.Errorf("contentReference %s leads nowhere", *e.ContentReference)
		}
		f.Type = Ref{Name: target.Name, Go: target.Go}
		return nil
	}
	if len(e.Type) == 0 {
		return fmt.Errorf("has no type")
	}
	if choice {
		if f.Open = len(e.Type) >= openChoice; f.Open {
			return nil
		}
		for _, et := range e.Type {
			ref, err := b.ref(et.Code)
			if err != nil {
				return err
			}
			f.Choices = append(f.Choices, ref)
		}
		return nil
	}
	if len(e.Type) > 1 {
		return fmt.Errorf("has several types but is not a choice")
	}
	code := e.Type[0].Code
	switch {
	case code == "Resource":
		f.AnyResource = true
	case code == "BackboneElement" || code == "Element":
		target := b.model.byName[e.Path]
		f.Type = Ref{Name: target.Name, Go: target.Go}
	case code == systemString && t.Resource && name == "id":
		f.Type = shared["id"]
	case code == systemString:
		f.Type = Ref{Name: systemString, Go: "SystemString", Shared: true, Primitive: true}
	default:
		ref, err := b.ref(code)
		if err != nil {
			return err
		}
		f.Type = ref
	}
	return nil
}

func (b *builder) ref(code string) (Ref, error) {
	if code == "integer64" {
		return Ref{Name: "integer64", Go: "Integer64", Shared: true, Primitive: true}, nil
	}
	if code == jsonType {
		return Ref{Name: "json", Go: "JSON", Shared: true, Primitive: true}, nil
	}
	if r, ok := shared[code]; ok {
		return r, nil
	}
	if t := b.model.byName[code]; t != nil {
		return Ref{Name: t.Name, Go: t.Go}, nil
	}
	return Ref{}, fmt.Errorf("type %s is not defined", code)
}

// targets are the resource types that a Reference or canonical of the element
// may point at, sorted; nil for any.
func targets(e *samply.ElementDefinition) []string {
	var out []string
	for _, t := range e.Type {
		for _, p := range t.TargetProfile {
			typ := strings.TrimPrefix(p, base)
			if typ == "Resource" {
				return nil
			}
			if !slices.Contains(out, typ) {
				out = append(out, typ)
			}
		}
	}
	slices.Sort(out)
	return out
}

func text(s *string) string {
	if s == nil {
		return ""
	}
	return *s
}

// extension is what paths need to know of Extension.
func extension() *Type {
	t := &Type{Name: "Extension", Go: "Extension", Base: "Element", byName: map[string]*Field{}}
	t.Fields = []*Field{
		{Name: "id", Go: "ID", Max: 1, Type: Ref{Name: systemString, Go: "SystemString", Shared: true, Primitive: true}},
		{Name: "extension", Go: "Extension", Max: fhir.Many, Type: shared["Extension"]},
		{Name: "url", Go: "URL", Max: 1, Type: Ref{Name: systemString, Go: "SystemString", Shared: true, Primitive: true}},
		{Name: "value", Go: "Value", Max: 1, Open: true},
	}
	for _, f := range t.Fields {
		t.byName[f.Name] = f
	}
	return t
}

// DatatypeRefs returns all datatypes by name, with those of server/fhir.
func (m *Model) DatatypeRefs() []Ref {
	var out []Ref
	for _, r := range shared {
		out = append(out, r)
	}
	for _, t := range m.Datatypes {
		out = append(out, Ref{Name: t.Name, Go: t.Go})
	}
	slices.SortFunc(out, func(a, b Ref) int { return cmp.Compare(a.Name, b.Name) })
	return out
}

// Compartment reports whether a resource type is a compartment.
func (m *Model) Compartment(typ string) bool {
	return slices.ContainsFunc(m.Compartments, func(c fhir.Compartment) bool { return c.Code == typ })
}

package fhirpath

import (
	"slices"
	"sync"

	"kiln/server/fhir"
)

// hierarchy answers questions about the types of a model by their bases.
type hierarchy struct {
	model *fhir.Model
	// bases has for each type its own name and the names of all types that it specialises,
	// nearest first.
	bases map[*fhir.Type][]string
	types map[string]*fhir.Type
	names map[string]bool // every name that is, as and ofType may use
}

var hierarchies sync.Map // *fhir.Model -> *hierarchy

// hierarchyOf returns the hierarchy of a model, made at first use.
func hierarchyOf(m *fhir.Model) *hierarchy {
	if h, ok := hierarchies.Load(m); ok {
		return h.(*hierarchy)
	}
	h := &hierarchy{model: m, bases: map[*fhir.Type][]string{}, types: map[string]*fhir.Type{}, names: map[string]bool{}}
	if m != nil {
		for _, e := range m.Datatypes {
			h.add(e.Type())
		}
		for _, r := range m.Resources {
			h.add(r.Type())
		}
		for n := range abstractBases {
			h.names[n] = true
		}
	}
	for t := range h.bases {
		h.bases[t] = h.basesOf(t)
	}
	actual, _ := hierarchies.LoadOrStore(m, h)
	return actual.(*hierarchy)
}

// abstractBases are the types above those that a model holds.
var abstractBases = map[string]string{
	"Resource": "", "DomainResource": "Resource", "Element": "", "BackboneElement": "Element",
}

func (h *hierarchy) add(t *fhir.Type) {
	if _, ok := h.bases[t]; ok {
		return
	}
	h.bases[t] = nil
	if t.Kind != fhir.SystemStringKind {
		h.types[t.Name], h.names[t.Name] = t, true
	}
	for i := range t.Fields {
		if of := t.Fields[i].Of; of != nil {
			h.add(of.Type())
		}
		for _, c := range t.Fields[i].Choices {
			h.add(c.Type())
		}
	}
}

func (h *hierarchy) basesOf(t *fhir.Type) []string {
	list := []string{nodeTypeName(t)}
	for name := t.Base; name != "" && len(list) < 10; {
		list = append(list, name)
		if b, ok := h.types[name]; ok {
			name = b.Base
		} else {
			name = abstractBases[name]
		}
	}
	return list
}

// is reports whether t is the named type or one of its specialisations.
func (h *hierarchy) is(t *fhir.Type, name string) bool {
	if t.Name == name {
		return true
	}
	bases, ok := h.bases[t]
	if !ok {
		bases = h.basesOf(t)
	}
	return slices.Contains(bases, name)
}

// typeTest is a resolved type specifier.
type typeTest struct {
	system Kind   // a System type, or NodeKind
	fhir   string // the name of a FHIR type, or ""
}

// systemTypes by name.
var systemTypes = map[string]Kind{
	"Boolean": BooleanKind, "String": StringKind, "Integer": IntegerKind, "Decimal": DecimalKind, "Date": DateKind,
	"DateTime": DateTimeKind, "Time": TimeKind, "Quantity": QuantityKind,
}

// resolve finds the type that a specifier names: FHIR's before System's where
// the namespace is left out.
func (h *hierarchy) resolve(n TypeName) (typeTest, bool) {
	switch n.Namespace {
	case "System":
		if k, ok := systemTypes[n.Name]; ok {
			return typeTest{system: k}, true
		}
		// System.Patient is a legal question with the answer no.
		return typeTest{}, true
	case "FHIR":
		return typeTest{fhir: n.Name}, h.model == nil || h.names[n.Name]
	case "":
		if h.names[n.Name] {
			return typeTest{fhir: n.Name}, true
		}
		if k, ok := systemTypes[n.Name]; ok {
			return typeTest{system: k}, true
		}
		return typeTest{fhir: n.Name}, h.model == nil
	}
	return typeTest{}, false
}

// is reports whether v is of the type or of one of its specialisations.
func (h *hierarchy) matches(v Value, t typeTest) bool {
	if v.kind != NodeKind {
		return v.kind == t.system
	}
	if v.node.T == nil || t.fhir == "" {
		// Element.id and Extension.url are System.Strings in a model.
		return v.node.T != nil && v.node.T.Kind == fhir.SystemStringKind && t.system == StringKind
	}
	return h.is(v.node.T, t.fhir)
}

// casts reports whether as and ofType keep v. A primitive must be of the very
// type, as HL7's tests have it: a code is a string, yet `gender.as(string)` is
// empty.
func (h *hierarchy) casts(v Value, t typeTest) bool {
	if v.kind == NodeKind && v.node.T != nil && v.node.T.Kind.Primitive() && t.fhir != "" {
		return nodeTypeName(v.node.T) == t.fhir || t.fhir == "Element"
	}
	return h.matches(v, t)
}

// static is the type information about a result before evaluation.
type static struct {
	types     []*fhir.Type
	kinds     uint16 // bits of System kinds
	any       bool   // may be anything
	many      bool   // may have several items
	unordered bool
}

func typeStatic(t *fhir.Type) static    { return static{types: []*fhir.Type{t}} }
func kindStatic(k Kind) static          { return static{kinds: 1 << k} }
func unknownStatic(many bool) static    { return static{any: true, many: many} }
func (s static) single() static         { s.many, s.unordered = false, false; return s }
func (s static) several() static        { s.many = true; return s }
func (s static) onlyKind(k Kind) bool   { return !s.any && len(s.types) == 0 && s.kinds == 1<<k }
func (s static) nothing() bool          { return !s.any && len(s.types) == 0 && s.kinds == 0 }
func (s static) couldBe(k ...Kind) bool { return s.couldBeAny(k) }
func (s static) couldBeAny(ks []Kind) bool {
	if s.any || s.nothing() {
		return true
	}
	for _, k := range ks {
		if s.kinds&(1<<k) != 0 {
			return true
		}
		for _, t := range s.types {
			if systemKind(t) == k {
				return true
			}
		}
	}
	return false
}

// or is the static of a collection that holds items of both.
func (s static) or(t static) static {
	u := static{any: s.any || t.any, kinds: s.kinds | t.kinds, many: true, unordered: s.unordered || t.unordered}
	u.types = append(u.types, s.types...)
	for _, x := range t.types {
		if !slices.Contains(u.types, x) {
			u.types = append(u.types, x)
		}
	}
	return u
}

func (s static) names() []string {
	if s.any {
		return nil
	}
	var list []string
	for _, t := range s.types {
		list = append(list, "FHIR."+nodeTypeName(t))
	}
	for k := BooleanKind; k <= TypeInfoKind; k++ {
		if s.kinds&(1<<k) != 0 {
			list = append(list, "System."+k.String())
		}
	}
	slices.Sort(list)
	return list
}

// fieldStatic is the type of an element.
func fieldStatic(f *fhir.Field, many bool) static {
	s := static{many: many || f.Max != 1}
	switch {
	case f.AnyResource || f.Open:
		s.any = true
	case f.Choices != nil:
		for _, c := range f.Choices {
			s.types = append(s.types, c.Type())
		}
	default:
		s.types = []*fhir.Type{f.Of.Type()}
	}
	return s
}

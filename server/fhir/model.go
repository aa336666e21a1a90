package fhir

import (
	"sync/atomic"
	"unsafe"
)

// Element is any value of the generated models: a pointer to a resource, a
// datatype, a backbone element or a primitive.
type Element interface {
	// Type describes the element. It works on a nil pointer.
	Type() *Type
}

// Resource is an Element that stands on its own: it has a resourceType.
type Resource interface {
	Element
	// Header returns what every resource has.
	Header() *Header
}

// Header is the first field of every resource struct.
type Header struct {
	ID ID // logical id; its Text is "" where there is none
	// Raw is the JSON this resource was decoded from, a part of the decoded
	// input; nil for a resource made in Go.
	Raw []byte
}

// Head is the name under which resource structs embed Header: as a field named
// Header it would hide the method.
type Head = Header

// Header returns h: every resource struct has the method by embedding Head.
func (h *Header) Header() *Header { return h }

// Kind says how an element is held and how it is written in JSON.
type Kind uint8

// Complex and ResourceKind are structs; every later kind is a primitive type,
// held as a Primitive.
const (
	Complex      Kind = iota // datatype or backbone element
	ResourceKind             // resource, or "any resource" (contained, Bundle.entry.resource)
	Base64BinaryKind
	BooleanKind
	CanonicalKind
	CodeKind
	DateKind
	DateTimeKind
	DecimalKind
	IDKind
	InstantKind
	IntegerKind
	MarkdownKind
	OIDKind
	PositiveIntKind
	StringKind
	TimeKind
	UnsignedIntKind
	URIKind
	URLKind
	UUIDKind
	XHTMLKind
	// SystemStringKind is FHIRPath's System.String: Element.id, Extension.url.
	// It is written as a string and has neither id nor extensions.
	SystemStringKind
	// JSONKind is a JSON object of any shape, held as its text: what our own types
	// keep as a map (App's headers and filters), which FHIR has no datatype for. It
	// has neither id nor extensions.
	JSONKind
	// Integer64Kind is R5's integer64, which R4 lacks: only a constant of a ViewDefinition can be
	// one. JSON has it as a string. Spec: https://hl7.org/fhir/R5/datatypes.html#integer64.
	Integer64Kind
)

// Primitive reports whether a value of this kind is held as a Primitive.
func (k Kind) Primitive() bool { return k > ResourceKind }

// Number reports whether a value of this kind is a JSON number.
func (k Kind) Number() bool {
	switch k {
	case DecimalKind, IntegerKind, PositiveIntKind, UnsignedIntKind:
		return true
	}
	return false
}

// Many is the Max of an element that repeats without limit.
const Many = -1

// Type contains the facts of a StructureDefinition about one type that the codec, FHIRPath and validation need at
// run time.
type Type struct {
	// Name is the FHIR type ("Patient", "HumanName", "code"); for a backbone
	// element the path that defines it ("Patient.contact").
	Name string
	// Base is the type it specialises: "DomainResource", "BackboneElement",
	// "Quantity", …; "" at the root.
	Base string
	Kind Kind
	// Fields are the elements in definition order; nil for primitives. The id of
	// a resource is Header.ID, at offset 0.
	Fields []Field
	// New returns a new zero value.
	New func() Element
	// Append adds a zero value to the []T that slice points to and returns the
	// address of the new value. Fields with Max other than 1 are such slices.
	Append func(slice unsafe.Pointer) unsafe.Pointer
	// At returns p as an Element, p being the address of a T.
	At func(p unsafe.Pointer) Element
	// Size of a T in bytes.
	Size uintptr

	names atomic.Pointer[nameTable] // JSON property -> field, made at first use
}

// Field is one element of a Type.
type Field struct {
	// Name of the element: "birthDate"; "value" for value[x].
	Name string
	// Offset in the struct. What lies there:
	//   primitive, Max 1   T (a Primitive; absent when its Text is "" and Extra nil)
	//   complex, Max 1     *T
	//   repeating          []T
	//   choice, resource   Element / Resource (an interface; nil when absent)
	//   []resource         []Resource
	Offset uintptr
	// Of is a typed nil pointer of the element's type; nil for a choice and for
	// "any resource".
	Of Element
	// Choices are the types of a choice element, in definition order. A choice
	// open to every datatype (Extension.value) has Open set instead.
	Choices []Element
	Open    bool
	// AnyResource says that the element holds a resource of any type.
	AnyResource bool

	Min, Max int // Max is 1, a larger bound, or Many
	Summary  bool
	Modifier bool
	// Targets are the resource types a Reference or canonical may point at;
	// empty means any.
	Targets []string
	// Binding is the value set of a coded element with its strength, or the
	// zero value.
	Binding Binding
}

// Binding ties a coded element to a value set.
// Spec: https://hl7.org/fhir/R4/terminologies.html#strength.
type Binding struct {
	Strength string // required, extensible, preferred, example
	ValueSet string // canonical URL, without version
	// System is the code system of every code in a required binding's value
	// set, "" where it has several or is not known. It is the implicit system
	// of a code element. Spec: https://hl7.org/fhir/R4/search.html#token.
	System string
}

// Choice reports whether the field is a choice element (value[x]).
func (f *Field) Choice() bool { return f.Choices != nil || f.Open }

// Repeats reports whether the field is held as a slice and written as an array.
func (f *Field) Repeats() bool { return f.Max != 1 }

// Model is all types of one FHIR version.
type Model struct {
	// Resources by resourceType, datatypes (complex and primitive) by name.
	Resources map[string]Resource // typed nil pointers
	Datatypes map[string]Element  // typed nil pointers
}

// Append is Type.Append for T.
func Append[T any](slice unsafe.Pointer) unsafe.Pointer {
	s := (*[]T)(slice)
	var zero T
	*s = append(*s, zero)
	return unsafe.Pointer(&(*s)[len(*s)-1])
}

// sliceHeader is how Go lays out any slice.
type sliceHeader struct {
	data unsafe.Pointer
	len  int
	cap  int
}

// dataOf returns the pointer inside an interface that holds a pointer.
func dataOf(e Element) unsafe.Pointer {
	return (*[2]unsafe.Pointer)(unsafe.Pointer(&e))[1]
}

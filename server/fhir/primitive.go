package fhir

import "unsafe"

// Primitive is the value of every primitive type: the text it was written with,
// so that decimals keep their digits and dates their precision. Text is "" when
// there is no value; FHIR has no empty strings.
// Spec: https://hl7.org/fhir/R4/datatypes.html#primitive.
type Primitive struct {
	Text string
	// Extra is the id and the extensions of a primitive (`_birthDate` in JSON),
	// nil for nearly all of them.
	Extra *Extra
}

// Extra is the id and the extensions of a primitive.
type Extra struct {
	ID        SystemString
	Extension []Extension
}

// Present reports whether the primitive has a value, an id or an extension.
func (p Primitive) Present() bool { return p.Text != "" || p.Extra != nil }

// The primitive types of R4. Each is a Primitive; the named types say what its
// text looks like.
type (
	Base64Binary struct{ Primitive }
	Boolean      struct{ Primitive } // "true" or "false"
	Canonical    struct{ Primitive }
	Code         struct{ Primitive }
	Date         struct{ Primitive }
	DateTime     struct{ Primitive }
	Decimal      struct{ Primitive } // the JSON number as written: "6.30", "1.0E+3"
	ID           struct{ Primitive }
	Instant      struct{ Primitive }
	Integer      struct{ Primitive }
	Markdown     struct{ Primitive }
	OID          struct{ Primitive }
	PositiveInt  struct{ Primitive }
	String       struct{ Primitive }
	Time         struct{ Primitive }
	UnsignedInt  struct{ Primitive }
	URI          struct{ Primitive }
	URL          struct{ Primitive }
	UUID         struct{ Primitive }
	XHTML        struct{ Primitive }
	SystemString struct{ Primitive }
	Integer64    struct{ Primitive } // R5's, which a constant of a ViewDefinition can be; a string in JSON
	JSON         struct{ Primitive } // the JSON object as written: `{"X-Key": "1"}`
)

// Extension is the one datatype that primitives need, so it lives here and not
// in gen/r4. Spec: https://hl7.org/fhir/R4/extensibility.html.
type Extension struct {
	ID        SystemString
	Extension []Extension
	URL       SystemString
	Value     Element // value[x]: any datatype; nil when absent
}

var (
	typeBase64Binary = primitiveType[Base64Binary]("base64Binary", "Element", Base64BinaryKind)
	typeBoolean      = primitiveType[Boolean]("boolean", "Element", BooleanKind)
	typeCanonical    = primitiveType[Canonical]("canonical", "uri", CanonicalKind)
	typeCode         = primitiveType[Code]("code", "string", CodeKind)
	typeDate         = primitiveType[Date]("date", "Element", DateKind)
	typeDateTime     = primitiveType[DateTime]("dateTime", "Element", DateTimeKind)
	typeDecimal      = primitiveType[Decimal]("decimal", "Element", DecimalKind)
	typeID           = primitiveType[ID]("id", "string", IDKind)
	typeInstant      = primitiveType[Instant]("instant", "Element", InstantKind)
	typeInteger      = primitiveType[Integer]("integer", "Element", IntegerKind)
	typeMarkdown     = primitiveType[Markdown]("markdown", "string", MarkdownKind)
	typeOID          = primitiveType[OID]("oid", "uri", OIDKind)
	typePositiveInt  = primitiveType[PositiveInt]("positiveInt", "integer", PositiveIntKind)
	typeString       = primitiveType[String]("string", "Element", StringKind)
	typeTime         = primitiveType[Time]("time", "Element", TimeKind)
	typeUnsignedInt  = primitiveType[UnsignedInt]("unsignedInt", "integer", UnsignedIntKind)
	typeURI          = primitiveType[URI]("uri", "Element", URIKind)
	typeURL          = primitiveType[URL]("url", "uri", URLKind)
	typeUUID         = primitiveType[UUID]("uuid", "uri", UUIDKind)
	typeXHTML        = primitiveType[XHTML]("xhtml", "Element", XHTMLKind)
	typeSystemString = primitiveType[SystemString]("http://hl7.org/fhirpath/System.String", "", SystemStringKind)
	typeInteger64    = primitiveType[Integer64]("integer64", "Element", Integer64Kind)
	typeJSON         = primitiveType[JSON]("json", "Element", JSONKind)
)

func primitiveType[T any, P interface {
	*T
	Element
}](name, base string, kind Kind) Type {
	var zero T
	return Type{
		Name: name, Base: base, Kind: kind,
		New:    func() Element { return P(new(T)) },
		Append: Append[T],
		At:     func(p unsafe.Pointer) Element { return P((*T)(p)) },
		Size:   unsafe.Sizeof(zero),
	}
}

// Type describes base64Binary.
func (*Base64Binary) Type() *Type { return &typeBase64Binary }

// Type describes boolean.
func (*Boolean) Type() *Type { return &typeBoolean }

// Type describes canonical.
func (*Canonical) Type() *Type { return &typeCanonical }

// Type describes code.
func (*Code) Type() *Type { return &typeCode }

// Type describes date.
func (*Date) Type() *Type { return &typeDate }

// Type describes dateTime.
func (*DateTime) Type() *Type { return &typeDateTime }

// Type describes decimal.
func (*Decimal) Type() *Type { return &typeDecimal }

// Type describes id.
func (*ID) Type() *Type { return &typeID }

// Type describes instant.
func (*Instant) Type() *Type { return &typeInstant }

// Type describes integer.
func (*Integer) Type() *Type { return &typeInteger }

// Type describes markdown.
func (*Markdown) Type() *Type { return &typeMarkdown }

// Type describes oid.
func (*OID) Type() *Type { return &typeOID }

// Type describes positiveInt.
func (*PositiveInt) Type() *Type { return &typePositiveInt }

// Type describes string.
func (*String) Type() *Type { return &typeString }

// Type describes time.
func (*Time) Type() *Type { return &typeTime }

// Type describes unsignedInt.
func (*UnsignedInt) Type() *Type { return &typeUnsignedInt }

// Type describes uri.
func (*URI) Type() *Type { return &typeURI }

// Type describes url.
func (*URL) Type() *Type { return &typeURL }

// Type describes uuid.
func (*UUID) Type() *Type { return &typeUUID }

// Type describes xhtml.
func (*XHTML) Type() *Type { return &typeXHTML }

// Type describes integer64.
func (*Integer64) Type() *Type { return &typeInteger64 }

// Type describes json.
func (*JSON) Type() *Type { return &typeJSON }

// Type describes System.String.
func (*SystemString) Type() *Type { return &typeSystemString }

var typeExtension = Type{
	Name: "Extension", Base: "Element", Kind: Complex,
	Fields: []Field{
		{Name: "id", Offset: unsafe.Offsetof(Extension{}.ID), Of: (*SystemString)(nil), Max: 1},
		{Name: "extension", Offset: unsafe.Offsetof(Extension{}.Extension), Of: (*Extension)(nil), Max: Many},
		{Name: "url", Offset: unsafe.Offsetof(Extension{}.URL), Of: (*SystemString)(nil), Min: 1, Max: 1},
		{Name: "value", Offset: unsafe.Offsetof(Extension{}.Value), Open: true, Max: 1},
	},
	New:    func() Element { return new(Extension) },
	Append: Append[Extension],
	At:     func(p unsafe.Pointer) Element { return (*Extension)(p) },
	Size:   unsafe.Sizeof(Extension{}),
}

// Type describes Extension.
func (*Extension) Type() *Type { return &typeExtension }

package fhirpath

import (
	"strconv"
	"strings"

	"github.com/cockroachdb/apd/v3"

	"kiln/server/fhir"
)

// Kind is the kind of a Value.
type Kind uint8

// The kinds of values.
const (
	NodeKind Kind = iota // a place in a model: resource, datatype, FHIR primitive
	BooleanKind
	StringKind
	IntegerKind
	DecimalKind
	DateKind
	DateTimeKind
	TimeKind
	QuantityKind
	TypeInfoKind // what type() returns
)

var kindNames = [...]string{"Node", "Boolean", "String", "Integer", "Decimal", "Date", "DateTime", "Time", "Quantity", "TypeInfo"}

// String is the name of the System type.
func (k Kind) String() string { return kindNames[k] }

// Value is one item of a collection: a node of the model, or a value of a System
// type. The zero Value is a node of no model and never in a result.
//
// Every kind lies in the struct itself, so that collections are flat memory:
//
//	Boolean      n is 0 or 1
//	String       text
//	Integer      n
//	Decimal      n × 10^exp, or big where that does not fit
//	Date…Time    n is microseconds since 1970 (since midnight for Time) as the
//	             clock on the wall showed them, prec how far they are known, exp
//	             the minutes east of UTC where zoned; text as it was written
//	Quantity     the number as for Decimal; text is the unit, prec a unitKind
//	TypeInfo     text is the name; n is 1 for the namespace FHIR
type Value struct {
	kind  Kind
	prec  uint8
	zoned bool
	exp   int16
	n     int64
	text  string
	big   *apd.Decimal
	node  fhir.Node
}

// Collection is an ordered list of values; nil is the empty one.
type Collection []Value

// Kind returns the kind of the value.
func (v Value) Kind() Kind { return v.kind }

// Node returns the place in the model, and whether the value is one.
func (v Value) Node() (fhir.Node, bool) { return v.node, v.kind == NodeKind && v.node.T != nil }

// NodeValue returns a node as a value.
func NodeValue(n fhir.Node) Value { return Value{node: n} }

// String returns a System.String.
func String(s string) Value { return Value{kind: StringKind, text: s} }

// Boolean returns a System.Boolean.
func Boolean(b bool) Value {
	v := Value{kind: BooleanKind}
	if b {
		v.n = 1
	}
	return v
}

// Integer returns a System.Integer.
func Integer(i int32) Value { return Value{kind: IntegerKind, n: int64(i)} }

// Number returns the Integer or Decimal that a JSON number stands for; ok is false
// where the text is no number.
func Number(text string) (v Value, ok bool) {
	if i, ok := toInteger(String(text)); ok {
		return i, true
	}
	return parseDecimal(text)
}

// Bool returns the value of a Boolean or a FHIR boolean; ok is false for every
// other value.
func (v Value) Bool() (value, ok bool) {
	if s, conv := v.system(); conv && s.kind == BooleanKind {
		return s.n == 1, true
	}
	return false, false
}

// TypeName is the type with its namespace: "System.String", "FHIR.HumanName".
func (v Value) TypeName() string {
	if v.kind == NodeKind {
		if v.node.T == nil {
			return ""
		}
		return "FHIR." + nodeTypeName(v.node.T)
	}
	return "System." + v.kind.String()
}

func nodeTypeName(t *fhir.Type) string {
	if t.Kind == fhir.SystemStringKind {
		return "string"
	}
	return t.Name
}

// String is the value as text: what toString() gives for a System value, the
// text of a FHIR primitive, JSON for every other node.
func (v Value) String() string {
	if v.kind == NodeKind {
		if v.node.T == nil {
			return ""
		}
		if v.node.T.Kind.Primitive() {
			return v.node.Text()
		}
		return string(fhir.Encode(nil, v.node.Element()))
	}
	return v.lexical()
}

// Element returns the value as a model element: the element at a node, or a new
// FHIR primitive for a System value. It is nil for a Quantity or TypeInfo that
// was made by the expression.
func (v Value) Element() fhir.Element {
	p := fhir.Primitive{Text: v.text}
	switch v.kind {
	case NodeKind:
		return v.node.Element()
	case StringKind:
		return &fhir.String{Primitive: p}
	case QuantityKind, TypeInfoKind:
		return nil
	}
	p.Text = v.lexical()
	switch v.kind {
	case BooleanKind:
		return &fhir.Boolean{Primitive: p}
	case IntegerKind:
		return &fhir.Integer{Primitive: p}
	case DecimalKind:
		return &fhir.Decimal{Primitive: p}
	case DateKind:
		return &fhir.Date{Primitive: p}
	case TimeKind:
		return &fhir.Time{Primitive: p}
	}
	return &fhir.DateTime{Primitive: p}
}

// lexical is toString() of a System value.
func (v Value) lexical() string {
	switch v.kind {
	case BooleanKind:
		return strconv.FormatBool(v.n == 1)
	case IntegerKind:
		return strconv.FormatInt(v.n, 10)
	case DecimalKind:
		return v.decimalText()
	case DateKind, DateTimeKind, TimeKind:
		if v.text != "" {
			return v.text
		}
		return v.temporalText()
	case QuantityKind:
		if unitKind(v.prec) == calendarUnitKind {
			return v.decimalText() + " " + v.text
		}
		return v.decimalText() + " '" + v.text + "'"
	case TypeInfoKind:
		if v.n == 1 {
			return "FHIR." + v.text
		}
		return "System." + v.text
	}
	return v.text
}

// system converts a FHIR primitive or Quantity to the System type that the
// specification gives it; a System value is returned as it is. ok is false for
// every other node, for a primitive without value and for text that is not of
// its type. Spec: https://hl7.org/fhir/R4/fhirpath.html#types.
func (v Value) system() (Value, bool) {
	if v.kind != NodeKind {
		return v, true
	}
	t := v.node.T
	if t == nil {
		return v, false
	}
	if !t.Kind.Primitive() {
		if t.Name == "Quantity" || t.Base == "Quantity" {
			return quantityOfNode(v.node)
		}
		return v, false
	}
	text := v.node.Text()
	if text == "" {
		return v, false
	}
	switch t.Kind {
	case fhir.BooleanKind:
		return Boolean(text == "true"), text == "true" || text == "false"
	case fhir.IntegerKind, fhir.PositiveIntKind, fhir.UnsignedIntKind:
		i, err := strconv.ParseInt(text, 10, 32)
		return Value{kind: IntegerKind, n: i}, err == nil
	case fhir.DecimalKind:
		return parseDecimal(text)
	case fhir.DateKind:
		return parseDate(text)
	case fhir.DateTimeKind, fhir.InstantKind:
		return parseDateTime(text)
	case fhir.TimeKind:
		return parseTime(text)
	}
	return Value{kind: StringKind, text: text}, true
}

// stringText returns the text of a String or of a FHIR primitive that converts
// to one.
func (v Value) stringText() (string, bool) {
	if v.kind == StringKind {
		return v.text, true
	}
	if v.kind == NodeKind && v.node.T != nil && systemKind(v.node.T) == StringKind {
		s := v.node.Text()
		return s, s != ""
	}
	return "", false
}

// systemKind is the System type that a FHIR type converts to, NodeKind where
// there is none.
func systemKind(t *fhir.Type) Kind {
	switch t.Kind {
	case fhir.Complex, fhir.ResourceKind:
		if t.Name == "Quantity" || t.Base == "Quantity" {
			return QuantityKind
		}
		return NodeKind
	case fhir.BooleanKind:
		return BooleanKind
	case fhir.IntegerKind, fhir.PositiveIntKind, fhir.UnsignedIntKind:
		return IntegerKind
	case fhir.DecimalKind:
		return DecimalKind
	case fhir.DateKind:
		return DateKind
	case fhir.DateTimeKind, fhir.InstantKind:
		return DateTimeKind
	case fhir.TimeKind:
		return TimeKind
	}
	return StringKind
}

// describe names a value in an error message.
func (v Value) describe() string {
	s := v.String()
	if len(s) > 40 {
		s = strings.ToValidUTF8(s[:40], "") + "…"
	}
	return v.TypeName() + " " + s
}

// JSONType is the FHIR name of the value's type: "string", "dateTime", "HumanName".
func (v Value) JSONType() string {
	switch v.kind {
	case NodeKind:
		return nodeTypeName(v.node.T)
	case QuantityKind, TypeInfoKind:
		return v.kind.String()
	case DateTimeKind:
		return "dateTime"
	}
	name := []byte(v.kind.String())
	name[0] |= 0x20
	return string(name)
}

// AppendJSON appends the value as FHIR writes it in JSON; a Quantity that an
// expression made is its FHIRPath text. A primitive without value is null.
func (v Value) AppendJSON(b []byte) []byte {
	switch v.kind {
	case NodeKind:
		if v.node.T.Kind.Primitive() && v.node.Text() == "" {
			return append(b, "null"...)
		}
		return fhir.Encode(b, v.node.Element())
	case BooleanKind, IntegerKind, DecimalKind:
		return append(b, v.lexical()...)
	}
	return fhir.AppendString(b, v.lexical())
}

// Package parameters reads and writes Parameters resources: the input and output of
// operations, and the messages to and from a terminology server.
//
// A value stays JSON until a caller reads it. A resource in a parameter stays unchanged: its
// errors have paths of their own.
// Spec: https://hl7.org/fhir/R4/parameters.html.
package parameters

import (
	"encoding/json"
	"fmt"
	"net/url"
	"strconv"
	"strings"
)

// Parameter is one parameter. It has a value, a resource or parts.
type Parameter struct {
	Name     string
	Type     string          // of the value, as in value[x]: "Code"; "" without a value
	Value    json.RawMessage // JSON of the value
	Resource json.RawMessage
	Part     []Parameter
}

// String is a parameter with a valueString.
func String(name, v string) Parameter { return of(name, "String", v) }

// Code is a parameter with a valueCode.
func Code(name, v string) Parameter { return of(name, "Code", v) }

// URI is a parameter with a valueUri.
func URI(name, v string) Parameter { return of(name, "Uri", v) }

// DateTime is a parameter with a valueDateTime.
func DateTime(name, v string) Parameter { return of(name, "DateTime", v) }

// Boolean is a parameter with a valueBoolean.
func Boolean(name string, v bool) Parameter { return of(name, "Boolean", v) }

// Integer is a parameter with a valueInteger, which ends at two thousand million.
func Integer(name string, v int) Parameter { return of(name, "Integer", v) }

// Decimal is a parameter with a valueDecimal.
func Decimal(name string, v json.Number) Parameter { return of(name, "Decimal", v) }

// Reference is a parameter with a valueReference to a literal reference.
func Reference(name, reference string) Parameter {
	return of(name, "Reference", map[string]string{"reference": reference})
}

// Datatype is a parameter with a value of a complex type, which v is the JSON of
// when it is marshalled.
func Datatype(name, typ string, v any) Parameter { return of(name, typ, v) }

// Resource is a parameter with a resource.
func Resource(name string, r json.RawMessage) Parameter { return Parameter{Name: name, Resource: r} }

// Parts is a parameter with parts.
func Parts(name string, parts ...Parameter) Parameter { return Parameter{Name: name, Part: parts} }

func of(name, typ string, v any) Parameter {
	b, err := json.Marshal(v)
	if err != nil {
		panic(err) // strings, numbers and structs of them
	}
	return Parameter{Name: name, Type: typ, Value: b}
}

// Named returns p under another name.
func (p Parameter) Named(name string) Parameter {
	p.Name = name
	return p
}

// Empty reports whether p says nothing: no resource, no parts, no value or one that
// is "".
func (p Parameter) Empty() bool {
	return p.Resource == nil && len(p.Part) == 0 && (len(p.Value) == 0 || string(p.Value) == `""`)
}

// Text is the value of a primitive as text; "" for anything else.
func (p Parameter) Text() string {
	switch {
	case len(p.Value) == 0 || p.Value[0] == '{' || p.Value[0] == '[':
		return ""
	case p.Value[0] != '"':
		return string(p.Value)
	}
	var s string
	_ = json.Unmarshal(p.Value, &s) // a value that is no string has no text
	return s
}

// True reports whether the value is the boolean true.
func (p Parameter) True() bool { return string(p.Value) == "true" }

// Get returns the first parameter of a name, the zero one where there is none.
func Get(list []Parameter, name string) Parameter {
	for _, p := range list {
		if p.Name == name {
			return p
		}
	}
	return Parameter{}
}

// Query returns the parameters as a query string, false when one of them is no
// primitive.
func Query(list []Parameter) (string, bool) {
	v := url.Values{}
	for _, p := range list {
		if p.Text() == "" {
			return "", false
		}
		v.Add(p.Name, p.Text())
	}
	return v.Encode(), true
}

// Write returns a Parameters resource. Without parameters it has none: JSON in FHIR
// knows no empty arrays.
func Write(list []Parameter) ([]byte, error) {
	return json.Marshal(resource{"Parameters", list})
}

type resource struct {
	ResourceType string      `json:"resourceType"`
	Parameter    []Parameter `json:"parameter,omitempty"`
}

// Read reads a Parameters resource. It fails where the JSON is none, and where a
// parameter has a property that parameters have not.
func Read(body []byte) ([]Parameter, error) {
	var r resource
	if err := json.Unmarshal(body, &r); err != nil {
		return nil, err
	}
	if r.ResourceType != "Parameters" {
		return nil, fmt.Errorf("a resource of type %q, not Parameters", r.ResourceType)
	}
	return r.Parameter, nil
}

// MarshalJSON writes p as an element of Parameters.parameter.
func (p Parameter) MarshalJSON() ([]byte, error) {
	b := append([]byte(`{"name":`), strconv.AppendQuote(nil, p.Name)...)
	if strings.ContainsFunc(p.Name, func(r rune) bool { return r < ' ' || r > '~' }) {
		name, err := json.Marshal(p.Name)
		if err != nil {
			return nil, err
		}
		b = append([]byte(`{"name":`), name...)
	}
	if p.Type != "" {
		b = append(append(append(append(b, `,"value`...), p.Type...), `":`...), p.Value...)
	}
	if p.Resource != nil {
		b = append(append(b, `,"resource":`...), p.Resource...)
	}
	if len(p.Part) > 0 {
		parts, err := json.Marshal(p.Part)
		if err != nil {
			return nil, err
		}
		b = append(append(b, `,"part":`...), parts...)
	}
	return append(b, '}'), nil
}

// UnmarshalJSON reads p from an element of Parameters.parameter.
func (p *Parameter) UnmarshalJSON(b []byte) error {
	var properties map[string]json.RawMessage
	if err := json.Unmarshal(b, &properties); err != nil {
		return err
	}
	*p = Parameter{}
	for name, v := range properties {
		var err error
		switch {
		case name == "name":
			err = json.Unmarshal(v, &p.Name)
		case name == "resource":
			p.Resource = v
		case name == "part":
			err = json.Unmarshal(v, &p.Part)
		case strings.HasPrefix(name, "value") && len(name) > len("value"):
			if p.Type != "" {
				return fmt.Errorf("parameter %.60q has two values", p.Name)
			}
			p.Type, p.Value = name[len("value"):], v
		case name == "id", name == "extension", name == "modifierExtension", strings.HasPrefix(name, "_"):
		default:
			return fmt.Errorf("a parameter has no property %.60q", name)
		}
		if err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
	}
	return nil
}

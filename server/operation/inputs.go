package operation

import (
	"encoding/json"
	"fmt"
	"net/url"
	"slices"
	"strings"

	"kiln/gen/r4"
	"kiln/server/fhir"
	"kiln/server/outcome"
	"kiln/server/parameters"
	"kiln/server/terminology"
)

// Inputs are the inputs of one call of an operation, from a query string and from
// Parameters, by name.
type Inputs struct {
	operation string
	model     *fhir.Model
	list      map[string][]parameters.Parameter
}

// readInputs reads the inputs of p. An unknown input is invalid, because ignoring it could change the answer. An input of
// another type, or repeated too often, is invalid. A missing one is required.
func (e *entry) readInputs(model *fhir.Model, p Request) (*Inputs, error) {
	in := &Inputs{operation: p.Name, model: model, list: make(map[string][]parameters.Parameter)}
	for name, values := range p.Values {
		if name == "_format" || name == "_pretty" {
			continue
		}
		shape, err := e.input(p.Name, name)
		if err != nil {
			return nil, err
		}
		for _, v := range values {
			if v != "" {
				one := textInput(name, shape.Type, v)
				if err := in.add(shape, one); err != nil {
					return nil, err
				}
			}
		}
	}
	if !p.Read && len(p.Body) > 0 && !e.OwnBody && e.Operation.Accepts == nil {
		if err := in.body(e, p); err != nil {
			return nil, err
		}
	}
	if e.OwnBody {
		return in, nil
	}
	for _, shape := range e.def.In {
		if shape.Min > 0 && len(in.list[shape.Name]) == 0 {
			return nil, outcome.New(outcome.CodeRequired, "%s needs the parameter %s, a %s", p.Name, shape.Name, shape.Type).At("Parameters.parameter")
		}
	}
	return in, nil
}

// body reads the inputs in the body: Parameters, or the resource that is one input.
func (in *Inputs) body(e *entry, p Request) error {
	var head struct{ ResourceType string }
	if json.Unmarshal(p.Body, &head) == nil && head.ResourceType != "Parameters" && e.Body != "" {
		shape, _ := e.def.Input(e.Body)
		return in.add(shape, parameters.Resource(e.Body, p.Body))
	}
	list, err := parameters.Read(p.Body)
	if err != nil {
		// The codec says where it is wrong.
		r, decoding := fhir.Decode(in.model, p.Body)
		if decoding != nil {
			return decoding
		}
		if r.Type().Name != "Parameters" {
			return outcome.Invalid("the body is a resource of type %s: %s takes Parameters", r.Type().Name, p.Name)
		}
		return outcome.New(outcome.CodeStructure, "the body cannot be read: %v", err)
	}
	for i, one := range list {
		shape, err := e.input(p.Name, one.Name)
		if err == nil {
			err = in.add(shape, one)
		}
		if o, ok := outcome.From(err); ok && o.Issues[0].Expression == "" {
			return o.At(fmt.Sprintf("Parameters.parameter[%d]", i))
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// input is the shape of the input called name.
func (e *entry) input(operation, name string) (fhir.OperationParameter, error) {
	var names []string
	for _, shape := range slices.Concat(e.def.In, e.Further) {
		switch {
		case slices.Contains(e.Unserved, shape.Name):
		case shape.Name == name:
			return shape, nil
		default:
			names = append(names, shape.Name)
		}
	}
	slices.Sort(names)
	if len(names) == 0 {
		return fhir.OperationParameter{}, outcome.Invalid("%s has no parameter %q here; it has none", operation, outcome.Clip(name))
	}
	return fhir.OperationParameter{}, outcome.Invalid("%s has no parameter %q here; it has %s", operation, outcome.Clip(name), strings.Join(names, ", "))
}

// textInput is an input of a query string.
func textInput(name, typ, text string) parameters.Parameter {
	switch typ {
	case "boolean":
		if text == "true" || text == "false" {
			return parameters.Boolean(name, text == "true")
		}
	case "integer", "positiveInt", "unsignedInt", "decimal":
		if json.Valid([]byte(text)) {
			return parameters.Parameter{Name: name, Type: "Integer", Value: json.RawMessage(text)}
		}
	}
	return parameters.String(name, text)
}

// add takes an input that has the right type.
func (in *Inputs) add(shape fhir.OperationParameter, p parameters.Parameter) error {
	if p.Empty() {
		return nil
	}
	if err := in.check(shape, p); err != nil {
		return err
	}
	in.list[p.Name] = append(in.list[p.Name], p)
	if n := len(in.list[p.Name]); shape.Max >= 0 && n > shape.Max {
		return outcome.Invalid("%s: parameter %s is given %d times", in.operation, p.Name, n)
	}
	return nil
}

// check refuses a value of another type. Types that are written alike may stand for
// each other, a string for a uri; a datatype may be text in a query string.
func (in *Inputs) check(shape fhir.OperationParameter, p parameters.Parameter) error {
	wrong := func(expected string) error {
		found := p.Text()
		if found == "" {
			found = "a " + p.Type
		}
		return outcome.Invalid("%s: parameter %s is %q: expected %s", in.operation, p.Name, outcome.Clip(found), expected)
	}
	text := p.Text()
	switch shape.Type {
	case "":
		if len(p.Part) == 0 {
			return wrong("parts")
		}
	case "boolean":
		if text != "true" && text != "false" {
			return wrong("true or false")
		}
	case "integer", "positiveInt", "unsignedInt":
		if n := json.Number(text); text == "" {
			return wrong("an integer")
		} else if _, err := n.Int64(); err != nil {
			return wrong("an integer")
		}
	case "decimal":
		if _, err := json.Number(text).Float64(); err != nil {
			return wrong("a number")
		}
	case "date", "dateTime", "instant":
		if _, _, err := fhir.ParseDate(strings.ReplaceAll(text, " ", "+")); err != nil {
			return wrong("a " + shape.Type)
		}
	case "string", "uri", "url", "canonical", "code", "id", "markdown", "oid", "uuid":
		if p.Resource != nil || len(p.Value) == 0 || p.Value[0] != '"' {
			return wrong("a " + shape.Type)
		}
	default:
		if in.model.Resources[shape.Type] != nil || shape.Type == "Resource" || shape.Type == "Any" {
			if p.Resource == nil && shape.Type != "Any" {
				return wrong("a resource")
			}
			return nil
		}
		if p.Type == shape.Type {
			_, err := in.element(p)
			return err
		}
		if text == "" {
			return wrong("a " + shape.Type)
		}
	}
	return nil
}

// element decodes the value of a datatype.
func (in *Inputs) element(p parameters.Parameter) (fhir.Element, error) {
	body, err := parameters.Write([]parameters.Parameter{p})
	if err != nil {
		return nil, err
	}
	r, err := fhir.Decode(in.model, body)
	if err != nil {
		return nil, err
	}
	return r.(*r4.Parameters).Parameter[0].Value, nil
}

// Text is a primitive input that is given at most once, "" when it is not.
func (in *Inputs) Text(name string) string {
	if list := in.list[name]; len(list) > 0 {
		return list[0].Text()
	}
	return ""
}

// Texts are the primitive inputs of a name.
func (in *Inputs) Texts(name string) []string {
	var out []string
	for _, p := range in.list[name] {
		if t := p.Text(); t != "" {
			out = append(out, t)
		}
	}
	return out
}

// True reports whether a boolean input is given and true.
func (in *Inputs) True(name string) bool { return in.Text(name) == "true" }

// Resource is the JSON of an input that is a resource, nil when it is not given.
func (in *Inputs) Resource(name string) json.RawMessage {
	for _, p := range in.list[name] {
		return p.Resource
	}
	return nil
}

// Element is an input that is a datatype, nil when it is not given as such.
func (in *Inputs) Element(name string) (fhir.Element, error) {
	for _, p := range in.list[name] {
		if p.Text() == "" {
			return in.element(p)
		}
	}
	return nil, nil
}

// Values are the primitive inputs as a query string has them.
func (in *Inputs) Values() url.Values {
	out := make(url.Values, len(in.list))
	for name := range in.list {
		out[name] = in.Texts(name)
	}
	return out
}

// codings reads a code given in one of three ways: code with system (under systemName), coding or codeableConcept. More
// than one way is invalid.
func (in *Inputs) codings(systemName string) ([]terminology.Coding, error) {
	var out []terminology.Coding
	ways := 0
	if code := in.Text("code"); code != "" {
		ways++
		out = append(out, terminology.Coding{System: in.Text(systemName), Code: code, Display: in.Text("display")})
	}
	for _, name := range []string{"coding", "codeableConcept"} {
		e, err := in.Element(name)
		if err != nil {
			return nil, err
		}
		switch v := e.(type) {
		case *r4.Coding:
			ways++
			out = append(out, codingOf(v))
		case *r4.CodeableConcept:
			ways++
			for i := range v.Coding {
				out = append(out, codingOf(&v.Coding[i]))
			}
		}
		if text := in.Text(name); text != "" { // system|code, as in a query string
			ways++
			system, code, ok := strings.Cut(text, "|")
			if !ok {
				return nil, outcome.Invalid("%s: parameter %s is %q: expected system|code", in.operation, name, outcome.Clip(text))
			}
			out = append(out, terminology.Coding{System: system, Code: code})
		}
	}
	if ways > 1 {
		return nil, outcome.Invalid("%s takes one of code, coding and codeableConcept", in.operation)
	}
	return out, nil
}

func codingOf(c *r4.Coding) terminology.Coding {
	return terminology.Coding{System: c.System.Text, Version: c.Version.Text, Code: c.Code.Text, Display: c.Display.Text}
}

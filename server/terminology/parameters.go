package terminology

import (
	"encoding/json"
	"net/url"
	"strconv"
)

// parametersIn are the inputs of an operation on the external server.
type parametersIn struct {
	list []inParameter
}

type inParameter struct {
	name, element, text string
	any                 any // of a resource or datatype
}

func (p *parametersIn) text(name, element, text string) {
	if text != "" {
		p.list = append(p.list, inParameter{name: name, element: element, text: text})
	}
}

func (p *parametersIn) flag(name string, on bool) {
	if on {
		p.list = append(p.list, inParameter{name: name, element: "valueBoolean", text: "true", any: true})
	}
}

func (p *parametersIn) number(name string, n int) {
	p.list = append(p.list, inParameter{name: name, element: "valueInteger", text: strconv.Itoa(n), any: n})
}

func (p *parametersIn) resource(name string, r any) {
	p.list = append(p.list, inParameter{name: name, element: "resource", any: r})
}

// query returns the parameters as a query string, false when one of them is no
// primitive.
func (p parametersIn) query() (string, bool) {
	v := url.Values{}
	for _, in := range p.list {
		if in.text == "" {
			return "", false
		}
		v.Add(in.name, in.text)
	}
	return v.Encode(), true
}

// MarshalJSON writes a Parameters resource.
func (p parametersIn) MarshalJSON() ([]byte, error) {
	list := make([]map[string]any, 0, len(p.list))
	for _, in := range p.list {
		var v any = in.text
		if in.any != nil {
			v = in.any
		}
		list = append(list, map[string]any{"name": in.name, in.element: v})
	}
	return json.Marshal(map[string]any{"resourceType": "Parameters", "parameter": list})
}

// parametersOut are Parameters that the external server answered.
type parametersOut struct {
	ResourceType string      `json:"resourceType"`
	Parameter    []Parameter `json:"parameter"`
}

func (p *parametersOut) get(name string) Parameter {
	for _, q := range p.Parameter {
		if q.Name == name {
			return q
		}
	}
	return Parameter{}
}

// Parameter is one parameter of an answer, and ValueSet.expansion.parameter. One
// of its values is set.
// Spec: https://hl7.org/fhir/R4/parameters.html.
type Parameter struct {
	Name          string       `json:"name"`
	ValueString   string       `json:"valueString,omitempty"`
	ValueURI      string       `json:"valueUri,omitempty"`
	ValueCode     string       `json:"valueCode,omitempty"`
	ValueDateTime string       `json:"valueDateTime,omitempty"`
	ValueBoolean  *bool        `json:"valueBoolean,omitempty"`
	ValueInteger  *json.Number `json:"valueInteger,omitempty"`
	ValueDecimal  *json.Number `json:"valueDecimal,omitempty"`
	ValueCoding   *Coding      `json:"valueCoding,omitempty"`
	Part          []Parameter  `json:"part,omitempty"`
}

func textParameter(name, text string) Parameter   { return Parameter{Name: name, ValueString: text} }
func codeParameter(name, code string) Parameter   { return Parameter{Name: name, ValueCode: code} }
func boolParameter(name string, v bool) Parameter { return Parameter{Name: name, ValueBoolean: &v} }

func intParameter(name string, n int) Parameter {
	v := json.Number(strconv.Itoa(n))
	return Parameter{Name: name, ValueInteger: &v}
}

// writeParameters returns a Parameters resource.
func writeParameters(list []Parameter) ([]byte, error) {
	return json.Marshal(struct {
		ResourceType string      `json:"resourceType"`
		Parameter    []Parameter `json:"parameter"`
	}{"Parameters", list})
}

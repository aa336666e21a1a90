package operation

import (
	"slices"
	"strings"

	"kiln/gen/r4"
	"kiln/server/fhir"
	"kiln/server/outcome"
	"kiln/server/terminology"
)

// inputs are the inputs of an operation, from a query string or from Parameters,
// by name.
type inputs struct {
	operation string
	text      map[string][]string       // primitives
	element   map[string][]fhir.Element // datatypes and resources
}

// inputs reads the inputs of an operation. A parameter that is not among names is
// invalid: what is left out could change the answer. bare is the resource type that
// may be the body instead of Parameters; it is then the input of that name.
func (s *Set) inputs(p Request, bare, bareName string, names ...string) (*inputs, error) {
	in := &inputs{operation: p.Name, text: make(map[string][]string), element: make(map[string][]fhir.Element)}
	check := func(name string) error {
		if !slices.Contains(names, name) {
			slices.Sort(names)
			return outcome.Invalid("%s has no parameter %q here; it has %s", p.Name, clip(name), strings.Join(names, ", "))
		}
		return nil
	}
	for name, values := range p.Values {
		if name == "_format" || name == "_pretty" {
			continue
		}
		if err := check(name); err != nil {
			return nil, err
		}
		for _, v := range values {
			if v != "" {
				in.text[name] = append(in.text[name], v)
			}
		}
	}
	if p.Read || len(p.Body) == 0 {
		return in, nil
	}
	r, err := fhir.Decode(s.Model, p.Body)
	if err != nil {
		return nil, err
	}
	if bare != "" && r.Type().Name == bare {
		in.element[bareName] = []fhir.Element{r}
		return in, nil
	}
	body, ok := r.(*r4.Parameters)
	if !ok {
		return nil, outcome.Invalid("the body is a resource of type %s: %s takes Parameters", r.Type().Name, p.Name)
	}
	for i := range body.Parameter {
		q := &body.Parameter[i]
		name := q.Name.Text
		if err := check(name); err != nil {
			return nil, err
		}
		switch {
		case q.Resource != nil:
			in.element[name] = append(in.element[name], q.Resource)
		case q.Value == nil:
		case fhir.NodeOf(q.Value).Text() != "":
			in.text[name] = append(in.text[name], fhir.NodeOf(q.Value).Text())
		default:
			in.element[name] = append(in.element[name], q.Value)
		}
	}
	return in, nil
}

// get returns an input that is given at most once, "" when it is not.
func (in *inputs) get(name string) (string, error) {
	switch v := in.text[name]; len(v) {
	case 0:
		return "", nil
	case 1:
		return v[0], nil
	default:
		return "", outcome.Invalid("%s: parameter %s is given %d times", in.operation, name, len(v))
	}
}

// texts reads inputs that are given at most once each.
func (in *inputs) texts(into map[string]*string) error {
	for name, to := range into {
		v, err := in.get(name)
		if err != nil {
			return err
		}
		*to = v
	}
	return nil
}

// flags reads booleans; those that are not given are false.
func (in *inputs) flags(into map[string]*bool) error {
	for name, to := range into {
		v, err := in.get(name)
		if err != nil {
			return err
		}
		switch v {
		case "true":
			*to = true
		case "", "false":
		default:
			return outcome.Invalid("%s: parameter %s is %q: expected true or false", in.operation, name, clip(v))
		}
	}
	return nil
}

// codings reads what names a code: code with system (under systemName), coding or
// codeableConcept. More than one way is invalid.
func (in *inputs) codings(systemName string) ([]terminology.Coding, error) {
	var c terminology.Coding
	if err := in.texts(map[string]*string{"code": &c.Code, systemName: &c.System, "display": &c.Display}); err != nil {
		return nil, err
	}
	var out []terminology.Coding
	ways := 0
	if c.Code != "" {
		ways++
		out = append(out, c)
	}
	for _, name := range []string{"coding", "codeableConcept"} {
		for _, e := range in.element[name] {
			ways++
			switch v := e.(type) {
			case *r4.Coding:
				out = append(out, codingOf(v))
			case *r4.CodeableConcept:
				for i := range v.Coding {
					out = append(out, codingOf(&v.Coding[i]))
				}
			default:
				return nil, outcome.Invalid("%s: parameter %s is a %s", in.operation, name, e.Type().Name)
			}
		}
		for _, text := range in.text[name] { // system|code, as in a query string
			ways++
			system, code, ok := strings.Cut(text, "|")
			if !ok {
				return nil, outcome.Invalid("%s: parameter %s is %q: expected system|code", in.operation, name, clip(text))
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

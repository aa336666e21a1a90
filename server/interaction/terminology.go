package interaction

import (
	"context"
	"net/http"
	"slices"
	"strings"

	"kiln/gen/r4"
	"kiln/server/access"
	"kiln/server/fhir"
	"kiln/server/outcome"
	"kiln/server/search"
	"kiln/server/terminology"
)

// AddTerminologyOperations makes known the operations about codes.
// Spec: https://hl7.org/fhir/R4/terminology-service.html.
func (s *Service) AddTerminologyOperations() {
	add := func(name, typ, definition string, run func(context.Context, OperationParams) (Response, error)) {
		s.AddOperation(name, Operation{Types: []string{typ}, Type: true, Instance: name != "$lookup",
			Definition: "http://hl7.org/fhir/OperationDefinition/" + definition, Run: run})
	}
	add("$expand", "ValueSet", "ValueSet-expand", s.Expand)
	add("$validate-code", "ValueSet", "ValueSet-validate-code", s.ValidateCode)
	add("$validate-code", "CodeSystem", "CodeSystem-validate-code", s.ValidateCode)
	add("$lookup", "CodeSystem", "CodeSystem-lookup", s.Lookup)
	add("$subsumes", "CodeSystem", "CodeSystem-subsumes", s.Subsumes)
	add("$translate", "ConceptMap", "ConceptMap-translate", s.Translate)
}

// expander answers the terminology modifiers of one search.
func (s *Service) expander(ctx context.Context, told *[]outcome.Issue) func(search.Expansion) (search.Codes, error) {
	return func(e search.Expansion) (search.Codes, error) {
		if id, ok := s.localValueSet(e.ValueSet); ok {
			var err error
			if e.ValueSet, err = s.canonicalOf(ctx, id); err != nil {
				return search.Codes{}, err
			}
		}
		codes, warnings, err := s.Terminology.SearchCodes(ctx, e)
		for _, w := range warnings {
			if told != nil {
				*told = append(*told, outcome.Issue{Severity: outcome.Warning, Code: outcome.CodeInformational, Diagnostics: w})
			}
		}
		return codes, err
	}
}

// localValueSet returns the id of a value set that is named as a resource of this
// server, "ValueSet/123", and not by its canonical URL.
func (s *Service) localValueSet(uri string) (id string, ok bool) {
	for _, base := range s.BaseURLs {
		if rest, ok := strings.CutPrefix(uri, base+"/"); ok {
			uri = rest
			break
		}
	}
	id, ok = strings.CutPrefix(uri, "ValueSet/")
	return id, ok && fhir.ValidID(id)
}

// canonicalOf returns the canonical URL of a value set of this server.
func (s *Service) canonicalOf(ctx context.Context, id string) (string, error) {
	body, err := s.definition(ctx, "ValueSet", id)
	if err != nil {
		return "", err
	}
	vs, err := terminology.ParseValueSet(body)
	if err != nil || vs.URL == "" {
		return "", outcome.Invalid("ValueSet/%s has no url, by which a search could use it", id).WithStatus(http.StatusUnprocessableEntity)
	}
	if vs.Version != "" {
		return vs.URL + "|" + vs.Version, nil
	}
	return vs.URL, nil
}

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
func (s *Service) inputs(p OperationParams, bare, bareName string, names ...string) (*inputs, error) {
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

// definition returns the JSON of the stored resource, or that of the packages, which
// an operation on an instance is about.
func (s *Service) definition(ctx context.Context, typ, id string) ([]byte, error) {
	if !fhir.ValidID(id) {
		return nil, outcome.NotFound(typ, clip(id))
	}
	v, err := s.Store.Read(ctx, typ, id)
	if err == nil {
		return v.Body, nil
	}
	if e, ok := outcome.From(err); ok && e.Issues[0].Code == outcome.CodeNotFound {
		body, ok, failed := s.Terminology.Definition(typ, id)
		if ok || failed != nil {
			return body, failed
		}
	}
	return nil, err
}

// mayAsk makes sure that there is terminology and that the caller may read typ.
func (s *Service) mayAsk(ctx context.Context, p OperationParams) error {
	if s.Terminology == nil {
		return outcome.NotSupported("terminology services disabled").WithStatus(http.StatusNotImplemented)
	}
	return s.may(ctx, access.Read, p.ResourceType, p.ID)
}

func answer(body []byte, err error) (Response, error) {
	if err != nil {
		return Response{}, err
	}
	return Response{Status: http.StatusOK, Body: body}, nil
}

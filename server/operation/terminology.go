package operation

import (
	"context"
	"encoding/json"

	"kiln/server/access"
	"kiln/server/fhir"
	"kiln/server/outcome"
	"kiln/server/terminology"
)

// core begins the canonicals of HL7's own OperationDefinitions, local those of this server.
const (
	core  = "http://hl7.org/fhir/OperationDefinition/"
	local = "http://kiln/fhir/OperationDefinition/"
)

// mayAsk makes sure that there is terminology. Codes are nobody's secret: any valid
// token may ask about them.
func (s *Set) mayAsk(ctx context.Context, p Request) error {
	if s.Terminology == nil {
		return outcome.NotImplemented("terminology services disabled")
	}
	return s.CheckAllowed(ctx, access.Operation, p.ResourceType, p.ID)
}

// valueSet returns the value set of the body or the instance, nil for neither.
func (s *Set) valueSet(ctx context.Context, p Request, in *Inputs) (*terminology.ValueSet, error) {
	body := []byte(in.Resource("valueSet"))
	switch {
	case body != nil && p.ID != "":
		return nil, outcome.Invalid("%s takes one of url, valueSet and the instance", p.Name)
	case body != nil:
		r, err := fhir.Decode(s.Model, body)
		if err != nil {
			return nil, err
		}
		if r.Type().Name != "ValueSet" {
			return nil, outcome.Invalid("the body is a resource of type %s: %s takes Parameters or a ValueSet", r.Type().Name, p.Name)
		}
	case p.ID != "":
		var err error
		if body, err = s.StoredOrBuiltIn(ctx, p.ResourceType, p.ID); err != nil {
			return nil, err
		}
	default:
		return nil, nil
	}
	vs, err := terminology.ParseValueSet(body)
	if err != nil {
		return nil, outcome.Invalid("%s: the value set cannot be read", p.Name).Because(err)
	}
	return vs, nil
}

// codeSystemOf returns url and version of the instance that an operation is on.
func (s *Set) codeSystemOf(ctx context.Context, p Request) (url, version string, err error) {
	body, err := s.StoredOrBuiltIn(ctx, p.ResourceType, p.ID)
	if err != nil {
		return "", "", err
	}
	var head struct{ URL, Version string }
	if err := json.Unmarshal(body, &head); err != nil {
		return "", "", err
	}
	if head.URL == "" {
		return "", "", outcome.UnprocessableContent(outcome.CodeInvalid, "%s/%s has no url, by which its codes are named", p.ResourceType, p.ID)
	}
	return head.URL, head.Version, nil
}

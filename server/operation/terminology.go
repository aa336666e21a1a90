package operation

import (
	"context"
	"net/http"

	"kiln/server/access"
	"kiln/server/interaction"
	"kiln/server/outcome"
)

// addTerminology makes known the operations about codes.
// Spec: https://hl7.org/fhir/R4/terminology-service.html.
func (s *Set) addTerminology() {
	add := func(name, typ, definition string, run func(context.Context, Request) (interaction.Response, error)) {
		s.Add(name, Operation{Types: []string{typ}, Type: true, Instance: name != "$lookup",
			Definition: "http://hl7.org/fhir/OperationDefinition/" + definition, Run: run})
	}
	add("$expand", "ValueSet", "ValueSet-expand", s.Expand)
	add("$validate-code", "ValueSet", "ValueSet-validate-code", s.ValidateCode)
	add("$validate-code", "CodeSystem", "CodeSystem-validate-code", s.ValidateCode)
	add("$lookup", "CodeSystem", "CodeSystem-lookup", s.Lookup)
	add("$subsumes", "CodeSystem", "CodeSystem-subsumes", s.Subsumes)
	add("$translate", "ConceptMap", "ConceptMap-translate", s.Translate)
}

// mayAsk makes sure that there is terminology and that the caller may read typ.
func (s *Set) mayAsk(ctx context.Context, p Request) error {
	if s.Terminology == nil {
		return outcome.NotSupported("terminology services disabled").WithStatus(http.StatusNotImplemented)
	}
	return s.May(ctx, access.Read, p.ResourceType, p.ID)
}

func answer(body []byte, err error) (interaction.Response, error) {
	if err != nil {
		return interaction.Response{}, err
	}
	return interaction.Response{Status: http.StatusOK, Body: body}, nil
}

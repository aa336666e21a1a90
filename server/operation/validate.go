package operation

import (
	"context"
	"net/http"

	"kiln/server/interaction"
	"kiln/server/outcome"
	"kiln/server/validate"
)

// AddValidate makes $validate known, which judges with v.
// Spec: https://hl7.org/fhir/R4/resource-operation-validate.html.
func (s *Set) AddValidate(v *validate.Validator, options validate.Options) {
	s.Add("$validate", Operation{
		System: true, Type: true, Instance: true,
		Definition: "http://hl7.org/fhir/OperationDefinition/Resource-validate",
		Run: func(ctx context.Context, p Request) (interaction.Response, error) {
			op := validate.Operation{Type: p.ResourceType, ID: p.ID, Mode: p.Values.Get("mode"), Profiles: p.Values["profile"], Body: p.Body}
			if p.Read && p.ID != "" && op.Mode != "delete" {
				stored, err := s.Read(ctx, interaction.ReadParams{ResourceType: p.ResourceType, ID: p.ID})
				if err != nil {
					return interaction.Response{}, err
				}
				op.Body = stored.Version.Body
			}
			issues, err := v.Operate(ctx, op, options)
			if err != nil {
				return interaction.Response{}, err
			}
			return interaction.Response{Status: http.StatusOK, Body: outcome.JSON(issues)}, nil
		},
	})
}

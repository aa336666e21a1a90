package operation

import (
	"context"
	"net/http"

	"kiln/server/fhir"
	"kiln/server/interaction"
	"kiln/server/outcome"
	"kiln/server/validate"
)

// RegisterValidate adds $validate, which judges with v. The body is v's to read: what
// is wrong in it is what is asked.
// Spec: https://hl7.org/fhir/R4/resource-operation-validate.html.
func (s *Set) RegisterValidate(definitions []fhir.OperationDefinition, v *validate.Validator, options validate.Options) error {
	return s.Register(definitions, Operation{
		Definition: core + "Resource-validate", System: true, OwnBody: true,
		Run: func(ctx context.Context, p Request, in *Inputs) (interaction.Response, error) {
			op := validate.Operation{Type: p.ResourceType, ID: p.ID, Mode: in.Text("mode"), Profiles: in.Texts("profile"), Body: p.Body}
			if p.ID != "" {
				op.Stored = func(ctx context.Context) ([]byte, error) {
					stored, err := s.Read(ctx, interaction.ReadParams{ResourceType: p.ResourceType, ID: p.ID})
					return stored.Version.Body, err
				}
			}
			issues, err := v.Operate(ctx, op, options)
			if err != nil {
				return interaction.Response{}, err
			}
			return interaction.Response{Status: http.StatusOK, Body: outcome.JSON(issues)}, nil
		},
	})
}

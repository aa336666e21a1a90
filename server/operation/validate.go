package operation

import (
	"context"
	"errors"
	"net/http"
	"slices"

	"kiln/server/access"
	"kiln/server/fhir"
	"kiln/server/interaction"
	"kiln/server/outcome"
	"kiln/server/parameters"
	"kiln/server/store"
	"kiln/server/validate"
)

// RegisterValidate adds $validate, which judges with v. v reads the body, because its faults are the answer.
// Spec: https://hl7.org/fhir/R4/resource-operation-validate.html.
func (s *Set) RegisterValidate(definitions []fhir.OperationDefinition, v *validate.Validator, options validate.Options) error {
	return s.Register(definitions, Operation{
		Definition: core + "Resource-validate", System: true, OwnBody: true,
		Needs: func(p Request) []access.Interaction {
			if p.ID != "" && p.Read { // of a stored resource
				return []access.Interaction{access.Read}
			}
			return nil
		},
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
			if issues, err = s.addWriteErrors(ctx, p, in, issues); err != nil {
				return interaction.Response{}, err
			}
			return interaction.Response{Status: http.StatusOK, Body: outcome.JSON(issues)}, nil
		},
	})
}

// addWriteErrors adds, for the modes create and update, the reasons why the resource could not be stored: it writes the
// resource in a transaction that it undoes. The rights of the token and preconditions do not matter.
// Spec: https://hl7.org/fhir/R4/valueset-resource-validation-mode.html.
func (s *Set) addWriteErrors(ctx context.Context, p Request, in *Inputs, issues []outcome.Issue) ([]outcome.Issue, error) {
	mode, body := in.Text("mode"), p.Body
	if list, err := parameters.Read(p.Body); err == nil {
		for _, part := range list {
			switch part.Name {
			case "resource":
				body = part.Resource
			case "mode":
				mode = part.Text()
			}
		}
	}
	wrong := slices.ContainsFunc(issues, func(i outcome.Issue) bool { return i.Severity == outcome.Failure || i.Severity == outcome.Fatal })
	if mode != "create" && mode != "update" || len(body) == 0 || wrong {
		return issues, nil
	}
	r, err := fhir.Decode(s.Model, body)
	if err != nil {
		return issues, nil // validate.Operate reports it
	}
	w := &store.Write{Method: fhir.POST, ResourceType: r.Type().Name, ID: s.NewID()}
	if id := r.Header().ID.Text; mode == "update" && fhir.ValidID(id) {
		w.Method, w.ID = fhir.PUT, id
	}
	if err = s.RefuseConditionalReferences(r, ""); err == nil {
		err = s.DraftWrite(w, r, nil)
	}
	if err == nil {
		err = s.Store.InTx(ctx, func(tx *store.Tx) error {
			if err := tx.Write(ctx, []*store.Write{w}); err != nil {
				return err
			}
			return errDryRun
		})
	}
	e, ok := outcome.From(err)
	switch {
	case errors.Is(err, errDryRun):
		return issues, nil
	case ok && (e.HTTPStatus() == http.StatusUnprocessableEntity || e.HTTPStatus() == http.StatusBadRequest):
		kept := slices.DeleteFunc(slices.Clone(issues), func(i outcome.Issue) bool { return i.Code == outcome.CodeInformational })
		return slices.Concat(e.Issues, kept), nil
	}
	return nil, err
}

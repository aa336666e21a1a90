package server

import (
	"kiln/gen/r4"
	"kiln/server/fhir"
	"kiln/server/view"
)

// checkView fails with invalid, 422, for a ViewDefinition that cannot be compiled.
func checkView(r fhir.Resource) error {
	d, ok := r.(*r4.ViewDefinition)
	if !ok {
		return nil
	}
	_, err := view.Compile(r4.Model, d)
	return err
}

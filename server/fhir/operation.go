package fhir

import "slices"

// OperationDefinition contains the parameters and levels of a $operation.
// Spec: https://hl7.org/fhir/R4/operationdefinition.html.
type OperationDefinition struct {
	Code, URL              string // Code is without $
	System, Type, Instance bool   // where it can be called
	AffectsState           bool   // it cannot be called by GET
	// Resources are the resource types that have it; "Resource" stands for all.
	Resources []string
	In, Out   []OperationParameter
}

// OperationParameter is one parameter of a $operation.
type OperationParameter struct {
	Name     string
	Min, Max int    // Max is -1 where there is no bound
	Type     string // "" for one with parts
	Parts    []OperationParameter
}

// Of reports whether resources of type typ have the operation.
func (d *OperationDefinition) Of(typ string) bool {
	return slices.Contains(d.Resources, "Resource") || slices.Contains(d.Resources, typ)
}

// Input returns the input called name.
func (d *OperationDefinition) Input(name string) (OperationParameter, bool) {
	for _, p := range d.In {
		if p.Name == name {
			return p, true
		}
	}
	return OperationParameter{}, false
}

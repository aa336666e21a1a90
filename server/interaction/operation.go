package interaction

import (
	"context"
	"net/http"
	"net/url"
	"slices"

	"kiln/server/outcome"
)

// OperationParams are the inputs of an operation.
type OperationParams struct {
	Name             string // with its $
	ResourceType, ID string // ID is "" on the type's level
	Read             bool   // asked by GET
	Values           url.Values
	Body             []byte
}

// operation is a $operation that the service has.
type operation struct {
	types      []string // resource types that have it; nil is every one
	definition string   // canonical of its OperationDefinition
	affects    bool     // it changes something, and so cannot be a GET
	run        func(s *Service, ctx context.Context, p OperationParams) (Response, error)
}

// operations are the operations on an instance, by name.
// Spec: https://hl7.org/fhir/R4/operationslist.html.
var operations = map[string]operation{
	"$everything": {
		types:      []string{"Patient", "Encounter"},
		definition: "http://hl7.org/fhir/OperationDefinition/%s-everything",
		run: func(s *Service, ctx context.Context, p OperationParams) (Response, error) {
			return s.Everything(ctx, EverythingParams{ResourceType: p.ResourceType, ID: p.ID, Values: p.Values})
		},
	},
	"$meta": {
		definition: "http://hl7.org/fhir/OperationDefinition/Resource-meta",
		run: func(s *Service, ctx context.Context, p OperationParams) (Response, error) {
			return s.Meta(ctx, MetaParams{ResourceType: p.ResourceType, ID: p.ID})
		},
	},
	"$meta-add": {
		definition: "http://hl7.org/fhir/OperationDefinition/Resource-meta-add",
		affects:    true,
		run: func(s *Service, ctx context.Context, p OperationParams) (Response, error) {
			return s.MetaAdd(ctx, MetaParams{ResourceType: p.ResourceType, ID: p.ID, Body: p.Body})
		},
	},
	"$meta-delete": {
		definition: "http://hl7.org/fhir/OperationDefinition/Resource-meta-delete",
		affects:    true,
		run: func(s *Service, ctx context.Context, p OperationParams) (Response, error) {
			return s.MetaDelete(ctx, MetaParams{ResourceType: p.ResourceType, ID: p.ID, Body: p.Body})
		},
	},
}

// Operation runs a $operation. One that does not exist is not-supported, 404;
// one that changes something is not to be had by GET, 405.
// Spec: https://hl7.org/fhir/R4/operations.html#executing.
func (s *Service) Operation(ctx context.Context, p OperationParams) (Response, error) {
	op, ok := operations[p.Name]
	if !ok || op.types != nil && !slices.Contains(op.types, p.ResourceType) {
		return Response{}, outcome.NotSupported("%s has no operation %s", p.ResourceType, clip(p.Name))
	}
	if p.ID == "" {
		return Response{}, outcome.NotSupported("%s works on one resource: /%s/{id}/%[1]s", p.Name, p.ResourceType)
	}
	if op.affects && p.Read {
		return Response{}, outcome.NotSupported("%s changes the resource and needs a POST", p.Name).WithStatus(http.StatusMethodNotAllowed)
	}
	return op.run(s, ctx, p)
}

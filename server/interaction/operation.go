package interaction

import (
	"context"
	"net/http"
	"net/url"
	"slices"

	"kiln/server/access"
	"kiln/server/outcome"
)

// OperationParams are the inputs of an operation.
type OperationParams struct {
	Name             string // with its $
	ResourceType, ID string // ID is "" on the type's level, both are on the system's
	Read             bool   // asked by GET
	Values           url.Values
	Body             []byte
}

// Operation is a $operation that the service has.
type Operation struct {
	Types                  []string // resource types that have it; nil is every one
	System, Type, Instance bool     // where it can be called
	// Definition is the canonical of its OperationDefinition; {type} stands for
	// the resource type.
	Definition string
	Affects    bool // it changes something, and so cannot be a GET
	// Accepts are the content types of its body where that is no resource.
	Accepts []string
	Run     func(ctx context.Context, p OperationParams) (Response, error)
}

// on reports whether the operation can be called where p calls it.
func (o Operation) on(p OperationParams) bool {
	switch {
	case p.ResourceType == "":
		return o.System
	case o.Types != nil && !slices.Contains(o.Types, p.ResourceType):
		return false
	case p.ID == "":
		return o.Type
	}
	return o.Instance
}

// affects reports whether the operation called name changes something.
func (s *Service) affects(name string) bool {
	return slices.ContainsFunc(s.operations[name], func(o Operation) bool { return o.Affects })
}

// AddOperation makes an operation known under name, which starts with $. It is
// called before the service is used; a later one of the same name and types
// replaces an earlier one.
func (s *Service) AddOperation(name string, o Operation) {
	if s.operations == nil {
		s.operations = make(map[string][]Operation)
	}
	s.operations[name] = append([]Operation{o}, s.operations[name]...)
}

// AddOwnOperations makes known the operations that this package has itself.
// Spec: https://hl7.org/fhir/R4/operationslist.html.
func (s *Service) AddOwnOperations() {
	s.AddOperation("$everything", Operation{
		Types: []string{"Patient", "Encounter"}, Instance: true,
		Definition: "http://hl7.org/fhir/OperationDefinition/{type}-everything",
		Run: func(ctx context.Context, p OperationParams) (Response, error) {
			in, err := s.inputs(p, "", "", everythingInputs...)
			if err != nil {
				return Response{}, err
			}
			return s.Everything(ctx, EverythingParams{ResourceType: p.ResourceType, ID: p.ID, Values: in.text})
		},
	})
	s.AddOperation("$meta", Operation{
		System: true, Type: true, Instance: true,
		Definition: "http://hl7.org/fhir/OperationDefinition/Resource-meta",
		Run: func(ctx context.Context, p OperationParams) (Response, error) {
			return s.Meta(ctx, MetaParams{ResourceType: p.ResourceType, ID: p.ID})
		},
	})
	s.AddOperation("$meta-add", Operation{
		Instance: true, Affects: true,
		Definition: "http://hl7.org/fhir/OperationDefinition/Resource-meta-add",
		Run: func(ctx context.Context, p OperationParams) (Response, error) {
			return s.MetaAdd(ctx, MetaParams{ResourceType: p.ResourceType, ID: p.ID, Body: p.Body})
		},
	})
	s.AddOperation("$meta-delete", Operation{
		Instance: true, Affects: true,
		Definition: "http://hl7.org/fhir/OperationDefinition/Resource-meta-delete",
		Run: func(ctx context.Context, p OperationParams) (Response, error) {
			return s.MetaDelete(ctx, MetaParams{ResourceType: p.ResourceType, ID: p.ID, Body: p.Body})
		},
	})
}

// OperationAccepts are the content types of an operation's body, nil where it is a
// resource.
func (s *Service) OperationAccepts(name string) []string {
	for _, o := range s.operations[name] {
		if o.Accepts != nil {
			return o.Accepts
		}
	}
	return nil
}

// Operation runs a $operation. One that does not exist there is not-supported,
// 404; one that changes something is not to be had by GET, 405.
// Spec: https://hl7.org/fhir/R4/operations.html#executing.
func (s *Service) Operation(ctx context.Context, p OperationParams) (Response, error) {
	if err := s.may(ctx, access.Operation, p.ResourceType, p.ID); err != nil {
		return Response{}, err
	}
	for _, o := range s.operations[p.Name] {
		if !o.on(p) {
			continue
		}
		if o.Affects && p.Read {
			return Response{}, outcome.NotSupported("%s changes something and needs a POST", p.Name).WithStatus(http.StatusMethodNotAllowed)
		}
		return o.Run(ctx, p)
	}
	where := "here"
	switch {
	case p.ResourceType != "" && p.ID == "":
		where = "on the type " + p.ResourceType
	case p.ResourceType != "":
		where = "on a resource of type " + p.ResourceType
	}
	return Response{}, outcome.NotSupported("there is no operation %s %s", clip(p.Name), where)
}

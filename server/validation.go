package server

import (
	"context"
	"encoding/json"
	"slices"
	"strings"
	"time"

	"kiln/definitions"
	"kiln/gen/r4"
	"kiln/server/access"
	"kiln/server/fhir"
	"kiln/server/interaction"
	"kiln/server/outcome"
	"kiln/server/validate"
)

// validator builds the validator on the definitions of this program, which are read
// when somebody names one, and on the stored ones.
func (s *Server) validator() *validate.Validator {
	var v *validate.Validator
	v = validate.New(r4.Model, &library{open: definitions.Embedded, stored: s.Store.Definitions, forget: func() { v.Forget() }}, s.Terminology)
	return v
}

// validation is how strictly resources are judged.
func (s *Server) validation() validate.Options {
	options := validate.Options{Terminology: s.Terminology, Check: func(_ context.Context, r fhir.Resource) error {
		if err := checkView(r); err != nil {
			return err
		}
		if p, ok := r.(*r4.SearchParameter); ok {
			if err := s.Parameters.Check(p); err != nil {
				return err
			}
			if issues := s.Parameters.Warnings(p); len(issues) > 0 {
				return outcome.Unprocessable(issues)
			}
		}
		return nil
	}}
	if s.now().Validation.CheckReferences {
		options.Exists = s.exists
	}
	return options
}

// writesValidator checks resources before a write as strictly as the configuration in force
// says.
type writesValidator struct{ s *Server }

// Validate returns the issues of a resource.
func (w writesValidator) Validate(ctx context.Context, in fhir.Reading) []outcome.Issue {
	if w.s.now().Validation.Mode != "full" {
		return nil
	}
	options := w.s.validation()
	if !interaction.ChecksTargets(ctx) {
		options.Exists = nil
	}
	return validate.Writes{Validator: w.s.Validator, Options: options}.Validate(ctx, in)
}

// definition returns one of the definitions that the server is built with.
func definition(typ, id string) ([]byte, bool, error) {
	if !isDefinitionType(typ) {
		return nil, false, nil
	}
	all, err := definitions.Embedded()
	if err != nil {
		return nil, false, err
	}
	body, ok := all.Read(typ, id)
	return body, ok, nil
}

// isDefinitionType reports whether packages bring resources of a type; nothing else makes a server
// open them.
func isDefinitionType(typ string) bool {
	switch typ {
	case "StructureDefinition", "SearchParameter", "OperationDefinition", "CompartmentDefinition",
		"CodeSystem", "ValueSet", "ConceptMap", "NamingSystem", "CapabilityStatement", "ImplementationGuide":
		return true
	}
	return false
}

// builtIn calls each with every definition of a type that the server is built with.
func builtIn(typ string, each func(id string, body []byte) error) error {
	if !isDefinitionType(typ) {
		return nil
	}
	all, err := definitions.Embedded()
	if err != nil {
		return err
	}
	for e, body := range all.All(typ) {
		if err := each(e.ID, body); err != nil {
			return err
		}
	}
	return nil
}

// exists reports whether a reference has a target on this server that the request can read.
// With a token that reads nothing of the type every target counts as present, so that the
// answer reveals nothing.
func (s *Server) exists(ctx context.Context, typ, id string) (bool, error) {
	if exists, known := interaction.PromisedResource(ctx, typ, id); known {
		return exists, nil
	}
	if err := s.Service.CheckAllowed(ctx, access.Read, typ, id); err != nil {
		if outcome.Is(err, outcome.CodeForbidden) {
			return true, nil
		}
		return false, err
	}
	from, err := s.Service.VisibleReader(ctx, s.Store)
	if err != nil {
		return false, err
	}
	_, err = from.Read(ctx, typ, id)
	if outcome.Is(err, outcome.CodeNotFound, outcome.CodeDeleted) {
		return false, nil
	}
	return err == nil, err
}

// library is the packages of this program, opened at first use, and stored resources.
type library struct {
	open   func() (*definitions.Library, error)
	stored func(ctx context.Context, url string) ([][]byte, error)
	forget func() // empties the caches of answers
}

// lookUp bounds how long a definition is looked for in the database.
const lookUp = 10 * time.Second

// Resolve finds a definition by canonical URL: R4's own first, then the one that
// was stored last.
func (l *library) Resolve(canonical string) ([]byte, bool) {
	if d, err := l.open(); err == nil {
		if b, ok := d.Resolve(canonical); ok {
			return b, true
		}
	}
	ctx, cancel := context.WithTimeout(context.Background(), lookUp)
	defer cancel()
	url, version, versioned := strings.Cut(canonical, "|")
	list, err := l.stored(ctx, url)
	if err != nil {
		time.AfterFunc(lookUp, l.forget) // it may be there all the same
		return nil, false
	}
	for _, body := range slices.Backward(list) {
		var head struct{ Version string }
		if !versioned || json.Unmarshal(body, &head) == nil && head.Version == version {
			return body, true
		}
	}
	return nil, false
}

package operation

import (
	"context"

	"kiln/server/interaction"
	"kiln/server/outcome"
	"kiln/server/terminology"
)

// lookupOperation is CodeSystem/$lookup: the properties of a code.
// Spec: https://hl7.org/fhir/R4/codesystem-operation-lookup.html.
func (s *Set) lookupOperation() Operation {
	return Operation{Definition: core + "CodeSystem-lookup", Run: s.runLookup, Unserved: []string{"date"}}
}

func (s *Set) runLookup(ctx context.Context, p Request, in *Inputs) (interaction.Response, error) {
	if err := s.mayAsk(ctx, p); err != nil {
		return interaction.Response{}, err
	}
	codings, err := in.codings("system")
	if err != nil {
		return interaction.Response{}, err
	}
	if len(codings) == 0 {
		return interaction.Response{}, outcome.New(outcome.CodeRequired, "$lookup needs system and code, or coding")
	}
	l := terminology.LookupParams{System: codings[0].System, Code: codings[0].Code, Version: in.Text("version"),
		DisplayLanguage: in.Text("displayLanguage"), Property: in.Texts("property")}
	if l.Version == "" {
		l.Version = codings[0].Version
	}
	return answerBody(s.Terminology.Lookup(ctx, l))
}

package operation

import (
	"context"

	"kiln/server/interaction"
	"kiln/server/outcome"
	"kiln/server/terminology"
)

// Lookup is CodeSystem/$lookup: what is known of a code.
// Spec: https://hl7.org/fhir/R4/codesystem-operation-lookup.html.
func (s *Set) Lookup(ctx context.Context, p Request) (interaction.Response, error) {
	if err := s.mayAsk(ctx, p); err != nil {
		return interaction.Response{}, err
	}
	in, err := s.inputs(p, "", "", "system", "version", "code", "coding", "property", "displayLanguage")
	if err != nil {
		return interaction.Response{}, err
	}
	var l terminology.LookupParams
	if err := in.texts(map[string]*string{"version": &l.Version, "displayLanguage": &l.DisplayLanguage}); err != nil {
		return interaction.Response{}, err
	}
	codings, err := in.codings("system")
	if err != nil {
		return interaction.Response{}, err
	}
	if len(codings) == 0 {
		return interaction.Response{}, outcome.New(outcome.CodeRequired, "$lookup needs system and code, or coding")
	}
	l.System, l.Code, l.Property = codings[0].System, codings[0].Code, in.text["property"]
	if l.Version == "" {
		l.Version = codings[0].Version
	}
	return answer(s.Terminology.Lookup(ctx, l))
}

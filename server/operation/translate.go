package operation

import (
	"context"

	"kiln/server/interaction"
	"kiln/server/outcome"
	"kiln/server/terminology"
)

// translateOperation is ConceptMap/$translate: a code in another system.
// Spec: https://hl7.org/fhir/R4/conceptmap-operation-translate.html.
func (s *Set) translateOperation() Operation {
	return Operation{Definition: core + "ConceptMap-translate", Run: s.runTranslate, Unserved: []string{"conceptMap", "dependency"}}
}

func (s *Set) runTranslate(ctx context.Context, p Request, in *Inputs) (interaction.Response, error) {
	if err := s.mayAsk(ctx, p); err != nil {
		return interaction.Response{}, err
	}
	t := terminology.TranslateParams{URL: in.Text("url"), Version: in.Text("conceptMapVersion"), Source: in.Text("source"),
		Target: in.Text("target"), TargetSystem: in.Text("targetsystem"), Reverse: in.True("reverse")}
	var err error
	if t.Coding, err = in.codings("system"); err != nil {
		return interaction.Response{}, err
	}
	if p.ID != "" {
		if t.URL != "" {
			return interaction.Response{}, outcome.Invalid("$translate takes one of url and the instance")
		}
		if t.Map, err = s.StoredOrBuiltIn(ctx, p.ResourceType, p.ID); err != nil {
			return interaction.Response{}, err
		}
	}
	r, err := s.Terminology.Translate(ctx, t)
	if err != nil {
		return interaction.Response{}, err
	}
	return answerBody(r.JSON())
}

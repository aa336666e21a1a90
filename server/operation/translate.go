package operation

import (
	"context"

	"kiln/server/interaction"
	"kiln/server/outcome"
	"kiln/server/terminology"
)

// Translate is ConceptMap/$translate: what a code is in another system.
// Spec: https://hl7.org/fhir/R4/conceptmap-operation-translate.html.
func (s *Set) Translate(ctx context.Context, p Request) (interaction.Response, error) {
	if err := s.mayAsk(ctx, p); err != nil {
		return interaction.Response{}, err
	}
	in, err := s.inputs(p, "", "", "url", "conceptMapVersion", "code", "system", "version", "source", "coding",
		"codeableConcept", "target", "targetsystem", "reverse")
	if err != nil {
		return interaction.Response{}, err
	}
	var t terminology.TranslateParams
	err = in.texts(map[string]*string{"url": &t.URL, "conceptMapVersion": &t.Version, "source": &t.Source, "target": &t.Target, "targetsystem": &t.TargetSystem})
	if err == nil {
		err = in.flags(map[string]*bool{"reverse": &t.Reverse})
	}
	if err == nil {
		t.Coding, err = in.codings("system")
	}
	if err == nil && p.ID != "" {
		if t.URL != "" {
			err = outcome.Invalid("$translate takes one of url and the instance")
		} else {
			t.Map, err = s.StoredOrBuiltIn(ctx, p.ResourceType, p.ID)
		}
	}
	if err != nil {
		return interaction.Response{}, err
	}
	r, err := s.Terminology.Translate(ctx, t)
	if err != nil {
		return interaction.Response{}, err
	}
	return answer(r.JSON())
}

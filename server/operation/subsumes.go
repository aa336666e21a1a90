package operation

import (
	"context"

	"kiln/gen/r4"
	"kiln/server/interaction"
	"kiln/server/outcome"
	"kiln/server/terminology"
)

// subsumesOperation is CodeSystem/$subsumes: which of two codes is the more general one.
// Spec: https://hl7.org/fhir/R4/codesystem-operation-subsumes.html.
func (s *Set) subsumesOperation() Operation {
	return Operation{Definition: core + "CodeSystem-subsumes", Run: s.runSubsumes}
}

func (s *Set) runSubsumes(ctx context.Context, p Request, in *Inputs) (interaction.Response, error) {
	if err := s.mayAsk(ctx, p); err != nil {
		return interaction.Response{}, err
	}
	q := terminology.SubsumesParams{System: in.Text("system"), Version: in.Text("version"), CodeA: in.Text("codeA"), CodeB: in.Text("codeB")}
	if p.ID != "" {
		if q.System != "" {
			return interaction.Response{}, outcome.Invalid("$subsumes takes one of system and the instance")
		}
		var err error
		if q.System, q.Version, err = s.codeSystemOf(ctx, p); err != nil {
			return interaction.Response{}, err
		}
	}
	for _, way := range []struct {
		name string
		code *string
	}{{"codingA", &q.CodeA}, {"codingB", &q.CodeB}} {
		e, err := in.Element(way.name)
		if err != nil {
			return interaction.Response{}, err
		}
		c, ok := e.(*r4.Coding)
		if text := in.Text(way.name); text != "" || ok && *way.code != "" {
			return interaction.Response{}, outcome.Invalid("$subsumes takes each code once, as code or as Coding")
		}
		if !ok {
			continue
		}
		if q.System == "" {
			q.System = c.System.Text
		}
		if c.System.Text != q.System {
			return interaction.Response{}, outcome.Invalid("$subsumes compares codes of one system; %s is of %q, not %q", way.name, outcome.Clip(c.System.Text), outcome.Clip(q.System))
		}
		*way.code = c.Code.Text
	}
	o, err := s.Terminology.SubsumesOutcome(ctx, q)
	if err != nil {
		return interaction.Response{}, err
	}
	return answerBody(o.JSON())
}

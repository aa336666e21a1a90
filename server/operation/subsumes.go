package operation

import (
	"context"

	"kiln/gen/r4"
	"kiln/server/interaction"
	"kiln/server/outcome"
	"kiln/server/terminology"
)

// Subsumes is CodeSystem/$subsumes: which of two codes is the more general one.
// Spec: https://hl7.org/fhir/R4/codesystem-operation-subsumes.html.
func (s *Set) Subsumes(ctx context.Context, p Request) (interaction.Response, error) {
	if err := s.mayAsk(ctx, p); err != nil {
		return interaction.Response{}, err
	}
	in, err := s.inputs(p, "", "", "system", "version", "codeA", "codeB", "codingA", "codingB")
	if err != nil {
		return interaction.Response{}, err
	}
	var q terminology.SubsumesParams
	err = in.texts(map[string]*string{"system": &q.System, "version": &q.Version, "codeA": &q.CodeA, "codeB": &q.CodeB})
	if err == nil && p.ID != "" {
		if q.System != "" {
			err = outcome.Invalid("$subsumes takes one of system and the instance")
		} else {
			q.System, q.Version, err = s.codeSystemOf(ctx, p)
		}
	}
	if err != nil {
		return interaction.Response{}, err
	}
	for name, code := range map[string]*string{"codingA": &q.CodeA, "codingB": &q.CodeB} {
		for _, e := range in.element[name] {
			c, ok := e.(*r4.Coding)
			if !ok || *code != "" {
				return interaction.Response{}, outcome.Invalid("$subsumes takes each code once, as code or as Coding")
			}
			if q.System == "" {
				q.System = c.System.Text
			}
			if c.System.Text != q.System {
				return interaction.Response{}, outcome.Invalid("$subsumes compares codes of one system; %s is of %q, not %q", name, clip(c.System.Text), clip(q.System))
			}
			*code = c.Code.Text
		}
	}
	o, err := s.Terminology.SubsumesOutcome(ctx, q)
	if err != nil {
		return interaction.Response{}, err
	}
	return answer(o.JSON())
}

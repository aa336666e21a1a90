package operation

import (
	"context"

	"kiln/server/interaction"
	"kiln/server/outcome"
	"kiln/server/terminology"
)

// expandOperation is ValueSet/$expand: the codes of a value set that is named by url, given
// in the body, or is the instance.
// Spec: https://hl7.org/fhir/R4/valueset-operation-expand.html.
func (s *Set) expandOperation() Operation {
	return Operation{
		Definition: core + "ValueSet-expand", Run: s.runExpand, Body: "valueSet",
		Unserved: []string{"context", "contextDirection", "date", "designation", "excludeNotForUI", "excludePostCoordinated",
			"exclude-system", "system-version", "check-system-version", "force-system-version"},
	}
}

func (s *Set) runExpand(ctx context.Context, p Request, in *Inputs) (interaction.Response, error) {
	if err := s.mayAsk(ctx, p); err != nil {
		return interaction.Response{}, err
	}
	e := terminology.ExpandParams{
		URL: in.Text("url"), Version: in.Text("valueSetVersion"), Filter: in.Text("filter"), DisplayLanguage: in.Text("displayLanguage"),
		ActiveOnly: in.True("activeOnly"), IncludeDesignations: in.True("includeDesignations"),
		IncludeDefinition: in.True("includeDefinition"), ExcludeNested: in.True("excludeNested"),
	}
	var err error
	if e.ValueSet, err = s.valueSet(ctx, p, in); err != nil {
		return interaction.Response{}, err
	}
	if e.ValueSet != nil && e.URL != "" {
		return interaction.Response{}, outcome.Invalid("$expand takes one of url, valueSet and the instance")
	}
	if text := in.Text("count"); text != "" {
		n, err := terminology.ParseCount("count", text)
		if err != nil {
			return interaction.Response{}, err
		}
		e.Count = &n
	}
	if text := in.Text("offset"); text != "" {
		if e.Offset, err = terminology.ParseCount("offset", text); err != nil {
			return interaction.Response{}, err
		}
	}
	return answerBody(s.Terminology.Expand(ctx, e))
}

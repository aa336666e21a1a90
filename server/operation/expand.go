package operation

import (
	"context"

	"kiln/server/fhir"
	"kiln/server/interaction"
	"kiln/server/outcome"
	"kiln/server/terminology"
)

// Expand is ValueSet/$expand: the codes of a value set that is named by url, given
// in the body, or is the instance.
// Spec: https://hl7.org/fhir/R4/valueset-operation-expand.html.
func (s *Set) Expand(ctx context.Context, p Request) (interaction.Response, error) {
	if err := s.mayAsk(ctx, p); err != nil {
		return interaction.Response{}, err
	}
	in, err := s.inputs(p, "ValueSet", "valueSet", "url", "valueSet", "valueSetVersion", "filter", "count", "offset",
		"activeOnly", "includeDesignations", "includeDefinition", "excludeNested", "displayLanguage")
	if err != nil {
		return interaction.Response{}, err
	}
	var e terminology.ExpandParams
	var count, offset string
	err = in.texts(map[string]*string{"url": &e.URL, "valueSetVersion": &e.Version, "filter": &e.Filter,
		"count": &count, "offset": &offset, "displayLanguage": &e.DisplayLanguage})
	if err == nil {
		err = in.flags(map[string]*bool{"activeOnly": &e.ActiveOnly, "includeDesignations": &e.IncludeDesignations,
			"includeDefinition": &e.IncludeDefinition, "excludeNested": &e.ExcludeNested})
	}
	if err == nil {
		e.ValueSet, err = s.valueSet(ctx, p, in)
	}
	if err != nil {
		return interaction.Response{}, err
	}
	if e.ValueSet != nil && e.URL != "" {
		return interaction.Response{}, outcome.Invalid("$expand takes one of url, valueSet and the instance")
	}
	if count != "" {
		n, err := terminology.ParseCount("count", count)
		if err != nil {
			return interaction.Response{}, err
		}
		e.Count = &n
	}
	if offset != "" {
		if e.Offset, err = terminology.ParseCount("offset", offset); err != nil {
			return interaction.Response{}, err
		}
	}
	return answer(s.Terminology.Expand(ctx, e))
}

// valueSet returns the value set of the body or the instance, nil for neither.
func (s *Set) valueSet(ctx context.Context, p Request, in *inputs) (*terminology.ValueSet, error) {
	var body []byte
	given := in.element["valueSet"]
	switch {
	case len(given) > 1 || len(given) == 1 && p.ID != "":
		return nil, outcome.Invalid("%s takes one of url, valueSet and the instance", p.Name)
	case len(given) == 1:
		r, ok := given[0].(fhir.Resource)
		if !ok {
			return nil, outcome.Invalid("%s: parameter valueSet is no resource", p.Name)
		}
		body = r.Header().Raw
	case p.ID != "":
		var err error
		if body, err = s.StoredOrBuiltIn(ctx, p.ResourceType, p.ID); err != nil {
			return nil, err
		}
	default:
		return nil, nil
	}
	vs, err := terminology.ParseValueSet(body)
	if err != nil {
		return nil, outcome.Invalid("%s: the value set cannot be read", p.Name).Because(err)
	}
	return vs, nil
}

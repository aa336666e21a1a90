package operation

import (
	"context"
	"encoding/json"

	"kiln/server/interaction"
	"kiln/server/outcome"
	"kiln/server/terminology"
)

// ValidateCode is $validate-code of a value set or a code system: whether a code is
// in it, and its display right.
// Spec: https://hl7.org/fhir/R4/valueset-operation-validate-code.html,
// codesystem-operation-validate-code.html.
func (s *Set) ValidateCode(ctx context.Context, p Request) (interaction.Response, error) {
	if err := s.mayAsk(ctx, p); err != nil {
		return interaction.Response{}, err
	}
	if p.ResourceType == "CodeSystem" {
		return s.validateInCodeSystem(ctx, p)
	}
	in, err := s.inputs(p, "", "", "url", "valueSet", "valueSetVersion", "system", "systemVersion", "code", "display",
		"coding", "codeableConcept", "abstract", "displayLanguage")
	if err != nil {
		return interaction.Response{}, err
	}
	var v terminology.ValidateCodeParams
	var version string
	err = in.texts(map[string]*string{"url": &v.URL, "valueSetVersion": &v.Version, "systemVersion": &version, "displayLanguage": &v.DisplayLanguage})
	if err == nil {
		err = in.flags(map[string]*bool{"abstract": &v.Abstract})
	}
	if err == nil {
		v.ValueSet, err = s.valueSet(ctx, p, in)
	}
	if err == nil {
		v.Coding, err = in.codings("system")
	}
	if err != nil {
		return interaction.Response{}, err
	}
	switch {
	case v.ValueSet != nil && v.URL != "":
		return interaction.Response{}, outcome.Invalid("$validate-code takes one of url, valueSet and the instance")
	case v.ValueSet == nil && v.URL == "":
		return interaction.Response{}, outcome.New(outcome.CodeRequired, "$validate-code needs url or valueSet")
	}
	// A code alone is that of a code element, which names no system.
	v.InferSystem = len(in.text["code"]) == 1
	for i := range v.Coding {
		if v.Coding[i].Version == "" {
			v.Coding[i].Version = version
		}
	}
	return s.validated(ctx, v)
}

func (s *Set) validated(ctx context.Context, v terminology.ValidateCodeParams) (interaction.Response, error) {
	r, err := s.Terminology.ValidateCode(ctx, v)
	if err != nil {
		return interaction.Response{}, err
	}
	return answer(r.JSON())
}

// validateInCodeSystem is CodeSystem/$validate-code.
func (s *Set) validateInCodeSystem(ctx context.Context, p Request) (interaction.Response, error) {
	in, err := s.inputs(p, "", "", "url", "version", "code", "display", "coding", "codeableConcept", "abstract", "displayLanguage")
	if err != nil {
		return interaction.Response{}, err
	}
	var v terminology.ValidateCodeParams
	var url, version string
	err = in.texts(map[string]*string{"url": &url, "version": &version, "displayLanguage": &v.DisplayLanguage})
	if err == nil {
		err = in.flags(map[string]*bool{"abstract": &v.Abstract})
	}
	if err == nil {
		v.Coding, err = in.codings("url")
	}
	if err == nil && p.ID != "" {
		if url != "" {
			err = outcome.Invalid("$validate-code takes one of url and the instance")
		} else {
			url, version, err = s.codeSystemOf(ctx, p)
		}
	}
	if err != nil {
		return interaction.Response{}, err
	}
	for i := range v.Coding {
		c := &v.Coding[i]
		if c.System == "" {
			c.System = url
		}
		if version != "" {
			c.Version = version
		}
		if url != "" && c.System != url {
			return interaction.Response{}, outcome.Invalid("$validate-code: the coding is of system %s, the code system asked is %s", clip(c.System), clip(url))
		}
	}
	return s.validated(ctx, v)
}

// codeSystemOf returns url and version of the instance that an operation is on.
func (s *Set) codeSystemOf(ctx context.Context, p Request) (url, version string, err error) {
	body, err := s.StoredOrBuiltIn(ctx, p.ResourceType, p.ID)
	if err != nil {
		return "", "", err
	}
	var head struct{ URL, Version string }
	if err := json.Unmarshal(body, &head); err != nil {
		return "", "", err
	}
	if head.URL == "" {
		return "", "", outcome.Invalid("%s/%s has no url, by which its codes are named", p.ResourceType, p.ID).WithStatus(422)
	}
	return head.URL, head.Version, nil
}

package operation

import (
	"context"

	"kiln/server/fhir"
	"kiln/server/interaction"
	"kiln/server/outcome"
	"kiln/server/terminology"
)

// valueSetValidateCode is ValueSet/$validate-code: whether a code is in a value set,
// and its display right.
// Spec: https://hl7.org/fhir/R4/valueset-operation-validate-code.html.
func (s *Set) valueSetValidateCode() Operation {
	return Operation{Definition: core + "ValueSet-validate-code", Run: s.validateInValueSet, Unserved: []string{"context", "date"}}
}

func (s *Set) validateInValueSet(ctx context.Context, p Request, in *Inputs) (interaction.Response, error) {
	if err := s.mayAsk(ctx, p); err != nil {
		return interaction.Response{}, err
	}
	v := terminology.ValidateCodeParams{URL: in.Text("url"), Version: in.Text("valueSetVersion"),
		DisplayLanguage: in.Text("displayLanguage"), Abstract: in.True("abstract")}
	var err error
	if v.ValueSet, err = s.valueSet(ctx, p, in); err != nil {
		return interaction.Response{}, err
	}
	if v.Coding, err = in.codings("system"); err != nil {
		return interaction.Response{}, err
	}
	switch {
	case v.ValueSet != nil && v.URL != "":
		return interaction.Response{}, outcome.Invalid("$validate-code takes one of url, valueSet and the instance")
	case v.ValueSet == nil && v.URL == "":
		return interaction.Response{}, outcome.New(outcome.CodeRequired, "$validate-code needs url or valueSet")
	}
	// A code alone is the value of a code element, which names no system.
	v.InferSystem = in.Text("code") != ""
	for i := range v.Coding {
		if v.Coding[i].Version == "" {
			v.Coding[i].Version = in.Text("systemVersion")
		}
	}
	return s.validated(ctx, v)
}

func (s *Set) validated(ctx context.Context, v terminology.ValidateCodeParams) (interaction.Response, error) {
	r, err := s.Terminology.ValidateCode(ctx, v)
	if err != nil {
		return interaction.Response{}, err
	}
	return answerBody(r.JSON())
}

// codeSystemValidateCode is CodeSystem/$validate-code.
// Spec: https://hl7.org/fhir/R4/codesystem-operation-validate-code.html.
func (s *Set) codeSystemValidateCode() Operation {
	return Operation{Definition: core + "CodeSystem-validate-code", Run: s.validateInCodeSystem, Unserved: []string{"codeSystem", "date"},
		Further: []fhir.OperationParameter{{Name: "system", Max: 1, Type: "uri"}}}
}

func (s *Set) validateInCodeSystem(ctx context.Context, p Request, in *Inputs) (interaction.Response, error) {
	if err := s.mayAsk(ctx, p); err != nil {
		return interaction.Response{}, err
	}
	v := terminology.ValidateCodeParams{DisplayLanguage: in.Text("displayLanguage"), Abstract: in.True("abstract")}
	url, version := in.Text("url"), in.Text("version")
	switch system := in.Text("system"); {
	case system == "":
	case url == "":
		url = system
	case url != system:
		return interaction.Response{}, outcome.Invalid("$validate-code: system is another name of url, and they differ: %s and %s", outcome.Clip(system), outcome.Clip(url))
	}
	var err error
	if v.Coding, err = in.codings("url"); err != nil {
		return interaction.Response{}, err
	}
	if p.ID != "" {
		if url != "" {
			return interaction.Response{}, outcome.Invalid("$validate-code takes one of url and the instance")
		}
		if url, version, err = s.codeSystemOf(ctx, p); err != nil {
			return interaction.Response{}, err
		}
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
			return interaction.Response{}, outcome.Invalid("$validate-code: the coding is of system %s, the code system asked is %s", outcome.Clip(c.System), outcome.Clip(url))
		}
	}
	return s.validated(ctx, v)
}

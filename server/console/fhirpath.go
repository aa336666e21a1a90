package console

import (
	"net/http"
	"strings"
	"time"

	"kiln/server/fhir"
	"kiln/server/fhirpath"
	"kiln/server/outcome"
)

// fhirpathPage evaluates an expression.
type fhirpathPage struct {
	Address, Text, Expression string
	Result                    *table
}

// Bounds of an evaluation.
const (
	fhirpathSteps = 1_000_000
	resultsShown  = 1000
)

// fhirpath evaluates an expression on a resource of an address or of a text. Nothing is stored.
func (v *visit) fhirpath(_ []string) error {
	p := fhirpathPage{Address: strings.TrimSpace(v.form.Get("address")), Text: v.form.Get("resource"), Expression: strings.TrimSpace(v.form.Get("expression"))}
	if v.r.Method != http.MethodPost {
		return v.show("fhirpath", "FHIRPath", "", p)
	}
	result, err := v.evaluate(p)
	if err := v.refuse(err); err != nil {
		return err
	}
	p.Result = result
	return v.show("fhirpath", "FHIRPath", "", p)
}

// bad is a refusal with words of this page.
func bad(words string) error {
	return &refusal{status: http.StatusBadRequest, issues: []outcome.Issue{{Code: outcome.CodeInvalid, Diagnostics: words}}}
}

func (v *visit) evaluate(p fhirpathPage) (*table, error) {
	var input fhir.Node
	body := []byte(strings.TrimSpace(p.Text))
	if len(body) == 0 && p.Address != "" {
		typ, id, ok := strings.Cut(strings.TrimPrefix(p.Address, "/"), "/")
		if !ok || v.c.Service.Model.Resources[typ] == nil || !fhir.ValidID(id) {
			return nil, bad(v.T("The address is not that of a resource, such as Patient/1."))
		}
		var err error
		if body, _, err = v.read(typ, id); err != nil {
			return nil, err
		}
	}
	if len(body) > 0 {
		r, err := fhir.Decode(v.c.Service.Model, body)
		if err != nil {
			return nil, asRefusal(err)
		}
		input = fhir.NodeOf(r)
	}
	program, err := fhirpath.Compile(p.Expression, fhirpath.Options{Model: v.c.Service.Model, Input: input.T, Strict: true})
	if err != nil {
		return nil, bad(err.Error())
	}
	found, err := program.Eval(&fhirpath.Context{Context: v.r.Context(), Now: time.Now(), MaxSteps: fhirpathSteps}, input)
	if err != nil {
		return nil, bad(err.Error())
	}
	t := &table{Name: v.T("Result"), Head: columns(v.T("Type"), v.T("Value"))}
	if len(found) == 0 {
		t.More = v.T("The result is empty.")
	}
	for i, x := range found {
		if i == resultsShown {
			t.More = v.T("There are more.")
			break
		}
		text := string(x.AppendJSON(nil))
		if len(text) > 1 && text[0] == '"' {
			text = x.String()
		}
		t.Rows = append(t.Rows, []cell{{Text: x.JSONType(), Head: true}, {Text: clipLong(text), Class: "wrap code"}})
	}
	return t, nil
}

// asRefusal is an error of a decoder as a refusal of the page.
func asRefusal(err error) error {
	if e, ok := outcome.From(err); ok {
		return &refusal{status: e.HTTPStatus(), issues: e.Issues}
	}
	return err
}

// clipLong bounds a long value.
func clipLong(s string) string {
	const most = 8000
	if len(s) > most {
		return strings.ToValidUTF8(s[:most], "") + "…"
	}
	return s
}

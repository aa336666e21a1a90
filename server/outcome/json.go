package outcome

import (
	"encoding/json"
	"strings"
)

// JSON returns issues as an OperationOutcome resource.
func JSON(issues []Issue) []byte {
	type issue struct {
		Severity    Severity    `json:"severity"`
		Code        Code        `json:"code"`
		Diagnostics string      `json:"diagnostics,omitempty"`
		Expression  []string    `json:"expression,omitempty"`
		Extension   []extension `json:"extension,omitempty"`
	}
	out := struct {
		ResourceType string  `json:"resourceType"`
		Issue        []issue `json:"issue"`
	}{ResourceType: "OperationOutcome", Issue: make([]issue, 0, len(issues))}
	for _, i := range issues {
		o := issue{Severity: i.Severity, Code: i.Code, Diagnostics: strings.Map(printable, i.Diagnostics)}
		if i.Expression != "" {
			o.Expression = []string{i.Expression}
		}
		if i.Line > 0 {
			o.Extension = []extension{
				{"http://hl7.org/fhir/StructureDefinition/operationoutcome-issue-line", i.Line},
				{"http://hl7.org/fhir/StructureDefinition/operationoutcome-issue-col", i.Column},
			}
		}
		out.Issue = append(out.Issue, o)
	}
	b, err := json.Marshal(out)
	if err != nil {
		panic(err) // strings and integers always marshal
	}
	return b
}

// printable puts U+FFFD in the place of characters that a FHIR string cannot have;
// diagnostics repeat client input. Spec: https://hl7.org/fhir/R4/datatypes.html#string.
func printable(c rune) rune {
	if c < ' ' && c != '\n' && c != '\r' && c != '\t' {
		return '\uFFFD'
	}
	return c
}

type extension struct {
	URL   string `json:"url"`
	Value int    `json:"valueInteger"`
}

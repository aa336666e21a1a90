package interaction

import (
	"fmt"
	"strings"

	"kiln/server/fhir"
	"kiln/server/outcome"
)

// RefuseConditionalReferences fails with invalid, 422, where r has conditional
// references: only a transaction resolves them, and stored they would lead nowhere. Those
// within a Bundle are about that Bundle. base is the service's URL as the client sees it,
// "" where only BaseURLs are known.
// Spec: https://hl7.org/fhir/R4/http.html#trules (conditional references).
func (s *Service) RefuseConditionalReferences(r fhir.Resource, base string) error {
	l := linker{search: s.conditionalSearch(base)}
	if len(l.conditionalReferences(nil, r)) == 0 {
		return nil
	}
	var issues []outcome.Issue
	l.locateConditional(fhir.NodeOf(r), r.Type().Name, func(at, text string) {
		issues = append(issues, outcome.Issue{Severity: outcome.Failure, Code: outcome.CodeInvalid, Expression: at,
			Diagnostics: fmt.Sprintf("the conditional reference %s is allowed in a transaction only: expected a reference to a resource", outcome.Clip(text))})
	})
	return outcome.Unprocessable(issues)
}

// conditionalSearch returns the function that reads a conditional reference; base is as
// for RefuseConditionalReferences.
func (s *Service) conditionalSearch(base string) func(text string) (typ, criteria string, ok bool) {
	return func(text string) (typ, criteria string, ok bool) {
		typ, criteria, ok = strings.Cut(s.relativeReference(base, text), "?")
		return typ, criteria, ok && s.Model.Resources[typ] != nil
	}
}

// locateConditional calls each with the FHIRPath of every Reference below n that has a
// conditional reference, and with its text.
func (l *linker) locateConditional(n fhir.Node, path string, each func(path, text string)) {
	if n.T.Name == "Bundle" {
		return
	}
	for i := range n.T.Fields {
		f := &n.T.Fields[i]
		for j, child := range n.AppendField(nil, f) {
			at := path + "." + f.Name
			if f.Max != 1 {
				at = fmt.Sprintf("%s[%d]", at, j)
			}
			if !child.T.Kind.Primitive() {
				l.locateConditional(child, at, each)
				continue
			}
			if n.T.Name == "Reference" && f.Name == "reference" && l.isConditional(child.Text()) {
				each(path, child.Text())
			}
			if x := child.Extra(); x != nil {
				for k := range x.Extension {
					l.locateConditional(fhir.NodeOf(&x.Extension[k]), fmt.Sprintf("%s.extension[%d]", at, k), each)
				}
			}
		}
	}
}

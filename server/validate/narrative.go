package validate

import (
	"kiln/gen/r4"
	"kiln/server/fhir"
	"kiln/server/narrative"
	"kiln/server/outcome"
)

// narrative checks txt-1 and txt-2.
func (u *run) narrative(n fhir.Node) {
	t, ok := n.Element().(*r4.Narrative)
	if !ok || t.Div.Text == "" {
		return
	}
	if err := narrative.Check(t.Div.Text); err != nil {
		u.path = append(u.path, segment{"div", -1, t.Div.Type()})
		u.report(outcome.Failure, "constraint txt-1: %v", err)
		u.pop()
	}
}

package validate

import (
	"errors"

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
	var wrong *narrative.Error
	if errors.As(narrative.Check(t.Div.Text), &wrong) {
		u.path = append(u.path, segment{"div", -1, t.Div.Type()})
		u.report(outcome.Failure, "constraint %s: %s", wrong.Rule, wrong.Reason)
		u.popPath()
	}
}

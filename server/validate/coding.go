package validate

import (
	"kiln/gen/r4"
	"kiln/server/fhir"
	"kiln/server/outcome"
	"kiln/server/ucum"
)

// unitsOfMeasure is the code system of UCUM.
const unitsOfMeasure = "http://unitsofmeasure.org"

// checkConcept checks that a Coding's code is one of its code system, where all codes of
// that are known. Spec: https://hl7.org/fhir/R4/codesystem-definitions.html#CodeSystem.content.
func (u *run) checkConcept(n fhir.Node) {
	c, ok := n.Element().(*r4.Coding)
	if !ok || c.System.Text == "" || c.Code.Text == "" {
		return
	}
	u.inSystem(c.System.Text, c.Version.Text, c.Code.Text)
}

// checkDisplay warns where a Coding's display is not one of its code.
// Spec: https://hl7.org/fhir/R4/datatypes-definitions.html#Coding.display.
func (u *run) checkDisplay(n fhir.Node) {
	c, ok := n.Element().(*r4.Coding)
	if !ok || c.System.Text == "" || c.Code.Text == "" || c.Display.Text == "" {
		return
	}
	if want, right := u.v.codes.Display(c.System.Text, c.Version.Text, c.Code.Text, c.Display.Text); !right {
		u.report(outcome.Warning, "the display of the code %s|%s is %q, found %q", c.System.Text, c.Code.Text, want, outcome.Clip(c.Display.Text))
	}
}

// checkUnit checks that the code of a Quantity is one of its code system.
func (u *run) checkUnit(n fhir.Node) {
	var system, code string
	switch q := n.Element().(type) {
	case *r4.Quantity:
		system, code = q.System.Text, q.Code.Text
	case *r4.Age:
		system, code = q.System.Text, q.Code.Text
	case *r4.Count:
		system, code = q.System.Text, q.Code.Text
	case *r4.Distance:
		system, code = q.System.Text, q.Code.Text
	case *r4.Duration:
		system, code = q.System.Text, q.Code.Text
	}
	if system != "" && code != "" {
		u.inSystem(system, "", code)
	}
}

func (u *run) inSystem(system, version, code string) {
	if system == unitsOfMeasure {
		// https://ucum.org/ucum: the grammar is the code system.
		if _, err := ucum.Parse(code); err != nil {
			u.report(outcome.Failure, "expected a unit of UCUM, found %s: %v", code, err)
		}
		return
	}
	if in, known := u.v.codes.InSystem(system, version, code); known && !in && !u.reported() {
		u.report(outcome.Failure, "expected a code of the code system %s, found %s", system, code)
	}
}

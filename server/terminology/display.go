package terminology

import (
	"context"
	"slices"
	"time"

	"kiln/server/fhir"
)

// Display compares a display with those of a code, in every language and without regard to case and
// accents. right is false only where local definitions know the code and the display is none of its
// own; want is then the preferred display.
// Spec: https://hl7.org/fhir/R4/datatypes-definitions.html#Coding.display.
func (s *Service) Display(system, version, code, display string) (want string, right bool) {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	cs, err := s.recentSnapshot().codeSystem(ctx, canonical{system, version})
	if err != nil || cs == nil || grammars[system] != nil {
		return "", true
	}
	i, ok := cs.findConcept(code)
	if !ok {
		return "", true
	}
	c := &cs.concepts[i]
	given := fhir.FoldText(display)
	if c.display == "" && len(c.designation) == 0 || given == fhir.FoldText(c.display) ||
		slices.ContainsFunc(c.designation, func(d Designation) bool { return fhir.FoldText(d.Value) == given }) {
		return "", true
	}
	return c.display, false
}

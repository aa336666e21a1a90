package search

import "testing"

// A choice of types is distinguished from a repeating element, in each form that definitions use.
func TestOneChoice(t *testing.T) {
	t.Parallel()
	for expression, want := range map[string]bool{
		"Condition.onset.as(dateTime) | Condition.onset.as(Period)":                   true,
		"(Observation.value as dateTime) | (Observation.value as Period)":             true,
		"Observation.value.ofType(dateTime) | Observation.value.ofType(Period)":       true,
		"Condition.onset.as(Age) | Condition.abatement.as(Age)":                       false,
		"(Observation.value as Quantity) | (Observation.component.value as Quantity)": false,
		"Condition.onset.as(Period).start | Condition.onset.as(dateTime)":             false,
		"Patient.birthDate": false,
	} {
		if got := oneChoice(expression); got != want {
			t.Errorf("%s: %v, want %v", expression, got, want)
		}
	}
}

package fhir

import (
	"iter"
	"strconv"
	"strings"
)

// Expression is the FHIRPath of an element from its resource down, as an issue names
// it: "Patient.name[0].given[1]". steps gives the name of each element on the way, the
// resource type first, and its index from 0; -1 where the element does not repeat.
// Spec: https://hl7.org/fhir/R4/operationoutcome-definitions.html#OperationOutcome.issue.expression.
func Expression(steps iter.Seq2[string, int]) string {
	var b strings.Builder
	for name, index := range steps {
		if b.Len() > 0 {
			b.WriteByte('.')
		}
		b.WriteString(name)
		if index >= 0 {
			b.WriteByte('[')
			b.WriteString(strconv.Itoa(index))
			b.WriteByte(']')
		}
	}
	return b.String()
}

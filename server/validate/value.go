package validate

import (
	"slices"
	"strings"

	"kiln/server/fhir"
)

// equal compares two elements: fixed values.
func equal(a, b fhir.Node) bool {
	if a.T.Kind.Primitive() || b.T.Kind.Primitive() {
		return a.Text() == b.Text() && a.T.Kind.Primitive() == b.T.Kind.Primitive()
	}
	if a.T != b.T {
		return false
	}
	for i := range a.T.Fields {
		f := &a.T.Fields[i]
		x, y := a.AppendField(nil, f), b.AppendField(nil, f)
		if len(x) != len(y) {
			return false
		}
		for j := range x {
			if !equal(x[j], y[j]) {
				return false
			}
		}
	}
	return true
}

// contains reports whether n has everything that pattern has.
// Spec: https://hl7.org/fhir/R4/elementdefinition-definitions.html#ElementDefinition.pattern_x_.
func contains(n, pattern fhir.Node) bool {
	if n.T.Kind.Primitive() || pattern.T.Kind.Primitive() {
		return n.Text() == pattern.Text() && n.T.Kind.Primitive() == pattern.T.Kind.Primitive()
	}
	if n.T != pattern.T {
		return false
	}
	for i := range n.T.Fields {
		f := &n.T.Fields[i]
		have := n.AppendField(nil, f)
		for _, want := range pattern.AppendField(nil, f) {
			if !slices.ContainsFunc(have, func(h fhir.Node) bool { return contains(h, want) }) {
				return false
			}
		}
	}
	return true
}

// showValue is an element in a message.
func showValue(n fhir.Node) string {
	s := n.Text()
	if !n.T.Kind.Primitive() {
		s = string(fhir.Encode(nil, n.Element()))
	}
	if len(s) > 200 {
		s = strings.ToValidUTF8(s[:200], "") + "…"
	}
	return s
}

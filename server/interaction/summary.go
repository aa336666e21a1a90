package interaction

import (
	"strings"

	"kiln/server/fhir"
)

// inSummary reports whether `_summary=true` keeps an element: summary elements by their
// definition, mandatory elements and modifiers.
// Spec: https://hl7.org/fhir/R4/search.html#summary.
func inSummary(f *fhir.Field) bool { return f.Summary || f.Min > 0 || f.Modifier }

// summarizer cuts the children of an element of a summary by the rule for the resource's
// own elements. Extensions are no part of a summary, but a primitive keeps its own: they
// may replace its value.
type summarizer struct{ model *fhir.Model }

// keptPart is the kept part of the value of a property, nil for nothing.
func (s summarizer) keptPart(f *fhir.Field, name string, value []byte) []byte {
	if !inSummary(f) {
		return nil
	}
	of := s.typeOf(f, name)
	if of == nil || of.Kind != fhir.Complex || of.Name == "Extension" {
		return value
	}
	left := s.value(of, value)
	if left == nil && f.Min > 0 {
		return value // there must be one
	}
	return left
}

// typeOf is the type of a field's value under a property name, nil for a resource.
func (s summarizer) typeOf(f *fhir.Field, name string) *fhir.Type {
	switch {
	case f.AnyResource:
		return nil
	case !f.Choice():
		return f.Of.Type()
	}
	suffix := strings.TrimPrefix(strings.TrimPrefix(name, "_"), f.Name)
	if e := s.model.Datatypes[suffix]; e != nil {
		return e.Type()
	}
	return nil // a primitive, whose type begins with a small letter
}

// value is the kept part of an object or an array of objects, nil for nothing.
func (s summarizer) value(t *fhir.Type, value []byte) []byte {
	out := append(make([]byte, 0, len(value)), value[0])
	switch value[0] {
	case '{':
		for name, v := range EachMember(value) {
			if f := t.FieldOf(name); f != nil {
				if left := s.keptPart(f, name, v); left != nil {
					out = appendMember(out, name, left)
				}
			}
		}
	case '[':
		for item := range eachItem(value) {
			left := s.value(t, item)
			if left == nil {
				continue
			}
			if len(out) > 1 {
				out = append(out, ',')
			}
			out = append(out, left...)
		}
	}
	if len(out) == 1 {
		return nil
	}
	return append(out, value[len(value)-1])
}

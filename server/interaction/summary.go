package interaction

import (
	"strings"

	"kiln/server/fhir"
)

// inSummary reports whether `_summary=true` has an element: what its definition
// marks as summary, what is mandatory, and what changes the meaning of others.
// Spec: https://hl7.org/fhir/R4/search.html#summary.
func inSummary(f *fhir.Field) bool { return f.Summary || f.Min > 0 || f.Modifier }

// summarizer cuts what is inside an element of a summary: of the elements of
// datatypes and backbone elements the same holds as of those of the resource.
// Extensions are no part of a summary, but where a primitive has some they stay:
// they may stand for its value.
type summarizer struct{ model *fhir.Model }

// left is what is left of the value of a property, nil for nothing.
func (s summarizer) left(f *fhir.Field, name string, value []byte) []byte {
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

// value is what is left of an object or an array of objects, nil for nothing.
func (s summarizer) value(t *fhir.Type, value []byte) []byte {
	out := append(make([]byte, 0, len(value)), value[0])
	switch value[0] {
	case '{':
		for name, v := range Members(value) {
			if f := t.FieldOf(name); f != nil {
				if left := s.left(f, name, v); left != nil {
					out = appendMember(out, name, left)
				}
			}
		}
	case '[':
		for item := range items(value) {
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

package validate

import (
	"bytes"
	"strings"

	"kiln/server/fhir"
)

// currentPlace is the line and column, from 1, at which the value at the end of the path
// begins in the JSON that the resource was decoded from; 0 where there is none.
func (u *run) currentPlace() (line, column int) {
	if len(u.raw) == 0 || len(u.path) == 0 {
		return 0, 0
	}
	before := u.raw[:offsetOf(u.raw, u.path[1:])]
	line = 1 + bytes.Count(before, []byte("\n"))
	return line, len(before) - bytes.LastIndexByte(before, '\n')
}

// offsetOf returns where the value at a path begins in a JSON object. Where the
// path leads nowhere it is where the last value on the way begins.
func offsetOf(object []byte, path []segment) int {
	s := scanner{b: object}
	s.space()
	at := s.i
	for i, step := range path {
		// A primitive has its id and extensions in a property of their own.
		primitive := step.typ != nil && step.typ.Kind.Primitive()
		extra := i+1 < len(path) && primitive
		from := s.i
		found := s.member(step, extra)
		if !found && primitive && !extra {
			s.i = from // it has no value
			found = s.member(step, true)
		}
		if !found {
			return at
		}
		at = s.i
		if step.index >= 0 {
			if !s.item(step.index) {
				return at
			}
			at = s.i
		}
	}
	return at
}

// scanner walks over JSON that was decoded before: it is well-formed.
type scanner struct {
	b []byte
	i int
}

func (s *scanner) peek() byte {
	if s.i < len(s.b) {
		return s.b[s.i]
	}
	return 0
}

func (s *scanner) space() {
	for s.i < len(s.b) && (s.b[s.i] == ' ' || s.b[s.i] == '\n' || s.b[s.i] == '\t' || s.b[s.i] == '\r') {
		s.i++
	}
}

// member goes from the beginning of an object to the value of an element.
func (s *scanner) member(step segment, extra bool) bool {
	if s.peek() != '{' {
		return false
	}
	s.i++
	for {
		s.space()
		if s.peek() != '"' {
			return false
		}
		start := s.i
		s.value()
		name := string(s.b[start+1 : max(start+1, s.i-1)])
		s.space()
		if s.peek() != ':' {
			return false
		}
		s.i++
		s.space()
		if step.is(name, extra) {
			return true
		}
		s.value()
		s.space()
		if s.peek() != ',' {
			return false
		}
		s.i++
	}
}

// is reports whether a property holds the element, or with extra the id and extensions of a
// primitive.
func (s segment) is(property string, extra bool) bool {
	if extra {
		var ok bool
		if property, ok = strings.CutPrefix(property, "_"); !ok {
			return false
		}
	}
	rest, ok := strings.CutPrefix(property, s.name)
	if !ok || rest == "" || s.typ == nil {
		return ok && rest == ""
	}
	typ := s.typ.Name
	return rest == strings.ToUpper(typ[:1])+typ[1:] && s.typ.Kind != fhir.ResourceKind
}

// item goes from the beginning of an array to one of its items.
func (s *scanner) item(n int) bool {
	if s.peek() != '[' {
		return false
	}
	s.i++
	s.space()
	for range n {
		s.value()
		s.space()
		if s.peek() != ',' {
			return false
		}
		s.i++
		s.space()
	}
	return s.i < len(s.b)
}

// value goes past a value.
func (s *scanner) value() {
	depth := 0
	for s.i < len(s.b) {
		switch c := s.b[s.i]; c {
		case '"':
			for s.i++; s.i < len(s.b) && s.b[s.i] != '"'; s.i++ {
				if s.b[s.i] == '\\' {
					s.i++
				}
			}
			s.i++
		case '{', '[':
			depth++
			s.i++
		case '}', ']':
			if depth == 0 {
				return
			}
			depth--
			s.i++
		case ',':
			if depth == 0 {
				return
			}
			s.i++
		default:
			s.i++
			// A number or a word ends before a separator.
			if depth == 0 && s.i < len(s.b) && strings.IndexByte(",]} \n\t\r", s.b[s.i]) >= 0 {
				return
			}
			continue
		}
		if depth == 0 {
			return
		}
	}
}

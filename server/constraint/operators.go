package constraint

import (
	"regexp"
	"slices"
	"sync"

	"kiln/server/fhir"
	"kiln/server/fhirpath"
)

// Some reports whether test is true of an item of list.
func Some[T any](list []T, test func(*T) bool) bool {
	for i := range list {
		if test(&list[i]) {
			return true
		}
	}
	return false
}

// First is first(): the first item of list, if there is one.
func First[T any](list []T) []T { return list[:min(1, len(list))] }

// Tail is tail(): all but the first item.
func Tail[T any](list []T) []T { return list[min(1, len(list)):] }

// As reports whether the choice element e is of type T, and test is true of it.
func As[T fhir.Element](e fhir.Element, test func(T) bool) bool {
	v, ok := e.(T)
	return ok && test(v)
}

// Is reports whether e is of type T.
func Is[T fhir.Element](e fhir.Element) bool {
	_, ok := e.(T)
	return ok
}

// Count is how many items an element has that does not repeat.
func Count(present bool) int {
	if present {
		return 1
	}
	return 0
}

// Has reports whether a path of element names leads anywhere from e.
func Has(e fhir.Element, path ...string) bool { return has(fhir.NodeOf(e), path) }

func has(n fhir.Node, path []string) bool {
	if len(path) == 0 {
		return true
	}
	return slices.ContainsFunc(n.AppendChild(nil, path[0]), func(c fhir.Node) bool { return has(c, path[1:]) })
}

// Text is the text of the primitive that a path of elements that do not repeat
// leads to, "" where it leads nowhere.
func Text(e fhir.Element, path ...string) string {
	n := fhir.NodeOf(e)
	for _, name := range path {
		list := n.AppendChild(nil, name)
		if len(list) != 1 {
			return ""
		}
		n = list[0]
	}
	return n.Text()
}

// Share reports whether a and b have an item in common, by =.
func Share[T any, P interface {
	*T
	fhir.Element
}](c *Context, a, b []T) bool {
	for i := range a {
		x := fhirpath.NodeValue(fhir.NodeOf(P(&a[i])))
		for j := range b {
			if !c.spend() {
				return false
			}
			if fhirpath.Equal(x, fhirpath.NodeValue(fhir.NodeOf(P(&b[j])))) {
				return true
			}
		}
	}
	return false
}

// Certain reports whether `a op b` is true, op being <, <=, > or >=.
func Certain(a fhir.Element, op string, b fhir.Element) bool {
	order, known := fhirpath.Compare(value(a), value(b))
	return known && ordered(order, op)
}

// Possible reports whether `a op b` is not false: it is true, or the data leave it
// open.
func Possible(a fhir.Element, op string, b fhir.Element) bool {
	order, known := fhirpath.Compare(value(a), value(b))
	return !known || ordered(order, op)
}

// CertainNumber is Certain for a whole number.
func CertainNumber(a fhir.Element, op string, n int32) bool {
	order, known := fhirpath.Compare(value(a), fhirpath.Integer(n))
	return known && ordered(order, op)
}

// PossibleNumber is Possible for a whole number.
func PossibleNumber(a fhir.Element, op string, n int32) bool {
	order, known := fhirpath.Compare(value(a), fhirpath.Integer(n))
	return !known || ordered(order, op)
}

func value(e fhir.Element) fhirpath.Value { return fhirpath.NodeValue(fhir.NodeOf(e)) }

func ordered(order int, op string) bool {
	switch op {
	case "<":
		return order < 0
	case "<=":
		return order <= 0
	case ">":
		return order > 0
	}
	return order >= 0
}

// Seen tells which values came before.
type Seen struct{ values fhirpath.Set }

// Distinct is isDistinct(): again walks over the items, asks seen about each of
// them and stops at the first that was there before.
func Distinct(c *Context, again func(seen *Seen) bool) bool {
	var s Seen
	found := again(&s)
	if err := s.values.Err(); err != nil {
		c.Err = err
	}
	return !found
}

// Again reports whether an equal item was there before.
func (s *Seen) Again(e fhir.Element) bool { return !s.values.Add(value(e)) }

// AgainText is Again for a String.
func (s *Seen) AgainText(text string) bool { return !s.values.Add(fhirpath.String(text)) }

// Pattern is a regular expression of matches(), compiled at first use.
type Pattern struct{ compiled func() *regexp.Regexp }

// NewPattern returns a Pattern. The expression was tried when code was generated.
func NewPattern(expression string) *Pattern {
	return &Pattern{sync.OnceValue(func() *regexp.Regexp {
		re, err := fhirpath.Pattern(expression)
		if err != nil {
			panic(err)
		}
		return re
	})}
}

// Matches reports whether the pattern is found in text.
func (p *Pattern) Matches(text string) bool { return p.compiled().MatchString(text) }

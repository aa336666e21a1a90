package validate

import (
	"strings"

	"kiln/gen/r4"
	"kiln/server/fhir"
	"kiln/server/outcome"
)

// binding checks the codes of n against a value set.
func (u *run) binding(n fhir.Node, b *binding) {
	if !b.required && !u.options.Warnings {
		return
	}
	severity := outcome.Failure
	if !b.required {
		severity = outcome.Warning
	}
	var found string
	switch e := n.Element().(type) {
	case *r4.CodeableConcept:
		if len(e.Coding) == 0 {
			// Where the binding is extensible, text is what stands for a concept that it
			// has no code for; an extension may say why there is none.
			// Spec: https://hl7.org/fhir/R4/terminologies.html#strength.
			if b.required && len(e.Extension) == 0 {
				u.report(severity, "expected a code of %s (required binding), found none", b.valueSet)
			}
			return
		}
		for i := range e.Coding {
			c := &e.Coding[i]
			if u.coding(b, c.System.Text, c.Code.Text) != outside {
				return
			}
			if found != "" {
				found += ", "
			}
			found += c.System.Text + "|" + c.Code.Text
		}
	case *r4.Coding:
		if e.Code.Text == "" || u.coding(b, e.System.Text, e.Code.Text) != outside {
			return
		}
		found = e.System.Text + "|" + e.Code.Text
	case *r4.Quantity:
		if e.Code.Text == "" || u.coding(b, e.System.Text, e.Code.Text) != outside {
			return
		}
		found = e.System.Text + "|" + e.Code.Text
	default:
		if !n.T.Kind.Primitive() || n.Text() == "" || u.code(b, n.Text()) != outside {
			return
		}
		found = n.Text()
	}
	word := "required"
	if !b.required {
		word = "extensible"
	}
	hint := ""
	if list := u.v.codes.Listed(b.valueSet, maxHint); len(list) > 0 {
		hint = "; it has " + strings.Join(list, ", ")
	}
	u.report(severity, "expected a code of %s (%s binding), found %s%s", b.valueSet, word, found, hint)
}

// maxHint is how many codes a value set may have to be told in full.
const maxHint = 12

// answer is whether a code is in a value set.
type answer uint8

const (
	undecidable answer = iota // the value set, or a code system of it, is not known
	inside
	outside
)

// coding asks for a code with its system. One without system is in no value set.
func (u *run) coding(b *binding, system, code string) answer {
	in, known := u.v.codes.Contains(b.valueSet, system, code)
	return answerOf(in && system != "", known)
}

// code asks for a code whose system the element implies.
func (u *run) code(b *binding, code string) answer {
	return answerOf(u.v.codes.Contains(b.valueSet, "", code))
}

func answerOf(in, known bool) answer {
	switch {
	case in:
		return inside
	case known:
		return outside
	}
	return undecidable
}

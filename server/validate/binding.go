package validate

import (
	"strings"

	"kiln/gen/r4"
	"kiln/server/fhir"
	"kiln/server/outcome"
)

// administrative are the value sets by which HL7 administers its own definitions. R4 has
// them as they were in 2019: later definitions have newer codes in R4's extensions, which
// is a warning.
var administrative = map[string]bool{
	"http://hl7.org/fhir/ValueSet/hl7-work-group":             true,
	"http://hl7.org/fhir/ValueSet/standards-status":           true,
	"http://hl7.org/fhir/ValueSet/FHIR-version":               true,
	"http://hl7.org/fhir/ValueSet/resource-security-category": true,
	"http://hl7.org/fhir/ValueSet/template-status-code":       true,
}

// binding checks the codes of n against a value set.
func (u *run) binding(n fhir.Node, b *binding) {
	lenient := !b.required || u.applied != nil && u.applied.typ == "Extension" && administrative[b.valueSet]
	if lenient && !u.options.Warnings {
		return
	}
	severity := outcome.Failure
	if lenient {
		severity = outcome.Warning
	}
	var found []string
	open := "" // a code that may be in the value set
	ask := func(system, code string, implied bool) (in bool) {
		switch u.checkMember(b, system, code, implied) {
		case inside:
			return true
		case undecidable:
			open = strings.TrimPrefix(system+"|"+code, "|")
		}
		found = append(found, strings.TrimPrefix(system+"|"+code, "|"))
		return false
	}
	switch e := n.Element().(type) {
	case *r4.CodeableConcept:
		if len(e.Coding) == 0 {
			// Where the binding is extensible, text replaces a code for a concept without
			// one; an extension may give the reason.
			// Spec: https://hl7.org/fhir/R4/terminologies.html#strength.
			if b.required && len(e.Extension) == 0 {
				u.report(severity, "expected a code of %s (required binding), found none", b.valueSet)
			}
			return
		}
		for i := range e.Coding {
			if ask(e.Coding[i].System.Text, e.Coding[i].Code.Text, false) {
				return
			}
		}
	case *r4.Coding:
		if e.Code.Text == "" || ask(e.System.Text, e.Code.Text, false) {
			return
		}
	case *r4.Quantity:
		if e.Code.Text == "" || ask(e.System.Text, e.Code.Text, false) {
			return
		}
	default:
		if !n.T.Kind.Primitive() || n.Text() == "" || ask("", n.Text(), true) {
			return
		}
	}
	if open != "" {
		// One code that may be right is enough.
		if b.required && u.options.Warnings {
			u.reportAs(outcome.Warning, outcome.CodeIncomplete, "the required binding to %s was not checked: whether it has the code %s is not known here", b.valueSet, open)
		}
		return
	}
	word := "required"
	if !b.required {
		word = "extensible"
	}
	hint := ""
	if list := u.v.codes.Listed(b.valueSet, maxHint); len(list) > 0 {
		hint = "; it has " + strings.Join(list, ", ")
	}
	u.report(severity, "expected a code of %s (%s binding), found %s%s", b.valueSet, word, strings.Join(found, ", "), hint)
}

const dataAbsentReason = "http://terminology.hl7.org/CodeSystem/data-absent-reason"

// checkMaximum checks the codes of n against a maximum value set, which binds codes as a required binding
// does. A concept without a code is not bound, and a code of dataAbsentReason says that there is none: US Core asks for
// it where data are missing.
// Spec: https://hl7.org/fhir/R4/extension-elementdefinition-maxvalueset.html;
// https://hl7.org/fhir/us/core/STU6.1/general-guidance.html#missing-data.
func (u *run) checkMaximum(n fhir.Node, valueSet string) {
	if !u.options.Strict && !u.options.Warnings {
		return
	}
	type concept struct{ system, code string }
	var codings []concept
	switch e := n.Element().(type) {
	case *r4.CodeableConcept:
		for i := range e.Coding {
			codings = append(codings, concept{e.Coding[i].System.Text, e.Coding[i].Code.Text})
		}
	case *r4.Coding:
		codings = []concept{{e.System.Text, e.Code.Text}}
	case *r4.Quantity:
		codings = []concept{{e.System.Text, e.Code.Text}}
	default:
		if n.T.Kind.Primitive() && n.Text() != "" {
			codings = []concept{{"", n.Text()}}
		}
	}
	b := &binding{required: true, valueSet: valueSet}
	var found []string
	for _, c := range codings {
		if c.code == "" {
			continue
		}
		if c.system == dataAbsentReason || u.checkMember(b, c.system, c.code, n.T.Kind.Primitive()) != outside {
			return
		}
		found = append(found, strings.TrimPrefix(c.system+"|"+c.code, "|"))
	}
	if len(found) > 0 && !u.reported() {
		u.reportFailure("expected a code of %s (maximum value set), found %s", valueSet, strings.Join(found, ", "))
	}
}

// maximumOf returns the maximum value set of a binding, "" for none.
func maximumOf(b *r4.ElementDefinitionBinding) string {
	for i := range b.Extension {
		x := &b.Extension[i]
		if x.URL.Text != maximumExtension {
			continue
		}
		if x.Value == nil {
			continue
		}
		url, _, _ := strings.Cut(fhir.NodeOf(x.Value).Text(), "|")
		return strings.Clone(url)
	}
	return ""
}

// maxHint is how many codes a value set may have to be listed in full.
const maxHint = 12

// answer is whether a code is in a value set.
type answer uint8

const (
	undecidable answer = iota // the value set, or a code system of it, is not known
	inside
	outside
)

// checkMember asks whether a code is in the value set of a binding. Where local definitions
// cannot tell, a required binding asks the terminology server.
func (u *run) checkMember(b *binding, system, code string, implied bool) answer {
	found := u.coding(b, system, code, implied)
	if found != undecidable || !b.required || u.options.Terminology == nil || u.ctx.Err() != nil {
		return found
	}
	in, known, err := u.options.Terminology.MemberOf(u.ctx, system, code, b.valueSet)
	if err != nil {
		return undecidable
	}
	return answerOf(in && (implied || system != ""), known)
}

// coding asks for a code as far as local definitions tell. implied says that the element
// implies the system, which is "" then; a Coding without system is in no value set.
func (u *run) coding(b *binding, system, code string, implied bool) answer {
	in, known := u.v.codes.Contains(b.valueSet, system, code)
	return answerOf(in && (implied || system != ""), known)
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

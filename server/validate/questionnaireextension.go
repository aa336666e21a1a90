package validate

import (
	"encoding/base64"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"kiln/gen/r4"
	"kiln/server/fhir"
	"kiln/server/fhirpath"
	"kiln/server/outcome"
)

// R4's extensions of a Questionnaire's items that restrict answers, without the beginning of their URLs.
// Spec: https://hl7.org/fhir/R4/questionnaire-profiles.html (extensions).
const (
	minValue          = "minValue"
	maxValue          = "maxValue"
	minLength         = "minLength"
	answerPattern     = "regex"
	maxDecimalPlaces  = "maxDecimalPlaces"
	mimeType          = "mimeType"
	maxSize           = "maxSize"
	minOccurs         = "questionnaire-minOccurs"
	maxOccurs         = "questionnaire-maxOccurs"
	optionExclusive   = "questionnaire-optionExclusive"
	referenceResource = "questionnaire-referenceResource"
	unitOption        = "questionnaire-unitOption"
	unitValueSet      = "questionnaire-unitValueSet"
)

// uncheckedExtensions restrict answers too. A response to an item that has one gets a warning.
var uncheckedExtensions = []string{"questionnaire-constraint", "questionnaire-referenceProfile", "questionnaire-signatureRequired"}

const extensionBase = "http://hl7.org/fhir/StructureDefinition/"

// restrictions returns the values of an extension of R4 by its name.
func restrictions(list []fhir.Extension, name string) (values []fhir.Element) {
	for i := range list {
		if list[i].URL.Text == extensionBase+name && list[i].Value != nil {
			values = append(values, list[i].Value)
		}
	}
	return values
}

// restriction returns the number in an extension of R4 by its name.
func restriction(list []fhir.Extension, name string) (n int, ok bool) {
	for _, v := range restrictions(list, name) {
		if n, err := strconv.Atoi(fhir.NodeOf(v).Text()); err == nil {
			return n, true
		}
	}
	return 0, false
}

// restrictedCount checks how often an item is there, or how many answers a question has.
func (a *answers) restrictedCount(d *r4.QuestionnaireItem, count int) {
	if least, ok := restriction(d.Extension, minOccurs); ok && count < least && a.complete && (count > 0 || d.Required.Text == "true") {
		a.report(outcome.Failure, "item %s occurs at least %d times (%s): found %d", d.LinkID.Text, least, minOccurs, count)
	}
	if most, ok := restriction(d.Extension, maxOccurs); ok && count > most {
		a.report(outcome.Failure, "item %s occurs at most %d times (%s): found %d", d.LinkID.Text, most, maxOccurs, count)
	}
}

// restrictedItem checks the answers of a question together, and warns of restrictions that are not checked.
func (a *answers) restrictedItem(it *r4.QuestionnaireResponseItem, d *r4.QuestionnaireItem) {
	for i := range d.AnswerOption {
		o := &d.AnswerOption[i]
		exclusive := restrictions(o.Extension, optionExclusive)
		if len(exclusive) == 0 || fhir.NodeOf(exclusive[0]).Text() != "true" || len(it.Answer) < 2 {
			continue
		}
		if slices.ContainsFunc(it.Answer, func(v r4.QuestionnaireResponseItemAnswer) bool { return sameAnswer(o.Value, v.Value) }) {
			a.report(outcome.Failure, "item %s has an answer that excludes others (%s): found %d answers", d.LinkID.Text, optionExclusive, len(it.Answer))
		}
	}
	if !a.options.Warnings || len(it.Answer) == 0 {
		return
	}
	for i := range d.Extension {
		if name := strings.TrimPrefix(d.Extension[i].URL.Text, extensionBase); slices.Contains(uncheckedExtensions, name) {
			a.reportAs(outcome.Warning, outcome.CodeIncomplete, "the extension %s of item %s was not checked", name, d.LinkID.Text)
		}
	}
}

// restrictedAnswer checks one answer.
func (a *answers) restrictedAnswer(v fhir.Element, d *r4.QuestionnaireItem) {
	text := fhir.NodeOf(v).Text()
	for _, limit := range []struct {
		name   string
		beyond int // the order of an answer that is beyond the limit
	}{{minValue, -1}, {maxValue, 1}} {
		for _, bound := range restrictions(d.Extension, limit.name) {
			order, known := fhirpath.Compare(fhirpath.NodeValue(fhir.NodeOf(v)), fhirpath.NodeValue(fhir.NodeOf(bound)))
			if known && order == limit.beyond {
				a.report(outcome.Failure, "the %s of item %s is %s: found %s", limit.name, d.LinkID.Text, fhir.NodeOf(bound).Text(), text)
			}
		}
	}
	switch v := v.(type) {
	case *fhir.String:
		if least, ok := restriction(d.Extension, minLength); ok && utf8.RuneCountInString(text) < least {
			a.report(outcome.Failure, "expected at least %d characters (%s), found %d", least, minLength, utf8.RuneCountInString(text))
		}
		a.restrictedPattern(text, d)
	case *fhir.Decimal:
		_, digits, _ := strings.Cut(text, ".")
		if most, ok := restriction(d.Extension, maxDecimalPlaces); ok && len(digits) > most {
			a.report(outcome.Failure, "expected at most %d digits behind the point (%s), found %d", most, maxDecimalPlaces, len(digits))
		}
	case *r4.Attachment:
		a.restrictedAttachment(v, d)
	case *r4.Reference:
		types := restrictions(d.Extension, referenceResource)
		if typ, _, ok := strings.Cut(v.Reference.Text, "/"); ok && len(types) > 0 && a.v.plans.model.Resources[typ] != nil &&
			!slices.ContainsFunc(types, func(t fhir.Element) bool { return fhir.NodeOf(t).Text() == typ }) {
			a.report(outcome.Failure, "item %s takes no reference to a %s (%s)", d.LinkID.Text, typ, referenceResource)
		}
	case *r4.Quantity:
		a.restrictedUnit(v, d)
	}
}

// restrictedPattern checks a text against the regular expressions of an item, which match it as a whole.
func (a *answers) restrictedPattern(text string, d *r4.QuestionnaireItem) {
	for _, x := range restrictions(d.Extension, answerPattern) {
		pattern, err := regexp.Compile(`^(?:` + fhir.NodeOf(x).Text() + `)$`)
		switch {
		case err != nil && a.options.Warnings:
			a.reportAs(outcome.Warning, outcome.CodeIncomplete, "the regular expression of item %s is not one that is known here, and was not checked", d.LinkID.Text)
		case err == nil && !pattern.MatchString(text):
			a.report(outcome.Failure, "the answer to item %s does not match its regular expression %s", d.LinkID.Text, fhir.NodeOf(x).Text())
		}
	}
}

func (a *answers) restrictedAttachment(v *r4.Attachment, d *r4.QuestionnaireItem) {
	types := restrictions(d.Extension, mimeType)
	if len(types) > 0 && v.ContentType.Text != "" && !slices.ContainsFunc(types, func(t fhir.Element) bool { return fhir.NodeOf(t).Text() == v.ContentType.Text }) {
		a.report(outcome.Failure, "item %s takes no attachment of type %s (%s)", d.LinkID.Text, v.ContentType.Text, mimeType)
	}
	for _, x := range restrictions(d.Extension, maxSize) {
		most, err := strconv.ParseFloat(fhir.NodeOf(x).Text(), 64) // MB
		if size := base64.StdEncoding.DecodedLen(len(v.Data.Text)); err == nil && float64(size) > most*1e6+2 {
			a.report(outcome.Failure, "item %s takes attachments up to %s MB (%s)", d.LinkID.Text, fhir.NodeOf(x).Text(), maxSize)
		}
	}
}

func (a *answers) restrictedUnit(v *r4.Quantity, d *r4.QuestionnaireItem) {
	units := restrictions(d.Extension, unitOption)
	if len(units) > 0 && !slices.ContainsFunc(units, func(u fhir.Element) bool {
		c, ok := u.(*r4.Coding)
		return ok && c.System.Text == v.System.Text && c.Code.Text == v.Code.Text
	}) {
		a.report(outcome.Failure, "item %s takes no quantity in %s (%s)", d.LinkID.Text, strings.TrimPrefix(v.System.Text+"|"+v.Code.Text, "|"), unitOption)
	}
	for _, x := range restrictions(d.Extension, unitValueSet) {
		a.binding(fhir.NodeOf(v), &binding{required: true, valueSet: fhir.NodeOf(x).Text()})
	}
}

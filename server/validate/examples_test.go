package validate_test

import (
	"context"
	"strings"
	"testing"

	"kiln/definitions"
	"kiln/definitions/examples"
	"kiln/gen/r4"
	"kiln/server/fhir"
	"kiln/server/outcome"
	"kiln/server/terminology"
	"kiln/server/validate"
)

// faultyExamples are HL7's examples that are not valid, by type and id, each with a part of
// the report and the reason why it is right.
var faultyExamples = map[string]struct{ issue, reason string }{
	"Questionnaire/qs1":                            {"linkId is required", "nested items have no linkId, which is 1..1"},
	"ActivityDefinition/blood-tubes-supply":        {"the div has no content", "the narrative is white space, against txt-2"},
	"ActivityDefinition/heart-valve-replacement":   {"the div has no content", "as above"},
	"EventDefinition/example":                      {"the div has no content", "as above"},
	"Questionnaire/zika-virus-exposure-assessment": {"the div has no content", "as above"},
	"DeviceMetric/example":                         {"expected a reference to Device", "parent refers to a DeviceDefinition"},
	"DeviceUseStatement/example":                   {"expected a reference to Condition", "reasonReference refers to a Procedure"},
	"MedicationRequest/medrx0301":                  {"expected a reference to Organization", "performer refers to a Practitioner"},
	"Bundle/hla-1":                                 {"has no part uri", "the extension calls it url"},
	"Observation/clinical-gender":                  {"expected a reference to CareTeam", "performer refers to an Encounter"},
}

func library(t testing.TB) *definitions.Library {
	lib, err := definitions.Open(definitions.FS)
	if err != nil {
		t.Fatal(err)
	}
	return lib
}

// codes are the value sets of the packages.
func codes(t testing.TB) *terminology.Service {
	s, err := terminology.New(terminology.Config{Packages: definitions.Embedded})
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func newValidator(t testing.TB) *validate.Validator {
	return validate.New(r4.Model, library(t), codes(t))
}

// TestExamples validates HL7's examples: no error but in those that are listed.
func TestExamples(t *testing.T) {
	all, err := examples.All()
	if err != nil {
		t.Fatal(err)
	}
	v := newValidator(t)
	count := 0
	met := map[string]bool{}
	for _, b := range all {
		r, err := fhir.Decode(r4.Model, b)
		if err != nil {
			continue // not well-formed: listed by the codec's test
		}
		count++
		name := r.Type().Name + "/" + r.Header().ID.Text
		faulty, listed := faultyExamples[name]
		for _, i := range v.Validate(context.Background(), r, validate.Options{Warnings: true}) {
			if i.Severity != outcome.Failure {
				continue
			}
			met[name] = true
			if !listed || !strings.Contains(i.Diagnostics, faulty.issue) {
				t.Errorf("%s: %s: %s", name, i.Expression, i.Diagnostics)
			}
		}
	}
	for name, faulty := range faultyExamples {
		if !met[name] {
			t.Errorf("%s is listed as faulty (%s) and has no error", name, faulty.reason)
		}
	}
	if count < 700 {
		t.Errorf("validated only %d examples", count)
	}
	if list := v.Uncompiled(); len(list) > 0 {
		t.Errorf("invariants that do not compile: %s", strings.Join(list, "; "))
	}
}

// strictlyFaulty are what HL7's examples break of the rules that Options.Strict makes
// errors of, with the reason that the example is wrong.
var strictlyFaulty = map[string]string{
	"modifier extension http://example.org/do-not-use/": "their definitions exist nowhere",
	"fullUrl must not disagree with the id":             "pat12 for pat2, lri-growth1 for growth1",
	"expected a unit of UCUM":                           "tbl, TAB, drop, mEq, mcg, ea, ml/hr and month are no units of UCUM",
	"CodeSystem/v3-orderableDrugForm, found":            "Tab, tab, patch and Vial: the codes are TAB, PATCH and VIAL",
}

// TestExamplesStrictly validates HL7's examples as $validate does.
func TestExamplesStrictly(t *testing.T) {
	all, err := examples.All()
	if err != nil {
		t.Fatal(err)
	}
	v := newValidator(t)
	met := map[string]bool{}
	for _, b := range all {
		r, err := fhir.Decode(r4.Model, b)
		if err != nil {
			continue
		}
		name := r.Type().Name + "/" + r.Header().ID.Text
		for _, i := range v.Validate(context.Background(), r, validate.Options{Strict: true}) {
			known := strings.Contains(i.Diagnostics, faultyExamples[name].issue) && faultyExamples[name].issue != ""
			for text := range strictlyFaulty {
				if strings.Contains(i.Diagnostics, text) {
					known, met[text] = true, true
				}
			}
			if !known {
				t.Errorf("%s: %s: %s", name, i.Expression, i.Diagnostics)
			}
		}
	}
	for text, reason := range strictlyFaulty {
		if !met[text] {
			t.Errorf("%q (%s) is reported of no example", text, reason)
		}
	}
}

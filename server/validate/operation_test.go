package validate_test

import (
	"context"
	"strings"
	"testing"

	"kiln/server/outcome"
	"kiln/server/validate"
)

func TestOperate(t *testing.T) {
	v := newValidator(t)
	more := `"language":"en"`
	tests := []struct {
		name string
		op   validate.Operation
		want []string
	}{
		{"a valid resource", validate.Operation{Type: "Patient", Body: []byte(`{"resourceType":"Patient",` + more + `}`)}, []string{"information : the resource is valid"}},
		{"warnings come behind errors", validate.Operation{Body: []byte(`{"resourceType":"Condition","category":[{"text":"x"}]}`)}, []string{
			"error Condition: subject is required", "warning Condition: constraint con-3"}},
		{"a warning does not make a resource invalid", validate.Operation{Body: []byte(`{"resourceType":"Condition","subject":{"reference":"Patient/1"},"category":[{"text":"x"}]}`)}, []string{
			"warning Condition: constraint con-3", "information : the resource is valid"}},
		{"Parameters", validate.Operation{Type: "Patient", Body: []byte(`{"resourceType":"Parameters","parameter":[{"name":"resource","resource":{"resourceType":"Patient","gender":"x",` + more + `}},{"name":"mode","valueCode":"create"}]}`)}, []string{
			"error Patient.gender: expected a code of"}},
		{"a profile in Parameters", validate.Operation{Body: []byte(`{"resourceType":"Parameters","parameter":[{"name":"profile","valueUri":"http://hl7.org/fhir/StructureDefinition/vitalsigns"},{"name":"resource","resource":{"resourceType":"Observation","status":"final","code":{"text":"x"},"subject":{"reference":"Patient/1"},"effectiveDateTime":"2020-01-01","valueString":"y",` + more + `}}]}`)}, []string{
			"error Observation: category is required", "error Observation: category:VSCat is required"}},
		{"what cannot be decoded", validate.Operation{Body: []byte(`{"resourceType":"Patient","nam":1}`)}, []string{`error Patient: unknown element "nam"`}},
		{"no JSON", validate.Operation{Body: []byte(`{`)}, []string{"error "}},
		{"another type", validate.Operation{Type: "Patient", Body: []byte(`{"resourceType":"Basic","code":{"text":"x"},` + more + `}`)}, []string{"error Basic: expected resource type Patient, found Basic"}},
		{"another id", validate.Operation{Type: "Patient", ID: "1", Mode: "update", Body: []byte(`{"resourceType":"Patient","id":"2",` + more + `}`)}, []string{"error Patient.id: expected the id 1 of the URL, found 2"}},
		{"a create ignores the id", validate.Operation{Type: "Patient", Mode: "create", Body: []byte(`{"resourceType":"Patient","id":"not_an_id",` + more + `}`)}, []string{"information : the resource is valid"}},
		{"a relative system is an error", validate.Operation{Type: "Patient", Body: []byte(`{"resourceType":"Patient","identifier":[{"system":"x"}],` + more + `}`)}, []string{"error Patient.identifier[0].system: expected an absolute URI"}},
		{"a create passes with a relative system", validate.Operation{Type: "Patient", Mode: "create", Body: []byte(`{"resourceType":"Patient","identifier":[{"system":"x"}],` + more + `}`)}, []string{
			"warning Patient.identifier[0].system: expected an absolute URI", "information : the resource is valid"}},
		{"an update passes with a relative system", validate.Operation{Type: "Patient", Mode: "update", Body: []byte(`{"resourceType":"Patient","id":"1","identifier":[{"system":"x"}],` + more + `}`)}, []string{
			"warning Patient.identifier[0].system: expected an absolute URI", "information : the resource is valid"}},
		{"an unknown profile in the resource and the request", validate.Operation{Profiles: []string{"http://example.org/none"}, Body: []byte(`{"resourceType":"Patient","meta":{"profile":["http://example.org/none"]},` + more + `}`)}, []string{
			"error Patient: profile http://example.org/none is not known here"}},
		{"an unknown profile twice in the request", validate.Operation{Profiles: []string{"http://example.org/none", "http://example.org/none"}, Body: []byte(`{"resourceType":"Patient",` + more + `}`)}, []string{
			"error Patient: profile http://example.org/none is not known here"}},
		{"an unknown profile twice in the resource", validate.Operation{Body: []byte(`{"resourceType":"Patient","meta":{"profile":["http://example.org/none","http://example.org/none"]},` + more + `}`)}, []string{
			"warning Patient: profile http://example.org/none is not known here", "information : the resource is valid"}},
		{"a known profile in both", validate.Operation{Profiles: []string{"http://hl7.org/fhir/StructureDefinition/vitalsigns"}, Body: []byte(`{"resourceType":"Observation","meta":{"profile":["http://hl7.org/fhir/StructureDefinition/vitalsigns"]},"status":"final","code":{"text":"x"},"category":[{"coding":[{"system":"http://terminology.hl7.org/CodeSystem/observation-category","code":"vital-signs"}]}],"subject":{"reference":"Patient/1"},"effectiveDateTime":"2020",` + more + `}`)}, []string{
			"error Observation.effective: constraint vs-1", "error Observation: constraint vs-2"}},
		{"a work group that R4 does not list", validate.Operation{Body: []byte(`{"resourceType":"CodeSystem","url":"http://example.org/c","name":"C","status":"active","content":"complete","extension":[{"url":"http://hl7.org/fhir/StructureDefinition/structuredefinition-wg","valueCode":"cgp"}],` + more + `}`)}, []string{
			"warning CodeSystem.extension[0].value: expected a code of http://hl7.org/fhir/ValueSet/hl7-work-group", "information : the resource is valid"}},
		{"a standards status that R4 does not list", validate.Operation{Body: []byte(`{"resourceType":"CodeSystem","url":"http://example.org/c","name":"C","status":"active","content":"complete","extension":[{"url":"http://hl7.org/fhir/StructureDefinition/structuredefinition-standards-status","valueCode":"retired"}],` + more + `}`)}, []string{
			"warning CodeSystem.extension[0].value: expected a code of http://hl7.org/fhir/ValueSet/standards-status", "information : the resource is valid"}},
		{"a delete", validate.Operation{Type: "Patient", ID: "1", Mode: "delete"}, []string{"information : nothing is known"}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got, err := v.Operate(context.Background(), tt.op, validate.Options{})
			if err != nil {
				t.Fatal(err)
			}
			if len(got) != len(tt.want) {
				t.Fatalf("got %+v, want %v", got, tt.want)
			}
			for i, issue := range got {
				if text := string(issue.Severity) + " " + issue.Expression + ": " + issue.Diagnostics; !strings.HasPrefix(text, tt.want[i]) {
					t.Errorf("got %s, want %s", text, tt.want[i])
				}
			}
		})
	}
	for name, op := range map[string]validate.Operation{
		"no resource":       {Body: []byte(`{"resourceType":"Parameters"}`)},
		"unknown mode":      {Mode: "guess", Body: []byte(`{"resourceType":"Patient"}`)},
		"unknown parameter": {Body: []byte(`{"resourceType":"Parameters","parameter":[{"name":"x"}]}`)},
	} {
		_, err := v.Operate(context.Background(), op, validate.Options{})
		if e, ok := outcome.From(err); !ok || e.HTTPStatus() != 400 {
			t.Errorf("%s: %v, want 400", name, err)
		}
	}
}

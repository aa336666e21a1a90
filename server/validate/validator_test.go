package validate_test

import (
	"context"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"

	"kiln/gen/r4"
	"kiln/server/fhir"
	"kiln/server/outcome"
	"kiln/server/validate"
)

func issues(t *testing.T, v *validate.Validator, data string, o validate.Options) []string {
	t.Helper()
	r, err := fhir.Decode(r4.Model, []byte(data))
	if err != nil {
		t.Fatal(err)
	}
	var list []string
	for _, i := range v.Validate(context.Background(), r, o) {
		if i.Code != outcome.CodeInvalid && (i.Code != outcome.CodeIncomplete || i.Severity != outcome.Warning) {
			t.Errorf("issue code is %s, want invalid, or incomplete of a warning", i.Code)
		}
		list = append(list, string(i.Severity)+" "+i.Expression+": "+i.Diagnostics)
	}
	return list
}

func TestBase(t *testing.T) {
	v := newValidator(t)
	observation := func(more string) string {
		return `{"resourceType":"Observation","status":"final","code":{"text":"x"}` + more + `}`
	}
	tests := []struct {
		name, data string
		warnings   bool
		want       []string
	}{
		{"a valid resource", observation(``), false, nil},
		{"required elements", `{"resourceType":"Observation","component":[{"valueString":"x"}]}`, false, []string{
			"error Observation: status is required: expected at least 1, found none",
			"error Observation: code is required: expected at least 1, found none",
			"error Observation.component[0]: code is required: expected at least 1, found none"}},
		{"a required binding", `{"resourceType":"Patient","gender":"man"}`, false, []string{
			"error Patient.gender: expected a code of http://hl7.org/fhir/ValueSet/administrative-gender (required binding), found man; it has female, male, other, unknown"}},
		{"a required binding of a concept", `{"resourceType":"AllergyIntolerance","patient":{"reference":"Patient/1"},"clinicalStatus":{"coding":[{"system":"http://terminology.hl7.org/CodeSystem/allergyintolerance-clinical","code":"gone"}]}}`, false, []string{
			"error AllergyIntolerance.clinicalStatus: expected a code of http://hl7.org/fhir/ValueSet/allergyintolerance-clinical (required binding), found http://terminology.hl7.org/CodeSystem/allergyintolerance-clinical|gone; it has active, inactive, resolved"}},
		{"a code system that is not here decides nothing", `{"resourceType":"DocumentReference","status":"current","content":[{"attachment":{"contentType":"text/x-unheard-of","url":"http://x"}}]}`, false, nil},
		{"an invariant of a resource", observation(`,"dataAbsentReason":{"text":"y"},"valueString":"z"`), false, []string{
			"error Observation: constraint obs-6: dataAbsentReason SHALL only be present if Observation.value[x] is not present"}},
		{"an invariant of a backbone element", observation(`,"referenceRange":[{"appliesTo":[{"text":"a"}]}]`), false, []string{
			"error Observation.referenceRange[0]: constraint obs-3: Must have at least a low or a high or text"}},
		{"an invariant of a datatype", observation(`,"effectivePeriod":{"start":"2020-02-01","end":"2020-01-01"}`), false, []string{
			"error Observation.effective: constraint per-1: If present, start SHALL have a lower value than end"}},
		{"precision that leaves an invariant open", observation(`,"effectivePeriod":{"start":"2020-02-01","end":"2020-02"}`), false, nil},
		{"an invariant on an element", `{"resourceType":"Organization","name":"o","telecom":[{"system":"phone","value":"1","use":"home"}]}`, false, []string{
			"error Organization.telecom[0]: constraint org-3: The telecom of an organization can never be of use 'home'"}},
		{"an extension with value and extensions", observation(`,"extension":[{"url":"http://x","valueString":"a","extension":[{"url":"b","valueString":"c"}]}]`), false, []string{
			"error Observation.extension[0]: constraint ext-1: an extension has either extensions or a value, found both"}},
		{"an extension of a primitive", `{"resourceType":"Patient","_birthDate":{"extension":[{"url":"http://x"}]}}`, false, []string{
			"error Patient.birthDate.extension[0]: constraint ext-1: an extension has either extensions or a value, found neither"}},
		{"a known extension where it belongs", `{"resourceType":"Patient","extension":[{"url":"http://hl7.org/fhir/StructureDefinition/patient-birthPlace","valueAddress":{"city":"x"}}]}`, false, nil},
		{"a known extension elsewhere", observation(`,"extension":[{"url":"http://hl7.org/fhir/StructureDefinition/patient-birthPlace","valueAddress":{"city":"x"}}]`), true, []string{
			"warning Observation.extension[0]: extension http://hl7.org/fhir/StructureDefinition/patient-birthPlace is not allowed here, only in Patient"}},
		{"an extension with a relative url", observation(`,"extension":[{"url":"color","valueString":"x"}]`), true, []string{
			"warning Observation.extension[0]: expected the absolute url of a definition, found color"}},
		{"a known extension with another value", `{"resourceType":"Patient","extension":[{"url":"http://hl7.org/fhir/StructureDefinition/patient-birthPlace","valueString":"x"}]}`, false, []string{
			"error Patient.extension[0].value: expected Address, found string (profile http://hl7.org/fhir/StructureDefinition/patient-birthPlace)"}},
		{"an extension that is no modifier", `{"resourceType":"Patient","modifierExtension":[{"url":"http://hl7.org/fhir/StructureDefinition/patient-birthPlace","valueAddress":{"city":"x"}}]}`, false, []string{
			"error Patient.modifierExtension[0]: extension http://hl7.org/fhir/StructureDefinition/patient-birthPlace is no modifier: expected it in extension"}},
		{"a reference of the wrong type", observation(`,"subject":{"reference":"Observation/1"}`), false, []string{
			"error Observation.subject: expected a reference to Device, Group, Location, Patient, found Observation/1"}},
		{"an absolute reference of the wrong type", observation(`,"subject":{"reference":"http://x.org/fhir/Practitioner/1/_history/2"}`), false, []string{
			"error Observation.subject: expected a reference to Device, Group, Location, Patient, found http://x.org/fhir/Practitioner/1/_history/2"}},
		{"a reference to nothing contained", observation(`,"subject":{"reference":"#p"}`), false, []string{
			"error Observation.subject: constraint ref-1: #p names no contained resource"}},
		{"a contained resource that nothing names", observation(`,"contained":[{"resourceType":"Patient","id":"p"}]`), false, []string{
			"error Observation.contained[0]: constraint dom-3: nothing refers to the contained resource #p"}},
		{"a contained resource with a version", observation(`,"contained":[{"resourceType":"Patient","id":"p","meta":{"versionId":"1"}}],"subject":{"reference":"#p"}`), false, []string{
			"error Observation: constraint dom-4: If a resource is contained in another resource, it SHALL NOT have a meta.versionId or a meta.lastUpdated"}},
		{"an error inside a contained resource", observation(`,"contained":[{"resourceType":"Patient","id":"p","gender":"m"}],"subject":{"reference":"#p"}`), false, []string{
			"error Observation.contained[0].gender: expected a code of http://hl7.org/fhir/ValueSet/administrative-gender (required binding), found m; it has female, male, other, unknown"}},
		{"an error inside a Bundle", `{"resourceType":"Bundle","type":"collection","entry":[{"resource":{"resourceType":"Patient","gender":"m"}}]}`, false, []string{
			"error Bundle.entry[0].resource.gender: expected a code of http://hl7.org/fhir/ValueSet/administrative-gender (required binding), found m; it has female, male, other, unknown"}},
		{"a Bundle's own rule", `{"resourceType":"Bundle","type":"transaction","total":1,"entry":[{"request":{"method":"GET","url":"Patient"}}]}`, false, []string{
			"error Bundle: constraint bdl-1: total only when a search or history"}},
		{"a fullUrl of another resource", `{"resourceType":"Bundle","type":"collection","entry":[{"fullUrl":"http://x/Patient/1","resource":{"resourceType":"Patient","id":"2"}},{"fullUrl":"urn:uuid:1","resource":{"resourceType":"Patient","id":"2"}}]}`, true, []string{
			"warning Bundle.entry[0].fullUrl: fullUrl must not disagree with the id of the resource: expected a URL that ends in /2, found http://x/Patient/1",
			"warning Bundle.entry[1].fullUrl: expected urn:uuid: and a UUID in small letters, found urn:uuid:1"}},
		{"a script in the narrative", observation(`,"text":{"status":"generated","div":"<div xmlns=\"http://www.w3.org/1999/xhtml\">a<script>b</script></div>"}`), false, []string{
			"error Observation.text.div: constraint txt-1: element <script> is not allowed"}},
		{"a resource without narrative", observation(``), true, nil},
		{"an invariant that warns", `{"resourceType":"Library","name":"my library","status":"draft","type":{"text":"x"}}`, true, []string{
			"warning Library: constraint lib-0: Name should be usable as an identifier for the module by machine processing applications such as code generation"}},
		{"an extensible binding is a warning", observation(`,"dataAbsentReason":{"coding":[{"system":"http://terminology.hl7.org/CodeSystem/data-absent-reason","code":"lost"}]}`), true, []string{
			"warning Observation.dataAbsentReason: expected a code of http://hl7.org/fhir/ValueSet/data-absent-reason (extensible binding), found http://terminology.hl7.org/CodeSystem/data-absent-reason|lost"}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got := issues(t, v, tt.data, validate.Options{Warnings: tt.warnings})
			if strings.Join(got, "\n") != strings.Join(tt.want, "\n") {
				t.Errorf("got\n\t%s\nwant\n\t%s", strings.Join(got, "\n\t"), strings.Join(tt.want, "\n\t"))
			}
		})
	}
}

func TestPlace(t *testing.T) {
	r, err := fhir.Decode(r4.Model, []byte("{\n \"resourceType\": \"Patient\",\n \"gender\": \"man\"\n}"))
	if err != nil {
		t.Fatal(err)
	}
	got := newValidator(t).Validate(context.Background(), r, validate.Options{})
	if len(got) != 1 || got[0].Line != 3 || got[0].Column != 12 {
		t.Errorf("got %+v, want one issue at line 3 column 12", got)
	}
}

func TestReferencesThatDoNotExist(t *testing.T) {
	exists := func(_ context.Context, typ, id string) (bool, error) { return typ == "Patient" && id == "1", nil }
	data := `{"resourceType":"Observation","status":"final","code":{"text":"x"},"subject":{"reference":"Patient/1"},"encounter":{"reference":"Encounter/2"},"performer":[{"reference":"urn:uuid:3"}]}`
	got := issues(t, newValidator(t), data, validate.Options{Exists: exists})
	if len(got) != 1 || !strings.Contains(got[0], "Encounter/2 does not exist") {
		t.Errorf("got %v", got)
	}
}

func TestConcurrent(t *testing.T) {
	v := newValidator(t)
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for range 20 {
				if got := issues(t, v, syntheaObservation, validate.Options{}); len(got) > 0 {
					t.Error(got)
				}
			}
		})
	}
	wg.Wait()
}

// A validation reads the resource and changes nothing in it: several at once, of one value,
// get the same answer (the race detector would find a write), and the resource is
// unchanged.
func TestValidationChangesNothing(t *testing.T) {
	t.Parallel()
	v := newValidator(t)
	for _, data := range []string{
		syntheaObservation,
		`{"resourceType":"SearchParameter","url":"http://example.org/bare","code":"bare","base":["Patient"],"type":"string","expression":"Patient.name.family"}`,
		`{"resourceType":"Patient","text":{"status":"generated","div":"<div/>"},"contained":[{"resourceType":"Organization","id":"o"}],"_gender":{"id":"a"}}`,
		`{"resourceType":"Bundle","type":"collection","entry":[{"resource":{"resourceType":"Patient","id":"p","meta":{"profile":["http://hl7.org/fhir/StructureDefinition/Patient"]}}}]}`,
	} {
		r, err := fhir.Decode(r4.Model, []byte(data))
		if err != nil {
			t.Fatal(err)
		}
		before := string(fhir.Encode(nil, r))
		want := v.Validate(t.Context(), r, validate.Options{Warnings: true, Strict: true})
		var wg sync.WaitGroup
		for range 8 {
			wg.Go(func() {
				if diff := cmp.Diff(want, v.Validate(t.Context(), r, validate.Options{Warnings: true, Strict: true})); diff != "" {
					t.Errorf("another answer: %s", diff)
				}
			})
		}
		wg.Wait()
		if after := string(fhir.Encode(nil, r)); after != before {
			t.Errorf("after the validation:\n%s\nwant\n%s", after, before)
		}
	}
}

package conformance

import (
	"fmt"
	"strings"
	"testing"
)

// Every issue of $validate names the place (expression, line and column of the value), the expected and the received
// value.
// Spec: https://hl7.org/fhir/R4/resource-operation-validate.html,
// https://hl7.org/fhir/R4/operationoutcome.html.
func TestValidateTells(t *testing.T) {
	s := start(t)
	s.stores(`{"resourceType":"StructureDefinition","id":"born","url":"http://v/born","name":"Born","status":"active","kind":"resource","abstract":false,"type":"Patient",
		"baseDefinition":"http://hl7.org/fhir/StructureDefinition/Patient","derivation":"constraint","differential":{"element":[{"id":"Patient.birthDate","path":"Patient.birthDate","min":1}]}}`)
	for _, c := range []struct{ name, resource, expression, place, want string }{
		{"an unknown element", `{"resourceType":"Patient","nam":[{"family":"x"}]}`, "Patient", "1:27", `unknown element "nam" in Patient`},
		{"an object for an array", `{"resourceType":"Patient","name":{"family":"x"}}`, "Patient.name", "1:34", "expected an array, found an object"},
		{"an array for a string", `{"resourceType":"Patient","name":[{"family":["x"]}]}`, "Patient.name[0].family", "1:45", "expected a string, found an array"},
		{"a date that is none", `{"resourceType":"Patient","birthDate":"1970-13-01"}`, "Patient.birthDate", "1:39", `"1970-13-01" is not a valid date`},
		{"a string for a boolean", `{"resourceType":"Patient","active":"true"}`, "Patient.active", "1:36", "expected true or false, found a string"},
		{"a fraction for an integer", `{"resourceType":"Patient","multipleBirthInteger":1.5}`, "Patient.multipleBirth", "1:50", `"1.5" is not a valid integer`},
		{"two values of a choice", `{"resourceType":"Patient","deceasedBoolean":true,"deceasedDateTime":"2020"}`, "Patient.deceased", "1:69", "more than one value"},
		{"a property twice", `{"resourceType":"Patient","gender":"male","gender":"female"}`, "Patient.gender", "1:52", `property "gender" is repeated`},
		{"an empty array", `{"resourceType":"Patient","name":[]}`, "Patient.name", "1:35", "must not be empty"},
		{"an empty object", `{"resourceType":"Patient","name":[{}]}`, "Patient.name[0]", "1:36", "must have content"},
		{"an id that is none", `{"resourceType":"Patient","id":"a b"}`, "Patient.id", "", `"a b" is not a valid id`},
		{"an id of a contained resource", `{"resourceType":"Patient","managingOrganization":{"reference":"#a b"},"contained":[{"resourceType":"Organization","id":"a b","name":"x"}]}`, "Patient.contained[0].id", "1:120", `"a b" is not a valid id`},
		{"a code of a required binding", "{\n  \"resourceType\": \"Patient\",\n  \"gender\": \"man\"\n}", "Patient.gender", "3:13", "expected a code of http://hl7.org/fhir/ValueSet/administrative-gender (required binding), found man; it has female, male, other, unknown"},
		{"an element that is missing", `{"resourceType":"Observation","status":"final"}`, "Observation", "1:1", "code is required: expected at least 1, found none"},
		{"one that is missing below", "{\"resourceType\":\"Patient\",\n\"link\":[{\"type\":\"seealso\"}]}", "Patient.link[0]", "2:9", "other is required"},
		{"an invariant", `{"resourceType":"Patient","contact":[{"gender":"male"}]}`, "Patient.contact[0]", "1:38", "constraint pat-1: "},
		{"an invariant of a datatype", `{"resourceType":"Observation","code":{"text":"x"},"status":"final","effectivePeriod":{"start":"2020","end":"2019"}}`, "Observation.effective", "1:86", "constraint per-1: "},
		{"the type of a reference", `{"resourceType":"Patient","managingOrganization":{"reference":"Patient/1"}}`, "Patient.managingOrganization", "1:50", "expected a reference to Organization, found Patient/1"},
		{"a reference to nothing", `{"resourceType":"Patient","managingOrganization":{"reference":"#org"}}`, "Patient.managingOrganization", "1:50", "constraint ref-1: #org names no contained resource"},
		{"a type that the reference is not of", `{"resourceType":"Patient","managingOrganization":{"reference":"Organization/1","type":"Practitioner"}}`, "Patient.managingOrganization", "1:50", "expected a reference to Practitioner, which type says, found Organization/1"},
		{"a type that cannot be referred to", `{"resourceType":"Patient","managingOrganization":{"type":"Patient","identifier":{"value":"1"}}}`, "Patient.managingOrganization", "1:50", "expected a reference to Organization, found Patient"},
		{"a relative reference without a type", `{"resourceType":"Patient","managingOrganization":{"reference":"123"}}`, "Patient.managingOrganization", "1:50", "expected a relative reference of the form [type]/[id], found 123"},
		{"a relative reference of no type", `{"resourceType":"Patient","managingOrganization":{"reference":"Foo/1"}}`, "Patient.managingOrganization", "1:50", "of the form [type]/[id], found Foo/1"},
		{"an id of two contained resources", `{"resourceType":"Patient","managingOrganization":{"reference":"#o"},"contained":[{"resourceType":"Organization","id":"o","name":"x"},{"resourceType":"Organization","id":"o","name":"y"}]}`,
			"Patient.contained[1]", "1:134", "another contained resource has the id o"},
		{"a comparator of a SimpleQuantity", `{"resourceType":"Observation","status":"final","code":{"text":"x"},"valueRange":{"low":{"value":1,"comparator":"<"}}}`, "Observation.value.low", "1:88", "constraint sqty-1: "},
		{"text where a code is required", `{"resourceType":"Condition","subject":{"reference":"Patient/1"},"clinicalStatus":{"text":"active"}}`, "Condition.clinicalStatus", "1:82", "(required binding), found none"},
		{"a part that an extension does not have", `{"resourceType":"Patient","extension":[{"url":"http://hl7.org/fhir/StructureDefinition/patient-nationality","extension":[{"url":"color","valueString":"x"}]}]}`,
			"Patient.extension[0].extension[0]", "1:122", "extension http://hl7.org/fhir/StructureDefinition/patient-nationality has no part color"},
		{"a uuid in capital letters", `{"resourceType":"Patient","extension":[{"url":"http://x","valueUuid":"urn:uuid:C757873D-EC9A-4326-A141-556F43239520"}]}`, "Patient.extension[0].value", "1:70", "is not a valid uuid"},
		{"a contained resource that nobody refers to", `{"resourceType":"Patient","contained":[{"resourceType":"Organization","id":"org","name":"x"}]}`, "Patient.contained[0]", "1:40", "constraint dom-3: "},
		{"narrative with a script", `{"resourceType":"Patient","text":{"status":"generated","div":"<div xmlns=\"http://www.w3.org/1999/xhtml\"><script>x</script></div>"}}`, "Patient.text.div", "1:62", "constraint txt-1: "},
		{"an extension without a value", `{"resourceType":"Patient","extension":[{"url":"http://x"}]}`, "Patient.extension[0]", "1:40", "constraint ext-1: "},
		{"an extension of a primitive", `{"resourceType":"Patient","birthDate":"2000","_birthDate":{"extension":[{"url":"http://x"}]}}`, "Patient.birthDate.extension[0]", "1:73", "constraint ext-1: "},
		{"an extension with another value", `{"resourceType":"Patient","birthDate":"2000","_birthDate":{"extension":[{"url":"http://hl7.org/fhir/StructureDefinition/patient-birthTime","valueString":"x"}]}}`,
			"Patient.birthDate.extension[0].value", "1:154", "expected dateTime, found string (profile http://hl7.org/fhir/StructureDefinition/patient-birthTime)"},
		{"a resource of a Bundle", `{"resourceType":"Bundle","type":"collection","entry":[{"resource":{"resourceType":"Patient","gender":"m"}}]}`, "Bundle.entry[0].resource.gender", "1:102", "found m"},
		{"a profile", `{"resourceType":"Patient","meta":{"profile":["http://v/born"]},"active":true}`, "Patient", "1:1", "birthDate is required: expected at least 1, found none (profile http://v/born)"},
		{"an element with an id only", `{"resourceType":"Observation","_status":{"id":"a"},"code":{"text":"x"}}`, "Observation.status", "1:41", "constraint ele-1: "},
		{"an offset beyond 14:00", `{"resourceType":"Observation","status":"final","code":{"text":"x"},"effectiveDateTime":"2020-01-01T00:00:00+14:30"}`, "Observation.effective", "1:88", "is not a valid dateTime"},
		{"an entity of HTML", `{"resourceType":"Patient","text":{"status":"generated","div":"<div xmlns=\"http://www.w3.org/1999/xhtml\">a&nbsp;b</div>"}}`, "Patient.text.div", "1:62", "constraint txt-1: "},
		{"an empty div", `{"resourceType":"Patient","text":{"status":"generated","div":"<div xmlns=\"http://www.w3.org/1999/xhtml\"/>"}}`, "Patient.text.div", "1:62", "constraint txt-2: "},
		{"an element id twice", `{"resourceType":"Patient","name":[{"id":"a","family":"x"}],"telecom":[{"id":"a","value":"1"}]}`, "Patient.telecom[0]", "1:71", "another element of the resource has the id a"},
		{"a fullUrl of another resource", `{"resourceType":"Bundle","type":"collection","entry":[{"fullUrl":"http://x/Patient/2","resource":{"resourceType":"Patient","id":"1"}}]}`, "Bundle.entry[0].fullUrl", "1:66", "fullUrl must not disagree"},
		{"a relative system", `{"resourceType":"Patient","identifier":[{"system":"mrn","value":"1"}]}`, "Patient.identifier[0].system", "1:51", "expected an absolute URI, found mrn"},
		{"a code that its system does not have", `{"resourceType":"Patient","maritalStatus":{"coding":[{"system":"http://terminology.hl7.org/CodeSystem/v3-MaritalStatus","code":"maybe"}]}}`, "Patient.maritalStatus.coding[0]", "1:54", "expected a code of the code system"},
		{"a unit that UCUM does not have", `{"resourceType":"Observation","status":"final","code":{"text":"x"},"valueQuantity":{"value":1,"system":"http://unitsofmeasure.org","code":"lbs"}}`, "Observation.value", "1:84", "expected a unit of UCUM, found lbs"},
		{"an extension out of its context", `{"resourceType":"Organization","name":"x","extension":[{"url":"http://hl7.org/fhir/StructureDefinition/patient-birthPlace","valueAddress":{"city":"x"}}]}`, "Organization.extension[0]", "1:56", "is not allowed here, only in Patient"},
		{"a modifier extension that nobody knows", `{"resourceType":"Patient","modifierExtension":[{"url":"http://nobody.knows/x","valueString":"y"}]}`, "Patient.modifierExtension[0]", "1:48", "is not known here"},
		{"a reference in a Bundle to another type", `{"resourceType":"Bundle","type":"collection","entry":[{"fullUrl":"http://x/Patient/1","resource":{"resourceType":"Patient","id":"1","managingOrganization":{"reference":"urn:uuid:66666666-6666-4666-8666-666666666666"}}},{"fullUrl":"urn:uuid:66666666-6666-4666-8666-666666666666","resource":{"resourceType":"Patient"}}]}`,
			"Bundle.entry[0].resource.managingOrganization", "1:156", "expected a reference to Organization"},
		{"no JSON", `{"resourceType":"Patient",`, "Patient", "1:27", "expected a property name"},
		{"no resource", `{"id":"x"}`, "", "1:1", "resourceType is missing"},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := s.in(t)
			a := s.post("/$validate", c.resource).want(200)
			outcome, _ := a.json.(map[string]any)
			var told []string
			list, _ := outcome["issue"].([]any)
			for _, i := range list {
				i := i.(map[string]any)
				expression, place := "", map[string]any{}
				if e, ok := i["expression"].([]any); ok {
					expression = fmt.Sprint(e[0])
				}
				extensions, _ := i["extension"].([]any)
				for _, x := range extensions {
					x := x.(map[string]any)
					url := fmt.Sprint(x["url"])
					place[url[strings.LastIndexByte(url, '-')+1:]] = x["valueInteger"]
				}
				at := ""
				if len(place) == 2 {
					at = fmt.Sprintf("%v:%v", place["line"], place["col"])
				}
				if i["severity"] == "error" && expression == c.expression && at == c.place && strings.Contains(fmt.Sprint(i["diagnostics"]), c.want) {
					return
				}
				told = append(told, fmt.Sprintf("%v %s %s %v", i["severity"], expression, at, i["diagnostics"]))
			}
			t.Errorf("want %s %s %s, got\n\t%s", c.expression, c.place, c.want, strings.Join(told, "\n\t"))
		})
	}
}

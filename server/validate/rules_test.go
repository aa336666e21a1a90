package validate_test

import (
	"strings"
	"testing"

	"kiln/gen/r4"
	"kiln/server/validate"
)

// The rules that R4 has in prose and in the definitions of elements, as HL7's validator
// judges them: what $validate reports as an error.
func TestStrict(t *testing.T) {
	v := newValidator(t)
	patient := func(more string) string { return `{"resourceType":"Patient"` + more + `}` }
	observation := func(more string) string {
		return `{"resourceType":"Observation","status":"final","code":{"text":"x"}` + more + `}`
	}
	profile := func(elements string) string {
		return `{"resourceType":"StructureDefinition","url":"http://example.org/p","name":"P","status":"draft","kind":"resource","abstract":false,"type":"Patient",` +
			`"baseDefinition":"http://hl7.org/fhir/StructureDefinition/Patient","derivation":"constraint",` + elements + `}`
	}
	bundle := func(typ, entries string) string {
		return `{"resourceType":"Bundle","type":"` + typ + `","entry":[` + entries + `]}`
	}
	document := func(composition, entries string) string {
		return `{"resourceType":"Bundle","type":"document","identifier":{"system":"urn:oid:1.2","value":"1"},"timestamp":"2024-01-01T00:00:00Z","entry":[` +
			`{"fullUrl":"http://x/fhir/Composition/c","resource":{"resourceType":"Composition","id":"c","status":"final","type":{"text":"x"},"date":"2024","title":"x","author":[{"reference":"Practitioner/d"}],` + composition + `}},` +
			`{"fullUrl":"http://x/fhir/Practitioner/d","resource":{"resourceType":"Practitioner","id":"d"}}` + entries + `]}`
	}
	for _, c := range []struct{ name, data, want string }{
		// https://hl7.org/fhir/R4/element.html: ele-1
		{"ele-1: a primitive with an id only", patient(`,"_gender":{"id":"a"}`), "error Patient.gender: constraint ele-1: "},
		{"ele-1: it does not stand for a required element", `{"resourceType":"Observation","_status":{"id":"a"},"code":{"text":"x"}}`, "error Observation.status: constraint ele-1: "},
		{"ele-1: a complex element with an id only", patient(`,"name":[{"id":"a"}]`), "error Patient.name[0]: constraint ele-1: "},
		{"ele-1: an item of a list of primitives", patient(`,"name":[{"given":["x",null],"_given":[null,{"id":"a"}]}]`), "error Patient.name[0].given[1]: constraint ele-1: "},
		{"ele-1: an extension is content", patient(`,"_gender":{"id":"a","extension":[{"url":"http://x","valueString":"y"}]}`), ""},
		// https://hl7.org/fhir/R4/element-definitions.html#Element.id
		{"two elements of an id", patient(`,"name":[{"id":"a","text":"x"}],"telecom":[{"id":"a","value":"1"}]`), "error Patient.telecom[0]: expected an id of its own, another element of the resource has the id a"},
		{"two primitives of an id", patient(`,"gender":"male","_gender":{"id":"a"},"birthDate":"2000","_birthDate":{"id":"a"}`), "error Patient.birthDate: expected an id of its own"},
		{"a contained resource has ids of its own", patient(`,"name":[{"id":"a","text":"x"}],"managingOrganization":{"reference":"#o"},"contained":[{"resourceType":"Organization","id":"o","name":"x","_name":{"id":"a"}}]`), ""},
		{"the id of the resource is not that of an element", patient(`,"id":"a","name":[{"id":"a","text":"x"}]`), ""},
		{"a snapshot and a differential have the same ids", profile(`"snapshot":{"element":[{"id":"Patient","path":"Patient","definition":"x","min":0,"max":"*","base":{"path":"Patient","min":0,"max":"*"}}]},"differential":{"element":[{"id":"Patient","path":"Patient"}]}`), ""},
		{"a differential has an id twice", profile(`"differential":{"element":[{"id":"Patient","path":"Patient"},{"id":"Patient","path":"Patient.name"}]}`), "error StructureDefinition.differential.element[1]: expected an id of its own"},
		// https://hl7.org/fhir/R4/bundle-definitions.html#Bundle.entry.fullUrl
		{"fullUrl is missing", bundle("collection", `{"resource":`+patient("")+`}`), "error Bundle.entry[0]: fullUrl is required"},
		{"fullUrl may be missing in a transaction", bundle("transaction", `{"resource":`+patient("")+`,"request":{"method":"POST","url":"Patient"}}`), ""},
		{"fullUrl is relative", bundle("collection", `{"fullUrl":"Patient/1","resource":`+patient("")+`}`), "error Bundle.entry[0].fullUrl: expected an absolute URL, found Patient/1"},
		{"fullUrl has another id", bundle("collection", `{"fullUrl":"http://x/Patient/2","resource":`+patient(`,"id":"1"`)+`}`), "error Bundle.entry[0].fullUrl: fullUrl must not disagree with the id"},
		{"fullUrl has another type", bundle("collection", `{"fullUrl":"http://x/Group/1","resource":`+patient(`,"id":"1"`)+`}`), "error Bundle.entry[0].fullUrl: fullUrl must not disagree with the type"},
		{"fullUrl is no UUID", bundle("collection", `{"fullUrl":"urn:uuid:1","resource":`+patient("")+`}`), "error Bundle.entry[0].fullUrl: expected urn:uuid: and a UUID"},
		{"fullUrl is right", bundle("collection", `{"fullUrl":"http://x/Patient/1","resource":`+patient(`,"id":"1"`)+`}`), ""},
		// https://hl7.org/fhir/R4/datatypes.html#Identifier, #Coding
		{"a relative system of an identifier", patient(`,"identifier":[{"system":"mrn","value":"1"}]`), "error Patient.identifier[0].system: expected an absolute URI, found mrn"},
		{"a relative code system", observation(`,"category":[{"coding":[{"system":"local","code":"x"}]}]`), "error Observation.category[0].coding[0].system: expected an absolute URI, found local"},
		{"a relative canonical", patient(`,"meta":{"profile":["my-profile"]}`), "warning Patient.meta.profile[0]: expected a canonical URL"},
		{"a relative url of an extension", patient(`,"extension":[{"url":"color","valueString":"red"}]`), "error Patient.extension[0]: expected the absolute url of a definition, found color"},
		{"an OID that is none", patient(`,"identifier":[{"system":"urn:oid:1.2.x","value":"1"}]`), "error Patient.identifier[0].system: expected urn:oid: and an OID, found urn:oid:1.2.x"},
		{"an OID without urn", patient(`,"identifier":[{"system":"oid:1.2.3","value":"1"}]`), "error Patient.identifier[0].system: expected urn:oid: and an OID, found oid:1.2.3"},
		{"a UUID that is none", patient(`,"identifier":[{"system":"urn:uuid:1","value":"1"}]`), "error Patient.identifier[0].system: expected urn:uuid: and a UUID, found urn:uuid:1"},
		{"a UUID in capitals", patient(`,"identifier":[{"system":"urn:uuid:68D043B5-9ECF-4559-A57A-396E0D452311","value":"1"}]`), ""},
		{"a urn", patient(`,"identifier":[{"system":"urn:oid:1.2.3","value":"1"}]`), ""},
		// https://hl7.org/fhir/R4/extension-elementdefinition-maxvalueset.html
		{"a nonsense language", patient(`,"language":"nonsense-zz-language"`), "error Patient.language: expected a code of http://hl7.org/fhir/ValueSet/all-languages (maximum value set), found nonsense-zz-language"},
		{"a language that there is not", patient(`,"language":"xx-qq1"`), "error Patient.language: expected a code of http://hl7.org/fhir/ValueSet/all-languages"},
		{"a nonsense language of a person", patient(`,"communication":[{"language":{"coding":[{"system":"urn:ietf:bcp:47","code":"klingonish-x"}]}}]`), "error Patient.communication[0].language: expected a code of http://hl7.org/fhir/ValueSet/all-languages"},
		{"a language of another system", patient(`,"communication":[{"language":{"coding":[{"system":"http://example.org/languages","code":"en"}]}}]`), "error Patient.communication[0].language: expected a code of http://hl7.org/fhir/ValueSet/all-languages"},
		{"a nonsense language of an attachment", patient(`,"photo":[{"language":"qqqqqqqqqq"}]`), "error Patient.photo[0].language: expected a code of http://hl7.org/fhir/ValueSet/all-languages"},
		{"languages", patient(`,"language":"de-CH","communication":[{"language":{"coding":[{"system":"urn:ietf:bcp:47","code":"zh-Hant-TW"}]}},{"language":{"coding":[{"system":"http://example.org/languages","code":"1"},{"system":"urn:ietf:bcp:47","code":"en-US"}]}},{"language":{"text":"Romansh"}}]`), ""},
		// https://hl7.org/fhir/R4/datatypes-definitions.html#Coding.display
		{"a wrong display", observation(`,"category":[{"coding":[{"system":"http://terminology.hl7.org/CodeSystem/observation-category","code":"laboratory","display":"Banana"}]}]`),
			`warning Observation.category[0].coding[0]: the display of the code http://terminology.hl7.org/CodeSystem/observation-category|laboratory is "Laboratory", found "Banana"`},
		{"a display in other letters", observation(`,"category":[{"coding":[{"system":"http://terminology.hl7.org/CodeSystem/observation-category","code":"laboratory","display":"LABORATORY"}]}]`), ""},
		{"a wrong display in an extension", patient(`,"extension":[{"url":"http://hl7.org/fhir/StructureDefinition/patient-religion","valueCodeableConcept":{"coding":[{"system":"http://terminology.hl7.org/CodeSystem/v3-ReligiousAffiliation","code":"1001","display":"Banana"}]}}]`), "warning Patient.extension[0].value.coding[0]: the display of the code"},
		// https://hl7.org/fhir/R4/documents.html#content
		{"a document without the subject of its Composition", document(`"subject":{"reference":"Patient/9"}`, ""), "error Bundle.entry[0].resource.subject: expected a reference to a resource of the document, found Patient/9"},
		{"a document without an entry of a section", document(`"section":[{"title":"s","entry":[{"reference":"urn:uuid:5a2ee1e4-8a70-4fba-a3de-5a6dbb6bbd7d"}]}]`, ""), "error Bundle.entry[0].resource.section[0].entry[0]: expected a reference to a resource of the document"},
		{"a document whose other resources refer elsewhere", document(`"section":[{"title":"s","entry":[{"reference":"Observation/o"}]}]`, `,{"fullUrl":"http://x/fhir/Observation/o","resource":{"resourceType":"Observation","id":"o","status":"final","code":{"text":"x"},"specimen":{"reference":"Specimen/1"}}}`),
			"warning Bundle.entry[2].resource.specimen: Specimen/1 is in no entry of the document"},
		{"a document", document(`"subject":{"reference":"Patient/p"},"custodian":{"reference":"http://elsewhere.org/fhir/Organization/1"}`, `,{"fullUrl":"http://x/fhir/Patient/p","resource":{"resourceType":"Patient","id":"p"}}`), ""},
		{"a collection", strings.Replace(document(`"subject":{"reference":"Patient/9"}`, ""), `"document"`, `"collection"`, 1), ""},
		// https://hl7.org/fhir/R4/codesystem-definitions.html#CodeSystem.content
		{"a code that its code system does not have", observation(`,"category":[{"coding":[{"system":"http://terminology.hl7.org/CodeSystem/observation-category","code":"vital-sign"}]}]`),
			"error Observation.category[0].coding[0]: expected a code of the code system http://terminology.hl7.org/CodeSystem/observation-category, found vital-sign"},
		{"a code of another version", observation(`,"category":[{"coding":[{"system":"http://terminology.hl7.org/CodeSystem/observation-category","version":"99","code":"vital-sign"}]}]`), ""},
		{"a code system that is not here", observation(`,"category":[{"coding":[{"system":"http://loinc.org","code":"nothing"}]}]`), ""},
		// https://hl7.org/fhir/R4/datatypes.html#Quantity
		{"a unit that UCUM does not have", observation(`,"valueQuantity":{"value":1,"system":"http://unitsofmeasure.org","code":"lbs"}`), "error Observation.value: expected a unit of UCUM, found lbs"},
		{"a unit of UCUM", observation(`,"valueQuantity":{"value":1,"system":"http://unitsofmeasure.org","code":"10*3/uL"}`), ""},
		{"a unit of something else", observation(`,"valueQuantity":{"value":1,"system":"http://x.org/units","code":"lbs"}`), ""},
		// https://hl7.org/fhir/R4/defining-extensions.html#context
		{"an extension out of its context", observation(`,"extension":[{"url":"http://hl7.org/fhir/StructureDefinition/patient-birthPlace","valueAddress":{"city":"x"}}]`),
			"error Observation.extension[0]: extension http://hl7.org/fhir/StructureDefinition/patient-birthPlace is not allowed here, only in Patient"},
		{"an extension that nobody knows", patient(`,"extension":[{"url":"http://nobody.knows/x","valueString":"y"}]`), ""},
		// https://hl7.org/fhir/R4/extensibility.html#modifierExtension
		{"a modifier extension that nobody knows", patient(`,"modifierExtension":[{"url":"http://nobody.knows/x","valueString":"y"}]`),
			"error Patient.modifierExtension[0]: modifier extension http://nobody.knows/x is not known here"},
		// https://hl7.org/fhir/R4/narrative.html: txt-1, txt-2
		{"an entity of HTML", patient(`,"text":{"status":"generated","div":"<div xmlns=\"http://www.w3.org/1999/xhtml\">a&nbsp;b</div>"}`), "error Patient.text.div: constraint txt-1: "},
		{"an empty div", patient(`,"text":{"status":"generated","div":"<div xmlns=\"http://www.w3.org/1999/xhtml\"></div>"}`), "error Patient.text.div: constraint txt-2: "},
		// https://hl7.org/fhir/R4/terminologies.html#strength
		{"a required binding that cannot be checked", bundle("collection", `{"fullUrl":"http://x/Bundle/1","resource":{"resourceType":"Parameters"}}`), ""},
		// https://hl7.org/fhir/R4/bundle.html#references
		{"a reference in a Bundle to another type", bundle("collection", `{"fullUrl":"urn:uuid:66666666-6666-4666-8666-666666666666","resource":`+patient("")+`},
			{"fullUrl":"urn:uuid:66666666-6666-4666-8666-666666666667","resource":`+patient(`,"managingOrganization":{"reference":"urn:uuid:66666666-6666-4666-8666-666666666666"}`)+`}`),
			"error Bundle.entry[1].resource.managingOrganization: expected a reference to Organization, found urn:uuid:66666666-6666-4666-8666-666666666666"},
	} {
		t.Run(c.name, func(t *testing.T) {
			got := issues(t, v, c.data, validate.Options{Warnings: true, Strict: true})
			switch {
			case c.want == "" && len(got) > 0:
				t.Errorf("got\n\t%s", strings.Join(got, "\n\t"))
			case c.want != "" && (len(got) == 0 || !strings.HasPrefix(got[0], c.want)):
				t.Errorf("got\n\t%s\nwant\n\t%s", strings.Join(got, "\n\t"), c.want)
			}
		})
	}
}

// An extension may be used as its definition's context says: on a type or a path, in
// another extension, on the results of a FHIRPath expression.
// Spec: https://hl7.org/fhir/R4/defining-extensions.html#context.
func TestExtensionContext(t *testing.T) {
	const core = "http://hl7.org/fhir/StructureDefinition/"
	extension := func(id, contexts string) string {
		d := differential(id, "Extension", core+"Extension", `{"id":"Extension.url","path":"Extension.url","fixedUri":"http://example.org/`+id+`"}`)
		return strings.Replace(d, `"kind":"resource"`, `"kind":"complex-type","context":[`+contexts+`]`, 1)
	}
	v := validate.New(r4.Model, overlay{Definitions: library(t), byURL: map[string]string{
		"http://example.org/outer":   extension("outer", `{"type":"element","expression":"Patient"}`),
		"http://example.org/inner":   extension("inner", `{"type":"extension","expression":"http://example.org/outer"}`),
		"http://example.org/part":    extension("part", `{"type":"extension","expression":"http://example.org/outer#a"}`),
		"http://example.org/phone":   extension("phone", `{"type":"fhirpath","expression":"Patient.telecom.where(system = 'phone')"}`),
		"http://example.org/gender":  extension("gender", `{"type":"fhirpath","expression":"Patient.gender"}`),
		"http://example.org/several": extension("several", `{"type":"element","expression":"HumanName"},{"type":"fhirpath","expression":"Patient.contact"}`),
	}}, codes(t))
	x := func(id string) string {
		return `"extension":[{"url":"http://example.org/` + id + `","valueString":"x"}]`
	}
	not := func(id, where string) string {
		return "extension http://example.org/" + id + " is not allowed here, only in " + where
	}
	for _, c := range []struct{ name, data, want string }{
		{"an element", `{` + x("outer") + `}`, ""},
		{"another element", `{"name":[{"text":"x",` + x("outer") + `}]}`, not("outer", "Patient")},
		{"in its extension", `{"extension":[{"url":"http://example.org/outer",` + x("inner") + `}]}`, ""},
		{"not in an extension", `{` + x("inner") + `}`, not("inner", "the extension http://example.org/outer")},
		{"in another extension", `{"extension":[{"url":"http://nobody.knows/x",` + x("inner") + `}]}`, not("inner", "the extension http://example.org/outer")},
		{"in a part of its extension", `{"extension":[{"url":"http://nobody.knows/x","extension":[{"url":"a",` + x("part") + `}]}]}`, ""},
		{"on a selected element", `{"telecom":[{"system":"email","value":"a"},{"system":"phone","value":"1",` + x("phone") + `}]}`, ""},
		{"on one that is not selected", `{"telecom":[{"system":"email","value":"a",` + x("phone") + `}]}`, not("phone", "the elements of the FHIRPath expression Patient.telecom.where(system = 'phone')")},
		{"on a selected primitive", `{"gender":"male","_gender":{` + x("gender") + `}}`, ""},
		{"on another primitive", `{"birthDate":"2000","_birthDate":{` + x("gender") + `}}`, not("gender", "the elements of the FHIRPath expression Patient.gender")},
		{"several contexts, the second", `{"contact":[{"name":{"text":"x"},` + x("several") + `}]}`, ""},
		{"several contexts, none", `{` + x("several") + `}`, not("several", "HumanName, the elements of the FHIRPath expression Patient.contact")},
	} {
		t.Run(c.name, func(t *testing.T) {
			got := strings.Join(issues(t, v, `{"resourceType":"Patient",`+c.data[1:], validate.Options{Warnings: true, Strict: true}), "\n")
			if c.want == "" && got != "" || !strings.Contains(got, c.want) {
				t.Errorf("got %s\nwant %s", got, c.want)
			}
		})
	}
}

// A profile's rule about an element that is a resource sees that resource as %resource.
// Spec: https://hl7.org/fhir/R4/fhirpath.html#variables.
func TestResourceVariable(t *testing.T) {
	const core = "http://hl7.org/fhir/StructureDefinition/"
	rule := func(id, typ, path, expression string) string {
		return differential(id, typ, core+typ, `{"id":"`+path+`","path":"`+path+`","constraint":[{"key":"r-1","severity":"error","human":"x","expression":"`+expression+`"}]}`)
	}
	o := overlay{Definitions: library(t), byURL: map[string]string{
		"http://example.org/contained": rule("contained", "Patient", "Patient.contained", "id = 'o' and %resource.id = 'p' and %rootResource.id = 'p'"),
		"http://example.org/entry":     rule("entry", "Bundle", "Bundle.entry.resource", "id = 'e' and %resource.id = 'b' and %rootResource.id = 'b'"),
		"http://example.org/deep":      rule("deep", "Bundle", "Bundle.entry.resource.meta", "%resource.id = 'e' and %rootResource.id = 'e'"),
		"http://example.org/root":      rule("root", "Organization", "Organization", "%resource.id = 'o' and %rootResource.id = 'p'"),
		"http://example.org/typed":     differential("typed", "Patient", core+"Patient", `{"id":"Patient.contained","path":"Patient.contained","type":[{"code":"Organization","profile":["http://example.org/root"]}]}`),
		"http://example.org/inside":    rule("inside", "Organization", "Organization.telecom", "%resource.id = 'o' and %rootResource.id = 'p'"),
	}}
	v := validate.New(r4.Model, o, codes(t))
	contained := func(meta string) string {
		return `{"resourceType":"Patient","id":"p","managingOrganization":{"reference":"#o"},"contained":[{"resourceType":"Organization","id":"o",` + meta + `"name":"x","telecom":[{"value":"1","system":"phone"}]}]}`
	}
	for _, c := range []struct{ name, profile, data string }{
		{"a contained resource", "http://example.org/contained", contained("")},
		{"an entry of a Bundle", "http://example.org/entry", `{"resourceType":"Bundle","id":"b","type":"collection","entry":[{"fullUrl":"http://x/Patient/e","resource":{"resourceType":"Patient","id":"e"}}]}`},
		{"an element of the resource of an entry", "http://example.org/deep", `{"resourceType":"Bundle","id":"b","type":"collection","entry":[{"fullUrl":"http://x/Patient/e","resource":{"resourceType":"Patient","id":"e","meta":{"versionId":"1"}}}]}`},
		{"the root of a contained resource's profile", "", contained(`"meta":{"profile":["http://example.org/root"]},`)},
		{"the root of a type profile", "http://example.org/typed", contained("")},
		{"an element in a contained resource", "", contained(`"meta":{"profile":["http://example.org/inside"]},`)},
	} {
		var asked []string
		if c.profile != "" {
			asked = []string{c.profile}
		}
		if got := issues(t, v, c.data, validate.Options{Profiles: asked}); len(got) > 0 {
			t.Errorf("%s: %v", c.name, got)
		}
	}
}

// A type of an element is that type, and no other that specialises it.
// Spec: https://hl7.org/fhir/R4/elementdefinition-definitions.html#ElementDefinition.type.
func TestTypeRestriction(t *testing.T) {
	const core = "http://hl7.org/fhir/StructureDefinition/"
	o := overlay{Definitions: library(t), byURL: map[string]string{
		"http://example.org/text": differential("text", "Extension", core+"Extension",
			`{"id":"Extension","path":"Extension"},{"id":"Extension.url","path":"Extension.url","fixedUri":"http://example.org/text"},`+
				`{"id":"Extension.value[x]","path":"Extension.value[x]","min":1,"type":[{"code":"string"}]}`),
		"http://example.org/amount": differential("amount", "Observation", core+"Observation",
			`{"id":"Observation.value[x]","path":"Observation.value[x]","type":[{"code":"Quantity"}]}`),
		"http://example.org/slice": differential("slice", "Observation", core+"Observation",
			`{"id":"Observation.component","path":"Observation.component"},`+
				`{"id":"Observation.component.value[x]","path":"Observation.component.value[x]","type":[{"code":"string"}]}`),
		"http://example.org/sliced": differential("sliced", "Parameters", core+"Parameters",
			`{"id":"Parameters.parameter","path":"Parameters.parameter","slicing":{"discriminator":[{"type":"value","path":"name"}],"rules":"open"}},`+
				`{"id":"Parameters.parameter:note","path":"Parameters.parameter","sliceName":"note","min":1},`+
				`{"id":"Parameters.parameter:note.name","path":"Parameters.parameter.name","fixedString":"note"},`+
				`{"id":"Parameters.parameter:note.value[x]","path":"Parameters.parameter.value[x]","min":1,"type":[{"code":"string"}]}`),
	}}
	v := validate.New(r4.Model, o, codes(t))
	patient := func(value string) string {
		return `{"resourceType":"Patient","extension":[{"url":"http://example.org/text",` + value + `}]}`
	}
	observation := func(profile, more string) string {
		return `{"resourceType":"Observation","meta":{"profile":["http://example.org/` + profile + `"]},"status":"final","code":{"text":"x"},` + more + `}`
	}
	parameters := func(value string) string {
		return `{"resourceType":"Parameters","meta":{"profile":["http://example.org/sliced"]},"parameter":[{"name":"note",` + value + `},{"name":"other","valueCode":"x"}]}`
	}
	for _, c := range []struct{ name, data, want string }{
		{"a string in a slice for a string", parameters(`"valueString":"x"`), ""},
		{"a code in a slice for a string", parameters(`"valueCode":"x"`), "expected string, found code"},
		{"a string for a string", patient(`"valueString":"x"`), ""},
		{"a code for a string", patient(`"valueCode":"x"`), "expected string, found code"},
		{"a markdown for a string", patient(`"valueMarkdown":"x"`), "expected string, found markdown"},
		{"an id for a string", patient(`"valueId":"x"`), "expected string, found id"},
		{"a Quantity for a Quantity", observation("amount", `"valueQuantity":{"value":1}`), ""},
		{"a string for a Quantity", observation("amount", `"valueString":"x"`), "expected Quantity, found string"},
		{"an element of a list", observation("slice", `"component":[{"code":{"text":"x"},"valueInteger":1}]`), "expected string, found integer"},
	} {
		got := strings.Join(issues(t, v, c.data, validate.Options{}), "; ")
		if c.want == "" && got != "" || !strings.Contains(got, c.want) {
			t.Errorf("%s: got %q, want %q", c.name, got, c.want)
		}
	}
}

package conformance

import (
	"strings"
	"testing"

	"kiln/server"
)

// search.html#reference
func TestSearchReference(t *testing.T) {
	s := start(t)
	observation := func(id, subject string) string {
		return `{"resourceType":"Observation","id":"` + id + `","status":"final","code":{"text":"x"},"subject":{` + subject + `}}`
	}
	s.put("/Observation/urn", observation("urn", `"reference":"urn:uuid:61ebe359-bfdc-4613-8bf2-c5e300945f0a"`)).want(201)
	s.put("/Observation/group-by-urn", observation("group-by-urn", `"reference":"urn:uuid:0f1f6a1e-2d57-4a7e-8f0f-0b0e6a3ee0aa","type":"Group"`)).want(201)
	s.load(
		`{"resourceType":"Patient","id":"a"}`,
		`{"resourceType":"Group","id":"a","type":"person","actual":true}`,
		observation("typed", `"reference":"Patient/a"`),
		observation("group", `"reference":"Group/a"`),
		observation("versioned", `"reference":"Patient/a/_history/1"`),
		observation("elsewhere", `"reference":"http://other.example/fhir/Patient/a"`),
		observation("logical", `"type":"Patient","identifier":{"system":"http://acme.example/mrn","value":"M-1"}`),
		observation("logical-group", `"type":"Group","identifier":{"system":"http://acme.example/mrn","value":"M-1"}`),
		observation("logical-untyped", `"identifier":{"system":"http://acme.example/mrn","value":"M-1"}`),
		observation("group-identified", `"reference":"Group/b","identifier":{"system":"http://acme.example/mrn","value":"M-1"}`),
		observation("group-elsewhere", `"reference":"http://other.example/fhir/Group/9"`),
		observation("display", `"display":"somebody"`),
		strings.Replace(observation("contained", `"reference":"#p"`), `"status"`, `"contained":[{"resourceType":"Patient","id":"p"}],"status"`, 1),
		strings.Replace(observation("none", ""), `,"subject":{}`, "", 1),
		observation("here", `"reference":"`+s.base+`/Patient/a"`),
		`{"resourceType":"Questionnaire","id":"q","url":"http://acme.example/Questionnaire/q","version":"1.0","status":"active"}`,
		`{"resourceType":"QuestionnaireResponse","id":"r1","status":"completed","questionnaire":"http://acme.example/Questionnaire/q"}`,
		`{"resourceType":"QuestionnaireResponse","id":"r3","status":"completed","questionnaire":"http://acme.example/Questionnaire/q|1.0#part"}`,
		`{"resourceType":"QuestionnaireResponse","id":"r4","status":"completed","questionnaire":"http://acme.example/Questionnaire/q#part"}`,
		`{"resourceType":"QuestionnaireResponse","id":"r2","status":"completed","questionnaire":"http://acme.example/Questionnaire/q|1.0"}`,
	)
	s.searches(t, "Observation", []searchCase{
		{"#reference: Type/id", "subject=Patient/a", "typed versioned"},
		{"#reference: id of any type", "subject=a", "group typed versioned"},
		{"#reference: :[type]", "subject:Patient=a", "typed versioned"},
		{"#reference: :[type]", "subject:Group=a", "group"},
		{"#reference: :[type] with a typed id", "subject:Patient=Patient/a", "typed versioned"},
		{"#reference: an absolute URL", "subject=http://other.example/fhir/Patient/a", "elsewhere"},
		{"#reference: a urn", "subject=urn:uuid:61ebe359-bfdc-4613-8bf2-c5e300945f0a", "urn"},
		{"#reference: :identifier", "subject:identifier=http://acme.example/mrn|M-1", "group-identified logical logical-group logical-untyped"},
		{"#reference: :identifier, in any system", "subject:identifier=M-1", "group-identified logical logical-group logical-untyped"},
		{"#reference: :identifier, in another system", "subject:identifier=http://other.example/mrn|M-1", ""},
		{"#combining: comma is OR", "subject=Patient/a,Group/a", "group typed versioned"},
		{"#modifiers: :missing=true; a display alone is no value of a reference", "subject:missing=true", "display none"},
		{"observation.html#search: patient is subject where it is a Patient", "patient=a", "typed versioned"},
		{"observation.html#search: patient", "patient=Patient/a", "typed versioned"},
		{"observation.html#search: patient is no Group", "patient=Group/a", "400 patient Group"},
		{"observation.html#search: patient, by an identifier", "patient:identifier=http://acme.example/mrn|M-1", "logical logical-untyped"},
		{"observation.html#search: patient, by an identifier", "patient:identifier=M-1", "logical logical-untyped"},
		{"observation.html#search: patient, by an identifier", "patient:identifier=http://acme.example/mrn|", "logical logical-untyped"},
		{"observation.html#search: patient, elsewhere", "patient=http://other.example/fhir/Patient/a", "elsewhere"},
		{"observation.html#search: patient is no Group elsewhere", "patient=http://other.example/fhir/Group/9", ""},
		{"observation.html#search: patient is no Group by a urn", "patient=urn:uuid:0f1f6a1e-2d57-4a7e-8f0f-0b0e6a3ee0aa", ""},
		{"observation.html#search: subject is any of them", "subject=http://other.example/fhir/Group/9", "group-elsewhere"},
		{"observation.html#search: what says that it is a Patient is one", "patient:missing=false", "contained elsewhere here logical typed versioned"},
		{"#reference: nothing of the name", "subject=Patient/b", ""},
		{"#reference: an unknown type", "subject=Patent/a", "400 Patent Patient"},
		{"#reference: a type it cannot refer to", "subject:Practitioner=a", "400 subject Practitioner"},
		{"#reference: no id", "subject=not an id", "400 subject"},
		{"#modifiers: of another type", "subject:exact=a", "400 subject:exact :exact"},
	})
	s.searches(t, "QuestionnaireResponse", []searchCase{
		{"#reference: a canonical, of any version", "questionnaire=http://acme.example/Questionnaire/q", "r1 r2 r3 r4"},
		{"#versions: a canonical with its version", "questionnaire=http://acme.example/Questionnaire/q|1.0", "r2 r3"},
		{"references.html#canonical: with a fragment", "questionnaire=http://acme.example/Questionnaire/q#part", "r4"},
		{"references.html#canonical: with version and fragment", "questionnaire=http://acme.example/Questionnaire/q|1.0#part", "r3"},
		{"#chaining: a fragment is within the target", "questionnaire.status=active", "r1 r2 r3 r4"},
	})
}

// search.html#reference: an absolute URL of this server is the reference
// relative to it.
func TestSearchReferenceOfThisServer(t *testing.T) {
	s := start(t, func(c *server.Config) { c.Server.BaseURL = "https://fhir.example.org/r4" })
	s.load(
		`{"resourceType":"Patient","id":"a"}`,
		`{"resourceType":"Observation","id":"relative","status":"final","code":{"text":"x"},"subject":{"reference":"Patient/a"}}`,
		`{"resourceType":"Observation","id":"absolute","status":"final","code":{"text":"x"},"subject":{"reference":"https://fhir.example.org/r4/Patient/a"}}`,
	)
	s.searches(t, "Observation", []searchCase{
		{"#reference", "subject=Patient/a", "absolute relative"},
		{"#reference", "subject=https://fhir.example.org/r4/Patient/a", "absolute relative"},
		{"#chaining", "subject:Patient._id=a", "absolute relative"},
	})
}

// search.html#uri
func TestSearchURI(t *testing.T) {
	s := start(t)
	set := func(id, url string) string {
		return `{"resourceType":"ValueSet","id":"` + id + `","status":"active","url":"` + url + `"}`
	}
	s.load(
		set("base", "http://acme.example/fhir"),
		set("one", "http://acme.example/fhir/ValueSet/123"),
		set("deep", "http://acme.example/fhir/ValueSet/123/_history/5"),
		set("sibling", "http://acme.example/fhir/ValueSet/1234"),
		set("cased", "http://acme.example/fhir/valueset/123"),
		set("accent", "http://acme.example/fhir/ValueSet/é"),
		set("oid", "urn:oid:1.2.3.4.5"),
		set("oidbelow", "urn:oid:1.2.3.4.5.6"),
		`{"resourceType":"ValueSet","id":"none","status":"active"}`,
		`{"resourceType":"ValueSet","id":"v1","status":"active","url":"http://other.example/vs","version":"1.0"}`,
		`{"resourceType":"ValueSet","id":"v2","status":"active","url":"http://other.example/vs","version":"2.0"}`,
		`{"resourceType":"CodeSystem","id":"cs","status":"active","content":"complete","url":"http://other.example/vs","version":"2.0"}`,
		`{"resourceType":"Patient","id":"r4","meta":{"profile":["http://hl7.org/fhir/StructureDefinition/Patient|4.0.1"]}}`,
		`{"resourceType":"Patient","id":"any","meta":{"profile":["http://hl7.org/fhir/StructureDefinition/Patient"]}}`,
	)
	s.searches(t, "ValueSet", []searchCase{
		{"#uri: the whole", "url=http://acme.example/fhir/ValueSet/123", "one"},
		{"#uri: precise, with case", "url=http://acme.example/fhir/valueset/123", "cased"},
		{"#uri: precise, with accents", "url=http://acme.example/fhir/ValueSet/e", ""},
		{"#uri: no prefix match", "url=http://acme.example", ""},
		{"#uri: a urn", "url=urn:oid:1.2.3.4.5", "oid"},
		{"#uri: :below", "url:below=http://acme.example/fhir/ValueSet/123", "deep one"},
		{"#uri: :below, whole path steps", "url:below=http://acme.example/fhir/ValueSet/12", ""},
		{"#uri: :below", "url:below=http://acme.example/fhir/", "accent base cased deep one sibling"},
		{"#uri: :above", "url:above=http://acme.example/fhir/ValueSet/123/_history/5", "base deep one"},
		{"#uri: :above", "url:above=http://acme.example/fhir/ValueSet/123/x", "base one"},
		{"#uri: :below does not apply to a urn", "url:below=urn:oid:1.2.3", "400 url:below"},
		{"#uri: :above does not apply to a urn", "url:above=urn:oid:1.2.3", "400 url:above"},
		{"#combining: comma is OR", "url=urn:oid:1.2.3.4.5,http://acme.example/fhir", "base oid"},
		{"#modifiers: :missing=true", "url:missing=true", "none"},
		{"#modifiers: of another type", "url:contains=x", "400 url:contains :contains uri"},
		{"#uri: a canonical without version", "url=http://other.example/vs", "v1 v2"},
		{"#uri: the version of a canonical", "url=http://other.example/vs|2.0", "v2"},
		{"#uri: a version that there is not", "url=http://other.example/vs|2", ""},
		{"#combining: comma is OR", "url=http://other.example/vs|1.0,urn:oid:1.2.3.4.5", "oid v1"},
		{"#escaping: a pipe that is part of the value", `url=http://other.example/vs\|2.0`, ""},
	})
	t.Run("a version of several types (#uri)", func(t *testing.T) {
		s.in(t).get("/?_type=ValueSet,CodeSystem&url=http://other.example/vs%7C2.0").want(200).equal("total", "2")
	})
	s.searches(t, "Patient", []searchCase{
		{"#uri: precise", "_profile=http://hl7.org/fhir/StructureDefinition/Patient|4.0.1", "r4"},
		{"#versions: :below is any version", "_profile:below=http://hl7.org/fhir/StructureDefinition/Patient", "any r4"},
		{"#versions: :below is a shorter version", "_profile:below=http://hl7.org/fhir/StructureDefinition/Patient|4.0", "r4"},
		{"#versions: :below, whole parts of a version", "_profile:below=http://hl7.org/fhir/StructureDefinition/Patient|4.0.", ""},
		{"#uri: :above is without the version", "_profile:above=http://hl7.org/fhir/StructureDefinition/Patient|4.0.1", "any r4"},
	})
}

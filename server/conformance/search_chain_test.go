package conformance

import "testing"

// search.html#chaining and #has
func TestSearchChain(t *testing.T) {
	s := start(t)
	s.load(
		`{"resourceType":"Organization","id":"top","name":"Top House","identifier":[{"system":"urn:o","value":"T"}]}`,
		`{"resourceType":"Organization","id":"sub","name":"Sub House","partOf":{"reference":"Organization/top"}}`,
		`{"resourceType":"Practitioner","id":"joe","name":[{"family":"Joe"}],"address":[{"state":"MN"}]}`,
		`{"resourceType":"Practitioner","id":"jane","name":[{"family":"Jane"}],"address":[{"state":"WI"}]}`,
		`{"resourceType":"Patient","id":"p1","name":[{"family":"Chalmers"}],"birthDate":"1980-02-03","active":true,"managingOrganization":{"reference":"Organization/sub"},"generalPractitioner":[{"reference":"Practitioner/joe"}]}`,
		`{"resourceType":"Patient","id":"p2","name":[{"family":"Smith"}],"birthDate":"1950","managingOrganization":{"reference":"Organization/top"},"generalPractitioner":[{"reference":"Practitioner/joe"},{"reference":"Practitioner/jane"}]}`,
		`{"resourceType":"Patient","id":"p3","name":[{"family":"Alone"}],"generalPractitioner":[{"reference":"Organization/top"}]}`,
		`{"resourceType":"Device","id":"d1","deviceName":[{"name":"Chalmers","type":"other"}]}`,
		`{"resourceType":"Observation","id":"o1","status":"final","code":{"coding":[{"system":"http://loinc.org","code":"1234-5"}]},"subject":{"reference":"Patient/p1"},"valueQuantity":{"value":7}}`,
		`{"resourceType":"Observation","id":"o2","status":"final","code":{"coding":[{"system":"http://loinc.org","code":"9999-9"}]},"subject":{"reference":"Patient/p2"},"performer":[{"reference":"Practitioner/joe"}]}`,
		`{"resourceType":"Observation","id":"o3","status":"amended","code":{"text":"x"},"subject":{"reference":"Device/d1"}}`,
		`{"resourceType":"Observation","id":"o4","status":"final","code":{"text":"no subject"}}`,
		`{"resourceType":"Provenance","id":"v1","target":[{"reference":"Observation/o1"}],"recorded":"2020-01-01T00:00:00Z","agent":[{"who":{"reference":"Practitioner/jane"}}]}`,
		`{"resourceType":"Group","id":"g1","type":"person","actual":true,"member":[{"entity":{"reference":"Patient/p2"}}]}`,
		`{"resourceType":"Questionnaire","id":"qa","url":"http://acme.example/qa","status":"active"}`,
		`{"resourceType":"Questionnaire","id":"qb","url":"http://acme.example/qb","version":"1.0","status":"draft"}`,
		`{"resourceType":"Questionnaire","id":"qc","url":"http://acme.example/qb","version":"2.0","status":"retired"}`,
		`{"resourceType":"QuestionnaireResponse","id":"ra","status":"completed","questionnaire":"http://acme.example/qa"}`,
		`{"resourceType":"QuestionnaireResponse","id":"rb","status":"completed","questionnaire":"http://acme.example/qb|1.0"}`,
		`{"resourceType":"QuestionnaireResponse","id":"rx","status":"amended","questionnaire":"http://other.example/q"}`,
		`{"resourceType":"Encounter","id":"e1","status":"finished","class":{"code":"AMB"},"subject":{"reference":"Patient/p2"}}`,
		`{"resourceType":"Encounter","id":"e2","status":"finished","class":{"code":"AMB"},"subject":{"reference":"Patient/p1"}}`,
	)
	s.searches(t, "Observation", []searchCase{
		{"#chaining: of one type", "subject:Patient.family=chal", "o1"},
		{"contract: :<Type> chain", "subject:Patient.family=Smith", "o2"},
		{"#chaining: over every possible target", "subject.device-name=chal", "o3"},
		{"#chaining: a parameter that several targets have", "subject.identifier=nothing", ""},
		{"#chaining: by a date", "patient.birthdate=lt1970", "o2"},
		{"#chaining: by a token", "patient.active=true", "o1"},
		{"#chaining: by a reference", "patient.organization=Organization/sub", "o1"},
		{"#chaining: by _id", "subject:Patient._id=p1,p2", "o1 o2"},
		{"#chaining: two hops", "patient.organization.name=top", "o2"},
		{"#chaining: three hops", "patient.organization.partof.name=top", "o1"},
		{"#chaining: typed hops", "subject:Patient.organization:Organization.partof:Organization.identifier=urn:o|T", "o1"},
		{"#chaining: comma is OR", "subject:Patient.family=chal,smith", "o1 o2"},
		{"#chaining: with a modifier at the end", "subject:Patient.family:exact=Chalmers", "o1"},
		{"#chaining: with :missing at the end", "subject:Patient.organization:missing=false", "o1 o2"},
		{"#chaining: _lastUpdated at the end", "subject:Patient._lastUpdated=gt2000", "o1 o2"},
		{"#chaining: beside a parameter of its own", "subject:Patient.family=chal&code=9999-9", ""},
		{"#chaining: into nowhere", "subject:Patient.nothing=x", "400 nothing"},
		{"#chaining: into nowhere, over every target", "subject.nothing=x", "400 nothing"},
		{"#chaining: not a reference", "code.family=x", "400 code.family"},
		{"#chaining: not one of the targets", "subject:Medication.code=x", "400 subject Medication"},
		{"#chaining: nothing after the point", "subject.=x", "400"},
		{"#chaining: a value that cannot be read", "patient.birthdate=soon", "400 birthdate soon"},
	})
	s.searches(t, "Patient", []searchCase{
		{"#chaining: each repetition by any of the targets", "general-practitioner:Practitioner.family=joe&general-practitioner:Practitioner.address-state=WI", "p2"},
		{"#chaining: a parameter that two targets have", "general-practitioner.name=Top", "p3"},
		{"#has: _has:Observation:patient:code=1234-5", "_has:Observation:patient:code=1234-5", "p1"},
		{"#has: comma is OR", "_has:Observation:patient:code=1234-5,9999-9", "p1 p2"},
		{"#has: repetition is AND", "_has:Observation:patient:code=1234-5&_has:Observation:patient:code=9999-9", ""},
		{"#has: by a value", "_has:Observation:patient:value-quantity=gt5", "p1"},
		{"#has: nested", "_has:Observation:patient:_has:Provenance:target:agent=Practitioner/jane", "p1"},
		{"#has: with a chain", "_has:Observation:patient:performer:Practitioner.family=joe", "p2"},
		{"#has: beside a parameter of its own", "_has:Observation:patient:status=final&family=smith", "p2"},
		{"#has: with a modifier", "_has:Observation:patient:code:not=1234-5", "p2"},
		{"#has: an unknown type", "_has:Observatin:patient:code=x", "400 Observatin Observation"},
		{"#has: an unknown reference", "_has:Observation:nothing:code=x", "400 nothing"},
		{"#has: not a reference", "_has:Observation:code:code=x", "400 code"},
		{"#has: an unknown parameter", "_has:Observation:patient:nothing=x", "400 nothing"},
		{"#has: it never refers to this", "_has:Observation:encounter:code=x", "400 encounter"},
		{"#has: a part is missing", "_has:Observation:patient=x", "400 _has"},
		{"#has: alone", "_has=x", "400 _has"},
	})
	s.load(`{"resourceType":"Linkage","id":"same","item":[{"type":"source","resource":{"reference":"Patient/p2"}},{"type":"alternate","resource":{"reference":"Patient/p1"}}]}`,
		`{"resourceType":"Library","id":"old","url":"http://acme.org/old","status":"retired","type":{"text":"x"}}`,
		`{"resourceType":"Library","id":"new","status":"active","type":{"text":"x"},"relatedArtifact":[{"type":"predecessor","resource":"http://acme.org/old"}]}`,
	)
	s.searches(t, "Library", []searchCase{
		{"#chaining: an element named resource is a canonical", "predecessor:Library.status=retired", "new"},
	})
	s.searches(t, "Linkage", []searchCase{
		{"#chaining: an element named resource is a reference", "item:Patient._id=p1", "same"},
		{"#chaining: an element named resource is a reference", "source:Patient.family=smith", "same"},
	})
	s.searches(t, "Bundle", []searchCase{
		{"bundle.html#search: nothing of a document or message is stored", "composition.status=final", ""},
		{"bundle.html#search: nothing of a document or message is stored", "composition.title=discharge&message.event=admin", ""},
	})
	composition := func(id, rest string) string {
		return `{"resourceType":"Composition",` + id + `"status":"final","type":{"text":"x"},"date":"2020-01-01","author":[{"reference":"Practitioner/jane"}],"title":"Discharge Letter"` + rest + `}`
	}
	s.load(composition(`"id":"c-stored",`, `,"subject":{"reference":"Patient/p1"}`),
		`{"resourceType":"Bundle","id":"doc","type":"document","identifier":{"system":"urn:x","value":"1"},"timestamp":"2020-01-01T00:00:00Z","entry":[{"fullUrl":"http://acme.org/Composition/c1","resource":`+
			composition(`"id":"c1",`, `,"subject":{"reference":"#p"},"contained":[{"resourceType":"Patient","id":"p","name":[{"family":"Inside"}]}]`)+`}]}`,
		`{"resourceType":"Bundle","id":"doc-nameless","type":"document","identifier":{"system":"urn:x","value":"2"},"timestamp":"2020-01-01T00:00:00Z","entry":[{"fullUrl":"urn:uuid:61ebe359-bfdc-4613-8bf2-c5e300945f0a","resource":`+
			composition("", `,"subject":{"reference":"Patient/p1"},"confidentiality":"R"`)+`}]}`,
		`{"resourceType":"Bundle","id":"message","type":"message","entry":[{"fullUrl":"http://acme.org/MessageHeader/m1","resource":{"resourceType":"MessageHeader","id":"m1","eventCoding":{"system":"urn:e","code":"admit"},"source":{"endpoint":"http://acme.org/here"}}}]}`,
		`{"resourceType":"Bundle","id":"second","type":"collection","entry":[{"fullUrl":"http://acme.org/Patient/p1","resource":{"resourceType":"Patient","id":"p1"}},{"fullUrl":"http://acme.org/Composition/c1","resource":`+composition(`"id":"c1",`, "")+`}]}`,
	)
	s.searches(t, "Bundle", []searchCase{
		{"bundle.html#search: what is in a document", "composition.title=discharge", "doc doc-nameless"},
		{"bundle.html#search: what is in a document", "composition:Composition.status=final&identifier=2", "doc-nameless"},
		{"bundle.html#search: what is in a document", "composition.date=lt2020", ""},
		{"bundle.html#search: what is in a document", "composition.confidentiality:missing=true", "doc"},
		{"bundle.html#search: a reference of a document", "composition.patient=Patient/p1", "doc-nameless"},
		{"bundle.html#search: a document by its id", "composition._id=c1", "doc"},
		{"bundle.html#search: a document without id", "composition:missing=false", "doc doc-nameless"},
		{"bundle.html#search: what is in a message", "message.event=urn:e|admit", "message"},
		{"bundle.html#search: what is in a message", "message:MessageHeader.title=x", "400 title"},
		{"search_filter.html: what is in a document", `_filter=composition.title sw "discharge" and not (identifier eq 1)`, "doc-nameless"},
		{"bundle.html#search: what a document refers to is within it", "composition.patient.family=chalmers", "400 composition within the Bundle"},
		{"bundle.html#search: a document has no versions of its own", "composition._lastUpdated=gt2000", "400 composition within the Bundle"},
	})
	s.searches(t, "QuestionnaireResponse", []searchCase{
		{"#chaining: along a canonical", "questionnaire.status=active", "ra"},
		{"#chaining: along a canonical, of a version", "questionnaire.status=draft", "rb"},
		{"references.html#canonical: another version than the reference names", "questionnaire.status=retired", ""},
		{"#chaining: along a canonical", "questionnaire:Questionnaire.url:missing=false", "ra rb"},
		{"#chaining: along a canonical, by _id", "questionnaire._id=qa,qc", "ra"},
	})
	s.searches(t, "Questionnaire", []searchCase{
		{"#has: along a canonical", "_has:QuestionnaireResponse:questionnaire:status=completed", "qa qb"},
		{"#has: along a canonical", "_has:QuestionnaireResponse:questionnaire:status=amended", ""},
	})
	s.searches(t, "Encounter", []searchCase{
		{"#has: Encounter?patient._has:Group:member:_id=102", "patient._has:Group:member:_id=g1", "e1"},
	})
	s.do("DELETE", "/Patient/p2", "").want(204)
	s.searches(t, "Encounter", []searchCase{
		{"#chaining: the target is deleted", "patient.birthdate=1950", ""},
		{"#chaining: the target is deleted", "subject:Patient._id=p1,p2", "e2"},
		{"#chaining: the target is deleted", "subject._id=p2", ""},
		{"#reference: a reference to a deleted resource", "subject=Patient/p2", "e1"},
	})
}

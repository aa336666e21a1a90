package conformance

import "testing"

// search.html#token
func TestSearchToken(t *testing.T) {
	s := start(t)
	const loinc, local = `"system":"http://loinc.org"`, `"system":"http://acme.example/codes"`
	observation := func(id, rest string) string {
		return `{"resourceType":"Observation","id":"` + id + `",` + rest + `}`
	}
	s.load(
		observation("bp", `"status":"final","code":{"coding":[{`+loinc+`,"code":"55284-4","display":"Blood pressure systolic & diastolic"},{`+local+`,"code":"BP"}],"text":"Blutdruck"}`),
		observation("local", `"status":"amended","code":{"coding":[{`+local+`,"code":"55284-4"}]}`),
		observation("bare", `"status":"final","code":{"coding":[{"code":"55284-4"}]}`),
		observation("text", `"status":"preliminary","code":{"text":"Blood pressure by hand"}`),
		observation("cased", `"status":"final","code":{"coding":[{`+local+`,"code":"AbC,d|e$f\\g"}]},"valueCodeableConcept":{"coding":[{`+local+`,"code":"v1","display":"Value one"}]}`),
		`{"resourceType":"Patient","id":"p1","active":true,"gender":"female","identifier":[{"use":"usual","type":{"coding":[{"system":"http://terminology.hl7.org/CodeSystem/v2-0203","code":"MR"}],"text":"Medical record number"},"system":"urn:oid:1.2.36","value":"12345"}],"telecom":[{"system":"phone","use":"home","value":"+1 555 1000"},{"system":"email","value":"eve@example.org"}],"deceasedDateTime":"2020-01-01"}`,
		`{"resourceType":"Patient","id":"p2","active":false,"gender":"male","identifier":[{"value":"12345"},{"type":{"coding":[{"system":"http://terminology.hl7.org/CodeSystem/v2-0203","code":"SS"}]},"system":"urn:oid:1.2.36","value":"777"}],"deceasedBoolean":false}`,
		`{"resourceType":"DocumentReference","id":"xml","status":"current","content":[{"attachment":{"contentType":"text/xml"}}]}`,
		`{"resourceType":"DocumentReference","id":"utf8","status":"current","content":[{"attachment":{"contentType":"text/xml; charset=UTF-8"}}]}`,
		`{"resourceType":"DocumentReference","id":"pdf","status":"current","content":[{"attachment":{"contentType":"application/pdf"}}]}`,
		`{"resourceType":"Patient","id":"p3","communication":[{"language":{"coding":[{"system":"urn:ietf:bcp:47","code":"de"}]}}]}`,
	)
	s.searches(t, "Observation", []searchCase{
		{"#token: code in any system", "code=55284-4", "bare bp local"},
		{"#token: system|code", "code=http://loinc.org|55284-4", "bp"},
		{"#token: system|code", "code=http://loinc.org|BP", ""},
		{"#token: |code has no system", "code=|55284-4", "bare"},
		{"#token: system| is any code of the system", "code=http://acme.example/codes|", "bp cased local"},
		{"#token: a system is compared as a uri", "code=http://ACME.example/codes|", ""},
		{"#token: codes are not case-sensitive unless their system says so", "code=bp", "bp"},
		{"#combining: comma is OR", "code=BP,http://loinc.org|55284-4,x", "bp"},
		{"#combining: repetition is AND", "code=BP&code=55284-4", "bp"},
		{"#token: a code element", "status=final", "bare bp cased"},
		{"#token: a code element with the system of its value set", "status=http://hl7.org/fhir/observation-status|final", "bare bp cased"},
		{"#token: a code element in another system", "status=http://loinc.org|final", ""},
		{"#token: :not", "status:not=final", "local text"},
		{"#token: :not of several", "status:not=final,amended", "text"},
		{"#token: :not includes resources without a value", "value-concept:not=v1", "bare bp local text"},
		{"#token: :not repeated is AND", "status:not=final&status:not=amended", "text"},
		{"#token: :text is the text of the concept", "code:text=blut", "bp"},
		{"#token: :text is the display of a coding", "code:text=blood pressure", "bp text"},
		{"#token: :text ignores case and accents", "code:text=BLÖOD", "bp text"},
		{"contract: :text ignores punctuation and white space, as strings do", "code:text=blood-pressure", "bp text"},
		{"contract: :text ignores punctuation and white space, as strings do", "code:text=bloodpress", "bp text"},
		{"#modifiers: :missing=true", "value-concept:missing=true", "bare bp local text"},
		{"#modifiers: :missing=false", "code:missing=false", "bare bp cased local text"},
		{"#escaping: comma, pipe, dollar and backslash in a code", `code=AbC\,d\|e\$f\\g`, "cased"},
		{"#escaping: with a system", `code=http://acme.example/codes|abc\,d\|e\$f\\g`, "cased"},
		{"#modifiers: of another type", "code:exact=x", "400 code:exact :exact token"},
		{"#modifiers: unknown", "code:like=x", "400 code:like :like"},
		{"#token: neither system nor code", "code=|", "400 code"},
		{"#token: :of-type is of identifiers", "code:of-type=http://a|MR|12345", "400 code:of-type identifiers"},
		{"#token: :of-type is of identifiers: a chain", "subject:Patient.gender:of-type=http://a|MR|12345", "400 identifiers"},
		{"#token: :of-type of an identifier at the end of a chain", "subject:Patient.identifier:of-type=http://a|MR|12345", ""},
		{"#token: :of-type of meta", "_tag:of-type=http://a|MR|12345", "400 _tag:of-type identifiers"},
		{"#prefix: tokens have none", "code=gt55284-4", ""},
	})
	s.searches(t, "DocumentReference", []searchCase{
		{"#mimetype: without :below only itself", "contenttype=text/xml", "xml"},
		{"#mimetype: :below is with parameters, too", "contenttype:below=text/xml", "utf8 xml"},
		{"#mimetype: :below with the system", "contenttype:below=urn:ietf:bcp:13|Text/XML", "utf8 xml"},
		{"#mimetype: :below of one with parameters", "contenttype:below=text/xml; charset=utf-8", "utf8"},
		{"#mimetype: :below, no part of a type", "contenttype:below=text/x", ""},
	})
	s.searches(t, "Patient", []searchCase{
		{"#token: Identifier by value", "identifier=12345", "p1 p2"},
		{"#token: Identifier by system|value", "identifier=urn:oid:1.2.36|12345", "p1"},
		{"#token: Identifier without system", "identifier=|12345", "p2"},
		{"#token: Identifier by system", "identifier=urn:oid:1.2.36|", "p1 p2"},
		{"#token: :of-type needs all parts", "identifier:of-type=x", "400 identifier:of-type"},
		{"#token: :of-type needs all parts: the system", "identifier:of-type=MR|12345", "400 identifier:of-type"},
		{"#token: :of-type needs all parts: the system", "identifier:of-type=|MR|12345", "400 identifier:of-type"},
		{"#token: :of-type needs all parts: the code", "identifier:of-type=http://a||12345", "400 identifier:of-type"},
		{"#token: :of-type needs all parts: the value", "identifier:of-type=http://a|MR|", "400 identifier:of-type"},
		{"#token: :of-type is of identifiers", "telecom:of-type=http://a|MR|12345", "400 telecom:of-type identifiers"},
		{"#token: :of-type is of identifiers", "active:of-type=http://a|MR", "400 active:of-type identifiers"},
		{"#token: :of-type", "identifier:of-type=http://terminology.hl7.org/CodeSystem/v2-0203|MR|12345", "p1"},
		{"#token: :of-type, type and value of one identifier", "identifier:of-type=http://terminology.hl7.org/CodeSystem/v2-0203|SS|12345", ""},
		{"contract: :of-type=type system|type code", "identifier:of-type=http://terminology.hl7.org/CodeSystem/v2-0203|SS", "p2"},
		{"#token: :text of an identifier is the text of its type", "identifier:text=medical record", "p1"},
		{"#token: boolean", "active=true", "p1"},
		{"#token: boolean", "active=false", "p2"},
		{"#token: boolean, :not", "active:not=true", "p2 p3"},
		{"#token: boolean, neither true nor false", "active:missing=true", "p3"},
		{"#token: gender", "gender=male,female", "p1 p2"},
		{"#token: gender:not", "gender:not=male", "p1 p3"},
		{"#token: ContactPoint", "telecom=eve@example.org", "p1"},
		{"#token: ContactPoint of one system", "email=eve@example.org", "p1"},
		{"#token: ContactPoint of one system", "phone=eve@example.org", ""},
		{"#token: ContactPoint, the use in place of a system", "phone=home|+1 555 1000", "p1"},
		{"patient.html#search: deceased, a date means true", "deceased=true", "p1"},
		{"patient.html#search: deceased", "deceased=false", "p2 p3"},
		{"#token: a CodeableConcept inside a repeating element", "language=de", "p3"},
	})
}

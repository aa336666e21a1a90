package conformance

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"kiln/server"
)

// FORMATS, 7: a larger _count is told on the first page.
func TestClampedCount(t *testing.T) {
	t.Parallel()
	s := start(t, func(c *server.Config) { c.Search.DefaultCount, c.Search.MaxCount = 2, 3 })
	for range 7 {
		s.create(`{"resourceType":"Patient"}`)
	}
	for _, path := range []string{"/Patient?_count=5", "/?_type=Patient&_count=5"} {
		a := s.get(path).want(200)
		if got := a.entries("outcome"); len(got) != 1 || a.str("entry.3.resource.issue.0.severity") != "information" {
			t.Errorf("%s: %s", path, a.body)
		}
		for _, word := range []string{"_count", "5", "3"} {
			if !strings.Contains(a.str("entry.3.resource.issue.0.diagnostics"), word) {
				t.Errorf("%s: the issue does not name %s: %s", path, word, a.body)
			}
		}
		if !strings.Contains(a.link("self"), "_count=3") {
			t.Errorf("self: %s", a.link("self"))
		}
		if next := s.get(a.link("next")).want(200); len(next.entries("outcome")) != 0 || len(next.matches()) != 3 {
			t.Errorf("the next page: %s", next.body)
		}
	}
	if a := s.get("/Patient?_count=3").want(200); len(a.entries("outcome")) != 0 {
		t.Errorf("nothing was clamped: %s", a.body)
	}
	if a := s.post("/Patient/_search", "_count=9", "Content-Type", "application/x-www-form-urlencoded").want(200); len(a.entries("outcome")) != 1 {
		t.Errorf("by POST: %s", a.body)
	}
	if got := server.Default().Search.MaxCount; got != 1000 {
		t.Errorf("search.max_count is %d by default", got)
	}
}

// Spec: https://hl7.org/fhir/R4/http.html#trules: links change in the resources of a
// transaction, and not in the Bundles within them; a value stays of its type.
func TestLinksOfNestedBundles(t *testing.T) {
	t.Parallel()
	s := start(t)
	const urn, oid = "urn:uuid:9e6f9d2a-8f38-4d0e-9f0a-1b1a1c6d2f11", "urn:oid:1.2.3"
	inner := `{"resourceType":"Bundle","type":"collection","entry":[{"fullUrl":"` + urn + `","resource":{"resourceType":"Patient","gender":"male"}},` +
		`{"fullUrl":"urn:uuid:9e6f9d2a-8f38-4d0e-9f0a-1b1a1c6d2f12","resource":{"resourceType":"Observation","status":"final","code":{"text":"x"},"subject":{"reference":"` + urn + `"}}}]}`
	a := s.post("/", `{"resourceType":"Bundle","type":"transaction","entry":[
		{"fullUrl":"`+urn+`","resource":{"resourceType":"Patient"},"request":{"method":"POST","url":"Patient"}},
		{"fullUrl":"`+oid+`","resource":{"resourceType":"Patient"},"request":{"method":"POST","url":"Patient"}},
		{"resource":`+inner+`,"request":{"method":"POST","url":"Bundle"}},
		{"resource":{"resourceType":"Basic","code":{"text":"x"},"subject":{"reference":"`+urn+`"},"extension":[{"url":"http://x.example/u","valueUuid":"`+urn+`"},{"url":"http://x.example/o","valueOid":"`+oid+`"},{"url":"http://x.example/i","valueUri":"`+urn+`"}]},
		 "request":{"method":"POST","url":"Basic"}}]}`).want(200)
	location := func(i int) string {
		l, _, _ := strings.Cut(a.str(fmt.Sprintf("entry.%d.response.location", i)), "/_history")
		return l
	}
	b := s.get("/" + location(2)).want(200)
	b.equal("entry.0.fullUrl", urn).equal("entry.1.resource.subject.reference", urn)
	s.post("/Bundle/$validate", string(b.body)).want(200).equal("issue.0.severity", "information")
	basic := s.get("/" + location(3)).want(200)
	basic.equal("subject.reference", location(0)).equal("extension.0.valueUuid", urn).equal("extension.1.valueOid", oid).equal("extension.2.valueUri", location(0))
}

// R4 binary.html#rest; FORMATS, 6: any content type is content, except a Binary.
func TestBinaryOfAnyType(t *testing.T) {
	t.Parallel()
	s := start(t)
	for _, c := range []struct{ typ, body string }{
		{"application/json", `{"a": 1}`}, {"application/json", `[1]`}, {"application/json", `{`}, {"text/json", `1`}, {"application/fhir+json", `{"resourceType":"Patient"}`},
		{"application/fhir+json", `{"a":1}`}, {"application/xml", `<a/>`}, {"application/fhir+xml", `<Patient xmlns="http://hl7.org/fhir"/>`}, {"application/xml", `<Binary/>`}, {"text/xml", `<`},
		{"application/json; charset=utf-16", `{"x":2}`}, {"text/plain", `{"resourceType":"Binary"}`}, {"application/fhir+json; fhirVersion=5.0", `{"resourceType":"Patient"}`},
	} {
		a := s.post("/Binary", c.body, "Content-Type", c.typ).want(201)
		got := s.get("/Binary/"+a.str("id"), "Accept", "*/*").want(200)
		if string(got.body) != c.body || got.header.Get("Content-Type") != c.typ {
			t.Errorf("%s %s: read as %s %q", c.typ, c.body, got.header.Get("Content-Type"), got.body)
		}
		id := a.str("id")
		if p := s.put("/Binary/"+id, c.body, "Content-Type", c.typ).want(200); p.str("id") != id {
			t.Errorf("%s: %s", c.typ, p.body)
		}
		s.get("/Binary/"+id, "Accept", "application/fhir+json").want(200).equal("resourceType", "Binary")
		own, _, _ := strings.Cut(c.typ, ";")
		if own != "application/fhir+json" && own != "application/fhir+xml" {
			if got := s.get("/Binary/"+id, "Accept", own).want(200); string(got.body) != c.body {
				t.Errorf("%s: by its own type %q", c.typ, got.body)
			}
		}
	}
	id := s.post("/Binary", "x", "Content-Type", "text/plain").want(201).str("id")
	s.get("/Binary/"+id, "Accept", "application/json").want(200).equal("resourceType", "Binary")
	s.get("/Binary/"+id+"?_format=json", "Accept", "*/*").want(200).equal("resourceType", "Binary")
	if a := s.get("/Binary/"+id, "Accept", "text/html,application/xml;q=0.9,*/*;q=0.8").want(200); string(a.body) != "x" {
		t.Errorf("a browser: %s", a.body)
	}
	s.post("/Binary", `{"resourceType":"Binary","contentType":"text/plain","data":"eA=="}`).want(201)
	s.post("/Binary", `{"resourceType":"Binary","contentType":"text/plain","data":"eA=="`).issue(400, "structure")
	s.post("/Binary", `{"resourceType":"Binary","data":"eA=="}`).issue(422, "invalid")
	s.post("/Binary", `{"resourceType":"Binary","contentType":"text/plain"}`, "Content-Type", "application/json; charset=utf-16").want(415)
	s.post("/Binary", `<?xml version="1.0"?><Binary xmlns="http://hl7.org/fhir"/>`, "Content-Type", "application/fhir+xml").want(415)
}

// Spec: https://hl7.org/fhir/R4/fhirpatch.html: a patch without operations changes nothing.
func TestEmptyFHIRPathPatch(t *testing.T) {
	t.Parallel()
	s := start(t)
	id := s.create(`{"resourceType":"Patient","gender":"male"}`)
	s.do("PATCH", "/Patient/"+id, `{"resourceType":"Parameters"}`).want(200).equal("gender", "male")
	s.post("/", `{"resourceType":"Bundle","type":"batch","entry":[{"resource":{"resourceType":"Parameters"},"request":{"method":"PATCH","url":"Patient/`+id+`"}}]}`).want(200).equal("entry.0.response.status", "200 OK")
}

// FORMATS, 7: a conditional reference outside a transaction is refused.
func TestConditionalReferenceAlone(t *testing.T) {
	t.Parallel()
	s := start(t)
	s.create(`{"resourceType":"Patient","identifier":[{"system":"http://x.example","value":"1"}]}`)
	id := s.create(`{"resourceType":"Observation","status":"final","code":{"text":"x"}}`)
	for _, reference := range []string{"Patient?identifier=http://x.example|1", s.base + "/Patient?identifier=1", "Patient?"} {
		body := func(id string) string {
			return `{"resourceType":"Observation",` + id + `"status":"final","code":{"text":"x"},"performer":[{"display":"x"},{"reference":"` + reference + `"}]}`
		}
		own := `"id":"` + id + `",`
		for what, a := range map[string]*answer{
			"create": s.post("/Observation", body("")), "update": s.put("/Observation/"+id, body(own)), "create by PUT": s.put("/Observation/n", body(`"id":"n",`)),
			"conditional create": s.post("/Observation", body(""), "If-None-Exist", "code=none"), "conditional update": s.put("/Observation?code=none", body("")),
			"JSON Patch":     s.do("PATCH", "/Observation/"+id, `[{"op":"add","path":"/performer","value":[{"display":"x"},{"reference":"`+reference+`"}]}]`, "Content-Type", "application/json-patch+json"),
			"FHIRPath Patch": s.do("PATCH", "/Observation/"+id, `{"resourceType":"Parameters","parameter":[{"name":"operation","part":[{"name":"type","valueCode":"add"},{"name":"path","valueString":"Observation"},{"name":"name","valueString":"subject"},{"name":"value","valueReference":{"reference":"`+reference+`"}}]}]}`),
		} {
			if a.status != 422 || a.str("issue.0.code") != "invalid" || !strings.HasPrefix(a.str("issue.0.expression.0"), "Observation.") {
				t.Errorf("%s with %s: %d %s", what, reference, a.status, a.body)
			}
		}
		a := s.post("/", `{"resourceType":"Bundle","type":"batch","entry":[{"resource":`+body("")+`,"request":{"method":"POST","url":"Observation"}},{"resource":`+body(own)+`,"request":{"method":"PUT","url":"Observation/`+id+`"}}]}`).want(200)
		for i := range 2 {
			at := fmt.Sprintf("entry.%d.response.", i)
			if !strings.HasPrefix(a.str(at+"status"), "422") || a.str(at+"outcome.issue.0.expression.0") != fmt.Sprintf("Bundle.entry[%d].resource.performer[1]", i) {
				t.Errorf("batch: %s", a.body)
			}
		}
	}
	s.get("/Observation/"+id).want(200).equal("meta.versionId", "1")
	// Other references with a question mark are stored.
	s.create(`{"resourceType":"Observation","status":"final","code":{"text":"x"},"subject":{"reference":"http://other.example/Patient?identifier=1"}}`)
	s.create(`{"resourceType":"Bundle","type":"collection","entry":[{"fullUrl":"http://x.example/Observation/1","resource":{"resourceType":"Observation","id":"1","status":"final","code":{"text":"x"},"subject":{"reference":"Patient?identifier=1"}}}]}`)
}

// FORMATS, 7: system is another name of url in CodeSystem/$validate-code.
func TestValidateCodeSystemAlias(t *testing.T) {
	t.Parallel()
	s := start(t)
	const gender = "http://hl7.org/fhir/administrative-gender"
	s.get("/CodeSystem/$validate-code?system="+gender+"&code=male").want(200).equal("parameter.0.valueBoolean", "true")
	s.get("/CodeSystem/$validate-code?url="+gender+"&system="+gender+"&code=male").want(200).equal("parameter.0.valueBoolean", "true")
	s.get("/CodeSystem/$validate-code?url="+gender+"&system=http://x.example&code=male").issue(400, "invalid", "system", "url")
	s.post("/CodeSystem/$validate-code", `{"resourceType":"Parameters","parameter":[{"name":"system","valueUri":"`+gender+`"},{"name":"code","valueCode":"none"}]}`).want(200).equal("parameter.0.valueBoolean", "false")
}

// The mode create of $validate reports the errors of the write.
// Spec: https://hl7.org/fhir/R4/valueset-resource-validation-mode.html.
func TestValidateModeAnswersAsWrite(t *testing.T) {
	t.Parallel()
	s := start(t, func(c *server.Config) { c.Validation.Mode = "full" })
	for _, c := range []struct{ name, typ, body string }{
		{"a conditional reference", "Observation", `{"resourceType":"Observation","status":"final","code":{"text":"x"},"subject":{"reference":"Patient?identifier=1"}}`},
		{"a Subscription whose criteria is no search", "Subscription", `{"resourceType":"Subscription","status":"requested","reason":"x","criteria":"Patient?nonsense=1","channel":{"type":"rest-hook","endpoint":"https://x.example/hook"}}`},
		{"a SearchParameter that cannot work", "SearchParameter", `{"resourceType":"SearchParameter","url":"http://x.example/sp","name":"x","status":"active","description":"x","code":"x","base":["Patient"],"type":"string","expression":"Patient.(("}`},
		{"a good Patient", "Patient", `{"resourceType":"Patient"}`},
		{"what is only a warning", "Patient", `{"resourceType":"Patient","extension":[{"url":"http://hl7.org/fhir/StructureDefinition/data-absent-reason","valueCode":"unknown"}],"maritalStatus":{"coding":[{"system":"http://terminology.hl7.org/CodeSystem/v3-MaritalStatus","code":"nonsense"}]}}`},
		{"a missing element", "Observation", `{"resourceType":"Observation","status":"final"}`},
	} {
		v := s.post("/"+c.typ+"/$validate?mode=create", c.body).want(200)
		w := s.post("/"+c.typ, c.body)
		errors := 0
		for i := range v.len("issue") {
			if severity := v.str(fmt.Sprintf("issue.%d.severity", i)); severity == "error" || severity == "fatal" {
				errors++
			}
		}
		if (errors > 0) != (w.status >= 400) {
			t.Errorf("%s: $validate %s, POST %d %s", c.name, v.body, w.status, w.body)
		}
		if errors > 0 && w.status >= 400 && v.str("issue.0.diagnostics") != w.str("issue.0.diagnostics") {
			t.Errorf("%s: $validate says %q, POST %q", c.name, v.str("issue.0.diagnostics"), w.str("issue.0.diagnostics"))
		}
		var body map[string]any
		if err := json.Unmarshal([]byte(c.body), &body); err != nil {
			t.Fatal(err)
		}
		wrapped, _ := json.Marshal(map[string]any{"resourceType": "Parameters", "parameter": []any{map[string]any{"name": "resource", "resource": body}, map[string]any{"name": "mode", "valueCode": "create"}}})
		if p := s.post("/"+c.typ+"/$validate", string(wrapped)).want(200); p.str("issue.0.severity") != v.str("issue.0.severity") {
			t.Errorf("%s, as Parameters: %s", c.name, p.body)
		}
	}
	if n := s.get("/Patient?_summary=count").str("total"); n != "2" {
		t.Errorf("%s Patients are stored, two by POST", n)
	}
}

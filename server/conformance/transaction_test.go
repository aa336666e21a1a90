package conformance

import (
	"encoding/base64"
	"fmt"
	"strings"
	"testing"
)

// bundle is a Bundle of entries.
func bundle(typ string, entries ...string) string {
	return `{"resourceType":"Bundle","type":"` + typ + `","entry":[` + strings.Join(entries, ",") + `]}`
}

// entry is an entry with a request; resource and fullURL may be "".
func entry(method, url, fullURL, resource string, more ...string) string {
	e := `{`
	if fullURL != "" {
		e += `"fullUrl":"` + fullURL + `",`
	}
	if resource != "" {
		e += `"resource":` + resource + `,`
	}
	return e + `"request":{"method":"` + method + `","url":"` + url + `"` + strings.Join(more, "") + `}}`
}

// http.html#transaction
func TestTransaction(t *testing.T) {
	s := start(t)

	t.Run("all is stored, answered in request order (http.html#transaction-response)", func(t *testing.T) {
		s := s.in(t)
		s.put("/Patient/old", `{"resourceType":"Patient","id":"old"}`).want(201)
		s.put("/Patient/up", `{"resourceType":"Patient","id":"up"}`).want(201)
		a := s.post("/", bundle("transaction",
			entry("GET", "Patient/up", "", ""),
			entry("PUT", "Patient/up", "", `{"resourceType":"Patient","id":"up","active":true}`),
			entry("POST", "Patient", "", `{"resourceType":"Patient"}`),
			entry("DELETE", "Patient/old", "", ""),
			entry("GET", "Patient?active=true", "", ""),
		)).want(200).equal("type", "transaction-response")
		a.equal("entry.0.response.status", "200 OK").equal("entry.0.resource.meta.versionId", "2") // GET comes last
		a.equal("entry.1.response.status", "200 OK").equal("entry.1.response.etag", `W/"2"`).equal("entry.1.response.location", "Patient/up/_history/2")
		a.equal("entry.2.response.status", "201 Created").equal("entry.2.response.etag", `W/"1"`)
		a.equal("entry.3.response.status", "204 No Content")
		a.equal("entry.4.resource.resourceType", "Bundle").equal("entry.4.resource.total", "1")
		if !strings.HasPrefix(a.str("entry.2.response.location"), "Patient/") || a.str("entry.2.response.lastModified") == "" {
			t.Errorf("entry 2: %v", a.at("entry.2"))
		}
		s.get("/Patient/old").want(410)
		s.get("/" + strings.TrimSuffix(a.str("entry.2.response.location"), "/_history/1")).want(200)
	})
	t.Run("Prefer decides whether resources come back", func(t *testing.T) {
		s := s.in(t)
		b := bundle("transaction", entry("POST", "Patient", "", `{"resourceType":"Patient","active":true}`))
		if a := s.post("/", b).want(200); a.at("entry.0.resource") != nil {
			t.Error("a resource without being asked for")
		}
		s.post("/", b, "Prefer", "return=representation").want(200).equal("entry.0.resource.active", "true")
		s.post("/", b, "Prefer", "return=OperationOutcome").want(200).equal("entry.0.response.outcome.resourceType", "OperationOutcome")
	})
	t.Run("links between entries are resolved everywhere (http.html#trules)", func(t *testing.T) {
		s := s.in(t)
		const p, o = "urn:uuid:11111111-1111-4111-8111-111111111111", "urn:uuid:22222222-2222-4222-8222-222222222222"
		a := s.post("/", bundle("transaction",
			entry("POST", "Observation", o, `{"resourceType":"Observation",
				"text":{"status":"generated","div":"<div xmlns=\"http://www.w3.org/1999/xhtml\">of <a href=\"`+p+`\">her</a><img src=\"`+p+`\" alt=\"`+p+`\"/></div>"},
				"contained":[{"resourceType":"Provenance","id":"v","target":[{"reference":"`+p+`"}],"recorded":"2020-01-01T00:00:00Z","agent":[{"who":{"reference":"`+p+`"}}]}],
				"extension":[{"url":"http://example.org/a","valueUri":"`+p+`"},{"url":"http://example.org/b","valueReference":{"reference":"`+p+`"}},{"url":"http://example.org/c","valueString":"`+p+`"},{"url":"http://example.org/v","valueReference":{"reference":"#v"}}],
				"status":"final","_status":{"extension":[{"url":"http://example.org/d","valueReference":{"reference":"`+p+`"}}]},
				"code":{"text":"x"},"subject":{"reference":"`+p+`"},"focus":[{"reference":"`+o+`"}],"valueQuantity":{"value":1.50}}`),
			entry("POST", "Patient", p, `{"resourceType":"Patient"}`),
		)).want(200)
		patient := strings.TrimSuffix(a.str("entry.1.response.location"), "/_history/1")
		observation := strings.TrimSuffix(a.str("entry.0.response.location"), "/_history/1")
		got := s.get("/" + observation).want(200)
		for _, path := range []string{"subject.reference", "contained.0.target.0.reference", "contained.0.agent.0.who.reference", "extension.0.valueUri", "extension.1.valueReference.reference", "_status.extension.0.valueReference.reference"} {
			got.equal(path, patient)
		}
		got.equal("focus.0.reference", observation).equal("extension.2.valueString", p)
		if div := got.str("text.div"); !strings.Contains(div, `href="`+patient+`"`) || !strings.Contains(div, `src="`+patient+`"`) || !strings.Contains(div, `alt="`+p+`"`) {
			t.Errorf("narrative: %s", div)
		}
		if !strings.Contains(string(got.body), `"value":1.50`) {
			t.Errorf("the decimal changed: %s", got.body)
		}
		s.get("/Observation?subject="+patient).want(200).equal("total", "1")
	})
	t.Run("a reference by a URN that no entry has is refused (bundle.html#references)", func(t *testing.T) {
		s := s.in(t)
		const p, nobody = "urn:uuid:11111111-1111-4111-8111-111111111111", "urn:uuid:99999999-9999-4999-8999-999999999999"
		observation := func(reference string) string {
			return `{"resourceType":"Observation","status":"final","code":{"text":"x"},"subject":{"reference":"` + reference + `"}}`
		}
		id := s.create(`{"resourceType":"Observation","status":"final","code":{"text":"x"}}`)
		patient := entry("POST", "Patient", p, `{"resourceType":"Patient","identifier":[{"system":"urn:s","value":"beside"}]}`)
		for name, wrong := range map[string]string{
			"a create":         entry("POST", "Observation", "", observation(nobody)),
			"an OID":           entry("POST", "Observation", "", observation("urn:oid:1.2.3")),
			"a FHIRPath Patch": entry("PATCH", "Observation/"+id, "", `{"resourceType":"Parameters","parameter":[{"name":"operation","part":[{"name":"type","valueCode":"add"},{"name":"path","valueString":"Observation"},{"name":"name","valueString":"subject"},{"name":"value","valueReference":{"reference":"`+nobody+`"}}]}]}`),
		} {
			a := s.post("/", bundle("transaction", patient, wrong))
			if a.status != 400 || a.str("issue.0.code") != "invalid" || a.str("issue.0.expression.0") != "Bundle.entry[1]" {
				t.Errorf("%s: %d %s", name, a.status, a.body)
			}
		}
		s.get("/Patient?identifier=urn:s|beside").want(200).equal("total", "0")
		// A Bundle that is stored has references of its own.
		s.post("/", bundle("transaction", patient, entry("POST", "Bundle", "", `{"resourceType":"Bundle","type":"collection","entry":[
			{"fullUrl":"`+nobody+`","resource":{"resourceType":"Patient"}},{"fullUrl":"urn:uuid:99999999-9999-4999-8999-999999999998","resource":`+observation(nobody)+`}]}`))).want(200)
		// Alone it may be known to somebody else.
		s.post("/Observation", observation(nobody)).want(201)
		// Entries of a batch do not depend on each other (http.html#brules).
		a := s.post("/", bundle("batch", patient, entry("POST", "Observation", "", observation(p)), entry("POST", "Observation", "", observation(nobody)))).want(200)
		a.equal("entry.0.response.status", "201 Created").equal("entry.2.response.status", "201 Created")
		a.equal("entry.1.response.status", "400 Bad Request").equal("entry.1.response.outcome.issue.0.expression.0", "Bundle.entry[1]")
	})
	t.Run("links in a JSON Patch are resolved", func(t *testing.T) {
		s := s.in(t)
		const p = "urn:uuid:77777777-7777-4777-8777-777777777777"
		id := s.create(`{"resourceType":"Observation","status":"final","code":{"text":"x"}}`)
		patch := base64.StdEncoding.EncodeToString([]byte(`[{"op":"add","path":"/subject","value":{"reference":"` + p + `"}},{"op":"add","path":"/note","value":[{"text":"of ` + p + `"}]}]`))
		a := s.post("/", bundle("transaction",
			entry("PATCH", "Observation/"+id, "", `{"resourceType":"Binary","contentType":"application/json-patch+json","data":"`+patch+`"}`),
			entry("POST", "Patient", p, `{"resourceType":"Patient"}`),
		)).want(200)
		s.get("/Observation/"+id).want(200).equal("subject.reference", strings.TrimSuffix(a.str("entry.1.response.location"), "/_history/1")).equal("note.0.text", "of "+p)
	})
	t.Run("a link written with escapes is resolved", func(t *testing.T) {
		s := s.in(t)
		a := s.post("/", bundle("transaction",
			entry("POST", "Patient", "urn:uuid:33333333-3333-4333-8333-333333333333", `{"resourceType":"Patient"}`),
			entry("POST", "Observation", "", `{"resourceType":"Observation","status":"final","code":{"text":"\u00e4"},"valueQuantity":{"value":2.0},"subject":{"reference":"urn\u003auuid:33333333-3333-4333-8333-333333333333"}}`),
		)).want(200)
		got := s.get("/" + strings.TrimSuffix(a.str("entry.1.response.location"), "/_history/1")).want(200)
		got.equal("subject.reference", strings.TrimSuffix(a.str("entry.0.response.location"), "/_history/1")).equal("code.text", "ä").equal("valueQuantity.value", "2.0")
	})
	t.Run("relative references are resolved against fullUrl (bundle.html#references)", func(t *testing.T) {
		s := s.in(t)
		a := s.post("/", bundle("transaction",
			entry("POST", "Patient", "http://other.example.org/Patient/7", `{"resourceType":"Patient","id":"7"}`),
			entry("POST", "Observation", "http://other.example.org/Observation/8", `{"resourceType":"Observation","status":"final","code":{"text":"x"},"subject":{"reference":"Patient/7"},"focus":[{"reference":"http://other.example.org/Patient/7"},{"reference":"Patient/9"}]}`),
		)).want(200)
		patient := strings.TrimSuffix(a.str("entry.0.response.location"), "/_history/1")
		s.get("/"+strings.TrimSuffix(a.str("entry.1.response.location"), "/_history/1")).want(200).
			equal("subject.reference", patient).equal("focus.0.reference", patient).equal("focus.1.reference", "Patient/9")
	})
	t.Run("links in a FHIRPath Patch are resolved, and seen by the integrity of references", func(t *testing.T) {
		s := s.in(t)
		const p = "urn:uuid:77777777-7777-4777-8777-777777777777"
		id := s.create(`{"resourceType":"Observation","status":"final","code":{"text":"x"}}`)
		a := s.post("/", bundle("transaction",
			entry("PATCH", "Observation/"+id, "", `{"resourceType":"Parameters","parameter":[{"name":"operation","part":[{"name":"type","valueCode":"add"},{"name":"path","valueString":"Observation"},{"name":"name","valueString":"subject"},{"name":"value","valueReference":{"reference":"`+p+`"}}]}]}`),
			entry("POST", "Patient", p, `{"resourceType":"Patient"}`),
		)).want(200)
		s.get("/Observation/"+id).want(200).equal("subject.reference", strings.TrimSuffix(a.str("entry.1.response.location"), "/_history/1"))
	})
	t.Run("a reference to a version stays one, a canonical stays what it is (http.html#trules)", func(t *testing.T) {
		s := s.in(t)
		const p = "urn:uuid:88888888-8888-4888-8888-888888888888"
		a := s.post("/", bundle("transaction",
			entry("POST", "Patient", "http://other.example.org/Patient/7", `{"resourceType":"Patient"}`),
			entry("POST", "Observation", "http://other.example.org/Observation/8", `{"resourceType":"Observation","status":"final","code":{"text":"x"},"subject":{"reference":"Patient/7/_history/5"},"focus":[{"reference":"http://other.example.org/Patient/7/_history/5"}]}`),
			entry("POST", "Basic", p, `{"resourceType":"Basic","code":{"text":"x"},"extension":[{"url":"http://example.org/a","valueCanonical":"`+p+`"}]}`),
		)).want(200)
		patient := a.str("entry.0.response.location")
		s.get("/"+strings.TrimSuffix(a.str("entry.1.response.location"), "/_history/1")).want(200).equal("subject.reference", patient).equal("focus.0.reference", patient)
		s.get("/"+strings.TrimSuffix(a.str("entry.2.response.location"), "/_history/1")).want(200).equal("extension.0.valueCanonical", p)
	})
	t.Run("_summary and _elements of a read", func(t *testing.T) {
		s := s.in(t)
		s.put("/Patient/cut", `{"resourceType":"Patient","id":"cut","active":true,"maritalStatus":{"text":"x"},"gender":"female"}`).want(201)
		a := s.post("/", bundle("batch", entry("GET", "Patient/cut?_elements=active", "", ""), entry("GET", "Patient/cut/_history/1?_summary=true", "", ""), entry("GET", "Patient/cut?_summary=count", "", ""))).want(200)
		for _, at := range []string{"entry.0.resource.", "entry.1.resource."} {
			a.equal(at+"active", "true").equal(at+"meta.tag.0.code", "SUBSETTED")
			if a.at(at+"maritalStatus") != nil {
				t.Errorf("%s is whole", at)
			}
		}
		a.equal("entry.2.response.status", "400 Bad Request")
	})
	t.Run("conditional references (http.html#trules)", func(t *testing.T) {
		s := s.in(t)
		s.put("/Practitioner/dr", `{"resourceType":"Practitioner","id":"dr","identifier":[{"system":"urn:npi","value":"1"}]}`).want(201)
		observation := func(reference string) string {
			return bundle("transaction", entry("POST", "Observation", "", `{"resourceType":"Observation","status":"final","code":{"text":"x"},"performer":[{"reference":"`+reference+`"}]}`))
		}
		a := s.post("/", observation("Practitioner?identifier=urn:npi|1")).want(200)
		s.get("/"+a.str("entry.0.response.location")).want(200).equal("performer.0.reference", "Practitioner/dr")
		s.post("/", observation("Practitioner?identifier=urn:npi|2")).want(412).equal("issue.0.expression.0", "Bundle.entry[0]")
		s.put("/Practitioner/dr2", `{"resourceType":"Practitioner","id":"dr2","identifier":[{"system":"urn:npi","value":"1"}]}`).want(201)
		s.post("/", observation("Practitioner?identifier=urn:npi|1")).issue(412, "multiple-matches")
		s.post("/", observation("Practitioner?bogus=1")).issue(400, "not-supported", "bogus")
	})
	t.Run("reads see what the transaction wrote (http.html#trules)", func(t *testing.T) {
		s := s.in(t)
		s.put("/Patient/seen", `{"resourceType":"Patient","id":"seen"}`).want(201)
		a := s.post("/", bundle("transaction",
			entry("GET", "Patient/seen/_history", "", ""),
			entry("GET", "Patient/_history?_count=1", "", ""),
			entry("GET", "_history?_count=1", "", ""),
			entry("GET", "Patient/seen/_history/2", "", ""),
			entry("GET", "Patient?_id=seen&active=true", "", ""),
			entry("PUT", "Patient/seen", "", `{"resourceType":"Patient","id":"seen","active":true}`),
		)).want(200)
		a.equal("entry.0.resource.total", "2").equal("entry.0.resource.entry.0.resource.active", "true")
		for i := range 3 {
			at := fmt.Sprintf("entry.%d.resource.entry.0.resource.", i)
			a.equal(at+"id", "seen").equal(at+"meta.versionId", "2")
		}
		a.equal("entry.3.resource.active", "true").equal("entry.4.resource.total", "1")
	})
	t.Run("an empty one", func(t *testing.T) {
		for _, typ := range []string{"transaction", "batch"} {
			for _, entries := range []string{"", `,"entry":[]`} {
				a := s.in(t).post("/", `{"resourceType":"Bundle","type":"`+typ+`"`+entries+`}`).want(200).equal("type", typ+"-response")
				if a.len("entry") != 0 {
					t.Errorf("%s: %d entries", typ, a.len("entry"))
				}
			}
		}
	})
}

// http.html#transaction: all or nothing, and the error says which entry.
func TestTransactionFails(t *testing.T) {
	s := start(t)
	s.put("/Patient/there", `{"resourceType":"Patient","id":"there"}`).want(201)
	good := entry("POST", "Patient", "", `{"resourceType":"Patient","active":true}`)
	patient := `{"resourceType":"Patient","id":"x"}`
	for _, tt := range []struct {
		name, bad      string
		wantStatus     int
		wantExpression string
	}{
		{"a resource that is wrong", entry("POST", "Patient", "", `{"resourceType":"Patient","birthDate":"x"}`), 422, "Bundle.entry[1].resource.birthDate"},
		{"no request", `{"resource":` + patient + `}`, 400, "Bundle.entry[1].request"},
		{"no method", `{"resource":` + patient + `,"request":{"url":"Patient"}}`, 400, "Bundle.entry[1].request.method"},
		{"no url", `{"resource":` + patient + `,"request":{"method":"POST"}}`, 400, "Bundle.entry[1].request.url"},
		{"a rule of the resource itself", entry("POST", "Observation", "", `{"resourceType":"Observation","status":"final","code":{"text":"x"},"valueString":"a","dataAbsentReason":{"text":"b"}}`), 422, "Bundle.entry[1].resource"},
		{"no resource", entry("POST", "Patient", "", ""), 400, "Bundle.entry[1].resource"},
		{"another type than the URL's", entry("POST", "Observation", "", patient), 400, "Bundle.entry[1].resource"},
		{"another id than the URL's", entry("PUT", "Patient/y", "", patient), 400, "Bundle.entry[1].resource.id"},
		{"an unknown type", entry("POST", "Patent", "", patient), 404, "Bundle.entry[1].request.url"},
		{"POST with an id", entry("POST", "Patient/x", "", patient), 400, "Bundle.entry[1].request.url"},
		{"PUT without an id", entry("PUT", "Patient", "", patient), 400, "Bundle.entry[1].request.url"},
		{"a method that is none", entry("FETCH", "Patient", "", patient), 400, "Bundle.entry[1].request.method"},
		{"If-Match of another version", entry("PUT", "Patient/there", "", `{"resourceType":"Patient","id":"there"}`, `,"ifMatch":"W/\"7\""`), 409, "Bundle.entry[1]"},
		{"If-None-Match of an existing one", entry("PUT", "Patient/there", "", `{"resourceType":"Patient","id":"there"}`, `,"ifNoneMatch":"*"`), 412, "Bundle.entry[1]"},
		{"a read of nothing", entry("GET", "Patient/nobody", "", ""), 404, "Bundle.entry[1]"},
		{"a bad search", entry("GET", "Patient?bogus=1", "", ""), 400, "Bundle.entry[1]"},
		{"a URL elsewhere", entry("GET", "http://elsewhere.example.org/Patient/1", "", ""), 400, "Bundle.entry[1].request.url"},
		{"the same resource twice", entry("PUT", "Patient/there", "", `{"resourceType":"Patient","id":"there"}`) + "," + entry("DELETE", "Patient/there", "", ""), 400, "Bundle.entry[2]"},
		{"the same fullUrl twice", entry("POST", "Patient", "urn:uuid:1", patient) + "," + entry("POST", "Patient", "urn:uuid:1", patient), 400, "Bundle.entry[2].fullUrl"},
		{"a fullUrl of a version", entry("POST", "Patient", "http://example.org/Patient/1/_history/2", patient), 400, "Bundle.entry[1].fullUrl"},
		{"a patch of nothing", entry("PATCH", "Patient/nobody", "", `{"resourceType":"Binary","contentType":"application/json-patch+json","data":"W10="}`), 404, "Bundle.entry[1]"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			a := s.in(t).post("/", bundle("transaction", good, tt.bad)).want(tt.wantStatus).equal("resourceType", "OperationOutcome")
			a.equal("issue.0.expression.0", tt.wantExpression)
			s.in(t).get("/Patient?active=true").want(200).equal("total", "0")
		})
	}
	s.post("/", `{"resourceType":"Bundle","type":"collection"}`).issue(400, "invalid", "collection")
	s.post("/", `{"resourceType":"Bundle"}`).want(400)
	s.post("/", `{"resourceType":"Patient"}`).issue(400, "invalid", "Patient")
	s.post("/", ``).issue(400, "structure")
}

// http.html#trules: conditional entries
func TestTransactionConditions(t *testing.T) {
	s := start(t)
	patient := `{"resourceType":"Patient","identifier":[{"system":"urn:s","value":"1"}]}`
	upsert := bundle("transaction",
		entry("POST", "Patient", "urn:uuid:44444444-4444-4444-8444-444444444444", patient, `,"ifNoneExist":"identifier=urn:s|1"`),
		entry("POST", "Observation", "", `{"resourceType":"Observation","status":"final","code":{"text":"x"},"subject":{"reference":"urn:uuid:44444444-4444-4444-8444-444444444444"}}`))
	first := s.post("/", upsert).want(200).equal("entry.0.response.status", "201 Created")
	id := strings.TrimSuffix(strings.TrimPrefix(first.str("entry.0.response.location"), "Patient/"), "/_history/1")
	second := s.post("/", upsert).want(200).equal("entry.0.response.status", "200 OK").equal("entry.0.response.location", "Patient/"+id+"/_history/1")
	s.get("/"+second.str("entry.1.response.location")).want(200).equal("subject.reference", "Patient/"+id)

	t.Run("conditional update, patch and delete", func(t *testing.T) {
		s := s.in(t)
		patch := "W3sib3AiOiJhZGQiLCJwYXRoIjoiL2dlbmRlciIsInZhbHVlIjoibWFsZSJ9XQ==" // [{"op":"add","path":"/gender","value":"male"}]
		s.post("/", bundle("transaction", entry("PUT", "Patient?identifier=urn:s|1", "", `{"resourceType":"Patient","identifier":[{"system":"urn:s","value":"1"}],"active":true}`))).
			want(200).equal("entry.0.response.location", "Patient/"+id+"/_history/2")
		s.post("/", bundle("transaction", entry("PATCH", "Patient?identifier=urn:s|1", "", `{"resourceType":"Binary","contentType":"application/json-patch+json","data":"`+patch+`"}`))).
			want(200).equal("entry.0.response.status", "200 OK")
		s.get("/Patient/"+id).want(200).equal("gender", "male").equal("active", "true")
		s.post("/", bundle("transaction", entry("DELETE", "Patient?identifier=urn:s|1", "", ""))).want(200).equal("entry.0.response.status", "204 No Content")
		s.get("/Patient/" + id).want(410)
		s.post("/", bundle("transaction", entry("DELETE", "Patient?identifier=urn:s|1", "", ""))).want(200).equal("entry.0.response.status", "204 No Content")
	})
	t.Run("a condition sees what the transaction deletes", func(t *testing.T) {
		s := s.in(t)
		old := s.create(`{"resourceType":"Patient","identifier":[{"system":"urn:s","value":"2"}]}`)
		a := s.post("/", bundle("transaction",
			entry("POST", "Patient", "", `{"resourceType":"Patient","identifier":[{"system":"urn:s","value":"2"}]}`, `,"ifNoneExist":"identifier=urn:s|2"`),
			entry("DELETE", "Patient/"+old, "", ""))).want(200)
		a.equal("entry.0.response.status", "201 Created").equal("entry.1.response.status", "204 No Content")
	})
	t.Run("two conditions that meet in one resource: 400", func(t *testing.T) {
		s := s.in(t)
		s.create(`{"resourceType":"Patient","identifier":[{"system":"urn:s","value":"3"}],"name":[{"family":"Three"}]}`)
		s.post("/", bundle("transaction",
			entry("DELETE", "Patient?identifier=urn:s|3", "", ""),
			entry("DELETE", "Patient?family=Three", "", ""))).issue(400, "invalid", "Bundle.entry[1]")
	})
	t.Run("many at once create one", func(t *testing.T) {
		s := s.in(t)
		b := bundle("transaction",
			entry("POST", "Organization", "urn:uuid:55555555-5555-4555-8555-555555555555", `{"resourceType":"Organization","identifier":[{"value":"org"}]}`, `,"ifNoneExist":"identifier=org"`),
			entry("POST", "Patient", "", `{"resourceType":"Patient","managingOrganization":{"reference":"urn:uuid:55555555-5555-4555-8555-555555555555"}}`))
		status := parallel(20, func(int) int {
			a, err := s.try("POST", "/", b)
			if err != nil {
				return -1
			}
			return a.status
		})
		if status[200] != 20 {
			t.Errorf("statuses %v, want 20 of 200", status)
		}
		s.get("/Organization?identifier=org").want(200).equal("total", "1")
		org := s.get("/Organization?identifier=org").str("entry.0.resource.id")
		s.get("/Patient?organization="+org).want(200).equal("total", "20")
	})
	t.Run("opposite orders do not deadlock", func(t *testing.T) {
		s := s.in(t)
		for _, id := range []string{"a", "b"} {
			s.put("/Basic/"+id, `{"resourceType":"Basic","id":"`+id+`","code":{"text":"x"}}`).want(201)
		}
		update := func(id string) string {
			return entry("PUT", "Basic/"+id, "", `{"resourceType":"Basic","id":"`+id+`","code":{"text":"x"}}`)
		}
		status := parallel(30, func(i int) int {
			b := bundle("transaction", update("a"), update("b"))
			if i%2 == 1 {
				b = bundle("transaction", update("b"), update("a"))
			}
			a, err := s.try("POST", "/", b)
			if err != nil {
				return -1
			}
			return a.status
		})
		if status[200] != 30 {
			t.Errorf("statuses %v, want 30 of 200", status)
		}
		s.get("/Basic/a").want(200).equal("meta.versionId", "31")
	})
}

// http.html#brules
func TestBatch(t *testing.T) {
	s := start(t)
	s.put("/Patient/there", `{"resourceType":"Patient","id":"there"}`).want(201)
	a := s.post("/", bundle("batch",
		entry("POST", "Patient", "", `{"resourceType":"Patient","active":true}`),
		entry("POST", "Patient", "", `{"resourceType":"Patient","birthDate":"x"}`),
		entry("GET", "Patient/nobody", "", ""),
		entry("GET", "Patient?active=true", "", ""),
		entry("GET", "Patient/there/_history", "", ""),
		entry("GET", "Patient/there/_history/1", "", ""),
		entry("PUT", "Patient/there", "", `{"resourceType":"Patient","id":"there"}`, `,"ifMatch":"W/\"7\""`),
		entry("DELETE", "Patient/other", "", ""),
		entry("HEAD", "Patient/there", "", ""),
		entry("GET", "metadata", "", ""),
		entry("GET", "Patent/1", "", ""),
		`{"resource":{"resourceType":"Patient"}}`,
		entry("GET", "Patient?bogus=1", "", ""),
		entry("PATCH", "Patient/there", "", `{"resourceType":"Parameters","parameter":[{"name":"x","valueString":"y"}]}`),
	)).want(200).equal("type", "batch-response")
	for i, want := range []string{"201 Created", "422 Unprocessable Entity", "404 Not Found", "200 OK", "200 OK", "200 OK", "409 Conflict", "204 No Content", "200 OK", "200 OK",
		"404 Not Found", "400 Bad Request", "400 Bad Request", "400 Bad Request"} {
		a.equal(fmt.Sprintf("entry.%d.response.status", i), want)
		if want[0] != '2' {
			a.equal(fmt.Sprintf("entry.%d.response.outcome.resourceType", i), "OperationOutcome")
		}
	}
	a.equal("entry.1.response.outcome.issue.0.expression.0", "Bundle.entry[1].resource.birthDate")
	a.equal("entry.2.response.outcome.issue.0.expression.0", "Bundle.entry[2]")
	a.equal("entry.3.resource.total", "1").equal("entry.4.resource.type", "history").equal("entry.5.resource.id", "there")
	a.equal("entry.9.resource.resourceType", "CapabilityStatement")
	if a.at("entry.8.resource") != nil {
		t.Error("HEAD with a resource")
	}
	s.get("/Patient?active=true").want(200).equal("total", "1")

	t.Run("a transaction reads the CapabilityStatement", func(t *testing.T) {
		s.in(t).post("/", bundle("transaction", entry("GET", "metadata", "", ""), entry("POST", "Patient", "", `{"resourceType":"Patient"}`))).want(200).
			equal("entry.0.resource.resourceType", "CapabilityStatement").equal("entry.1.response.status", "201 Created")
	})
	t.Run("a hundred writes, all counted", func(t *testing.T) {
		s := s.in(t)
		var entries []string
		for i := range 100 {
			entries = append(entries, entry("PUT", fmt.Sprintf("Basic/b%d", i), "", fmt.Sprintf(`{"resourceType":"Basic","id":"b%d","code":{"text":"x"}}`, i)))
		}
		a := s.post("/", bundle("batch", entries...)).want(200)
		for i := range entries {
			a.equal(fmt.Sprintf("entry.%d.response.status", i), "201 Created")
		}
		s.get("/Basic?_summary=count").want(200).equal("total", "100")
	})
	t.Run("entries about one resource keep their order", func(t *testing.T) {
		s := s.in(t)
		var entries []string
		for i := range 10 {
			entries = append(entries, entry("PUT", "Basic/same", "", fmt.Sprintf(`{"resourceType":"Basic","id":"same","code":{"text":"%d"}}`, i)))
		}
		a := s.post("/", bundle("batch", entries...)).want(200)
		for i := range entries {
			a.equal(fmt.Sprintf("entry.%d.response.etag", i), fmt.Sprintf(`W/"%d"`, i+1))
		}
		s.get("/Basic/same").want(200).equal("code.text", "9")
	})
}

// Entries whose conditions are the same are about the same resource
// (http.html#trules).
func TestTransactionSameCondition(t *testing.T) {
	patient := `{"resourceType":"Patient","identifier":[{"system":"http://example.org/mrn","value":"1"}]}`
	observation := func(subject string) string {
		return `{"resourceType":"Observation","status":"final","code":{"text":"x"},"subject":{"reference":"` + subject + `"}}`
	}
	const criteria = `identifier=http://example.org/mrn|1`
	ifNoneExist := `,"ifNoneExist":"` + criteria + `"`

	t.Run("two conditional creates make one resource", func(t *testing.T) {
		s := start(t)
		a := s.post("/", bundle("transaction",
			entry("POST", "Patient", "urn:uuid:05efabf0-4be2-4561-91ce-51548425acb9", patient, ifNoneExist),
			entry("POST", "Patient", "urn:uuid:05efabf0-4be2-4561-91ce-51548425acba", patient, ifNoneExist),
			entry("POST", "Observation", "", observation("urn:uuid:05efabf0-4be2-4561-91ce-51548425acba")),
		)).want(200)
		a.equal("entry.0.response.status", "201 Created").equal("entry.1.response.status", "200 OK")
		a.equal("entry.1.response.location", a.str("entry.0.response.location"))
		s.get("/Patient?"+criteria).want(200).equal("total", "1")
		s.get("/Observation").want(200).equal("entry.0.resource.subject.reference", strings.TrimSuffix(a.str("entry.0.response.location"), "/_history/1"))
	})
	t.Run("a conditional reference finds what the transaction itself makes", func(t *testing.T) {
		s := start(t)
		b := bundle("transaction",
			entry("POST", "Observation", "", observation("Patient?"+criteria)),
			entry("POST", "Patient", "", patient, ifNoneExist))
		for range 2 {
			s.post("/", b).want(200)
		}
		id := s.get("/Patient?"+criteria).want(200).equal("total", "1").str("entry.0.resource.id")
		s.get("/Observation?subject=Patient/"+id).want(200).equal("total", "2")
	})
	t.Run("two conditional updates of one resource are refused, whether it exists or not", func(t *testing.T) {
		s := start(t)
		b := bundle("transaction", entry("PUT", "Patient?"+criteria, "", patient), entry("PUT", "Patient?"+criteria, "", patient))
		s.post("/", b).issue(400, "invalid", "entries 0 and 1")
		s.create(patient)
		s.post("/", b).issue(400, "invalid", "entries 0 and 1")
	})
}

// Operations and searches by POST inside a Bundle (http.html#transaction).
func TestBundleOperations(t *testing.T) {
	s := start(t)
	s.put("/Patient/there", `{"resourceType":"Patient","id":"there","identifier":[{"system":"http://example.org/mrn","value":"1"}]}`).want(201)
	add := `{"resourceType":"Parameters","parameter":[{"name":"meta","valueMeta":{"tag":[{"code":"t"}]}}]}`
	entries := []string{
		entry("GET", "Patient?identifier=http://example.org/mrn|1", "", ""),
		entry("POST", "Patient/_search?identifier=http://example.org/mrn|1", "", ""),
		entry("GET", "Patient/there/$everything", "", ""),
		entry("GET", "Patient/there/$meta", "", ""),
		entry("POST", "Patient/there/$everything", "", `{"resourceType":"Parameters","parameter":[{"name":"_type","valueCode":"Observation"}]}`),
	}
	for _, typ := range []string{"batch", "transaction"} {
		a := s.in(t).post("/", bundle(typ, entries...)).want(200)
		a.equal("entry.0.resource.total", "1").equal("entry.1.resource.total", "1").equal("entry.2.resource.total", "1")
		a.equal("entry.3.resource.resourceType", "Parameters").equal("entry.4.resource.total", "0")
	}
	s.post("/", bundle("transaction", entry("POST", "Patient/there/$meta-add", "", add))).issue(404, "not-supported", "$meta-add")
	s.post("/", bundle("batch", entry("POST", "Patient/there/$meta-add", "", add))).want(200).equal("entry.0.response.status", "200 OK")
	s.get("/Patient/there").want(200).equal("meta.tag.0.code", "t")

	t.Run("a transaction reads what it wrote", func(t *testing.T) {
		a := s.in(t).post("/", bundle("transaction",
			entry("GET", "Patient/there/$meta", "", ""),
			entry("PUT", "Patient/there", "", `{"resourceType":"Patient","id":"there"}`))).want(200)
		a.equal("entry.0.resource.parameter.0.valueMeta.versionId", "3")
	})
}

// Many transactions at once can all read outside of themselves.
func TestManyTransactionsWithHistory(t *testing.T) {
	s := start(t)
	s.put("/Patient/there", `{"resourceType":"Patient","id":"there"}`).want(201)
	b := bundle("transaction", entry("POST", "Basic", "", `{"resourceType":"Basic","code":{"text":"x"}}`), entry("GET", "Patient/there/_history", "", ""))
	status := parallel(60, func(int) int {
		a, err := s.try("POST", "/", b)
		if err != nil {
			return -1
		}
		return a.status
	})
	if status[200] != 60 {
		t.Errorf("statuses %v, want 60 of 200", status)
	}
}

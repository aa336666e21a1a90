package conformance

import (
	"strings"
	"testing"
)

const jsonPatch = "application/json-patch+json"

// http.html#patch
func TestPatch(t *testing.T) {
	s := start(t)
	patch := func(s *service, path, ops string, headers ...string) *answer {
		s.t.Helper()
		return s.do("PATCH", path, ops, append([]string{"Content-Type", jsonPatch}, headers...)...)
	}
	id := s.create(`{"resourceType":"Observation","status":"preliminary","code":{"text":"x"},"valueQuantity":{"value":6.30},"note":[{"text":"a"},{"text":"b"}]}`)
	path := "/Observation/" + id

	t.Run("the next version, all else to the digit", func(t *testing.T) {
		s := s.in(t)
		a := patch(s, path, `[{"op":"test","path":"/status","value":"preliminary"},{"op":"replace","path":"/status","value":"final"},{"op":"remove","path":"/note/0"}]`).want(200)
		a.equal("meta.versionId", "2").equal("status", "final").equal("note.0.text", "b").has("ETag", `W/"2"`)
		if !strings.Contains(string(a.body), `"value":6.30`) {
			t.Errorf("the decimal changed: %s", a.body)
		}
		s.get(path+"/_history/1").want(200).equal("status", "preliminary")
		s.get("/Observation?status=final").want(200).equal("total", "1")
		s.get("/Observation?status=preliminary").want(200).equal("total", "0")
	})
	t.Run("a patch without operations changes nothing", func(t *testing.T) {
		s := s.in(t)
		for _, body := range []string{`{"resourceType":"Parameters"}`, `[]`} {
			contentType := jsonPatch
			if body[0] == '{' {
				contentType = "application/fhir+json"
			}
			version := s.get(path).want(200).header.Get("ETag")
			a := patch(s, path, body, "Content-Type", contentType).want(200)
			if got := a.header.Get("ETag"); got != version {
				t.Errorf("%s: ETag %s, want %s", body, got, version)
			}
			s.get(path).want(200).has("ETag", version)
			patch(s, path, body, "Content-Type", contentType, "If-Match", `W/"99"`).want(409)
			patch(s, "/Observation?_id="+id, body, "Content-Type", contentType).want(200).has("ETag", version)
		}
	})
	t.Run("a failed test, a path that is not there: 422", func(t *testing.T) {
		s := s.in(t)
		patch(s, path, `[{"op":"test","path":"/status","value":"amended"}]`).issue(422, "invalid", "test")
		patch(s, path, `[{"op":"remove","path":"/bodySite"}]`).issue(422, "invalid")
		patch(s, path, `[{"op":"add","path":"/note/99","value":{"text":"x"}}]`).issue(422, "invalid")
	})
	t.Run("a result that is no Observation: 422", func(t *testing.T) {
		s := s.in(t)
		patch(s, path, `[{"op":"add","path":"/stats","value":"x"}]`).issue(422, "invalid", "stats")
		patch(s, path, `[{"op":"replace","path":"/id","value":"x"}]`).issue(422, "invalid")
		patch(s, path, `[{"op":"replace","path":"/resourceType","value":"Patient"}]`).want(422)
		patch(s, path, `[{"op":"replace","path":"","value":{"resourceType":"Observation"}}]`).want(422)
	})
	t.Run("what is no JSON Patch: 400", func(t *testing.T) {
		s := s.in(t)
		for _, ops := range []string{`{}`, `[{"op":"erase","path":"/x"}]`, `[{"op":"add"}]`, `[{"path":"/x"}]`, `[{"op":"add","path":"x","value":1}]`, `[{"op":"move","path":"/x"}]`, `nonsense`, `[1]`} {
			if a := patch(s, path, ops); a.status != 400 {
				t.Errorf("%s: status %d, want 400\n%s", ops, a.status, a.body)
			}
		}
	})
	t.Run("the operation that is wrong is named", func(t *testing.T) {
		s := s.in(t)
		patch(s, path, `[{"op":"test","path":"/status","value":"final"},{"op":"erase","path":"/x"}]`).issue(400, "invalid", "operation 1", "erase")
		patch(s, path, `[{"op":"move","path":"/x"}]`).issue(400, "invalid", "operation 0", "from")
		patch(s, path, `[{"op":"add","path":"/x"}]`).issue(400, "invalid", "operation 0", "value")
		patch(s, path, `[null]`).issue(400, "invalid", "operation 0")
		patch(s, path, `null`).issue(400, "structure", "array")
	})
	t.Run("null is a value (json.html#primitive)", func(t *testing.T) {
		s := s.in(t)
		id := s.create(`{"resourceType":"Patient","name":[{"given":["a"]}]}`)
		patch(s, "/Patient/"+id, `[{"op":"add","path":"/name/0/given/-","value":null},{"op":"add","path":"/name/0/_given","value":[null,{"extension":[{"url":"http://example.org/e","valueBoolean":true}]}]}]`).
			want(200).equal("name.0._given.1.extension.0.valueBoolean", "true")
		patch(s, "/Patient/"+id, `[{"op":"replace","path":"/name","value":null}]`).issue(422, "invalid", "null")
	})
	t.Run("other formats are told by name: 415", func(t *testing.T) {
		s := s.in(t)
		const types = "application/json-patch+json, application/fhir+json"
		a := s.do("PATCH", path, `x`, "Content-Type", "application/xml-patch+xml").issue(415, "not-supported", "xml-patch")
		if got := a.header.Get("Accept-Patch"); got != types { // RFC 5789 §2.2
			t.Errorf("Accept-Patch of a 415 is %q", got)
		}
		if got := s.do("OPTIONS", path, "").want(204).header.Get("Accept-Patch"); got != types { // RFC 5789 §3.1
			t.Errorf("Accept-Patch of OPTIONS is %q", got)
		}
		if a := s.do("OPTIONS", "/metadata", "").want(204); a.header.Get("Accept-Patch") != "" {
			t.Error("a path without PATCH has Accept-Patch")
		}
	})
	t.Run("FHIRPath Patch (fhirpatch.html)", func(t *testing.T) {
		s := s.in(t)
		id := s.create(`{"resourceType":"Patient","name":[{"family":"A","given":["B"]}],"multipleBirthInteger":1,"extension":[{"url":"u","valueDecimal":1.50}]}`)
		step := func(kind, rest string) string {
			return `{"resourceType":"Parameters","parameter":[{"name":"operation","part":[{"name":"type","valueCode":"` + kind + `"},` + rest + `]}]}`
		}
		a := s.do("PATCH", "/Patient/"+id, step("replace", `{"name":"path","valueString":"Patient.name.where(family = 'A').family"},{"name":"value","valueString":"C"}`)).want(200)
		a.equal("name.0.family", "C").equal("name.0.given.0", "B").equal("extension.0.valueDecimal", "1.50").equal("meta.versionId", "2")
		s.do("PATCH", "/Patient/"+id, step("add", `{"name":"path","valueString":"Patient"},{"name":"name","valueString":"birthDate"},{"name":"value","valueDate":"1970-03-30"}`)).
			want(200).equal("birthDate", "1970-03-30")
		s.get("/Patient?birthdate=1970-03-30").want(200).equal("total", "1")
		s.do("PATCH", "/Patient/"+id, `{"resourceType":"Parameters"}`).want(200)
		s.do("PATCH", "/Patient/"+id, `{"resourceType":"Patient"}`).issue(400, "invalid")
		s.do("PATCH", "/Patient/"+id, step("replace", `{"name":"path","valueString":"Patient.photo.title"},{"name":"value","valueString":"x"}`)).want(422)
	})
	t.Run("If-Match, 404, 410", func(t *testing.T) {
		s := s.in(t)
		ops := `[{"op":"replace","path":"/status","value":"amended"}]`
		patch(s, path, ops, "If-Match", `W/"1"`).issue(409, "conflict")
		patch(s, path, ops, "If-Match", `W/"2"`).want(200).equal("meta.versionId", "3")
		patch(s, "/Observation/nobody", ops).issue(404, "not-found")
		gone := s.create(`{"resourceType":"Observation","status":"final","code":{"text":"x"}}`)
		s.do("DELETE", "/Observation/"+gone, "").want(204)
		patch(s, "/Observation/"+gone, ops).issue(410, "deleted")
	})
	t.Run("conditional patch", func(t *testing.T) {
		s := s.in(t)
		ops := `[{"op":"replace","path":"/status","value":"corrected"}]`
		patch(s, "/Observation?_id="+id, ops).want(200).equal("id", id).equal("status", "corrected")
		patch(s, "/Observation?_id=nobody", ops).issue(404, "not-found")
		s.create(`{"resourceType":"Observation","status":"corrected","code":{"text":"x"}}`)
		patch(s, "/Observation?status=corrected", ops).issue(412, "multiple-matches")
		patch(s, "/Observation", ops).issue(405, "not-supported")
	})
	t.Run("concurrent patches of different elements all take effect", func(t *testing.T) {
		s := s.in(t)
		id := s.create(`{"resourceType":"Patient","extension":[{"url":"http://example.org/n","valueInteger":0}]}`)
		status := parallel(20, func(int) int {
			a, err := s.try("PATCH", "/Patient/"+id, `[{"op":"add","path":"/extension/-","value":{"url":"http://example.org/n","valueInteger":1}}]`, "Content-Type", jsonPatch)
			if err != nil {
				return -1
			}
			return a.status
		})
		if status[200] != 20 {
			t.Errorf("statuses %v, want 20 of 200", status)
		}
		if a := s.get("/Patient/"+id).want(200).equal("meta.versionId", "21"); a.len("extension") != 21 {
			t.Errorf("%d extensions, want 21", a.len("extension"))
		}
	})
}

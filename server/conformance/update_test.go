package conformance

import (
	"fmt"
	"strings"
	"testing"

	"kiln/server"
)

// http.html#update
func TestUpdate(t *testing.T) {
	s := start(t)
	patient := func(id, family string) string {
		return fmt.Sprintf(`{"resourceType":"Patient","id":%q,"name":[{"family":%q}]}`, id, family)
	}
	t.Run("an unknown id is created, with 201 (http.html#upsert)", func(t *testing.T) {
		s := s.in(t)
		s.put("/Patient/p1", patient("p1", "A")).want(201).has("Location", s.base+"/Patient/p1/_history/1").has("ETag", `W/"1"`)
		s.put("/Patient/p1", patient("p1", "B")).want(200).equal("meta.versionId", "2").equal("name.0.family", "B").has("ETag", `W/"2"`)
		s.get("/Patient/p1").want(200).equal("name.0.family", "B")
	})
	t.Run("the body's id is the URL's (http.html#update)", func(t *testing.T) {
		s := s.in(t)
		s.put("/Patient/p1", patient("p2", "A")).issue(400, "invalid", "p1", "p2")
		s.put("/Patient/p1", `{"resourceType":"Patient"}`).issue(400, "invalid", "id")
		s.put("/Patient/a_b", patient("a_b", "A")).issue(400, "invalid", "a_b")
		s.put("/Patient/p1", `{"resourceType":"Observation","id":"p1"}`).issue(400, "invalid", "Observation")
	})
	t.Run("If-Match (http.html#concurrency; 409 by the contract)", func(t *testing.T) {
		s := s.in(t)
		s.put("/Patient/m", patient("m", "A")).want(201)
		s.put("/Patient/m", patient("m", "B"), "If-Match", `W/"1"`).want(200).equal("meta.versionId", "2")
		s.put("/Patient/m", patient("m", "C"), "If-Match", `W/"1"`).issue(409, "conflict")
		s.put("/Patient/m", patient("m", "C"), "If-Match", `W/"7"`).issue(409, "conflict")
		for _, none := range []string{`W/"abc"`, `"abc"`, `W/"0"`, `W/"99999999999999999999"`} { // RFC 9110 §8.8.3: tags, though of nothing here
			s.put("/Patient/m", patient("m", "C"), "If-Match", none).issue(409, "conflict")
			s.do("DELETE", "/Patient/m", "", "If-Match", none).issue(409, "conflict")
			s.do("PATCH", "/Patient/m", `[]`, "If-Match", none, "Content-Type", "application/json-patch+json").issue(409, "conflict")
			s.post("/", bundle("transaction", entry("PUT", "Patient/m", "", patient("m", "C"), `,"ifMatch":"`+strings.ReplaceAll(none, `"`, `\"`)+`"`))).issue(409, "conflict")
		}
		for _, malformed := range []string{`bogus`, `W/"1`, `W/"a b"`} {
			s.put("/Patient/m", patient("m", "C"), "If-Match", malformed).issue(400, "invalid", "is not the ETag")
		}
		s.put("/Patient/absent", patient("absent", "C"), "If-Match", `W/"1"`).want(412)
		s.put("/Patient/absent", patient("absent", "C"), "If-Match", `*`).issue(412, "conflict", "absent")
		s.put("/Patient/m", patient("m", "D"), "If-Match", `*`).want(200).equal("meta.versionId", "3")
		s.get("/Patient/absent").want(404)
		// Of a list one has to match: RFC 9110 §13.1.1.
		s.put("/Patient/m", patient("m", "E"), "If-Match", `W/"1", W/"2"`).issue(409, "conflict", "version 1 or version 2")
		s.put("/Patient/m", patient("m", "E"), "If-Match", `W/"1", W/"3"`).want(200).equal("meta.versionId", "4")
		s.do("PATCH", "/Patient/m", `[]`, "If-Match", `"9" , "4"`, "Content-Type", "application/json-patch+json").want(200)
		s.do("DELETE", "/Patient/m", "", "If-Match", `W/"8", W/"9"`).issue(409, "conflict")
		s.do("DELETE", "/Patient/m", "", "If-Match", `W/"4", W/"9"`).want(204)
	})
	t.Run("If-None-Match: * creates only (http.html#concurrency)", func(t *testing.T) {
		s := s.in(t)
		s.put("/Patient/n", patient("n", "A"), "If-None-Match", "*").want(201)
		s.put("/Patient/n", patient("n", "A"), "If-None-Match", "*").want(412)
	})
	t.Run("If-None-Match with entity tags (RFC 9110 §13.1.2)", func(t *testing.T) {
		s := s.in(t)
		s.put("/Patient/t", patient("t", "A"), "If-None-Match", `W/"1"`).want(201) // nothing there matches
		s.put("/Patient/t", patient("t", "B"), "If-None-Match", `W/"1"`).issue(412, "conflict", "version 1", "If-None-Match")
		s.put("/Patient/t", patient("t", "B"), "If-None-Match", `"7", "1"`).want(412)
		s.put("/Patient/t", patient("t", "B"), "If-None-Match", `W/"2", "abc"`).want(200).equal("meta.versionId", "2")
		s.put("/Patient/t", patient("t", "C"), "If-None-Match", `bogus`).issue(400, "invalid", "is not the ETag")
		s.put("/Patient?_id=t", patient("t", "C"), "If-None-Match", `W/"2"`).want(412)
		s.post("/", bundle("transaction", entry("PUT", "Patient/t", "", patient("t", "C"), `,"ifNoneMatch":"W/\"2\""`))).want(412)
		s.post("/", bundle("batch", entry("PUT", "Patient/t", "", patient("t", "C"), `,"ifNoneMatch":"W/\"2\""`))).want(200).equal("entry.0.response.status", "412 Precondition Failed")
		s.get("/Patient/t").equal("meta.versionId", "2")
	})
	t.Run("If-None-Match and If-Unmodified-Since guard a patch and a delete too (RFC 9110 §13.1)", func(t *testing.T) {
		s := s.in(t)
		const jsonPatch, old, young = "application/json-patch+json", "Sun, 06 Nov 1994 08:49:37 GMT", "Fri, 06 Nov 2093 08:49:37 GMT"
		nothing := `[{"op":"test","path":"/id","value":"g"}]`
		parameters := `{"resourceType":"Parameters","parameter":[{"name":"operation","part":[{"name":"type","valueCode":"replace"},{"name":"path","valueString":"Patient.active"},{"name":"value","valueBoolean":true}]}]}`
		s.put("/Patient/g", patient("g", "A")).want(201)
		for _, header := range [][3]string{{"If-None-Match", `*`, "duplicate"}, {"If-None-Match", `W/"9", W/"1"`, "conflict"}, {"If-Unmodified-Since", old, "conflict"}} {
			s.put("/Patient/g", patient("g", "B"), header[0], header[1]).issue(412, header[2], header[0])
			s.do("PATCH", "/Patient/g", nothing, header[0], header[1], "Content-Type", jsonPatch).issue(412, header[2], header[0])
			s.do("PATCH", "/Patient?_id=g", nothing, header[0], header[1], "Content-Type", jsonPatch).issue(412, header[2], header[0])
			s.do("DELETE", "/Patient/g", "", header[0], header[1]).issue(412, header[2], header[0])
			s.do("DELETE", "/Patient?_id=g", "", header[0], header[1]).issue(412, header[2], header[0])
		}
		for _, more := range []string{`,"ifNoneMatch":"W/\"1\""`, `,"ifNoneMatch":"*"`} {
			s.post("/", bundle("transaction", entry("DELETE", "Patient/g", "", "", more))).want(412)
			s.post("/", bundle("transaction", entry("PATCH", "Patient/g", "", parameters, more))).want(412)
			s.post("/", bundle("batch", entry("DELETE", "Patient/g", "", "", more), entry("PATCH", "Patient/g", "", parameters, more))).want(200).
				equal("entry.0.response.status", "412 Precondition Failed").equal("entry.1.response.status", "412 Precondition Failed")
		}
		s.get("/Patient/g").want(200).equal("meta.versionId", "1")
		// If-Match wins over If-Unmodified-Since, and a date that is none is no condition.
		s.do("PATCH", "/Patient/g", nothing, "If-Match", `W/"1"`, "If-Unmodified-Since", old, "Content-Type", jsonPatch).want(200)
		s.do("PATCH", "/Patient/g", nothing, "If-Unmodified-Since", "yesterday", "Content-Type", jsonPatch).want(200)
		s.do("PATCH", "/Patient/g", nothing, "If-Unmodified-Since", young, "If-None-Match", `W/"2"`, "Content-Type", jsonPatch).want(200)
		s.do("DELETE", "/Patient/absent", "", "If-None-Match", "*", "If-Unmodified-Since", old).want(204)
		s.do("DELETE", "/Patient/g", "", "If-None-Match", `W/"3"`, "If-Unmodified-Since", young).want(204)
	})
	t.Run("_summary and _elements of the answer (http.html#parameters)", func(t *testing.T) {
		s := s.in(t)
		body := `{"resourceType":"Patient","id":"cut","birthDate":"2001-02-03","photo":[{"title":"x"}]}`
		for _, a := range []*answer{
			s.put("/Patient/cut?_elements=birthDate", body).want(201),
			s.put("/Patient?_id=cut&_summary=true", body).want(200),
			s.do("PATCH", "/Patient/cut?_elements=birthDate", `[{"op":"test","path":"/photo/0/title","value":"x"}]`, "Content-Type", "application/json-patch+json").want(200),
			s.post("/Patient?_elements=birthDate", body).want(201),
		} {
			if a.at("photo") != nil {
				t.Errorf("%s: the answer has more than was asked for\n%s", a.what, clip(a.body))
			}
			a.equal("birthDate", "2001-02-03").equal("meta.tag.0.code", "SUBSETTED")
		}
		s.get("/Patient/cut").want(200).equal("photo.0.title", "x").equal("meta.versionId", "3")
		s.put("/Patient/cut?_elements=colour", body).issue(400, "invalid", "colour")
		s.put("/Patient/cut?_summary=count", body).issue(400, "invalid", "_summary")
		s.do("PATCH", "/Patient/cut?_summary=brief", `[]`, "Content-Type", "application/json-patch+json").issue(400, "invalid", "brief")
		s.get("/Patient/cut").want(200).equal("meta.versionId", "3")
	})
	t.Run("a deleted resource comes back with the next version (http.html#delete)", func(t *testing.T) {
		s := s.in(t)
		s.put("/Patient/d", patient("d", "A")).want(201)
		s.do("DELETE", "/Patient/d", "").want(204)
		s.put("/Patient/d", patient("d", "B")).want(201).equal("meta.versionId", "3")
		s.get("/Patient/d").want(200).equal("name.0.family", "B")
	})
	t.Run("Prefer (http.html#ops)", func(t *testing.T) {
		s := s.in(t)
		if a := s.put("/Patient/q", patient("q", "A"), "Prefer", "return=minimal").want(201); len(a.body) != 0 {
			t.Errorf("minimal: %s", a.body)
		}
		s.put("/Patient/q", patient("q", "A"), "Prefer", "return=OperationOutcome").want(200).equal("resourceType", "OperationOutcome")
	})
}

// contract: fhir.update_create
func TestUpdateWithoutCreate(t *testing.T) {
	s := start(t, func(c *server.Config) { c.FHIR.UpdateCreate = false })
	s.put("/Patient/p", `{"resourceType":"Patient","id":"p"}`).issue(405, "not-supported", "fhir.update_create")
	id := s.create(`{"resourceType":"Patient"}`)
	s.put("/Patient/"+id, `{"resourceType":"Patient","id":"`+id+`"}`).want(200)
	// Where the criteria match nothing and the body has no id, the server chooses it (http.html#cond-update).
	named := `{"resourceType":"Patient","identifier":[{"system":"urn:x","value":"1"}]}`
	s.put("/Patient?identifier=urn:x|1", named).want(201)
	s.put("/Patient?identifier=urn:x|1", named).want(200)
	s.put("/Patient?identifier=urn:x|2", `{"resourceType":"Patient","id":"own"}`).issue(405, "not-supported", "fhir.update_create")
	s.do("POST", "", `{"resourceType":"Bundle","type":"transaction","entry":[{"resource":{"resourceType":"Patient"},"request":{"method":"PUT","url":"Patient?identifier=urn:x|3"}}]}`).
		want(200).equal("entry.0.response.status", "201 Created")
}

// http.html#concurrency: of many updates with one If-Match, one wins.
func TestUpdateRace(t *testing.T) {
	s := start(t)
	const n = 50
	s.put("/Patient/r", `{"resourceType":"Patient","id":"r"}`).want(201)
	status := parallel(n, func(i int) int {
		a, err := s.try("PUT", "/Patient/r", fmt.Sprintf(`{"resourceType":"Patient","id":"r","multipleBirthInteger":%d}`, i), "If-Match", `W/"1"`)
		if err != nil {
			return -1
		}
		return a.status
	})
	if status[200] != 1 || status[409] != n-1 {
		t.Errorf("statuses %v, want one 200 and %d 409", status, n-1)
	}
	s.get("/Patient/r").want(200).equal("meta.versionId", "2")
}

// http.html#versioning: versions without gaps under concurrent writes.
func TestUpdateVersionsHaveNoGaps(t *testing.T) {
	s := start(t)
	const n = 40
	status := parallel(n, func(i int) int {
		a, err := s.try("PUT", "/Patient/g", fmt.Sprintf(`{"resourceType":"Patient","id":"g","multipleBirthInteger":%d}`, i))
		if err != nil {
			return -1
		}
		return a.status
	})
	if status[201] != 1 || status[200] != n-1 {
		t.Errorf("statuses %v, want one 201 and %d 200", status, n-1)
	}
	a := s.get("/Patient/g/_history?_count=100").want(200).equal("total", fmt.Sprint(n))
	for i := range n {
		a.equal(fmt.Sprintf("entry.%d.resource.meta.versionId", i), fmt.Sprint(n-i))
	}
}

// http.html#cond-update
func TestConditionalUpdate(t *testing.T) {
	s := start(t)
	body := func(id, family string) string {
		if id != "" {
			id = `"id":"` + id + `",`
		}
		return `{"resourceType":"Patient",` + id + `"identifier":[{"system":"urn:s","value":"1"}],"name":[{"family":"` + family + `"}]}`
	}
	id := s.put("/Patient?identifier=urn:s|1", body("", "A")).want(201).str("id")
	s.put("/Patient?identifier=urn:s|1", body("", "B")).want(200).equal("id", id).equal("meta.versionId", "2")
	s.put("/Patient?identifier=urn:s|1", body(id, "C")).want(200).equal("id", id).equal("meta.versionId", "3")
	s.put("/Patient?identifier=urn:s|1", body("other", "C")).issue(400, "invalid", "other")
	s.put("/Patient?identifier=urn:s|2", body("chosen", "C")).want(201).equal("id", "chosen")
	s.put("/Patient?identifier=urn:s|1", body("", "D")).issue(412, "multiple-matches")
	s.put("/Patient?identifier=urn:s|3", body("chosen", "D")).issue(409, "conflict")
	s.put("/Patient?bogus=1", body("", "D")).issue(400, "not-supported", "bogus")
	s.put("/Patient?_format=json", body("", "D")).issue(400, "invalid")
}

// fhir.version_conflict_status chooses between the contract's 409 and R4's 412, on
// every way that a write can come.
func TestVersionConflictStatus(t *testing.T) {
	for _, status := range []int{409, 412} {
		t.Run(fmt.Sprint(status), func(t *testing.T) {
			s := start(t, func(c *server.Config) { c.FHIR.VersionConflictStatus = status })
			s.put("/Patient/m", `{"resourceType":"Patient","id":"m"}`).want(201)
			body := `{"resourceType":"Patient","id":"m","active":true}`
			s.put("/Patient/m", body, "If-Match", `W/"3"`).issue(status, "conflict")
			s.put("/Patient?_id=m", body, "If-Match", `W/"3"`).issue(status, "conflict")
			s.do("DELETE", "/Patient/m", "", "If-Match", `W/"3"`).issue(status, "conflict")
			s.do("PATCH", "/Patient/m", `[]`, "If-Match", `W/"3"`, "Content-Type", "application/json-patch+json").issue(status, "conflict")
			put := entry("PUT", "Patient/m", "", body, `,"ifMatch":"W/\"3\""`)
			s.post("/", bundle("transaction", put)).issue(status, "conflict")
			s.post("/", bundle("batch", put)).want(200).equal("entry.0.response.outcome.issue.0.code", "conflict")
			if got := s.post("/", bundle("batch", put)).str("entry.0.response.status"); !strings.HasPrefix(got, fmt.Sprint(status)) {
				t.Errorf("in a batch: %s, want %d", got, status)
			}
			s.put("/Patient/absent", `{"resourceType":"Patient","id":"absent"}`, "If-Match", `W/"1"`).want(412)
		})
	}
}

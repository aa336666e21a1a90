package conformance

import "testing"

// http.html#delete
func TestDelete(t *testing.T) {
	s := start(t)
	id := s.create(`{"resourceType":"Patient","name":[{"family":"Gone"}]}`)
	a := s.do("DELETE", "/Patient/"+id, "").want(204).has("ETag", `W/"2"`)
	if len(a.body) != 0 {
		t.Errorf("204 with a body: %s", a.body)
	}
	s.get("/Patient/"+id).issue(410, "deleted")
	s.get("/Patient?name=gone").want(200).equal("total", "0")
	s.do("DELETE", "/Patient/"+id, "").want(204)
	s.do("DELETE", "/Patient/nobody", "").want(204)
	s.get("/Patient/nobody").issue(404, "not-found")
	s.get("/Patient/"+id+"/_history").want(200).equal("total", "2").equal("entry.0.request.method", "DELETE")

	t.Run("If-Match", func(t *testing.T) {
		s := s.in(t)
		id := s.create(`{"resourceType":"Patient"}`)
		s.do("DELETE", "/Patient/"+id, "", "If-Match", `W/"2"`).issue(409, "conflict")
		s.get("/Patient/" + id).want(200)
		s.do("DELETE", "/Patient/"+id, "", "If-Match", `W/"1"`).want(204)
	})
	t.Run("If-Match: * of what is absent or deleted (RFC 9110 §13.1.1)", func(t *testing.T) {
		s := s.in(t)
		id := s.create(`{"resourceType":"Patient"}`)
		for _, absent := range []string{"nobody-at-all", "no_id"} {
			s.do("DELETE", "/Patient/"+absent, "", "If-Match", "*").issue(412, "conflict", absent)
			s.do("DELETE", "/Patient/"+absent, "", "If-Match", `W/"1"`).want(412)
			s.do("DELETE", "/Patient/"+absent, "").want(204)
		}
		s.do("PATCH", "/Patient/nobody-at-all", `[]`, "If-Match", "*", "Content-Type", "application/json-patch+json").issue(412, "conflict", "nobody-at-all")
		entry := entry("DELETE", "Patient/nobody-at-all", "", "", `,"ifMatch":"*"`)
		s.post("/", bundle("transaction", entry)).issue(412, "conflict", "nobody-at-all")
		s.post("/", bundle("batch", entry)).want(200).equal("entry.0.response.status", "412 Precondition Failed")
		s.do("DELETE", "/Patient/"+id, "", "If-Match", "*").want(204)
		s.do("DELETE", "/Patient/"+id, "", "If-Match", "*").want(412)
		s.do("DELETE", "/Patient/"+id, "").want(204)
	})
}

// http.html#3.1.0.7.1 (conditional delete)
func TestConditionalDelete(t *testing.T) {
	s := start(t)
	body := `{"resourceType":"Patient","identifier":[{"system":"urn:s","value":"1"}]}`
	id := s.create(body)
	s.do("DELETE", "/Patient?identifier=urn:s|2", "").want(204)
	s.get("/Patient/" + id).want(200)
	s.do("DELETE", "/Patient?identifier=urn:s|1", "").want(204)
	s.get("/Patient/" + id).want(410)
	one, two := s.create(body), s.create(body)
	s.do("DELETE", "/Patient?identifier=urn:s|1", "").issue(412, "multiple-matches")
	s.get("/Patient/" + one).want(200)
	s.get("/Patient/" + two).want(200)
	s.do("DELETE", "/Patient", "").issue(405, "not-supported")
	s.do("DELETE", "/Patient?bogus=1", "").issue(400, "not-supported", "bogus")
}

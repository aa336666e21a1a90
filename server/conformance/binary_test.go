package conformance

import (
	"bytes"
	"encoding/base64"
	"strings"
	"testing"
)

// binary.html#rest
func TestBinary(t *testing.T) {
	s := start(t)
	content := append([]byte("%PDF-1.7\x00\xff\xfe"), bytes.Repeat([]byte{0, 1, 2, 3}, 700_000)...)
	encoded := base64.StdEncoding.EncodeToString(content)

	t.Run("content is created with its type, and read as it came", func(t *testing.T) {
		s := s.in(t)
		a := s.post("/Binary", string(content), "Content-Type", "application/pdf", "X-Security-Context", "Patient/1").want(201)
		a.equal("resourceType", "Binary").equal("contentType", "application/pdf").equal("securityContext.reference", "Patient/1").has("ETag", `W/"1"`)
		if !strings.HasPrefix(a.header.Get("Location"), s.base+"/Binary/") {
			t.Errorf("Location %q", a.header.Get("Location"))
		}
		path := "/Binary/" + a.str("id")
		for _, accept := range []string{"*/*", "application/pdf", "text/html,application/xhtml+xml,*/*;q=0.8", "image/png"} {
			raw := s.get(path, "Accept", accept).want(200).has("Content-Type", "application/pdf").has("ETag", `W/"1"`).
				has("X-Security-Context", "Patient/1").has("X-Content-Type-Options", "nosniff").has("Content-Security-Policy", "sandbox")
			if !bytes.Equal(raw.body, content) {
				t.Errorf("Accept %s: %d bytes came back, want the %d that went in", accept, len(raw.body), len(content))
			}
		}
		if raw := s.get(path).want(200); !bytes.Equal(raw.body, content) {
			t.Errorf("without Accept %d bytes came back, want the %d that went in", len(raw.body), len(content))
		}
		s.get(path, "If-None-Match", `W/"1"`).want(304)
		if raw := s.get(path + "/_history/1").want(200); !bytes.Equal(raw.body, content) {
			t.Errorf("the version has %d bytes, want %d", len(raw.body), len(content))
		}
	})
	t.Run("the resource, where FHIR's JSON is asked for", func(t *testing.T) {
		s := s.in(t)
		id := s.create(`{"resourceType":"Binary","contentType":"application/pdf","data":"` + encoded + `"}`)
		for _, a := range []*answer{
			s.get("/Binary/"+id, "Accept", "application/fhir+json"),
			s.get("/Binary/"+id, "Accept", "application/json"),
			s.get("/Binary/" + id + "?_format=json"),
		} {
			a.want(200).equal("resourceType", "Binary").equal("contentType", "application/pdf").equal("data", encoded)
		}
		if raw := s.get("/Binary/"+id, "Accept", "application/pdf").want(200); !bytes.Equal(raw.body, content) {
			t.Errorf("%d bytes came back, want %d", len(raw.body), len(content))
		}
		s.get("/Binary?_id="+id).want(200).equal("entry.0.resource.data", encoded)
	})
	t.Run("an update by content", func(t *testing.T) {
		s := s.in(t)
		s.put("/Binary/note", "one", "Content-Type", "text/plain; charset=utf-8").want(201)
		s.put("/Binary/note", "two", "Content-Type", "text/plain; charset=utf-8", "If-Match", `W/"1"`).want(200).equal("meta.versionId", "2")
		a := s.get("/Binary/note").want(200).has("Content-Type", "text/plain; charset=utf-8")
		if string(a.body) != "two" {
			t.Errorf("read %q, want two", a.body)
		}
	})
	t.Run("errors are FHIR whatever is accepted", func(t *testing.T) {
		s := s.in(t)
		s.get("/Binary/nobody", "Accept", "application/pdf").issue(404, "not-found")
		s.do("DELETE", "/Binary/note", "").want(204)
		s.get("/Binary/note", "Accept", "text/plain").issue(410, "deleted")
		s.put("/Binary/xml", "x", "Content-Type", "text/plain").want(201)
		s.get("/Binary/xml", "Accept", "application/fhir+xml").issue(406, "not-supported")
		s.post("/Binary", `{"resourceType":"Patient"}`).want(201) // content
		s.post("/Patient", "%PDF", "Content-Type", "application/pdf").issue(415, "not-supported")
	})
}

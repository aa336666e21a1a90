package conformance

import (
	"testing"
)

// Answers without a version have an entity tag of their content: a client that has the answer gets
// 304. The CapabilityStatement is 1 MB of JSON otherwise, at each check of a client.
// Spec: https://hl7.org/fhir/R4/http.html#cread, RFC 9110 §13.1.2.
func TestContentTags(t *testing.T) {
	t.Parallel()
	s := withAuthorization(t)
	token := s.bearer(s.backendToken("backend", "system/*.rs"))
	for _, path := range []string{"/fhir/metadata", "/fhir/metadata?mode=terminology", "/fhir/StructureDefinition/Patient", "/fhir/SearchParameter/Patient-name",
		"/.well-known/smart-configuration", "/.well-known/openid-configuration", "/.well-known/jwks.json"} {
		first := token.get(s.origin() + path).want(200)
		tag := first.header.Get("ETag")
		if tag == "" {
			t.Errorf("%s has no ETag", path)
			continue
		}
		for _, condition := range []string{tag, tag[2:], `"other", ` + tag, "*"} {
			again := token.get(s.origin()+path, "If-None-Match", condition).want(304).has("ETag", tag)
			if len(again.body) > 0 {
				t.Errorf("%s: a 304 with %d bytes", path, len(again.body))
			}
		}
		token.get(s.origin()+path, "If-None-Match", `W/"other"`).want(200).has("ETag", tag)
	}
	// Another form is another answer.
	plain, pretty := token.get("/metadata").header.Get("ETag"), token.get("/metadata?_pretty=true").header.Get("ETag")
	if plain == pretty {
		t.Error("a pretty CapabilityStatement has the tag of a plain one")
	}
	// A change of the answer changes the tag.
	token.get("/metadata", "If-None-Match", pretty).want(200)
}

package conformance

import (
	"strings"
	"testing"
)

// A supplement adds designations to its code system and is none itself.
// Spec: https://hl7.org/fhir/R4/codesystem.html#supplements.
func TestSupplement(t *testing.T) {
	s := start(t)
	s.stores(
		`{"resourceType":"CodeSystem","id":"base","url":"http://s/base","version":"1","status":"active","content":"complete","concept":[{"code":"dog","display":"Dog"}]}`,
		`{"resourceType":"CodeSystem","id":"de","url":"http://s/de","status":"active","content":"supplement","supplements":"http://s/base|1","concept":[{"code":"dog","designation":[{"language":"de","value":"Hund"}]}]}`,
		`{"resourceType":"ValueSet","id":"all","url":"http://s/all","status":"active","compose":{"include":[{"system":"http://s/base"}]}}`)
	if a := s.get("/CodeSystem/$lookup?system=http://s/base&code=dog").want(200); !strings.Contains(string(a.body), `"Hund"`) {
		t.Errorf("$lookup without the designation: %s", a.body)
	}
	if a := s.get("/ValueSet/$expand?url=http://s/all&includeDesignations=true").want(200); !strings.Contains(string(a.body), `"Hund"`) {
		t.Errorf("$expand without the designation: %s", a.body)
	}
	if a := s.get("/ValueSet/$expand?url=http://s/all").want(200); strings.Contains(string(a.body), `"Hund"`) {
		t.Errorf("$expand with a designation that was not asked for: %s", a.body)
	}
	s.get("/CodeSystem/$lookup?system=http://s/de&code=dog").fails(404, "not-found", "is a supplement of http://s/base")
	s.do("DELETE", "/CodeSystem/de", "").want(204)
	if a := s.get("/CodeSystem/$lookup?system=http://s/base&code=dog").want(200); strings.Contains(string(a.body), `"Hund"`) {
		t.Errorf("$lookup with the designation of a supplement that is deleted: %s", a.body)
	}
}

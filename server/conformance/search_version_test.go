package conformance

import (
	"fmt"
	"strings"
	"testing"
)

// search.html#versions: a reference that names a version is followed to the current one; the Bundle says so.
func TestVersionedReferencesWarn(t *testing.T) {
	t.Parallel()
	s := start(t)
	s.put("/Patient/p", `{"resourceType":"Patient","id":"p","gender":"male"}`).want(201)
	s.put("/Patient/p", `{"resourceType":"Patient","id":"p","gender":"female"}`).want(200)
	observation := func(id, reference string) {
		t.Helper()
		s.put("/Observation/"+id, fmt.Sprintf(`{"resourceType":"Observation","id":%q,"status":"final","code":{"text":"x"},"subject":{"reference":%q}}`, id, reference)).want(201)
	}
	observation("old", "Patient/p/_history/1")
	observation("current", "Patient/p/_history/2")
	observation("plain", "Patient/p")
	observation("elsewhere", "http://elsewhere.example/fhir/Patient/p/_history/1")
	for _, c := range []struct{ query, warned string }{
		{"_include=Observation:subject", "old"},
		{"_include=*", "old"},
		{"subject.gender=female", "old"},
		{"subject:Patient.gender=female", "old"},
		{"subject=Patient/p", ""},
		{"performer.active=true", ""},
		{"_id=current,plain,elsewhere&_include=Observation:subject", ""},
		{"_id=current,plain&subject.gender=female", ""},
	} {
		t.Run(c.query, func(t *testing.T) {
			a := s.in(t).get("/Observation?" + c.query).want(200)
			var warned []string
			for _, id := range []string{"current", "elsewhere", "old", "plain"} {
				if strings.Contains(string(a.body), "Observation/"+id+" refers to version 1 of Patient/p") {
					warned = append(warned, id)
				}
			}
			if got := strings.Join(warned, " "); got != c.warned {
				t.Errorf("warned of %q, want %q: %s", got, c.warned, clip(a.body))
			}
		})
	}
}

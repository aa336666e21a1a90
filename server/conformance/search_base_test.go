package conformance

import (
	"fmt"
	"strings"
	"testing"

	"kiln/server"
)

// References below the base URL are local, with and without /fhir: in indexing, searches,
// includes, compartments and conditional references.
// Contract, Design 2: a reference below `server.base_url`.
func TestReferencesBelowTheOrigin(t *testing.T) {
	t.Parallel()
	for _, base := range []string{"https://fhir.example.org", "https://fhir.example.org/", "https://fhir.example.org/fhir", "https://example.org/r4", "https://example.org/r4/fhir"} {
		t.Run(base, func(t *testing.T) {
			t.Parallel()
			s := start(t, func(c *server.Config) { c.Server.BaseURL = base })
			origin := strings.TrimSuffix(strings.TrimSuffix(base, "/"), "/fhir")
			s.put("/Patient/p", `{"resourceType":"Patient","id":"p","active":true,"identifier":[{"value":"7"}]}`).want(201)
			references := []string{"Patient/p", origin + "/Patient/p", origin + "/fhir/Patient/p", origin + "/fhir/Patient/p/_history/1"}
			for i, reference := range references {
				s.put(fmt.Sprintf("/Observation/o%d", i), fmt.Sprintf(`{"resourceType":"Observation","id":"o%d","status":"final","code":{"text":"x"},"subject":{"reference":%q}}`, i, reference)).want(201)
			}
			s.put("/Observation/other", `{"resourceType":"Observation","id":"other","status":"final","code":{"text":"x"},"subject":{"reference":"https://elsewhere.example.org/fhir/Patient/p"}}`).want(201)
			for _, path := range []string{"subject=Patient/p", "subject=" + origin + "/Patient/p", "subject=" + origin + "/fhir/Patient/p", "patient=p", "subject:Patient.active=true"} {
				s.get("/Observation?"+path).want(200).equal("total", "4")
			}
			s.get("/Patient/p/Observation").want(200).equal("total", "4")
			if found := s.get("/Patient?_id=p&_revinclude=Observation:subject").want(200).includes(); len(found) != 4 {
				t.Errorf("_revinclude finds %v", found)
			}
			for _, at := range []string{origin, origin + "/fhir"} {
				s.post("/", bundle("transaction", entry("POST", "Observation", "", `{"resourceType":"Observation","status":"final","code":{"text":"x"},"subject":{"reference":"`+at+`/Patient?identifier=7"}}`)), "Prefer", "return=representation").want(200).
					equal("entry.0.resource.subject.reference", "Patient/p")
			}
		})
	}
}

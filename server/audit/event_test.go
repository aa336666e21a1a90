package audit

import "testing"

// Contract, Operations: audit by the BALP patterns: a search that names one patient is about that patient.
func TestPatientOfSearch(t *testing.T) {
	t.Parallel()
	for query, want := range map[string]string{
		"/Observation?patient=a&code=x":                        "Patient/a",
		"/fhir/Observation?patient:Patient=a":                  "Patient/a",
		"/Observation?patient=Patient%2Fa&subject=Patient%2Fa": "Patient/a",
		"/Observation?subject=http://kiln.test/fhir/Patient/a": "Patient/a",
		"/Observation?subject:Patient=a":                       "Patient/a",
		"/Observation/_search?patient=a":                       "Patient/a",
		"/Patient?_id=a":                                       "Patient/a",
		"/fhir/Patient/_search?_id=a":                          "Patient/a",
		"/Patient/a/Observation?code=x":                        "Patient/a",
		"/Observation?subject=a":                               "", // any type
		"/Observation?subject=Group/a":                         "",
		"/Observation?_id=a":                                   "",
		"/Observation?patient=a,b":                             "",
		"/Observation?patient=a&patient=b":                     "",
		"/Patient/a/Observation?patient=b":                     "",
		"/Observation?patient.name=x":                          "",
		"/Observation?patient:identifier=http%3A%2F%2Fs%7Cv":   "",
		"/Observation?patient=%3Cscript%3E":                    "",
		"/Observation?patient=%zz":                             "",
		"/Observation":                                         "",
	} {
		if got := patientOfSearch(query); got != want {
			t.Errorf("%s: %q, want %q", query, got, want)
		}
	}
}

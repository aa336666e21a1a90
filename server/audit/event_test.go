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

// Contract, Operations: audit by the BALP patterns: an event of a write names the patient, with any escapes in the
// JSON.
func TestPatientOf(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct{ resource, body, want string }{
		{"Patient/a", `{}`, "Patient/a"},
		{"Observation/o", `{"subject":{"reference":"Patient/a"}}`, "Patient/a"},
		{"Observation/o", ` { "code" : {"text":"Patient/b, \"subject\""}, "x":[1,-2.5e3,true,{"subject":{"reference":"Patient/c"}}], "subject" : { "display":"n", "reference" : "http://kiln.test/fhir/Patient/a/_history/1" } } `, "Patient/a"},
		{"Observation/o", `{"\u0073ubject":{"reference":"\u0050atient\/a"}}`, "Patient/a"},
		{"Coverage/o", `{"subject":{"reference":"Group/g"},"beneficiary":{"reference":"Patient/a"}}`, "Patient/a"},
		{"Task/o", `{"for":{"reference":"Patient/a"}}`, "Patient/a"},
		{"Observation/o", `{"subject":{"reference":"Group/g"},"note":[{"text":"Patient/a"}]}`, ""},
		{"Observation/o", `{"contained":[{"patient":{"reference":"Patient/a"}}]}`, ""},
		{"Observation/o", `{"subject":"Patient/a"}`, ""},
		{"Observation/o", `{"subject":{"reference":1}}`, ""},
		{"Observation/o", `{"subject`, ""},
		{"Observation/o", ``, ""},
	} {
		got := ""
		if tt.resource == "Patient/a" || mayNamePatient([]byte(tt.body)) {
			got = patientOf(tt.resource, []byte(tt.body))
		}
		if got != tt.want {
			t.Errorf("%s %s: %q, want %q", tt.resource, tt.body, got, tt.want)
		}
	}
}

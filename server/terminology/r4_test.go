package terminology

import (
	"encoding/json"
	"regexp"
	"testing"

	"kiln/server/outcome"
)

// needed are code systems that R4's value sets take codes from by rule and that R4
// does not define.
var needed = regexp.MustCompile(`^CodeSystem (http://(snomed\.info/sct|loinc\.org|hl7\.org/fhir/sid/|nucc\.org|unstats\.un\.org|varnomen|www\.(ama-assn|ebi|ensembl|genenames|ncbi|nlm|sequenceontology)|cancer\.sanger|ihe\.net|unitsofmeasure)|https://(precision\.fda|www\.iana)|urn:(oid|iso):)`)

// TestAllOfR4 expands every value set of R4.
func TestAllOfR4(t *testing.T) {
	t.Parallel()
	lib, err := r4()
	if err != nil {
		t.Fatal(err)
	}
	s, _ := local(t)
	// Faults of R4 itself: references to what it does not define.
	faults := map[string]bool{
		"http://hl7.org/fhir/ValueSet/media-modality": true, "http://hl7.org/fhir/ValueSet/use-context": true,
		"http://hl7.org/fhir/ValueSet/task-code": true, "http://hl7.org/fhir/ValueSet/example-filter": true,
	}
	good := 0
	for _, e := range lib.Entries("ValueSet") {
		body, err := s.Expand(t.Context(), ExpandParams{URL: e.URL, ExcludeNested: true})
		if err == nil {
			good++
			agree(t, s, e.URL, body)
			continue
		}
		o, ok := outcome.From(err)
		switch {
		case !ok:
			t.Errorf("%s: %v", e.URL, err)
		case faults[e.URL], o.Issues[0].Code == outcome.CodeTooCostly: // a grammar
		case o.Issues[0].Code == outcome.CodeNotFound && needed.MatchString(o.Error()):
		default:
			t.Errorf("%s: %v", e.URL, err)
		}
	}
	if good < 1200 {
		t.Errorf("%d value sets expand, expected 1,200 and more", good)
	}
}

// agree checks that Contains agrees with the expansion for each code.
func agree(t *testing.T, s *Service, url string, body []byte) {
	t.Helper()
	var vs ValueSet
	if err := json.Unmarshal(body, &vs); err != nil {
		t.Fatal(err)
	}
	for _, c := range vs.Expansion.Contains {
		if in, known := s.Contains(url, c.System, c.Code); !in || !known {
			t.Errorf("%s has %s|%s; Contains says %v, known %v", url, c.System, c.Code, in, known)
		}
	}
	if in, _ := s.Contains(url, "http://nowhere", "no such code"); in {
		t.Errorf("%s: Contains finds what is nowhere", url)
	}
}

func TestExpandR4(t *testing.T) {
	t.Parallel()
	s, _ := local(t)
	for _, tt := range []struct{ name, url, want string }{
		{"a code system as a whole", "http://hl7.org/fhir/ValueSet/administrative-gender", "male female other unknown"},
		{"with a hierarchy", "http://hl7.org/fhir/ValueSet/observation-status", "registered preliminary final amended (corrected) cancelled entered-in-error unknown"},
		{"from two systems", "http://hl7.org/fhir/ValueSet/marital-status", "A D I L M P S T U W UNK"},
		{"v3, a part of a hierarchy", "http://terminology.hl7.org/ValueSet/v3-ActMood",
			"_ActMoodCompletionTrack (_ActMoodPotential (DEF PERM SLOT) EVN INT (_ActMoodDesire (_ActMoodActRequest (ARQ PERMRQ RQO) PRP (RMD)) PRMS (APT))) " +
				"_ActMoodPredicate (CRT (EVN.CRT GOL.CRT INT.CRT (PRMS.CRT RQO.CRT) RSK.CRT) EXPEC (GOL RSK) OPT)"},
		{"implied by the code system that names it", "http://hl7.org/fhir/ValueSet/restful-interaction",
			"read vread update patch delete history (history-instance history-type history-system) create search (search-type search-system) capabilities transaction batch operation"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			got := expand(t, s, ExpandParams{URL: tt.url})
			if got := tree(got.Expansion.Contains); got != tt.want {
				t.Errorf("got %q, want %q", got, tt.want)
			}
		})
	}
}

func TestTopStrings(t *testing.T) {
	t.Parallel()
	lib, err := r4()
	if err != nil {
		t.Fatal(err)
	}
	for e, body := range lib.All("") {
		got := topStrings(body, "id", "url", "version", "nothing")
		if got[0] != e.ID || got[1] != e.URL || got[2] != e.Version || got[3] != "" {
			t.Errorf("%s/%s: got %q", e.Type, e.ID, got)
		}
	}
	for _, tt := range []struct{ text, want string }{
		{`{ "a" : {"version":"1"}, "version" : "2" }`, "2"},
		{`{"a":"\"version\":\"1\"","version":"2"}`, "2"},
		{`{"a":["version","1"],"b":"version","c":"1"}`, ""},
		{`{"version":["1"]}`, ""},
		{`{"version":"`, ""},
		{`{"version":"1\`, ""},
		{``, ""},
	} {
		if got := topStrings([]byte(tt.text), "version")[0]; got != tt.want {
			t.Errorf("%s: got %q, want %q", tt.text, got, tt.want)
		}
	}
}

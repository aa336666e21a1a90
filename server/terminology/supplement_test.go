package terminology

import (
	"encoding/json"
	"strings"
	"testing"

	"kiln/server/outcome"
)

const (
	german = `{"resourceType":"CodeSystem","id":"de","url":"http://x/animals-de","version":"3","content":"supplement","supplements":"http://x/animals","language":"de",
		"property":[{"code":"paws","type":"integer"}],"concept":[
		{"code":"dog","display":"Hund","designation":[{"language":"de-AT","value":"Hunderl"}],"property":[{"code":"paws","valueInteger":4},{"code":"parent","valueCode":"stone"},{"code":"status","valueCode":"retired"}]},
		{"code":"unicorn","display":"Einhorn"}]}`
	otherVersion = `{"resourceType":"CodeSystem","id":"old","url":"http://x/animals-old","content":"supplement","supplements":"http://x/animals|0.1",
		"concept":[{"code":"dog","designation":[{"language":"fr","value":"chien"}]}]}`
)

// TestSupplements asks about a code system with a supplement.
// Spec: https://hl7.org/fhir/R4/codesystem.html#supplements.
func TestSupplements(t *testing.T) {
	t.Parallel()
	s, have := local(t, animals, german, otherVersion,
		`{"resourceType":"ValueSet","id":"all","url":"http://x/vs/all","status":"active","compose":{"include":[{"system":"http://x/animals"}]}}`,
		`{"resourceType":"ValueSet","id":"paws","url":"http://x/vs/paws","status":"active","compose":{"include":[{"system":"http://x/animals","filter":[{"property":"paws","op":"=","value":"4"}]}]}}`,
		`{"resourceType":"ValueSet","id":"wrong","url":"http://x/vs/wrong","status":"active","compose":{"include":[{"system":"http://x/animals-de"}]}}`,
		`{"resourceType":"ValueSet","id":"needs","url":"http://x/vs/needs","status":"active","extension":[{"url":"http://hl7.org/fhir/StructureDefinition/valueset-supplement","valueCanonical":"http://x/animals-fi"}],"compose":{"include":[{"system":"http://x/animals"}]}}`)

	body, err := s.Lookup(t.Context(), LookupParams{System: "http://x/animals", Code: "dog"})
	if err != nil {
		t.Fatal(err)
	}
	said := string(body)
	for _, want := range []string{`"valueString":"Hund"`, `"valueString":"Hunderl"`, `"valueCode":"paws"`, `"valueInteger":4`} {
		if !strings.Contains(said, want) {
			t.Errorf("$lookup has no %s: %s", want, said)
		}
	}
	// Changes of the code system itself, and texts for another version.
	for _, no := range []string{"stone", "inactive", "chien"} {
		if strings.Contains(said, no) {
			t.Errorf("$lookup has %s: %s", no, said)
		}
	}

	expanded := func(p ExpandParams) (ValueSet, string) {
		t.Helper()
		body, err := s.Expand(t.Context(), p)
		if err != nil {
			t.Fatal(err)
		}
		var vs ValueSet
		if err := json.Unmarshal(body, &vs); err != nil {
			t.Fatal(err)
		}
		return vs, string(body)
	}
	if _, body := expanded(ExpandParams{URL: "http://x/vs/all", IncludeDesignations: true}); !strings.Contains(body, `"value":"Hunderl"`) ||
		!strings.Contains(body, `{"name":"used-supplement","valueUri":"http://x/animals-de|3"}`) || strings.Contains(body, "unicorn") {
		t.Errorf("$expand: %s", body)
	}
	if _, body := expanded(ExpandParams{URL: "http://x/vs/all", DisplayLanguage: "de"}); !strings.Contains(body, `"display":"Hund"`) {
		t.Errorf("$expand in German: %s", body)
	}
	if vs, body := expanded(ExpandParams{URL: "http://x/vs/paws"}); len(vs.Expansion.Contains) != 1 || vs.Expansion.Contains[0].Code != "dog" {
		t.Errorf("$expand by a property of the supplement: %s", body)
	}

	r, err := s.ValidateCode(t.Context(), ValidateCodeParams{URL: "http://x/vs/all", Coding: []Coding{{System: "http://x/animals", Code: "dog", Display: "Hund"}}})
	if err != nil || !r.Result {
		t.Errorf("$validate-code with the display of the supplement: %+v, %v", r, err)
	}

	// It is no code system.
	_, err = s.Lookup(t.Context(), LookupParams{System: "http://x/animals-de", Code: "dog"})
	refused(t, err, 404, outcome.CodeNotFound, "is a supplement of http://x/animals")
	_, err = s.Expand(t.Context(), ExpandParams{URL: "http://x/vs/wrong"})
	refused(t, err, 404, outcome.CodeNotFound, "is a supplement of http://x/animals")
	if in, known := s.Contains("http://x/vs/wrong", "http://x/animals-de", "dog"); in || known {
		t.Errorf("a code of a supplement: %v, %v", in, known)
	}
	_, err = s.Expand(t.Context(), ExpandParams{URL: "http://x/vs/needs"})
	refused(t, err, 422, outcome.CodeNotFound, "supplement http://x/animals-fi")

	// It does not hide the code system whose url it has taken, and is not missed
	// where the packages have it.
	have.put(t, strings.Replace(german, "http://x/animals-de", "http://x/animals", 1))
	if _, err := s.Lookup(t.Context(), LookupParams{System: "http://x/animals", Code: "trout"}); err != nil {
		t.Errorf("a supplement with the url of its code system: %v", err)
	}
	if _, err := s.Lookup(t.Context(), LookupParams{System: "http://hl7.org/fhir/CodeSystem/example", Code: "chol"}); err != nil {
		t.Fatal(err)
	} else if body, _ := s.Lookup(t.Context(), LookupParams{System: "http://hl7.org/fhir/CodeSystem/example", Code: "chol"}); !strings.Contains(string(body), `"valueCode":"legacy"`) {
		t.Errorf("the supplement of R4's example: %s", body)
	}
}

package terminology

import (
	"strings"
	"testing"

	"kiln/server/outcome"
)

// Spec: https://hl7.org/fhir/R4/valueset-operation-validate-code.html.
func TestValidateCode(t *testing.T) {
	t.Parallel()
	s, _ := local(t, animals,
		`{"resourceType":"CodeSystem","id":"loose","url":"http://x/loose","content":"complete","caseSensitive":false,"concept":[{"code":"Ab","display":"Äb"}]}`,
		`{"resourceType":"CodeSystem","id":"part","url":"http://x/part","content":"fragment","concept":[{"code":"p"}]}`,
		vs("http://x/vs/mixed", `{"include":[{"system":"http://x/animals","filter":[{"property":"concept","op":"is-a","value":"mammal"}]},{"system":"http://x/loose"},
			{"system":"urn:ietf:bcp:47"},{"system":"http://x/part"},{"system":"http://loinc.org","concept":[{"code":"8480-6","display":"Systolic"}]}]}`),
		vs("http://x/vs/all", `{"include":[{"system":"http://x/animals"}]}`))
	coding := func(system, code, display string) []Coding {
		return []Coding{{System: system, Code: code, Display: display}}
	}
	const mixed = "http://x/vs/mixed"
	for _, tt := range []struct {
		name    string
		params  ValidateCodeParams
		want    bool
		display string
		message string
	}{
		{"a code of the value set", ValidateCodeParams{URL: mixed, Coding: coding("http://x/animals", "dog", "")}, true, "Dog", ""},
		{"a code of the system that is not in it", ValidateCodeParams{URL: mixed, Coding: coding("http://x/animals", "stone", "")}, false, "", `code "stone" of http://x/animals is not in ValueSet http://x/vs/mixed`},
		{"a code of another system", ValidateCodeParams{URL: mixed, Coding: coding("http://y", "dog", "")}, false, "", "is not in ValueSet"},
		{"no system", ValidateCodeParams{URL: mixed, Coding: coding("", "dog", "")}, false, "", "has no system"},
		{"no system, to be inferred", ValidateCodeParams{URL: mixed, InferSystem: true, Coding: coding("", "dog", "")}, true, "Dog", ""},
		{"the display without regard to case", ValidateCodeParams{URL: mixed, Coding: coding("http://x/animals", "dog", "dog")}, true, "Dog", ""},
		{"a designation as display", ValidateCodeParams{URL: mixed, Coding: coding("http://x/animals", "dog", "Chien")}, true, "Dog", ""},
		{"a wrong display", ValidateCodeParams{URL: mixed, Coding: coding("http://x/animals", "dog", "Cat")}, false, "Dog", `the display of code "dog" is "Dog", not "Cat"`},
		{"a display in a language", ValidateCodeParams{URL: mixed, DisplayLanguage: "de", Coding: coding("http://x/animals", "dog", "")}, true, "Hund", ""},
		{"a code system without case", ValidateCodeParams{URL: mixed, Coding: coding("http://x/loose", "AB", "ab")}, true, "Äb", ""},
		{"a code system with case", ValidateCodeParams{URL: mixed, Coding: coding("http://x/animals", "DOG", "")}, false, "", "is not in"},
		{"a code by grammar", ValidateCodeParams{URL: mixed, Coding: coding("urn:ietf:bcp:47", "de-CH", "")}, true, "", ""},
		{"none by that grammar", ValidateCodeParams{URL: mixed, Coding: coding("urn:ietf:bcp:47", "?", "")}, false, "", "is not in"},
		{"a listed code of an unknown system", ValidateCodeParams{URL: mixed, Coding: coding("http://loinc.org", "8480-6", "systolic")}, true, "Systolic", ""},
		{"a code of a fragment", ValidateCodeParams{URL: mixed, Coding: coding("http://x/part", "p", "")}, true, "", ""},
		{"perhaps a code of the rest of it", ValidateCodeParams{URL: mixed, Coding: coding("http://x/part", "q", "")}, false, "", "not known here"},
		{"one of two codings is enough", ValidateCodeParams{URL: mixed, Coding: []Coding{{System: "http://y", Code: "a"}, {System: "http://x/animals", Code: "whale"}}}, true, "Whale", ""},
		{"none of two", ValidateCodeParams{URL: mixed, Coding: []Coding{{System: "http://y", Code: "a"}, {System: "http://y", Code: "b"}}}, false, "", `code "b"`},
		{"an abstract code", ValidateCodeParams{URL: "http://x/vs/all", Coding: coding("http://x/animals", "animal", "")}, false, "Animal", "is abstract"},
		{"an abstract code that may be", ValidateCodeParams{URL: "http://x/vs/all", Abstract: true, Coding: coding("http://x/animals", "animal", "")}, true, "Animal", ""},
		{"in a code system", ValidateCodeParams{Coding: coding("http://x/animals", "dog", "")}, true, "Dog", ""},
		{"not in it", ValidateCodeParams{Coding: coding("http://x/animals", "cat", "")}, false, "", "is not in CodeSystem http://x/animals"},
		{"a unit", ValidateCodeParams{Coding: coding("http://unitsofmeasure.org", "mg/dL", "")}, true, "", ""},
		{"no unit", ValidateCodeParams{Coding: coding("http://unitsofmeasure.org", "furlong!", "")}, false, "", "is not in CodeSystem"},
		{"a value set of R4", ValidateCodeParams{URL: "http://hl7.org/fhir/ValueSet/currencies", Coding: coding("urn:iso:std:iso:4217", "CHF", "")}, true, "", ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			got, err := s.ValidateCode(t.Context(), tt.params)
			if err != nil {
				t.Fatal(err)
			}
			if got.Result != tt.want || got.Coding.Display != tt.display || !strings.Contains(got.Message, tt.message) || tt.message == "" && got.Message != "" {
				t.Errorf("got %+v, want %v, display %q, message with %q", got, tt.want, tt.display, tt.message)
			}
		})
	}
	_, err := s.ValidateCode(t.Context(), ValidateCodeParams{URL: "http://x/vs/none", Coding: coding("a", "b", "")})
	refused(t, err, 404, outcome.CodeNotFound, "ValueSet http://x/vs/none not found")
	_, err = s.ValidateCode(t.Context(), ValidateCodeParams{Coding: coding("http://nowhere", "b", "")})
	refused(t, err, 404, outcome.CodeNotFound, "CodeSystem http://nowhere")
	_, err = s.ValidateCode(t.Context(), ValidateCodeParams{URL: mixed})
	refused(t, err, 400, outcome.CodeRequired, "needs code")
}

func TestContains(t *testing.T) {
	t.Parallel()
	s, have := local(t, animals,
		vs("http://x/vs/most", `{"include":[{"system":"http://x/animals"}],"exclude":[{"system":"http://x/animals","concept":[{"code":"stone"}]}]}`),
		vs("http://x/vs/clinical", `{"include":[{"system":"http://snomed.info/sct"},{"system":"http://x/animals","concept":[{"code":"dog"}]}]}`),
		vs("http://x/vs/without", `{"include":[{"system":"http://x/animals"}],"exclude":[{"valueSet":["http://x/vs/none"]}]}`),
		vs("http://x/vs/self", `{"include":[{"valueSet":["http://x/vs/self"]}]}`))
	for _, tt := range []struct {
		valueSet, system, code string
		in, known              bool
	}{
		{"http://hl7.org/fhir/ValueSet/administrative-gender", "", "male", true, true},
		{"http://hl7.org/fhir/ValueSet/administrative-gender|4.0.1", "", "male", true, true},
		{"http://hl7.org/fhir/ValueSet/administrative-gender|5.0.0", "", "male", false, false},
		{"http://hl7.org/fhir/ValueSet/administrative-gender", "", "man", false, true},
		{"http://hl7.org/fhir/ValueSet/administrative-gender", "http://y", "male", false, true},
		{"http://hl7.org/fhir/ValueSet/observation-status", "", "corrected", true, true},
		{"http://hl7.org/fhir/ValueSet/mimetypes", "", "application/pdf", true, true},
		{"http://hl7.org/fhir/ValueSet/mimetypes", "", "a b", false, true},
		{"http://hl7.org/fhir/ValueSet/languages", "urn:ietf:bcp:47", "de", true, true},
		{"http://hl7.org/fhir/ValueSet/currencies", "", "EUR", true, true},
		{"http://hl7.org/fhir/ValueSet/currencies", "", "eur", false, true},
		{"http://hl7.org/fhir/ValueSet/ucum-units", "http://unitsofmeasure.org", "mm[Hg]", true, true},
		{"http://hl7.org/fhir/ValueSet/condition-code", "http://snomed.info/sct", "123", false, false},
		{"http://x/vs/most", "http://x/animals", "dog", true, true},
		{"http://x/vs/most", "http://x/animals", "animal", true, true},
		{"http://x/vs/most", "http://x/animals", "stone", false, true},
		{"http://x/vs/clinical", "http://snomed.info/sct", "73211009", false, false},
		{"http://x/vs/clinical", "http://x/animals", "dog", true, true},
		{"http://x/vs/clinical", "http://x/animals", "stone", false, true},
		{"http://x/vs/without", "http://x/animals", "dog", false, false},
		{"http://x/vs/self", "http://x/animals", "dog", false, false},
		{"http://x/vs/none", "http://x/animals", "dog", false, false},
	} {
		if in, known := s.Contains(tt.valueSet, tt.system, tt.code); in != tt.in || known != tt.known {
			t.Errorf("%s has %s|%s: got %v, known %v; want %v, known %v", tt.valueSet, tt.system, tt.code, in, known, tt.in, tt.known)
		}
	}

	// A change is seen as soon as the stamp is compared again.
	have.put(t, vs("http://x/vs/most", `{"include":[{"system":"http://x/animals"}]}`))
	s.current.Load().checked.Add(-int64(stampPause))
	if in, known := s.Contains("http://x/vs/most", "http://x/animals", "stone"); !in || !known {
		t.Error("a new version of the value set is not seen")
	}
}

func BenchmarkContains(b *testing.B) {
	s, _ := local(b)
	for _, set := range []string{"http://hl7.org/fhir/ValueSet/observation-status", "http://hl7.org/fhir/ValueSet/currencies"} {
		s.Contains(set, "", "final")
	}
	b.ReportAllocs()
	for b.Loop() {
		s.Contains("http://hl7.org/fhir/ValueSet/observation-status", "", "final")
	}
}

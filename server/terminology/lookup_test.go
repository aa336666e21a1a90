package terminology

import (
	"encoding/json"
	"strings"
	"testing"

	"kiln/server/outcome"
	"kiln/server/parameters"
)

// said writes Parameters as "name=value; property(code=x value=y)".
func said(t testing.TB, body []byte) string {
	t.Helper()
	list, err := parameters.Read(body)
	if err != nil {
		t.Fatalf("no Parameters: %s", body)
	}
	return sayAll(list, "; ")
}

func sayAll(list []parameters.Parameter, between string) string {
	var out []string
	for _, p := range list {
		v := p.Text()
		if p.Type == "Coding" {
			var c Coding
			_ = json.Unmarshal(p.Value, &c)
			v = c.System + "|" + c.Code
		}
		if p.Part != nil {
			out = append(out, p.Name+"("+sayAll(p.Part, " ")+")")
		} else {
			out = append(out, p.Name+"="+v)
		}
	}
	return strings.Join(out, between)
}

// Spec: https://hl7.org/fhir/R4/codesystem-operation-lookup.html.
func TestLookup(t *testing.T) {
	t.Parallel()
	s, _ := local(t, animals)
	for _, tt := range []struct {
		name   string
		params LookupParams
		want   string
	}{
		{"everything", LookupParams{System: "http://x/animals", Code: "dog"},
			"name=Animals; version=2.1.0; display=Dog; designation(language=de value=Hund); designation(language=fr value=Chien); " +
				"property(code=definition value=Barks.); property(code=parent value=mammal); property(code=legs value=4)"},
		{"one property", LookupParams{System: "http://x/animals", Code: "whale", Property: []string{"parent"}},
			"name=Animals; version=2.1.0; display=Whale; property(code=parent value=mammal); property(code=parent value=swimmer)"},
		{"a language", LookupParams{System: "http://x/animals", Code: "dog", Property: []string{"legs"}, DisplayLanguage: "fr"},
			"name=Animals; version=2.1.0; display=Chien; property(code=legs value=4)"},
		{"an abstract one with children", LookupParams{System: "http://x/animals", Code: "animal", Version: "2.1.0"},
			"name=Animals; version=2.1.0; display=Animal; property(code=notSelectable value=true); property(code=child value=mammal); property(code=child value=swimmer)"},
		{"of R4", LookupParams{System: "http://hl7.org/fhir/observation-status", Code: "corrected"},
			"name=ObservationStatus; version=4.0.1; display=Corrected; property(code=parent value=amended)"},
		{"by grammar", LookupParams{System: "http://unitsofmeasure.org", Code: "kg"}, "name=http://unitsofmeasure.org; display=kg"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			body, err := s.Lookup(t.Context(), tt.params)
			if err != nil {
				t.Fatal(err)
			}
			if got := said(t, body); got != tt.want {
				t.Errorf("got  %s\nwant %s", got, tt.want)
			}
		})
	}
	for _, tt := range []struct {
		params LookupParams
		status int
		code   outcome.Code
		want   string
	}{
		{LookupParams{System: "http://x/animals", Code: "cat"}, 404, outcome.CodeNotFound, `CodeSystem http://x/animals has no code "cat"`},
		{LookupParams{System: "http://x/animals", Code: "dog", Version: "1"}, 404, outcome.CodeNotFound, "http://x/animals|1"},
		{LookupParams{System: "http://nowhere", Code: "a"}, 404, outcome.CodeNotFound, "CodeSystem http://nowhere"},
		{LookupParams{System: "http://unitsofmeasure.org", Code: "furlong!"}, 404, outcome.CodeNotFound, "has no code"},
		{LookupParams{Code: "a"}, 400, outcome.CodeRequired, "needs system and code"},
	} {
		_, err := s.Lookup(t.Context(), tt.params)
		refused(t, err, tt.status, tt.code, tt.want)
	}
}

// Spec: https://hl7.org/fhir/R4/codesystem-operation-subsumes.html.
func TestSubsumes(t *testing.T) {
	t.Parallel()
	s, _ := local(t, animals,
		`{"resourceType":"CodeSystem","id":"ring","url":"http://x/ring","content":"complete","concept":[
			{"code":"a","property":[{"code":"parent","valueCode":"b"}]},{"code":"b","property":[{"code":"parent","valueCode":"a"}]}]}`)
	for _, tt := range []struct {
		system, a, b string
		want         Subsumption
	}{
		{"http://x/animals", "dog", "dog", Equivalent},
		{"http://x/animals", "animal", "dog", SubsumesCode},
		{"http://x/animals", "dog", "animal", SubsumedBy},
		{"http://x/animals", "swimmer", "whale", SubsumesCode},
		{"http://x/animals", "swimmer", "dog", NotSubsumed},
		{"http://x/ring", "a", "b", Equivalent},
		{"http://terminology.hl7.org/CodeSystem/v3-ActClass", "ACT", "DOCCLIN", SubsumesCode},
	} {
		got, err := s.SubsumesOutcome(t.Context(), SubsumesParams{System: tt.system, CodeA: tt.a, CodeB: tt.b})
		if got != tt.want || err != nil {
			t.Errorf("%s of %s and %s: got %v, %v; want %v", tt.system, tt.a, tt.b, got, err, tt.want)
		}
	}
	_, err := s.SubsumesOutcome(t.Context(), SubsumesParams{System: "http://x/animals", CodeA: "dog", CodeB: "cat"})
	refused(t, err, 404, outcome.CodeNotFound, `no code "cat"`)
	_, err = s.SubsumesOutcome(t.Context(), SubsumesParams{System: "http://x/animals", CodeA: "dog"})
	refused(t, err, 400, outcome.CodeRequired, "codeB")

	// What FHIRPath asks.
	if yes, known, err := s.Subsumes(t.Context(), "http://x/animals", "animal", "dog"); !yes || !known || err != nil {
		t.Errorf("Subsumes: %v, %v, %v", yes, known, err)
	}
	if yes, known, err := s.Subsumes(t.Context(), "http://nowhere", "animal", "dog"); yes || known || err != nil {
		t.Errorf("Subsumes of an unknown system: %v, %v, %v", yes, known, err)
	}
	if in, known, err := s.MemberOf(t.Context(), "http://x/animals", "dog", "http://x/animals?fhir_vs"); !in || !known || err != nil {
		t.Errorf("MemberOf: %v, %v, %v", in, known, err)
	}
	if in, known, err := s.MemberOf(t.Context(), "", "dog", "http://x/vs/none"); in || known || err != nil {
		t.Errorf("MemberOf an unknown value set: %v, %v, %v", in, known, err)
	}
}

// Spec: https://hl7.org/fhir/R4/conceptmap-operation-translate.html.
func TestTranslate(t *testing.T) {
	t.Parallel()
	s, _ := local(t, `{"resourceType":"ConceptMap","id":"m","url":"http://x/map","sourceUri":"http://x/vs/from","targetUri":"http://x/vs/to","group":[
		{"source":"http://x/animals","target":"http://x/de","element":[
			{"code":"dog","target":[{"code":"Hund","equivalence":"equivalent"},{"code":"Tier","equivalence":"wider","product":[{"property":"http://x/p","system":"http://x/q","value":"v"}]}]},
			{"code":"stone","target":[{"equivalence":"unmatched"}]}],
		 "unmapped":{"mode":"other-map","url":"http://x/rest"}},
		{"source":"http://x/animals","target":"http://x/fr","element":[{"code":"dog","target":[{"code":"Chien","equivalence":"equal"}]}]}]}`,
		`{"resourceType":"ConceptMap","id":"r","url":"http://x/rest","group":[{"source":"http://x/animals","target":"http://x/de","unmapped":{"mode":"fixed","code":"Wesen","display":"Wesen"}}]}`,
		`{"resourceType":"ConceptMap","id":"e","url":"http://x/endless","group":[{"source":"s","target":"t","unmapped":{"mode":"other-map","url":"http://x/endless"}}]}`)
	const system = "http://x/animals"
	for _, tt := range []struct {
		name   string
		params TranslateParams
		want   string
	}{
		{"every match", TranslateParams{URL: "http://x/map", Coding: []Coding{{System: system, Code: "dog"}}},
			"result=true; match(equivalence=equivalent concept=http://x/de|Hund source=http://x/map); " +
				"match(equivalence=wider concept=http://x/de|Tier product(element=http://x/p concept=http://x/q|v) source=http://x/map); match(equivalence=equal concept=http://x/fr|Chien source=http://x/map)"},
		{"of one system", TranslateParams{URL: "http://x/map", TargetSystem: "http://x/fr", Coding: []Coding{{System: system, Code: "dog"}}},
			"result=true; match(equivalence=equal concept=http://x/fr|Chien source=http://x/map)"},
		{"unmatched is no result", TranslateParams{URL: "http://x/map", Coding: []Coding{{System: system, Code: "stone"}}},
			"result=false; message=the concept map has no match; match(equivalence=unmatched source=http://x/map)"},
		{"another map", TranslateParams{URL: "http://x/map", Coding: []Coding{{System: system, Code: "trout"}}},
			"result=true; match(equivalence=inexact concept=http://x/de|Wesen source=http://x/rest)"},
		{"found by the code's system", TranslateParams{Source: "http://x/vs/from", Coding: []Coding{{System: system, Code: "stone"}}},
			"result=false; message=no concept map that fits has a match; match(equivalence=unmatched source=http://x/map)"},
		{"the other way round", TranslateParams{URL: "http://x/map", Reverse: true, Coding: []Coding{{System: "http://x/de", Code: "Tier"}}},
			"result=true; match(equivalence=narrower concept=http://x/animals|dog source=http://x/map)"},
		{"a map of R4, found by what it is between", TranslateParams{Source: "http://hl7.org/fhir/ValueSet/administrative-gender", Coding: []Coding{{System: "http://hl7.org/fhir/administrative-gender", Code: "male"}}},
			"result=true; match(equivalence=equal concept=http://terminology.hl7.org/CodeSystem/v2-0001|M source=http://hl7.org/fhir/ConceptMap/cm-administrative-gender-v2); " +
				"match(equivalence=equal concept=http://terminology.hl7.org/CodeSystem/v3-AdministrativeGender|M source=http://hl7.org/fhir/ConceptMap/cm-administrative-gender-v3)"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			r, err := s.Translate(t.Context(), tt.params)
			if err != nil {
				t.Fatal(err)
			}
			body, err := r.JSON()
			if err != nil {
				t.Fatal(err)
			}
			if got := said(t, body); got != tt.want {
				t.Errorf("got  %s\nwant %s", got, tt.want)
			}
		})
	}
	_, err := s.Translate(t.Context(), TranslateParams{URL: "http://x/none", Coding: []Coding{{Code: "a"}}})
	refused(t, err, 404, outcome.CodeNotFound, "ConceptMap http://x/none")
	_, err = s.Translate(t.Context(), TranslateParams{URL: "http://x/endless", Coding: []Coding{{System: "s", Code: "a"}}})
	refused(t, err, 422, outcome.CodeInvalid, "without end")
	_, err = s.Translate(t.Context(), TranslateParams{URL: "http://x/map"})
	refused(t, err, 400, outcome.CodeRequired, "needs code")
}

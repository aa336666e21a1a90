package terminology

import (
	"slices"
	"testing"

	"kiln/server/fhir"
	"kiln/server/outcome"
	"kiln/server/search"
)

// Spec: https://hl7.org/fhir/R4/search.html#token.
func TestSearchCodes(t *testing.T) {
	t.Parallel()
	r := newRemote(t)
	r.codes["http://snomed.info/sct?fhir_vs=ecl/<<73211009"] = []string{"http://snomed.info/sct|73211009", "http://snomed.info/sct|44054006"}
	r.codes["http://snomed.info/sct?fhir_vs=ecl/>>73211009"] = []string{"http://snomed.info/sct|73211009"}
	r.codes["body"] = []string{"http://loinc.org|LP1"}
	s, _ := external(t, r, animals, vs("http://x/vs/two", `{"include":[{"system":"http://x/animals","concept":[{"code":"dog"},{"code":"trout"}]}]}`))
	alone, _ := local(t, animals)
	of := func(system string, codes ...string) (list []fhir.Value) {
		for _, c := range codes {
			list = append(list, fhir.ValueCoding(system, c))
		}
		slices.Sort(list)
		return list
	}
	const loincBelow = `POST ValueSet/$expand count=10000 offset=0 valueSet={"resourceType":"ValueSet","status":"active","compose":{"include":[{"system":"http://loinc.org","filter":[{"property":"concept","op":"is-a","value":"LP1"}]}]}}`
	for _, tt := range []struct {
		name  string
		q     search.Expansion
		want  []fhir.Value
		asked []string
	}{
		{"in", search.Expansion{Modifier: "in", ValueSet: "http://x/vs/two"}, of("http://x/animals", "dog", "trout"), nil},
		{"below", search.Expansion{Modifier: "below", System: "http://x/animals", Code: "mammal"}, of("http://x/animals", "mammal", "dog", "whale", "dodo-dog"), nil},
		{"above", search.Expansion{Modifier: "above", System: "http://x/animals", Code: "whale"}, of("http://x/animals", "animal", "mammal", "swimmer", "whale"), nil},
		{"SNOMED CT below", search.Expansion{Modifier: "below", System: "http://snomed.info/sct", Code: "73211009"}, of("http://snomed.info/sct", "73211009", "44054006"),
			[]string{"GET ValueSet/$expand count=10000 offset=0 url=http://snomed.info/sct?fhir_vs=ecl/<<73211009"}},
		{"SNOMED CT above", search.Expansion{Modifier: "above", System: "http://snomed.info/sct", Code: "73211009"}, of("http://snomed.info/sct", "73211009"),
			[]string{"GET ValueSet/$expand count=10000 offset=0 url=http://snomed.info/sct?fhir_vs=ecl/>>73211009"}},
		{"another system below", search.Expansion{Modifier: "below", System: "http://loinc.org", Code: "LP1"}, of("http://loinc.org", "LP1"), []string{loincBelow}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			for range 2 {
				got, warnings, err := s.SearchCodes(t.Context(), tt.q)
				if err != nil || len(warnings) > 0 || !slices.Equal(got.Values, tt.want) || got.Set != 0 {
					t.Errorf("got %+v, %v, %v; want %v", got, warnings, err, tt.want)
				}
			}
			want(t, r, tt.asked...)
		})
	}

	// The entries of a code element name no system.
	implicit, _, err := s.SearchCodes(t.Context(), search.Expansion{Modifier: "in", ValueSet: "http://x/vs/two", Implicit: "http://x/animals"})
	if err != nil || !slices.Contains(implicit.Values, fhir.ValueCode("dog")) || len(implicit.Values) != 4 {
		t.Errorf("of a code element: %+v, %v", implicit, err)
	}

	for _, tt := range []struct {
		s      *Service
		q      search.Expansion
		status int
		code   outcome.Code
		want   string
	}{
		{alone, search.Expansion{Modifier: "in", ValueSet: "http://x/vs/none"}, 404, outcome.CodeNotFound, "ValueSet http://x/vs/none not found"},
		{s, search.Expansion{Modifier: "in", ValueSet: "http://x/vs/none"}, 404, outcome.CodeNotFound, "ValueSet http://x/vs/none not found"},
		{alone, search.Expansion{Modifier: "below", System: "http://snomed.info/sct", Code: "73211009"}, 404, outcome.CodeNotFound, "CodeSystem http://snomed.info/sct"},
		{alone, search.Expansion{Modifier: "below", System: "http://x/animals", Code: "cat"}, 404, outcome.CodeNotFound, `no code "cat"`},
		{alone, search.Expansion{Modifier: "above", Code: "cat"}, 400, outcome.CodeInvalid, ":above needs the code with its system"},
		{s, search.Expansion{Modifier: "below", System: "http://snomed.info/sct", Code: "1 OR >1"}, 400, outcome.CodeInvalid, "no SNOMED CT concept"},
	} {
		_, _, err := tt.s.SearchCodes(t.Context(), tt.q)
		refused(t, err, tt.status, tt.code, tt.want)
	}
}

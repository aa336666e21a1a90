package search

import (
	"maps"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"

	"kiln/gen/index"
	"kiln/gen/r4"

	"github.com/google/go-cmp/cmp"

	"kiln/server/outcome"
)

func TestSplitAndUnescape(t *testing.T) {
	tests := []struct {
		value string
		want  []string
	}{
		{"a", []string{"a"}},
		{"a,b", []string{"a", "b"}},
		{`a\,b,c`, []string{"a,b", "c"}},
		{`a\\,b`, []string{`a\`, "b"}},
		{`a\|b\$c`, []string{"a|b$c"}},
		{`a\x`, []string{`a\x`}},
		{`a\`, []string{`a\`}},
		{",", []string{"", ""}},
	}
	for _, tt := range tests {
		got := splitEscaped(tt.value, ',', 0)
		for i := range got {
			got[i] = unescapeValue(got[i])
		}
		if diff := cmp.Diff(tt.want, got); diff != "" {
			t.Errorf("%s:\n%s", tt.value, diff)
		}
	}
}

// Prefer: handling=lenient forgives unknown parameters, tells of them, and keeps
// them out of the self link; everything else stays an error.
// Spec: https://hl7.org/fhir/R4/search.html#errors.
func TestLenient(t *testing.T) {
	lenient := testOptions
	lenient.Lenient = true
	q, err := Parse(testRegistry, "Patient", url.Values{"nmae": {"x"}, "name": {"eve"}, "_count": {"9999"}}, lenient)
	if err != nil {
		t.Fatal(err)
	}
	want := url.Values{"name": {"eve"}, "_count": {"1000"}}
	if diff := cmp.Diff(want, q.Applied()); diff != "" {
		t.Errorf("applied:\n%s", diff)
	}
	if len(q.Ignored) != 1 || !strings.Contains(q.Ignored[0].Diagnostics, `did you mean "name"?`) || q.Ignored[0].Severity != outcome.Warning {
		t.Errorf("ignored is %+v", q.Ignored)
	}
	for _, bad := range []url.Values{{"birthdate": {"x"}}, {"name:nonsense": {"x"}}, {"_has:Nonsense:patient:code": {"x"}}, {"_filter": {"nonsense eq x"}}, {"_include": {"Patient:nonsense"}}} {
		if _, err := Parse(testRegistry, "Patient", bad, lenient); err == nil {
			t.Errorf("%v is accepted", bad)
		}
	}
	for _, name := range []string{"_has:Observation:patient:nonsense", "_has:Observation:nonsense:code", "organization.nonsense", "general-practitioner.nonsense", "general-practitioner:Practitioner.nonsense"} {
		q, err := Parse(testRegistry, "Patient", url.Values{name: {"x", "y"}, "name": {"eve"}}, lenient)
		if err != nil || len(q.Ignored) != 1 || len(q.Clauses) != 1 || q.Applied().Has(name) {
			t.Errorf("%s: %+v, %v", name, q, err)
		}
		if _, err := Parse(testRegistry, "Patient", url.Values{name: {"x"}}, testOptions); err == nil {
			t.Errorf("%s is accepted", name)
		}
	}
	q, err = Parse(testRegistry, "Patient", url.Values{"_sort": {"birthdate,nonsense"}}, lenient)
	if err != nil || len(q.Ignored) != 1 || len(q.Sort) != 0 || q.Applied().Has("_sort") {
		t.Errorf("_sort: %+v, %v", q, err)
	}
}

var testRegistry = NewRegistry(r4.Model, index.Parameters, index.Compartments)

var testOptions = Options{Now: time.Date(2024, 6, 1, 0, 0, 0, 0, time.UTC), BaseURLs: []string{"http://kiln.example/fhir"}}

// The names of result parameters are a list of their own, because readers of parameters suggest names.
func TestResultNames(t *testing.T) {
	t.Parallel()
	if got, want := slices.Sorted(maps.Keys(resultParameters)), slices.Sorted(slices.Values(resultNames)); !slices.Equal(got, want) {
		t.Errorf("parameters %v, names %v", got, want)
	}
}

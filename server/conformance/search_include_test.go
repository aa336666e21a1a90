package conformance

import (
	"fmt"
	"strings"
	"testing"
)

// search.html#include
func TestSearchInclude(t *testing.T) {
	s := start(t)
	s.load(
		`{"resourceType":"Organization","id":"top","name":"Top"}`,
		`{"resourceType":"Organization","id":"mid","name":"Mid","partOf":{"reference":"Organization/top"}}`,
		`{"resourceType":"Organization","id":"low","name":"Low","partOf":{"reference":"Organization/mid"}}`,
		`{"resourceType":"Organization","id":"ring1","name":"Ring","partOf":{"reference":"Organization/ring2"}}`,
		`{"resourceType":"Organization","id":"ring2","name":"Ring","partOf":{"reference":"Organization/ring1"}}`,
		`{"resourceType":"Practitioner","id":"dr"}`,
		`{"resourceType":"Patient","id":"p1","managingOrganization":{"reference":"Organization/low"},"generalPractitioner":[{"reference":"Practitioner/dr"},{"reference":"Organization/top"}]}`,
		`{"resourceType":"Patient","id":"p2","link":[{"other":{"reference":"Patient/p1"},"type":"seealso"}]}`,
		`{"resourceType":"Encounter","id":"e1","status":"finished","class":{"code":"AMB"},"subject":{"reference":"Patient/p1"}}`,
		`{"resourceType":"Observation","id":"o1","status":"final","code":{"text":"x"},"subject":{"reference":"Patient/p1"},"encounter":{"reference":"Encounter/e1"},"performer":[{"reference":"Practitioner/dr"}]}`,
		`{"resourceType":"Observation","id":"o2","status":"final","code":{"text":"x"},"subject":{"reference":"Patient/p1"},"hasMember":[{"reference":"Observation/o1"}]}`,
		`{"resourceType":"Observation","id":"o3","status":"final","code":{"text":"x"},"subject":{"reference":"Patient/missing"},"focus":[{"reference":"http://other.example/Patient/1"}]}`,
		`{"resourceType":"Questionnaire","id":"q1","url":"http://forms.example/q","version":"1","status":"active"}`,
		`{"resourceType":"Questionnaire","id":"q2","url":"http://forms.example/q","version":"2","status":"active"}`,
		`{"resourceType":"QuestionnaireResponse","id":"r1","status":"completed","questionnaire":"http://forms.example/q|1"}`,
		`{"resourceType":"QuestionnaireResponse","id":"r2","status":"completed","questionnaire":"http://forms.example/q"}`,
		`{"resourceType":"Questionnaire","id":"q3","url":"http://forms.example/parts","version":"1","status":"active"}`,
		`{"resourceType":"QuestionnaireResponse","id":"r3","status":"completed","questionnaire":"http://forms.example/parts#a"}`,
		`{"resourceType":"Provenance","id":"v1","target":[{"reference":"Observation/o1"},{"reference":"Patient/p1"}],"recorded":"2020-01-01T00:00:00Z","agent":[{"who":{"reference":"Practitioner/dr"}}]}`,
	)
	for _, c := range []struct {
		spec, query string
		matches     string
		includes    string
	}{
		{"_include", "Observation?_id=o1&_include=Observation:subject", "o1", "Patient/p1"},
		{"_include once for several matches", "Observation?_id=o1,o2&_include=Observation:subject", "o1 o2", "Patient/p1"},
		{"two _includes", "Observation?_id=o1&_include=Observation:subject&_include=Observation:encounter", "o1", "Encounter/e1 Patient/p1"},
		{"with a target type", "Patient?_id=p1&_include=Patient:general-practitioner:Practitioner", "p1", "Practitioner/dr"},
		{"without a target type", "Patient?_id=p1&_include=Patient:general-practitioner", "p1", "Organization/top Practitioner/dr"},
		{"all references of a type", "Observation?_id=o1&_include=Observation:*", "o1", "Encounter/e1 Patient/p1 Practitioner/dr"},
		{"every reference", "Observation?_id=o1&_include=*", "o1", "Encounter/e1 Patient/p1 Practitioner/dr"},
		{"references that resolve to nothing are no error", "Observation?_id=o3&_include=Observation:subject&_include=Observation:focus", "o3", ""},
		{"without :iterate only the matches' own references", "Observation?_id=o1&_include=Observation:subject&_include:iterate=Patient:organization", "o1", "Organization/low Patient/p1"},
		{":iterate goes on from what it included", "Observation?_id=o1&_include=Observation:subject&_include:iterate=Patient:organization&_include:iterate=Organization:partof", "o1", "Organization/low Organization/mid Organization/top Patient/p1"},
		{":iterate over a cycle ends", "Organization?_id=ring1&_include:iterate=Organization:partof", "ring1", "Organization/ring2"},
		{"_revinclude", "Patient?_id=p1&_revinclude=Observation:subject", "p1", "Observation/o1 Observation/o2"},
		{"_revinclude of two types", "Patient?_id=p1&_revinclude=Observation:subject&_revinclude=Encounter:patient", "p1", "Encounter/e1 Observation/o1 Observation/o2"},
		{"_revinclude=Provenance:target", "Observation?_id=o1&_revinclude=Provenance:target", "o1", "Provenance/v1"},
		{"_revinclude:iterate", "Patient?_id=p1&_revinclude=Encounter:patient&_revinclude:iterate=Observation:encounter", "p1", "Encounter/e1 Observation/o1"},
		{"everything that refers to what refers", "Patient?_id=p1,p2&_revinclude=*&_revinclude:iterate=*", "p1 p2", "Encounter/e1 Observation/o1 Observation/o2 Provenance/v1"},
		{"_include and _revinclude", "Encounter?_id=e1&_include=Encounter:patient&_revinclude=Observation:encounter", "e1", "Observation/o1 Patient/p1"},
		{"a resource that is a match is not included again", "Observation?_id=o1,o2&_include=Observation:has-member", "o1 o2", ""},
		{"from a type to itself", "Patient?_id=p2&_include=Patient:link", "p2", "Patient/p1"},
		{"along a canonical with its version", "QuestionnaireResponse?_id=r1&_include=QuestionnaireResponse:questionnaire", "r1", "Questionnaire/q1"},
		{"along a canonical of any version", "QuestionnaireResponse?_id=r2&_include=QuestionnaireResponse:questionnaire", "r2", "Questionnaire/q1 Questionnaire/q2"},
		{"back along canonicals", "Questionnaire?_id=q2&_revinclude=QuestionnaireResponse:questionnaire", "q2", "QuestionnaireResponse/r2"},
		{"along a canonical with a fragment", "QuestionnaireResponse?_id=r3&_include=QuestionnaireResponse:questionnaire", "r3", "Questionnaire/q3"},
		{"back along a canonical with a fragment", "Questionnaire?_id=q3&_revinclude=QuestionnaireResponse:questionnaire", "q3", "QuestionnaireResponse/r3"},
		{"nothing to include", "Observation?_id=nothing&_include=Observation:subject", "", ""},
	} {
		t.Run(c.spec+" (#include) "+c.query, func(t *testing.T) {
			typ, query, _ := strings.Cut(c.query, "?")
			a := s.in(t).get("/" + typ + "?" + encoded(query)).want(200)
			if got := strings.Join(a.matches(), " "); got != c.matches {
				t.Errorf("matches %q, want %q", got, c.matches)
			}
			if got := strings.Join(a.includes(), " "); got != c.includes {
				t.Errorf("includes %q, want %q", got, c.includes)
			}
			a.equal("total", fmt.Sprint(len(strings.Fields(c.matches))))
		})
	}
	t.Run("what is included is that of the page (#include)", func(t *testing.T) {
		s := s.in(t)
		a := s.get("/Patient?_sort=_id&_count=1&_include=Patient:organization").want(200).equal("total", "2")
		if got := strings.Join(a.includes(), " "); got != "Organization/low" {
			t.Errorf("page 1 includes %q", got)
		}
		a = s.get(a.link("next")).want(200)
		if got := strings.Join(append(a.matches(), a.includes()...), " "); got != "p2" {
			t.Errorf("page 2 is %q, want p2 alone", got)
		}
	})
	t.Run("the list of elements does not apply to what is included (#elements)", func(t *testing.T) {
		a := s.in(t).get("/Observation?_id=o1&_include=Observation:subject&_elements=status").want(200)
		a.equal("entry.0.resource.meta.tag.0.code", "SUBSETTED").equal("entry.0.resource.subject.reference", "")
		a.equal("entry.1.resource.meta.tag.0.code", "").equal("entry.1.resource.managingOrganization.reference", "Organization/low")
		a = s.in(t).get("/Observation?_id=o1&_include=Observation:subject&_summary=true").want(200)
		a.equal("entry.1.resource.meta.tag.0.code", "SUBSETTED")
	})
	t.Run("a version of a reference is the current one unless it is kept (references.html)", func(t *testing.T) {
		a := s.in(t).get("/Observation?_id=o1&_include=Observation:subject").want(200)
		a.equal("entry.1.fullUrl", s.base+"/Patient/p1").equal("entry.1.search.mode", "include")
	})
	t.Run("refused by name (#include)", func(t *testing.T) {
		s := s.in(t)
		for query, word := range map[string]string{
			"Observation?_include=Observation:nothing":              "nothing",
			"Observation?_include=Observation:code":                 "code",
			"Observation?_include=Observation":                      "Observation",
			"Observation?_include=Nothing:subject":                  "Nothing",
			"Observation?_include=Observation:subject:Nothing":      "Nothing",
			"Observation?_include=Observation:subject:Practitioner": "Practitioner",
			"Observation?_include=Patient:organization":             "Patient",
			"Observation?_include:sometimes=Observation:subject":    "sometimes",
			"Patient?_revinclude=Observation:encounter":             "encounter",
			"Patient?_revinclude=Observation:nothing":               "nothing",
			"Patient?_summary=text&_include=Patient:organization":   "_summary",
		} {
			typ, rest, _ := strings.Cut(query, "?")
			a := s.get("/" + typ + "?" + encoded(rest)).want(400)
			if !strings.Contains(a.str("issue.0.diagnostics"), word) {
				t.Errorf("%s: the outcome does not name %q: %s", query, word, a.str("issue.0.diagnostics"))
			}
		}
	})
}

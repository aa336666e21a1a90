package conformance

import (
	"strings"
	"testing"
)

// A search lists stored resources, and says so if built-in definitions match: those can be read by id and found by
// their canonical URL (docs/contract.md, "Statuses and answers").
func TestSearchOfBuiltInDefinitions(t *testing.T) {
	t.Parallel()
	s := start(t)
	t.Run("a search that they match tells of them", func(t *testing.T) {
		s := s.in(t)
		for query, example := range map[string]string{
			"StructureDefinition?type=Patient":                        "StructureDefinition/Patient",
			"SearchParameter?base=Patient&code=general-practitioner":  "SearchParameter/Patient-general-practitioner",
			"ValueSet?_id=administrative-gender":                      "ValueSet/administrative-gender",
			"OperationDefinition?code=expand":                         "OperationDefinition/ValueSet-expand",
			"CompartmentDefinition?code=Encounter&_summary=count":     "CompartmentDefinition/encounter",
			"CodeSystem?url:below=http://hl7.org/fhir/request-intent": "CodeSystem/request-intent",
			"?_type=Patient,ValueSet&_id=administrative-gender":       "ValueSet/administrative-gender",
		} {
			a := s.get("/"+query).want(200).equal("total", "0").equal("entry.0.search.mode", "outcome").equal("entry.0.resource.issue.0.severity", "information")
			if said := a.str("entry.0.resource.issue.0.diagnostics"); !strings.Contains(said, "match too (1), such as "+example+":") {
				t.Errorf("%s: %s", query, said)
			}
			s.get("/" + example).want(200)
		}
		for _, query := range []string{"SearchParameter?code=nobody", "ValueSet?_id=nobody", "StructureDefinition?type=Patient&_offset=20", "StructureDefinition?type=Patient&status=retired", "?_id=administrative-gender"} {
			if a := s.get("/"+query).want(200).equal("total", "0"); a.at("entry") != nil {
				t.Errorf("%s: %s", query, a.body)
			}
		}
	})
	t.Run("all of them are resources", func(t *testing.T) {
		s := s.in(t)
		for _, typ := range []string{"StructureDefinition", "SearchParameter", "OperationDefinition", "CompartmentDefinition", "CodeSystem", "ValueSet", "ConceptMap", "NamingSystem"} {
			s.get("/"+typ).want(200).equal("total", "0").equal("entry.0.search.mode", "outcome")
		}
		s.get("/OperationDefinition/notify").want(200)
	})
	t.Run("one is found by its canonical URL", func(t *testing.T) {
		s := s.in(t)
		for _, search := range [][2]string{
			{"ValueSet?", "http://hl7.org/fhir/ValueSet/administrative-gender"},
			{"CodeSystem?", "http://hl7.org/fhir/administrative-gender"},
			{"?_type=ValueSet&", "http://hl7.org/fhir/ValueSet/administrative-gender"},
			{"?_type=CodeSystem,ValueSet&", "http://hl7.org/fhir/ValueSet/administrative-gender"},
		} {
			url := search[1]
			s.get("/"+search[0]+"url="+url).want(200).equal("total", "1").equal("entry.0.resource.url", url).equal("entry.0.search.mode", "match")
		}
	})
	t.Run("what is stored stands in its place", func(t *testing.T) {
		s := s.in(t)
		s.put("/ValueSet/note-type", `{"resourceType":"ValueSet","id":"note-type","status":"draft","url":"http://example.org/note-type"}`).want(201)
		a := s.get("/ValueSet?_id=note-type").want(200).equal("total", "1").equal("entry.0.resource.url", "http://example.org/note-type")
		if a.at("entry.1") != nil {
			t.Errorf("%s", a.body)
		}
	})
	t.Run("one cannot be deleted, what is stored in its place can", func(t *testing.T) {
		s := s.in(t)
		for _, path := range []string{"/SearchParameter/individual-family", "/StructureDefinition/Patient", "/ValueSet/administrative-gender"} {
			s.do("DELETE", path, "").issue(405, "not-supported", "built-in")
			s.get(path).want(200)
		}
		s.do("POST", "", `{"resourceType":"Bundle","type":"transaction","entry":[{"request":{"method":"DELETE","url":"ValueSet/administrative-gender"}}]}`).
			issue(405, "not-supported", "built-in")
		s.do("DELETE", "/ValueSet/nobody", "").want(204)
		s.put("/ValueSet/days-of-week", `{"resourceType":"ValueSet","id":"days-of-week","status":"draft"}`).want(201)
		s.do("DELETE", "/ValueSet/days-of-week", "").want(204)
		s.do("DELETE", "/ValueSet/days-of-week", "").want(204)
	})
}

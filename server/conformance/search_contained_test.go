package conformance

import (
	"fmt"
	"slices"
	"strings"
	"testing"
)

// A chain is evaluated inside contained resources as among stored ones, with any last parameter.
// Spec: https://hl7.org/fhir/R4/search.html#contained: "chained parameters will be evaluated inside contained resources".
func TestChainsIntoContained(t *testing.T) {
	t.Parallel()
	s := start(t)
	medication := func(id, code, ingredient, more string) string {
		return fmt.Sprintf(`{"resourceType":"Medication","id":%q,"code":{"coding":[{"system":"http://x/drugs","code":%q,"display":"Drug %[2]s"}],"text":"The drug %[2]s"},
			"ingredient":[{"itemCodeableConcept":{"coding":[{"system":"http://x/parts","code":%q}]}}]%s}`, id, code, ingredient, more)
	}
	request := func(id, contained, to string) string {
		if contained != "" {
			contained = `"contained":[` + contained + `],`
		}
		return fmt.Sprintf(`{"resourceType":"MedicationRequest","id":%q,"status":"active","intent":"order","subject":{"reference":"Patient/p"},
			%s"medicationReference":{"reference":%q}}`, id, contained, to)
	}
	s.stores(
		`{"resourceType":"Patient","id":"p","name":[{"family":"Pool"}]}`,
		`{"resourceType":"Organization","id":"works","name":"Works"}`,
		medication("stored", "aspirin", "salicin", `,"manufacturer":{"reference":"Organization/works"}`),
		request("mr-stored", ``, "Medication/stored"),
		request("mr-in", medication("m", "aspirin", "salicin", `,"manufacturer":{"reference":"Organization/works"},"batch":{"lotNumber":"L1","expirationDate":"2030-05-01"}`), "#m"),
		request("mr-other", medication("m", "morphine", "opium", ``), "#m"),
		request("mr-deep", medication("m", "mixture", "opium", `,"manufacturer":{"reference":"#o"}`)+`,{"resourceType":"Organization","id":"o","name":"Ácme Pharma","partOf":{"reference":"#o"}}`, "#m"),
		// Its contained resource is not the referenced medication.
		strings.Replace(request("mr-beside", medication("beside", "aspirin", "salicin", ``)+`,`+medication("m", "placebo", "sugar", ``), "#m"),
			`"status"`, `"supportingInformation":[{"reference":"#beside"}],"status"`, 1),
		`{"resourceType":"Observation","id":"obs-in","status":"final","code":{"text":"x"},"subject":{"reference":"#who"},
			"contained":[{"resourceType":"Patient","id":"who","name":[{"family":"Van Taylor","given":["Ann"]}],"birthDate":"1980-02-03","gender":"female"}]}`,
		`{"resourceType":"Observation","id":"obs-stored","status":"final","code":{"text":"x"},"subject":{"reference":"Patient/p"}}`,
		`{"resourceType":"RiskAssessment","id":"risk","status":"final","subject":{"reference":"Patient/p"},"basis":[{"reference":"#o"}],
			"contained":[{"resourceType":"Observation","id":"o","status":"final","code":{"coding":[{"system":"http://loinc.org","code":"8480-6"}]},"valueQuantity":{"value":120,"unit":"mmHg","system":"http://unitsofmeasure.org","code":"mm[Hg]"}}]}`,
		`{"resourceType":"DiagnosticReport","id":"report","status":"final","code":{"text":"x"},"result":[{"reference":"#o"}],
			"contained":[{"resourceType":"Observation","id":"o","status":"final","code":{"coding":[{"system":"http://loinc.org","code":"8480-6"}]},"valueQuantity":{"value":120,"unit":"mmHg","system":"http://unitsofmeasure.org","code":"mm[Hg]"}}]}`,
	)
	// Ways of references are told apart, however they wind.
	observation := func(id, code, more string) string {
		return fmt.Sprintf(`{"resourceType":"Observation","id":%q,"status":"final","code":{"text":"x","coding":[{"code":%q}]}%s}`, id, code, more)
	}
	to := func(param, id string) string { return fmt.Sprintf(`,%q:[{"reference":"#%s"}]`, param, id) }
	s.stores(
		observation("winds", "top", to("hasMember", "a")+`,"contained":[`+observation("a", "one", to("hasMember", "b"))+`,`+observation("b", "two", to("hasMember", "c"))+`,`+observation("c", "three", "")+`]`),
		observation("turns", "top", to("derivedFrom", "a")+`,"contained":[`+observation("a", "left", to("hasMember", "b"))+`,`+observation("b", "right", "")+`]`),
	)
	check := func(s *service, path string, want ...string) {
		t.Helper()
		for range 2 { // asked again, it may come from memory
			a := s.get(path).want(200)
			got := a.matches()
			slices.Sort(got)
			if !slices.Equal(got, want) {
				t.Errorf("%s: %v, want %v", path, got, want)
			}
			a.equal("total", fmt.Sprint(len(want)))
		}
	}
	for path, want := range map[string]string{
		"MedicationRequest?medication.ingredient-code=salicin":                           "mr-in mr-stored",
		"MedicationRequest?medication.ingredient-code=http://x/parts|salicin":            "mr-in mr-stored",
		"MedicationRequest?medication:Medication.code=aspirin":                           "mr-in mr-stored",
		"MedicationRequest?medication.code=aspirin,morphine":                             "mr-in mr-other mr-stored",
		"MedicationRequest?medication.code:not=aspirin":                                  "mr-beside mr-deep mr-other",
		"MedicationRequest?medication.code:text=drug+asp":                                "mr-in mr-stored",
		"MedicationRequest?medication.manufacturer:missing=true":                         "mr-beside mr-other",
		"MedicationRequest?medication.manufacturer:missing=false":                        "mr-deep mr-in mr-stored",
		"MedicationRequest?medication.expiration-date=ge2030":                            "mr-in",
		"MedicationRequest?medication.expiration-date=lt2030":                            "",
		"MedicationRequest?medication.lot-number=L1&medication.code=aspirin":             "mr-in",
		"MedicationRequest?medication.manufacturer=Organization/works":                   "mr-in mr-stored",
		"MedicationRequest?medication.manufacturer.name=works":                           "mr-in mr-stored",
		"MedicationRequest?medication.manufacturer.name=acme":                            "mr-deep",
		"MedicationRequest?medication.manufacturer.name:contains=pharm":                  "mr-deep",
		"MedicationRequest?medication.manufacturer.name:exact=Ácme+Pharma":               "mr-deep",
		"MedicationRequest?medication._id=m":                                             "",
		"MedicationRequest?_filter=medication.code+eq+\"aspirin\"":                       "mr-in mr-stored",
		"MedicationRequest?subject:Patient.name=pool&medication.code=aspirin&_sort=-_id": "mr-in mr-stored",
		"Patient?_has:MedicationRequest:subject:medication.code=morphine":                "p",
		"Patient?_has:MedicationRequest:subject:medication.code=penicillin":              "",
		"Observation?subject:Patient.name=taylor":                                        "obs-in",
		"Observation?patient.name=ann":                                                   "obs-in",
		"Observation?patient.family:contains=aylo":                                       "obs-in",
		"Observation?subject.birthdate=gt1979-12&subject.gender=female":                  "obs-in",
		"Observation?subject:Patient.birthdate=1980-02":                                  "obs-in",
		"Observation?subject:Patient.name=pool,taylor":                                   "obs-in obs-stored",
		"Observation?subject:Patient.gender:missing=true":                                "obs-stored",
		"DiagnosticReport?result.code-value-quantity=http://loinc.org|8480-6$120":        "report",
		"DiagnosticReport?result.code-value-quantity=8480-6$gt119||mm[Hg]":               "report",
		"DiagnosticReport?result.code-value-quantity=8480-6$gt121":                       "",
		"DiagnosticReport?result.value-quantity=gt0.1|http://unitsofmeasure.org|[psi]":   "report",
		"Observation?has-member.code=one":                                                "winds",
		"Observation?has-member.has-member.code=two":                                     "winds",
		"Observation?has-member.has-member.has-member.code=three":                        "winds",
		"Observation?has-member.code=three":                                              "",
		"Observation?has-member.has-member.code=one":                                     "",
		"Observation?derived-from.has-member.code=right":                                 "turns",
		"Observation?has-member.derived-from.code=right":                                 "",
		"Observation?derived-from.code=left":                                             "turns",
		"Medication?code=aspirin":                                                        "stored", // contained ones are not found on their own
		"Patient?name=taylor":                                                            "",
	} {
		check(s, strings.ReplaceAll("/"+path, "\"", "%22"), strings.Fields(want)...)
	}
	// It follows later writes, and belongs to no other reference.
	s.put("/MedicationRequest/mr-in", request("mr-in", medication("m", "placebo", "sugar", ``), "#m")).want(200)
	check(s, "/MedicationRequest?medication.code=aspirin", "mr-stored")
	check(s, "/MedicationRequest?medication.code=placebo", "mr-beside", "mr-in")
	s.do("DELETE", "/MedicationRequest/mr-other", "").want(204)
	check(s, "/MedicationRequest?medication.code=morphine")
	s.do("PUT", "/MedicationRequest?medication.code=mixture", request("mr-deep", medication("m", "mixture", "opium", ``), "#m")).want(200).equal("id", "mr-deep")

	// Events match as the search does.
	for query, more := range map[string]string{"medication.code=statin": ``, "medication.code:not=aspirin": ``, "medication.lot-number=L7": `,"batch":{"lotNumber":"L7"}`,
		"medication.manufacturer.name=works": `,"manufacturer":{"reference":"Organization/works"}`} {
		stream := s.stream("/MedicationRequest/$events?" + query)
		s.stores(request("mr-not", medication("m", "aspirin", "salicin", ``), "#m"), request("mr-event", medication("m", "statin", "x", more), "#m"))
		if ev := stream.next(); !strings.Contains(ev.data, `"resourceId":"mr-event"`) {
			t.Errorf("%s: the event is %s", query, ev.data)
		}
		stream.close()
		s.do("DELETE", "/MedicationRequest/mr-event", "").want(204)
	}

	// A later parameter reaches contained resources.
	s.stores(`{"resourceType":"SearchParameter","id":"lot","url":"http://x/lot","name":"lot","status":"active","description":"x","code":"drug-text","base":["Medication"],"type":"string","expression":"Medication.code.text"}`)
	eventually(t, "the index is complete", func() bool {
		return s.get("/MedicationRequest?medication.drug-text=the+drug+placebo").want(200).warning() == ""
	})
	check(s, "/MedicationRequest?medication.drug-text=the+drug+placebo", "mr-beside", "mr-in")

	// What cannot be indexed is refused.
	many := make([]string, 2001)
	refs := make([]string, len(many))
	for i := range many {
		many[i] = fmt.Sprintf(`{"resourceType":"Basic","id":"b%d","code":{"text":"x"}}`, i)
		refs[i] = fmt.Sprintf(`{"item":{"reference":"#b%d"}}`, i)
	}
	s.post("/List", `{"resourceType":"List","status":"current","mode":"working","contained":[`+strings.Join(many, ",")+`],"entry":[`+strings.Join(refs, ",")+`]}`).
		issue(422, "too-costly", "2000 times")
}

package conformance

import "testing"

// search.html#recursive: :above and :below on references.
func TestSearchHierarchy(t *testing.T) {
	s := start(t)
	place := func(id, partOf string) string {
		if partOf != "" {
			partOf = `,"partOf":{"reference":"Location/` + partOf + `"}`
		}
		return `{"resourceType":"Location","id":"` + id + `"` + partOf + `}`
	}
	visit := func(id, where string) string {
		return `{"resourceType":"Encounter","id":"` + id + `","status":"finished","class":{"code":"AMB"},"location":[{"location":{"reference":"Location/` + where + `"}}]}`
	}
	s.load(
		place("hospital", ""), place("wing", "hospital"), place("ward", "wing"), place("bed", "ward"), place("clinic", ""),
		place("a", "b"), place("b", "a"), // a circle
		visit("in-hospital", "hospital"), visit("in-ward", "ward"), visit("in-bed", "bed"), visit("in-clinic", "clinic"), visit("in-circle", "a"),
		`{"resourceType":"Patient","id":"p"}`,
		`{"resourceType":"QuestionnaireResponse","id":"r0","status":"completed","questionnaire":"http://acme.example/q/one"}`,
		`{"resourceType":"QuestionnaireResponse","id":"r1","status":"completed","questionnaire":"http://acme.example/q/one|1"}`,
		`{"resourceType":"QuestionnaireResponse","id":"r12","status":"completed","questionnaire":"http://acme.example/q/one|1.2"}`,
		`{"resourceType":"QuestionnaireResponse","id":"r2","status":"completed","questionnaire":"http://acme.example/q/one|2"}`,
		`{"resourceType":"QuestionnaireResponse","id":"r3","status":"completed","questionnaire":"http://acme.example/q/one/two|2"}`,
	)
	s.searches(t, "Encounter", []searchCase{
		{"#recursive: :below is itself and what is part of it", "location:below=hospital", "in-bed in-hospital in-ward"},
		{"#recursive: :below with the type", "location:below=Location/ward", "in-bed in-ward"},
		{"#recursive: :above is itself and what it is part of", "location:above=ward", "in-hospital in-ward"},
		{"#recursive: a circle ends", "location:below=b", "in-circle"},
		{"#recursive: nothing of the name", "location:below=nowhere", ""},
		{"#combining: comma is OR", "location:below=ward,clinic", "in-bed in-clinic in-ward"},
		{"#chaining: at the end of a chain", "location.partof:below=hospital", "in-bed in-ward"},
		{"#recursive: a type that has no hierarchy", "subject:below=Patient/p", "400 subject:below Patient"},
	})
	s.searches(t, "Location", []searchCase{
		{"#recursive: everything below", "partof:below=hospital", "bed ward wing"},
		{"#recursive: not a place that is part of nothing", "partof:below=clinic", ""},
	})
	s.searches(t, "QuestionnaireResponse", []searchCase{
		{"#canonical: :below steps along versions", "questionnaire:below=http://acme.example/q/one|1", "r1 r12"},
		{"#canonical: :below steps along the path", "questionnaire:below=http://acme.example/q/one", "r0 r1 r12 r2 r3"},
		{"#canonical: :above of a version", "questionnaire:above=http://acme.example/q/one|1.2", "r0 r1 r12 r2"},
	})
}

// search.html#list: functional lists are answered from the data.
func TestSearchFunctionalLists(t *testing.T) {
	s := start(t)
	condition := func(id, status, verified string) string {
		return `{"resourceType":"Condition","id":"` + id + `","clinicalStatus":{"coding":[{"system":"http://terminology.hl7.org/CodeSystem/condition-clinical","code":"` + status +
			`"}]},"verificationStatus":{"coding":[{"system":"http://terminology.hl7.org/CodeSystem/condition-ver-status","code":"` + verified + `"}]},"subject":{"reference":"Patient/p"}}`
	}
	allergy := func(id, status, category string) string {
		return `{"resourceType":"AllergyIntolerance","id":"` + id + `","clinicalStatus":{"coding":[{"system":"http://terminology.hl7.org/CodeSystem/allergyintolerance-clinical","code":"` + status +
			`"}]},"category":["` + category + `"],"patient":{"reference":"Patient/p"}}`
	}
	s.load(
		`{"resourceType":"Patient","id":"p"}`,
		condition("now", "active", "confirmed"), condition("again", "relapse", "provisional"), condition("over", "resolved", "confirmed"), condition("wrong", "active", "refuted"),
		allergy("nuts", "active", "food"), allergy("penicillin", "active", "medication"), allergy("past", "inactive", "medication"),
		`{"resourceType":"MedicationStatement","id":"taken","status":"active","medicationCodeableConcept":{"text":"x"},"subject":{"reference":"Patient/p"}}`,
		`{"resourceType":"MedicationStatement","id":"stopped","status":"stopped","medicationCodeableConcept":{"text":"x"},"subject":{"reference":"Patient/p"}}`,
	)
	s.searches(t, "Condition", []searchCase{
		{"#list: $current-problems", "_list=$current-problems", "again now"},
		{"#list: $current-problems of a patient", "_list=$current-problems&patient=p", "again now"},
		{"#list: a list of another type", "_list=$current-allergies", "400 _list AllergyIntolerance"},
		{"#list: a list that is not supported", "_list=$my-problems", "400 _list $my-problems $current-problems"},
	})
	s.searches(t, "AllergyIntolerance", []searchCase{
		{"#list: $current-allergies", "_list=$current-allergies&patient=p", "nuts penicillin"},
		{"#list: $current-drug-allergies", "_list=$current-drug-allergies", "penicillin"},
	})
	s.searches(t, "MedicationStatement", []searchCase{
		{"#list: $current-medications", "_list=$current-medications", "taken"},
	})
}

// location.html#search: near.
func TestSearchNear(t *testing.T) {
	s := start(t)
	place := func(id, latitude, longitude string) string {
		return `{"resourceType":"Location","id":"` + id + `","position":{"latitude":` + latitude + `,"longitude":` + longitude + `}}`
	}
	s.load(
		place("louvre", "48.8611", "2.3364"), place("eiffel", "48.85837", "2.294481"), place("london", "51.5007", "-0.1246"),
		place("fiji-east", "-17.0", "179.99"), place("fiji-west", "-17.0", "-179.99"), place("diagonal", "10", "10"),
		`{"resourceType":"Location","id":"nowhere"}`,
	)
	s.searches(t, "Location", []searchCase{
		{"near: within a distance in km", "near=48.8611|2.3364|3.2|km", "eiffel louvre"},
		{"near: not beyond it", "near=48.8611|2.3364|3|km", "louvre"},
		{"near: kilometres where there is no unit", "near=48.8611|2.3364|3.2", "eiffel louvre"},
		{"near: in another unit", "near=48.8611|2.3364|3200|m", "eiffel louvre"},
		{"near: in miles", "near=48.8611|2.3364|220|[mi_i]", "eiffel london louvre"},
		{"near: without a distance", "near=48.86|2.3", "eiffel louvre"},
		{"near: across the date line", "near=-17|180|10|km", "fiji-east fiji-west"},
		{"near: equal degrees", "near=10|10|1|km", "diagonal"},
		{"#combining: comma is OR", "near=10|10|1|km,51.5|-0.12|5|km", "diagonal london"},
		{"#modifiers: :missing", "near:missing=true", "nowhere"},
		{"#modifiers: :not is none", "near:not=10|10", "400 near:not"},
		{"near: one number", "near=48.8", "400 near latitude"},
		{"near: no latitude", "near=98|2", "400 near"},
		{"near: a unit of no length", "near=48|2|3|kg", "400 near"},
	})
	s.put("/Location/diagonal", `{"resourceType":"Location","id":"diagonal","position":{"latitude":20,"longitude":20}}`).want(200)
	s.searches(t, "Location", []searchCase{
		{"near: after an update", "near=10|10|1|km", ""},
		{"near: after an update", "near=20|20|1|km", "diagonal"},
	})
	if !s.supports("Location", "near") {
		t.Error("near is not in /metadata")
	}
}

// supports reports whether /metadata lists a search parameter of a type.
func (s *service) supports(typ, code string) bool {
	s.t.Helper()
	a := s.get("/metadata").want(200)
	resources, _ := a.at("rest.0.resource").([]any)
	for _, r := range resources {
		of, _ := r.(map[string]any)
		if of["type"] != typ {
			continue
		}
		list, _ := of["searchParam"].([]any)
		for _, p := range list {
			if q, _ := p.(map[string]any); q["name"] == code {
				return true
			}
		}
	}
	return false
}

// Contract, Design: a parameter without a value is ignored and absent from the self
// link; 400 in criteria that guard a write.
func TestParametersWithoutValue(t *testing.T) {
	s := start(t)
	s.load(`{"resourceType":"Patient","id":"a","name":[{"family":"Carreño Quinones","given":["Mary-Ann"]}]}`, `{"resourceType":"Patient","id":"b"}`)
	s.searches(t, "Patient", []searchCase{
		{"words", "family=quinones", "a"},
		{"punctuation", "given=maryann", "a"},
		{"punctuation", "given=mary ann", "a"},
		{"no value", "family=&given:exact=", "a b"},
		{"no value", "_sort=&_include=&_summary=", "a b"},
		{"no value in a chain", "general-practitioner.name=", "a b"},
	})
	a := s.get("/Patient?family=&given=maryann&_sort=").want(200)
	if got := a.str("link.0.url"); got != s.base+"/Patient?given=maryann" {
		t.Errorf("the self link is %s", got)
	}
	s.put("/Patient?family=", `{"resourceType":"Patient"}`).want(400)
	s.do("DELETE", "/Patient?family=", "").want(400)
	s.post("/Patient", `{"resourceType":"Patient"}`, "If-None-Exist", "identifier=").want(400)
	s.post("/Patient", `{"resourceType":"Patient"}`, "If-None-Exist", "given=maryann&family=").want(400)
	s.get("/Patient?_contained=true").want(400)
	s.get("/Patient?_contained=false").want(200)
}

package conformance

import "testing"

// search_filter.html
func TestSearchFilter(t *testing.T) {
	s := start(t)
	s.load(
		`{"resourceType":"Organization","id":"org","name":"House of Cards"}`,
		`{"resourceType":"Patient","id":"p1","gender":"male","active":true,"name":[{"family":"Chalmers","given":["Peter","James"]}],"birthDate":"1974-12-25","managingOrganization":{"reference":"Organization/org"}}`,
		`{"resourceType":"Patient","id":"p2","gender":"female","name":[{"family":"Petersen","given":["Ann"]}],"birthDate":"2015-10-10","identifier":[{"system":"urn:x","value":"a,b)"}]}`,
		`{"resourceType":"Patient","id":"p3","active":false,"name":[{"family":"Müller","given":["Peter"]}]}`,
		`{"resourceType":"Observation","id":"o1","status":"final","code":{"coding":[{"system":"http://loinc.org","code":"1234-5"}]},"subject":{"reference":"Patient/p1"},"effectivePeriod":{"start":"2020-01-01","end":"2020-06-30"},"valueQuantity":{"value":151,"unit":"mmol/L","system":"http://unitsofmeasure.org","code":"mmol/L"}}`,
		`{"resourceType":"Observation","id":"o2","status":"amended","code":{"coding":[{"system":"http://loinc.org","code":"1234-5"}]},"subject":{"reference":"Patient/p2"},"effectiveDateTime":"2021-03-04","valueQuantity":{"value":140,"unit":"mmol/L","system":"http://unitsofmeasure.org","code":"mmol/L"}}`,
	)
	s.searches(t, "Patient", []searchCase{
		{"co: a part of a name, without case", `_filter=name co "PET"`, "p1 p2 p3"},
		{"eq: the whole of it, without case and accents", `_filter=family eq muller`, "p3"},
		{"sw and ew", `_filter=family sw chal or family ew sen`, "p1 p2"},
		{"ne: an item that is not equal", `_filter=given ne peter`, "p1 p2"},
		{"and", `_filter=given eq "peter" and birthdate le 2014-10-10`, "p1"},
		{"or", `_filter=given eq ann or active eq false`, "p2 p3"},
		{"not: also where there is no value", `_filter=not (gender eq male)`, "p2 p3"},
		{"ne of a single value: only where there is one", `_filter=gender ne male`, "p2"},
		{"from left to right", `_filter=given eq ann or given eq peter and active eq true`, "p1"},
		{"parentheses", `_filter=given eq ann or (given eq peter and active eq true)`, "p1 p2"},
		{"pr true and false", `_filter=birthdate pr false or gender pr false`, "p3"},
		{"a string value may have commas and parentheses", `_filter=identifier eq "urn:x|a,b)"`, "p2"},
		{"_id and _lastUpdated", `_filter=_id eq p1 and _lastUpdated gt 2020`, "p1"},
		{"_has", `_filter=_has:Observation:patient:status eq final`, "p1"},
		{"with other parameters", `_filter=given eq peter&active=true`, "p1"},
		{"twice is AND", `_filter=given eq peter&_filter=active eq false`, "p3"},
	})
	s.searches(t, "Observation", []searchCase{
		{"a token with its system", `_filter=code eq http://loinc.org|1234-5`, "o1 o2"},
		{"a chain", `_filter=subject.name co "peters"`, "o2"},
		{"a path of several names", `_filter=patient.organization.name sw house`, "o1"},
		{"brackets narrow what is referred to", `_filter=subject:Patient[gender eq male or active eq false].family pr true`, "o1"},
		{"re", `_filter=subject re Patient/p2`, "o2"},
		{"po: periods that overlap", `_filter=date po 2020-06`, "o1"},
		{"sa and eb", `_filter=date sa 2020-12 or date eb 2019`, "o2"},
		{"quantities", `_filter=value-quantity gt 150|http://unitsofmeasure.org|mmol/L`, "o1"},
		{"composites", `_filter=code-value-quantity eq http://loinc.org|1234-5$lt150`, "o2"},
		{"in a chain", `subject:Patient._filter=gender eq male or birthdate eq 2015`, "o1 o2"},
	})
	t.Run("what cannot be applied is refused by name", func(t *testing.T) {
		s := s.in(t)
		s.get("/Patient?_filter=gender+eq+male+xor+active+eq+true").issue(400, "invalid", "_filter", "xor", "column 16")
		s.get("/Patient?_filter=gendr+eq+male").issue(400, "not-supported", "gendr", "gender")
		s.get("/Patient?_filter=gendr+eq+male", "Prefer", "handling=lenient").issue(400, "not-supported", "gendr")
		s.get("/Patient?_filter=gender+co+ma").issue(400, "invalid", "co", "gender", "token")
		s.get("/Patient?_filter=identifier+ne+1").issue(400, "not-supported", "ne", "identifier", "not (identifier eq")
		s.get("/Patient?_filter=birthdate+ge+yesterday").issue(400, "invalid", "birthdate", "yesterday")
	})
	t.Run("it is in /metadata", func(t *testing.T) {
		a := s.in(t).get("/metadata").want(200)
		for i := range a.len("rest.0.searchParam") {
			if a.str("rest.0.searchParam."+string(rune('0'+i))+".name") == "_filter" {
				return
			}
		}
		t.Error("rest.searchParam has no _filter")
	})
}

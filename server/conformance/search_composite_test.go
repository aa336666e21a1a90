package conformance

import "testing"

// search.html#composite
func TestSearchComposite(t *testing.T) {
	s := start(t)
	const loinc, ucum = `"system":"http://loinc.org"`, `"system":"http://unitsofmeasure.org"`
	quantity := func(value, unit string) string {
		return `"valueQuantity":{"value":` + value + `,"unit":"` + unit + `",` + ucum + `,"code":"` + unit + `"}`
	}
	coded := func(code string) string { return `"code":{"coding":[{` + loinc + `,"code":"` + code + `"}]}` }
	observation := func(id, rest string) string {
		return `{"resourceType":"Observation","id":"` + id + `","status":"final",` + rest + `}`
	}
	s.load(
		observation("bp", coded("85354-9")+`,"effectiveDateTime":"2020-05-01","component":[{`+coded("8480-6")+`,`+quantity("140", "mm[Hg]")+`},{`+coded("8462-4")+`,`+quantity("90", "mm[Hg]")+`}]`),
		observation("bplow", coded("85354-9")+`,"effectiveDateTime":"2021","component":[{`+coded("8480-6")+`,`+quantity("90", "mm[Hg]")+`},{`+coded("8462-4")+`,`+quantity("140", "mm[Hg]")+`}]`),
		observation("weight", coded("29463-7")+`,"effectiveDateTime":"2020-06-01",`+quantity("80", "kg")),
		observation("heavy", coded("29463-7")+`,"effectiveDateTime":"2021-06-01",`+quantity("120", "kg")),
		observation("concept", coded("8302-2")+`,"valueCodeableConcept":{"coding":[{`+loinc+`,"code":"LA1-1"}]}`),
		observation("string", coded("8302-2")+`,"valueString":"tall, very"`),
		`{"resourceType":"MolecularSequence","id":"one","coordinateSystem":1,"referenceSeq":{"chromosome":{"coding":[{"system":"http://terminology.hl7.org/CodeSystem/chromosome-human","code":"1"}]},"genomeBuild":"GRCh 37","windowStart":1,"windowEnd":9},"variant":[{"start":130,"end":140},{"start":500,"end":600}]}`,
		`{"resourceType":"MolecularSequence","id":"two","coordinateSystem":1,"referenceSeq":{"chromosome":{"coding":[{"system":"http://terminology.hl7.org/CodeSystem/chromosome-human","code":"2"}]},"genomeBuild":"GRCh 37","windowStart":1,"windowEnd":9},"variant":[{"start":130,"end":130}]}`,
		`{"resourceType":"Group","id":"gender","type":"person","actual":false,"characteristic":[{"code":{"text":"g","coding":[{"code":"gender"}]},"valueCodeableConcept":{"coding":[{"code":"mixed"}]},"exclude":false},{"code":{"coding":[{"code":"status"}]},"valueCodeableConcept":{"coding":[{"code":"owned"}]},"exclude":false}]}`,
	)
	s.searches(t, "Observation", []searchCase{
		{"contract: code-value-quantity", "code-value-quantity=http://loinc.org|29463-7$80|http://unitsofmeasure.org|kg", "weight"},
		{"contract: with a prefix", "code-value-quantity=http://loinc.org|29463-7$gt80", "heavy"},
		{"contract: with a prefix", "code-value-quantity=http://loinc.org|29463-7$ge80", "heavy weight"},
		{"#composite: a code without system", "code-value-quantity=29463-7$lt100", "weight"},
		{"#composite: UCUM", "code-value-quantity=29463-7$80000|http://unitsofmeasure.org|g", "weight"},
		{"#composite: parts of one repetition", "component-code-value-quantity=http://loinc.org|8480-6$ge140", "bp"},
		{"#composite: parts of one repetition", "component-code-value-quantity=http://loinc.org|8462-4$ge140", "bplow"},
		{"#composite: not parts of two", "component-code-value-quantity=8480-6$lt90", ""},
		{"#composite: the resource or its components", "combo-code-value-quantity=8480-6$gt100", "bp"},
		{"#composite: the resource or its components", "combo-code-value-quantity=29463-7$gt100", "heavy"},
		{"#composite: token and token", "code-value-concept=8302-2$http://loinc.org|LA1-1", "concept"},
		{"#composite: token and string", `code-value-string=8302-2$tall\, v`, "string"},
		{"#composite: token and date", "code-value-date=8302-2$2020", ""},
		{"#combining: comma is OR", "code-value-quantity=29463-7$80,29463-7$120", "heavy weight"},
		{"#combining: repetition is AND", "component-code-value-quantity=8480-6$140&component-code-value-quantity=8462-4$90", "bp"},
		{"#composite: beside another parameter", "code-value-quantity=29463-7$gt1&date=ge2021", "heavy"},
		{"#composite: a part is missing", "code-value-quantity=29463-7", "400 code-value-quantity code$value-quantity"},
		{"#composite: a part too many", "code-value-quantity=29463-7$1$2", "400 code-value-quantity code$value-quantity"},
		{"#composite: a part is empty", "code-value-quantity=29463-7$", "400 code-value-quantity"},
		{"contract: a system alone is no code of a component", "component-code-value-quantity=http://loinc.org|$140", "400 component-code-value-quantity code system|code"},
		{"contract: a system alone, of the resource itself", "code-value-quantity=http://loinc.org|$ge0", "heavy weight"},
		{"#composite: the first part is empty", "component-code-value-quantity=$5", "400 component-code-value-quantity empty"},
		{"#composite: a part cannot be read", "code-value-quantity=29463-7$much", "400 code-value-quantity much"},
		{"#composite: modifiers are not used", "code-value-quantity:exact=29463-7$80", "400 code-value-quantity:exact composite"},
	})
	s.searches(t, "MolecularSequence", []searchCase{
		{"molecularsequence.html#search: chromosome, start and end of one variant", "chromosome-variant-coordinate=1$lt345$gt123", "one"},
		{"#composite: not of two variants", "chromosome-variant-coordinate=1$lt345$gt200", ""},
		{"#composite: start and end the same", "chromosome-variant-coordinate=2$130$ge130", "two"},
		{"#composite: of any prefix", "chromosome-variant-coordinate=1$ne130$le600,2$ap130$eb131", "one two"},
	})
	s.searches(t, "Group", []searchCase{
		{"#composite: characteristic-value=gender$mixed", "characteristic-value=gender$mixed", "gender"},
		{"#composite: not characteristic and value of two repetitions", "characteristic-value=gender$owned", ""},
	})
}

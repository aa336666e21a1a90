package conformance

import (
	"testing"

	"kiln/server"
)

// search.html#number
func TestSearchNumber(t *testing.T) {
	// The paragraph's own values are no probabilities.
	s := start(t, func(c *server.Config) { c.Validation.Mode = "structure" })
	risk := func(id, prediction string) string {
		return `{"resourceType":"RiskAssessment","id":"` + id + `","status":"final","subject":{"reference":"Patient/1"},"prediction":[{` + prediction + `}]}`
	}
	s.load(
		risk("p99.4", `"probabilityDecimal":99.4`),
		risk("p99.5", `"probabilityDecimal":99.5`),
		risk("p100", `"probabilityDecimal":100`),
		risk("p100.00", `"probabilityDecimal":100.00`),
		risk("p100.004", `"probabilityDecimal":100.004`),
		risk("p0.8", `"probabilityDecimal":0.8`),
		risk("p0.85", `"probabilityDecimal":0.85`),
		risk("zero", `"probabilityDecimal":0`),
		risk("tiny", `"probabilityDecimal":0.000000000000000000012`),
		risk("none", `"outcome":{"text":"x"}`),
		`{"resourceType":"MolecularSequence","id":"s1","coordinateSystem":0,"variant":[{"start":22125503,"end":22125510}]}`,
		`{"resourceType":"MolecularSequence","id":"s2","coordinateSystem":0,"variant":[{"start":5,"end":6},{"start":22125503,"end":22125504}]}`,
	)
	s.searches(t, "RiskAssessment", []searchCase{
		{"#number: 100 is [99.5, 100.5)", "probability=100", "p100 p100.00 p100.004 p99.5"},
		{"#number: 100.00 is [99.995, 100.005)", "probability=100.00", "p100 p100.00 p100.004"},
		{"#number: 1e2 is [95, 105)", "probability=1e2", "p100 p100.00 p100.004 p99.4 p99.5"},
		{"#number: 1.000E2", "probability=1.000E2", "p100 p100.00 p100.004"},
		{"#number: lt100 is less than exactly 100", "probability=lt100", "p0.8 p0.85 p99.4 p99.5 tiny zero"},
		{"#number: le100", "probability=le100", "p0.8 p0.85 p100 p100.00 p99.4 p99.5 tiny zero"},
		{"#number: gt100 is greater than exactly 100", "probability=gt100", "p100.004"},
		{"#number: ge100", "probability=ge100", "p100 p100.00 p100.004"},
		{"#number: ne100 is outside of [99.5, 100.5)", "probability=ne100", "p0.8 p0.85 p99.4 tiny zero"},
		{"#number: 0.8 is [0.75, 0.85)", "probability=0.8", "p0.8"},
		{"#number: 0.85", "probability=0.85", "p0.85"},
		{"#prefix: sa of a number", "probability=sa99.5", "p100 p100.00 p100.004"},
		{"#prefix: eb of a number", "probability=eb0.8", "tiny zero"},
		{"#prefix: ap is a tenth to both sides", "probability=ap92", "p100 p100.00 p100.004 p99.4 p99.5"},
		{"#number: a sign", "probability=gt-1&probability=lt+0.5", "tiny zero"},
		{"#number: decimals are no floats", "probability=0.000000000000000000012", "tiny"},
		{"#combining: comma is OR", "probability=0.80,0.85", "p0.8 p0.85"},
		{"#combining: repetition is AND", "probability=gt0.8&probability=lt100", "p0.85 p99.4 p99.5"},
		{"#modifiers: :missing=true", "probability:missing=true", "none"},
		{"#modifiers: :missing=false", "probability:missing=false&probability=lt1", "p0.8 p0.85 tiny zero"},
		{"#number: not a number", "probability=much", "400 probability much"},
		{"#number: a hexadecimal number is none", "probability=0x10", "400 probability"},
		{"#number: infinity is none", "probability=Infinity", "400 probability"},
		{"#number: NaN is none", "probability=NaN", "400 probability"},
		{"#prefix: unknown", "probability=zz5", "400 probability zz5"},
		{"#modifiers: of another type", "probability:exact=5", "400 probability:exact :exact number"},
	})
	s.searches(t, "MolecularSequence", []searchCase{
		{"#number: an integer element", "variant-start=22125503", "s1 s2"},
		{"#number: repetitions of one resource count once", "variant-start=gt1", "s1 s2"},
		{"#number: AND, each by another repetition", "variant-start=5&variant-start=22125503", "s2"},
	})
}

// search.html#quantity
func TestSearchQuantity(t *testing.T) {
	s := start(t)
	const ucum = `"system":"http://unitsofmeasure.org"`
	observation := func(id, value string) string {
		return `{"resourceType":"Observation","id":"` + id + `","status":"final","code":{"text":"x"}` + value + `}`
	}
	s.load(
		observation("mg5.4", `,"valueQuantity":{"value":5.4,"unit":"milligram",`+ucum+`,"code":"mg"}`),
		observation("mg5400", `,"valueQuantity":{"value":5400,"unit":"mg",`+ucum+`,"code":"mg"}`),
		observation("g5.4", `,"valueQuantity":{"value":5.4,"unit":"g",`+ucum+`,"code":"g"}`),
		observation("g5.41", `,"valueQuantity":{"value":5.41,"unit":"g",`+ucum+`,"code":"g"}`),
		observation("mmol", `,"valueQuantity":{"value":5.4,"unit":"mmol/L",`+ucum+`,"code":"mmol/L"}`),
		observation("human", `,"valueQuantity":{"value":5.4,"unit":"mg"}`),
		observation("tablets", `,"valueQuantity":{"value":5.4,"unit":"tbl","system":"http://acme.example/units","code":"TBL"}`),
		observation("number", `,"valueQuantity":{"value":5.4}`),
		observation("below", `,"valueQuantity":{"value":5,"comparator":"<","unit":"mg",`+ucum+`,"code":"mg"}`),
		observation("celsius", `,"valueQuantity":{"value":37,"unit":"Cel",`+ucum+`,"code":"Cel"}`),
		observation("none", ``),
	)
	s.searches(t, "Observation", []searchCase{
		{"#quantity: no unit, any unit", "value-quantity=5.4", "g5.4 g5.41 human mg5.4 mmol number tablets"},
		{"#quantity: system and code", "value-quantity=5.4|http://unitsofmeasure.org|mg", "mg5.4"},
		{"#quantity: code or unit, without system", "value-quantity=5.4||mg", "human mg5.4"},
		{"#quantity: the unit as people write it", "value-quantity=5.4||milligram", "mg5.4"},
		{"#quantity: UCUM, another unit of the dimension", "value-quantity=5.40|http://unitsofmeasure.org|g", "g5.4 mg5400"},
		{"#quantity: UCUM, another unit of the dimension", "value-quantity=5400|http://unitsofmeasure.org|mg", "g5.4 mg5400"},
		{"#quantity: the significant figures are those of the value", "value-quantity=5.4|http://unitsofmeasure.org|g", "g5.4 g5.41 mg5400"},
		{"#quantity: an exponent", "value-quantity=5.40e-3|http://unitsofmeasure.org|g", "mg5.4"},
		{"#quantity: another system", "value-quantity=5.4|http://acme.example/units|TBL", "tablets"},
		{"#quantity: another system has no such code", "value-quantity=5.4|http://acme.example/units|mg", ""},
		{"#quantity: another dimension", "value-quantity=5.4|http://unitsofmeasure.org|mmol/L", "mmol"},
		{"#quantity: le", "value-quantity=le5.4|http://unitsofmeasure.org|mg", "below mg5.4"},
		{"#quantity: lt of the comparator's bound", "value-quantity=lt5|http://unitsofmeasure.org|mg", "below"},
		{"#quantity: gt", "value-quantity=gt5.4|http://unitsofmeasure.org|mg", "g5.4 g5.41 mg5400"},
		{"#quantity: ge", "value-quantity=ge5.4|http://unitsofmeasure.org|mg", "g5.4 g5.41 mg5.4 mg5400"},
		{"#quantity: ap", "value-quantity=ap5|http://unitsofmeasure.org|g", "g5.4 g5.41 mg5400"},
		{"#quantity: ne", "value-quantity=ne5.4", "below celsius mg5400"},
		{"#quantity: sa", "value-quantity=sa5.4|http://unitsofmeasure.org|mg", "g5.4 g5.41 mg5400"},
		{"#quantity: a unit with an offset", "value-quantity=37|http://unitsofmeasure.org|Cel", "celsius"},
		{"#combining: comma is OR", "value-quantity=37,5400", "celsius mg5400"},
		{"#modifiers: :missing=true", "value-quantity:missing=true", "none"},
		{"#quantity: a unit nobody has", "value-quantity=5.4||parsec", ""},
		{"#quantity: two parts", "value-quantity=5.4|mg", "400 value-quantity"},
		{"#quantity: four parts", "value-quantity=5.4|a|b|c", "400 value-quantity"},
		{"#quantity: a system without code", "value-quantity=5.4|http://unitsofmeasure.org|", "400 value-quantity"},
		{"#quantity: not a number", "value-quantity=much||mg", "400 value-quantity much"},
		{"#prefix: unknown", "value-quantity=xx5", "400 value-quantity xx5"},
		{"#modifiers: of another type", "value-quantity:exact=5", "400 value-quantity:exact :exact quantity"},
	})
}

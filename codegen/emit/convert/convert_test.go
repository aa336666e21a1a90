package convert

import (
	"testing"

	"kiln/gen/r4"
	"kiln/server/fhir"
)

// valueOf decodes a value of Extension.value[x].
func valueOf(t *testing.T, property string) fhir.Element {
	t.Helper()
	r, err := fhir.Decode(r4.Model, []byte(`{"resourceType":"Basic","code":{"text":"x"},"extension":[{"url":"urn:x",`+property+`}]}`))
	if err != nil {
		t.Fatal(err)
	}
	return r.(*r4.Basic).Extension[0].Value
}

// counts are the entries of an index by kind.
type counts struct{ terms, dates, numbers, quantities, strings, texts int }

func countsOf(x *fhir.Index) counts {
	x.Finish()
	return counts{len(x.Terms), len(x.Dates), len(x.Numbers), len(x.Quantities), len(x.Strings), len(x.Texts)}
}

const key = fhir.Key(1) << 40

func TestValueHasTheFormOfItsParameterType(t *testing.T) {
	for _, c := range []struct {
		name, property string
		typ            fhir.SearchType
		indexed        bool
	}{
		{"a CodeableConcept is a token", `"valueCodeableConcept":{"coding":[{"system":"urn:s","code":"c"}],"text":"t"}`, fhir.SearchToken, true},
		{"a Coding is a token", `"valueCoding":{"code":"c"}`, fhir.SearchToken, true},
		{"an Identifier is a token", `"valueIdentifier":{"type":{"coding":[{"code":"MR"}],"text":"t"},"value":"v"}`, fhir.SearchToken, true},
		{"a ContactPoint is a token", `"valueContactPoint":{"system":"phone","value":"1"}`, fhir.SearchToken, true},
		{"a boolean is a token", `"valueBoolean":true`, fhir.SearchToken, true},
		{"a Period is no token", `"valuePeriod":{"start":"2020"}`, fhir.SearchToken, false},
		{"a Period is a date", `"valuePeriod":{"start":"2020"}`, fhir.SearchDate, true},
		{"an instant is a date", `"valueInstant":"2020-01-01T00:00:00Z"`, fhir.SearchDate, true},
		{"a Timing is a date", `"valueTiming":{"event":["2020","2019"],"repeat":{"boundsPeriod":{"end":"2021"}}}`, fhir.SearchDate, true},
		{"a string is no date", `"valueString":"2020"`, fhir.SearchDate, false},
		{"a decimal is a number", `"valueDecimal":1.50`, fhir.SearchNumber, true},
		{"a Range is a number", `"valueRange":{"low":{"value":1},"high":{"value":2}}`, fhir.SearchNumber, true},
		{"a Quantity is a quantity", `"valueQuantity":{"value":1,"unit":"g"}`, fhir.SearchQuantity, true},
		{"an Age is a quantity", `"valueAge":{"value":1,"unit":"a"}`, fhir.SearchQuantity, true},
		{"a Money is a quantity", `"valueMoney":{"value":1,"currency":"EUR"}`, fhir.SearchQuantity, true},
		{"SampledData is a quantity", `"valueSampledData":{"origin":{"value":0,"unit":"mV"},"period":1,"dimensions":1,"data":"1 2"}`, fhir.SearchQuantity, true},
		{"a HumanName is a string", `"valueHumanName":{"family":"A","given":["B"],"prefix":["C"],"suffix":["D"],"text":"E"}`, fhir.SearchString, true},
		{"an Address is a string", `"valueAddress":{"line":["A"],"city":"B"}`, fhir.SearchString, true},
		{"an Annotation is a string", `"valueAnnotation":{"text":"A"}`, fhir.SearchString, true},
		{"a Reference is a reference", `"valueReference":{"reference":"Patient/1","identifier":{"value":"v"}}`, fhir.SearchReference, true},
		{"a canonical is a reference", `"valueCanonical":"http://x.org/q|1"`, fhir.SearchReference, true},
		{"a uri is a uri", `"valueUri":"urn:x"`, fhir.SearchURI, true},
		{"a string is no uri", `"valueString":"urn:x"`, fhir.SearchURI, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			e := valueOf(t, c.property)
			var x, in fhir.Index
			Value(&x, c.typ, key, e)
			Value(&in, c.typ, key, &fhir.Extension{Value: e})
			direct, extension := countsOf(&x), countsOf(&in)
			if indexed := direct != (counts{}); indexed != c.indexed {
				t.Errorf("left %+v, want something: %v", direct, c.indexed)
			}
			if direct != extension {
				t.Errorf("left %+v, inside an extension %+v", direct, extension)
			}
		})
	}
}

func TestNothingIsIndexedOfAnAbsentElement(t *testing.T) {
	var x fhir.Index
	tokenCodeableConcept(&x, key, nil)
	tokenCoding(&x, key, nil)
	tokenIdentifier(&x, key, nil)
	tokenContactPoint(&x, key, nil)
	datePeriod(&x, key, nil)
	dateTiming(&x, key, nil)
	numberRange(&x, key, nil)
	quantityQuantity(&x, key, nil)
	quantityMoney(&x, key, nil)
	quantityRange(&x, key, nil)
	quantitySampledData(&x, key, nil)
	stringHumanName(&x, key, nil)
	stringAddress(&x, key, nil)
	stringAnnotation(&x, key, nil)
	stringCodeableConcept(&x, key, nil)
	stringCoding(&x, key, nil)
	referenceReference(&x, key, nil)
	referenceResource(&x, key, nil)
	if got := countsOf(&x); got != (counts{}) {
		t.Errorf("left %+v", got)
	}
}

func TestPartsElsewhereAreLeftOut(t *testing.T) {
	name := valueOf(t, `"valueHumanName":{"family":"A","given":["B"],"text":"E"}`).(*r4.HumanName)
	address := valueOf(t, `"valueAddress":{"line":["A"],"city":"B","country":"C"}`).(*r4.Address)
	var x fhir.Index
	stringHumanNameExcept(&x, key, name, familyElsewhere|textElsewhere)
	stringAddressExcept(&x, key, address, cityElsewhere|countryElsewhere)
	if got := countsOf(&x); got.strings != 2 {
		t.Errorf("left %d strings, want the given name and the line", got.strings)
	}
}

func TestExistsAndNotFalse(t *testing.T) {
	for property, want := range map[string]string{
		`"valueBoolean":true`: "true", `"valueBoolean":false`: "false", `"valueDateTime":"2020"`: "true",
	} {
		if got := existsAndNotFalse(valueOf(t, property)); got != want {
			t.Errorf("%s gives %s", property, got)
		}
	}
	if got := existsAndNotFalse(nil); got != "false" {
		t.Errorf("an absent value gives %s", got)
	}
}

func TestHasExtension(t *testing.T) {
	list := []fhir.Extension{{}, {}}
	list[1].URL.Text = "urn:x"
	if !hasExtension(list, "urn:x") || hasExtension(list, "urn:y") || hasExtension(nil, "urn:x") {
		t.Error("an extension is found by its url alone")
	}
}

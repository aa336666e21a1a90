package eventfilter

import (
	"strings"
	"testing"

	"kiln/gen/r4"
)

const filtered = `{"resourceType":"Observation","id":"o1","status":"final","issued":"2024-03-05T10:00:00.5Z",
	"code":{"coding":[{"system":"http://loinc.org","code":"8480-6"},{"system":"http://x","code":"bp"}],"text":"Systolic pressure"},
	"subject":{"reference":"Patient/1"},"effectivePeriod":{"start":"2024-03-01","end":"2024-03-05"},
	"valueQuantity":{"value":120.50,"unit":"mm Hg","system":"http://unitsofmeasure.org","code":"mm[Hg]"},
	"component":[{"valueQuantity":{"value":2,"code":"kg"}},{"valueQuantity":{"value":1500,"code":"g"}},{"valueQuantity":{"value":5,"comparator":"<","code":"kg"}}],
	"note":[{"text":"first"},{"text":"second","time":"2024-03"}]}`

// The contract, Apps section 5: filters.
func TestFilter(t *testing.T) {
	for _, c := range []struct {
		name, filter string
		want         bool
	}{
		{"a literal is equal", `{"status":"final"}`, true},
		{"a literal that differs", `{"status":"amended"}`, false},
		{"the resource type may stand in front", `{"Observation.status":"final"}`, true},
		{"the id", `{"id":"o1"}`, true},
		{"any of a repeating element", `{"code.coding.code":"bp"}`, true},
		{"one of a repeating element", `{"code.coding[0].code":"bp"}`, false},
		{"one of a repeating element by its place", `{"code.coding[1].code":"bp"}`, true},
		{"a place behind the last", `{"code.coding[2].code":"bp"}`, false},
		{"several keys are AND", `{"status":"final","code.coding.code":"no"}`, false},
		{"several comparators are AND", `{"valueQuantity.value":{"gt":120,"lt":121}}`, true},
		{"several comparators of which one fails", `{"valueQuantity.value":{"gt":120,"lt":120.5}}`, false},
		{"decimals are exact", `{"valueQuantity.value":120.5}`, true},
		{"decimals are exact beyond a float", `{"valueQuantity.value":120.50000000000000000001}`, false},
		{"ge", `{"valueQuantity.value":{"ge":120.500}}`, true},
		{"le", `{"valueQuantity.value":{"le":120.499}}`, false},
		{"a quantity as a number", `{"valueQuantity":{"gt":120}}`, true},
		{"a choice element by its name alone", `{"value":{"gt":120}}`, true},
		{"a choice element of another type", `{"value":"text"}`, false},
		{"a quantity with its unit", `{"value":{"eq":{"value":120.5,"code":"mm[Hg]"}}}`, true},
		{"a quantity without a comparator", `{"value":{"value":120.5,"code":"mm[Hg]"}}`, true},
		{"another quantity without a comparator", `{"component.value":{"value":1.5,"code":"kg"},"value":{"value":120.5,"code":"kg"}}`, false},
		{"a quantity in another unit", `{"component.value":{"eq":{"value":1.5,"code":"kg"}}}`, true},
		{"a quantity of another dimension", `{"value":{"gt":{"value":1,"code":"kg"}}}`, false},
		{"a quantity with a comparator is no value", `{"component.value":{"eq":{"value":5,"code":"kg"}}}`, false},
		{"in", `{"status":{"in":["amended","final"]}}`, true},
		{"in none", `{"status":{"in":["amended"]}}`, false},
		{"contains", `{"code.text":{"contains":"pressure"}}`, true},
		{"startsWith", `{"code.text":{"startsWith":"Sys"}}`, true},
		{"startsWith with another case", `{"code.text":{"startsWith":"sys"}}`, false},
		{"exists", `{"note":{"exists":true},"method":{"exists":false}}`, true},
		{"exists not", `{"method":{"exists":true}}`, false},
		{"exists in one of several", `{"note.time":{"exists":true}}`, true},
		{"ne", `{"status":{"ne":"amended"}}`, true},
		{"ne of what is equal", `{"status":{"ne":"final"}}`, false},
		{"ne of what is absent", `{"method.text":{"ne":"x"}}`, true},
		{"ne of several of which one is equal", `{"code.coding.code":{"ne":"bp"}}`, false},
		{"gt of what is absent", `{"method.text":{"gt":"x"}}`, false},
		{"a date by its own precision", `{"issued":"2024-03-05"}`, true},
		{"a year", `{"issued":"2024"}`, true},
		{"a later date", `{"issued":{"gt":"2024-03-04"}}`, true},
		{"gt of the same day is false", `{"issued":{"gt":"2024-03-05"}}`, false},
		{"ge of the same day", `{"issued":{"ge":"2024-03-05"}}`, true},
		{"lt", `{"issued":{"lt":"2024-03-06"}}`, true},
		{"a period within a month", `{"effective":"2024-03"}`, true},
		{"a period that begins before", `{"effective":{"lt":"2024-03-02"}}`, true},
		{"a partial date that is less precise is not equal", `{"note.time":"2024-03-05"}`, false},
		{"an instant in another zone", `{"issued":{"eq":"2024-03-05T11:00:00.5+01:00"}}`, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			f, err := CompileFilter(r4.Model, "Observation", c.filter)
			if err != nil {
				t.Fatal(err)
			}
			if got := f.MatchesResource([]byte(filtered)); got != c.want {
				t.Errorf("%s: %t", c.filter, got)
			}
		})
	}
}

// The contract, Apps section 1: filters compile.
func TestFilterThatDoesNotCompile(t *testing.T) {
	for _, c := range []struct{ filter, word string }{
		{`[]`, "object"}, {`{"colour":"red"}`, "colour"}, {`{"code.colour":"red"}`, "colour"}, {`{"status":{"near":"x"}}`, "near"},
		{`{"status":{}}`, "no comparator"}, {`{"status":5}`, "text"}, {`{"issued":"yesterday"}`, "date"}, {`{"value":{"eq":{"value":1,"code":"wug"}}}`, "UCUM"},
		{`{"code":"8480-6"}`, "element of it"}, {`{"status":{"in":"final"}}`, "array"}, {`{"status":{"exists":"yes"}}`, "true or false"},
		{`{"code.coding[x].code":"a"}`, "coding[x]"}, {`{"status":null}`, "text"}, {`{"valueQuantity.value":"5"}`, "number"},
		{`{"valueQuantity.value":1e999999}`, "number"}, {`{"valueQuantity":{"contains":"x"}}`, "texts"}, {`{"":"x"}`, "no element"}, {`{"status..x":"x"}`, "no element"},
	} {
		if _, err := CompileFilter(r4.Model, "Observation", c.filter); err == nil || !strings.Contains(err.Error(), c.word) {
			t.Errorf("%s: %v", c.filter, err)
		}
	}
}

func FuzzFilter(f *testing.F) {
	f.Add(`{"value":{"gt":120},"code.coding[1].code":{"in":["a"]}}`, filtered)
	f.Fuzz(func(_ *testing.T, text, resource string) {
		if compiled, err := CompileFilter(r4.Model, "Observation", text); err == nil {
			compiled.MatchesResource([]byte(resource))
		}
	})
}

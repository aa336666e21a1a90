package main

import (
	"strings"
	"testing"

	"kiln/gen/r4"
)

func TestEvaluateLines(t *testing.T) {
	patient := `{"resourceType":"Patient","name":[{"given":["Peter","James"]}],"active":true,"birthDate":"1974-12-25","multipleBirthInteger":2}`
	tests := []struct{ name, in, want string }{
		{"strings of the model", `{"resource":` + patient + `,"expr":"name.given"}`, `{"result":[{"type":"string","value":"Peter"},{"type":"string","value":"James"}],"error":null}`},
		{"an empty result", `{"resource":` + patient + `,"expr":"photo"}`, `{"result":[],"error":null}`},
		{"System types have FHIR's names", `{"expr":"1 | 1.50 | true | @2020 | @2021T | @T10:00 | 'é' | 4 'g'"}`,
			`{"result":[{"type":"integer","value":1},{"type":"decimal","value":1.50},{"type":"boolean","value":true},{"type":"date","value":"2020"},{"type":"dateTime","value":"2021"},{"type":"time","value":"10:00"},{"type":"string","value":"é"},{"type":"Quantity","value":"4 'g'"}],"error":null}`},
		{"a complex element", `{"resource":` + patient + `,"expr":"name"}`, `{"result":[{"type":"HumanName","value":{"given":["Peter","James"]}}],"error":null}`},
		{"the environment", `{"expr":"(%a + %b.first()).toString() & %c.id","env":{"a":1,"b":[2.5,3],"c":{"resourceType":"Device","id":"d"}}}`, `{"result":[{"type":"string","value":"3.5d"}],"error":null}`},
		{"%resource can be set", `{"expr":"%resource.id","env":{"resource":{"resourceType":"Device","id":"d"}}}`, `{"result":[{"type":"id","value":"d"}],"error":null}`},
		{"an error with its position", `{"resource":` + patient + `,"expr":"name.givn"}`, `{"result":null,"error":"FHIRPath semantic error at column 6: FHIR.HumanName has no element 'givn'; did you mean 'given'?"}`},
		{"a bad resource", `{"resource":{"resourceType":"Nothing"},"expr":"id"}`, `{"result":null,"error":"resource: `},
		{"no expression", `{}`, `{"result":null,"error":"the line has no expr"}`},
		{"no JSON", `hello`, `{"result":null,"error":"the line is no JSON object`},
	}
	var in strings.Builder
	for _, tt := range tests {
		in.WriteString(tt.in + "\n\n")
	}
	var out strings.Builder
	if err := evaluateLines(strings.NewReader(in.String()), &out, r4.Model); err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(strings.TrimSpace(out.String()), "\n")
	if len(lines) != len(tests) {
		t.Fatalf("%d lines for %d requests", len(lines), len(tests))
	}
	for i, tt := range tests {
		if !strings.HasPrefix(lines[i], tt.want) {
			t.Errorf("%s:\n got %s\nwant %s", tt.name, lines[i], tt.want)
		}
	}
}

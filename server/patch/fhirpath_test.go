package patch_test

import (
	"encoding/json"
	"strings"
	"testing"

	"kiln/gen/r4"
	"kiln/server/fhir"
	"kiln/server/outcome"
	"kiln/server/patch"
)

// part writes a part of an operation; value is a property such as
// "valueString":"x".
func part(name, value string) string { return `{"name":"` + name + `",` + value + `}` }

func operation(kind, path string, parts ...string) string {
	all := append([]string{part("type", `"valueCode":"`+kind+`"`), part("path", `"valueString":"`+path+`"`)}, parts...)
	return `{"name":"operation","part":[` + strings.Join(all, ",") + `]}`
}

func parameters(operations ...string) []byte {
	return []byte(`{"resourceType":"Parameters","parameter":[` + strings.Join(operations, ",") + `]}`)
}

const patched = `{"resourceType":"Patient","id":"p","birthDate":"1920-01-01","_birthDate":{"id":"b"},"identifier":[{"system":"s","value":"1"},{"value":"2"},{"value":"3"}],` +
	`"name":[{"given":["A","B"],"_given":[null,{"id":"g"}]}],"multipleBirthInteger":2,` +
	`"extension":[{"url":"http://x","valueDecimal":1.500}],"contact":[{"name":{"text":"c"}}]}`

func TestFHIRPath(t *testing.T) {
	name := func(n string) string { return part("name", `"valueString":"`+n+`"`) }
	index := func(n, i string) string { return part(n, `"valueInteger":`+i) }
	tests := []struct {
		name      string
		patch     []byte
		old, want string // the change in the JSON above
	}{
		{"add an element", parameters(operation("add", "Patient", name("active"), part("value", `"valueBoolean":true`))), `"c"}}]}`, `"c"}}],"active":true}`},
		{"add to a list", parameters(operation("add", "Patient", name("identifier"), part("value", `"valueIdentifier":{"value":"4"}`))), `{"value":"3"}`, `{"value":"3"},{"value":"4"}`},
		{"add to a list of primitives with extras", parameters(operation("add", "Patient.name[0]", name("given"), part("value", `"valueString":"C"`))),
			`"given":["A","B"],"_given":[null,{"id":"g"}]`, `"given":["A","B","C"],"_given":[null,{"id":"g"},null]`},
		{"add a choice", parameters(operation("add", "Patient", name("deceased"), part("value", `"valueBoolean":false`))), `"c"}}]}`, `"c"}}],"deceasedBoolean":false}`},
		{"add a choice by its typed name", parameters(operation("add", "Patient", name("deceased[x]"), part("value", `"valueDateTime":"2020"`))), `"c"}}]}`, `"c"}}],"deceasedDateTime":"2020"}`},
		{"add a backbone element", parameters(operation("add", "Patient", name("contact"), `{"name":"value","part":[{"name":"name","valueHumanName":{"text":"d"}},{"name":"telecom","valueContactPoint":{"value":"1"}},{"name":"telecom","valueContactPoint":{"value":"2"}}]}`)),
			`{"name":{"text":"c"}}`, `{"name":{"text":"c"}},{"name":{"text":"d"},"telecom":[{"value":"1"},{"value":"2"}]}`},
		{"add an extension to a primitive", parameters(operation("add", "Patient.birthDate", name("extension"), part("value", `"valueExtension":{"url":"http://y","valueCode":"z"}`))),
			`{"id":"b"}`, `{"id":"b","extension":[{"url":"http://y","valueCode":"z"}]}`},
		{"insert at the start", parameters(operation("insert", "Patient.identifier", index("index", "0"), part("value", `"valueIdentifier":{"value":"0"}`))), `[{"system"`, `[{"value":"0"},{"system"`},
		{"insert at the end", parameters(operation("insert", "Patient.identifier", index("index", "3"), part("value", `"valueIdentifier":{"value":"4"}`))), `{"value":"3"}`, `{"value":"3"},{"value":"4"}`},
		{"insert into an empty list", parameters(operation("insert", "Patient.photo", index("index", "0"), part("value", `"valueAttachment":{"title":"t"}`))), `"c"}}]}`, `"c"}}],"photo":[{"title":"t"}]}`},
		{"insert between extras", parameters(operation("insert", "Patient.name.given", index("index", "1"), part("value", `"valueString":"X"`))),
			`"given":["A","B"],"_given":[null,{"id":"g"}]`, `"given":["A","X","B"],"_given":[null,null,{"id":"g"}]`},
		{"delete an element with its extra", parameters(operation("delete", "Patient.birthDate")), `"birthDate":"1920-01-01","_birthDate":{"id":"b"},`, ``},
		{"no operation", []byte(`{"resourceType":"Parameters"}`), ``, ``},
		{"delete nothing", parameters(operation("delete", "Patient.photo")), ``, ``},
		{"delete from a list", parameters(operation("delete", "Patient.identifier[1]")), `{"value":"2"},`, ``},
		{"delete by a criterion", parameters(operation("delete", "Patient.identifier.where(value = '3')")), `,{"value":"3"}`, ``},
		{"delete the last child of an object", parameters(operation("delete", "Patient.contact.name.text")), `,"contact":[{"name":{"text":"c"}}]`, ``},
		{"delete in a list with extras", parameters(operation("delete", "Patient.name.given[1]")), `"given":["A","B"],"_given":[null,{"id":"g"}]`, `"given":["A"]`},
		{"replace a primitive", parameters(operation("replace", "Patient.birthDate", part("value", `"valueDate":"1930-01-01"`))), `"1920-01-01","_birthDate":{"id":"b"}`, `"1930-01-01"`},
		{"replace one of a list", parameters(operation("replace", "Patient.identifier[0].system", part("value", `"valueUri":"u"`))), `"system":"s"`, `"system":"u"`},
		{"replace a choice by another type", parameters(operation("replace", "Patient.multipleBirth", part("value", `"valueBoolean":true`))), `"multipleBirthInteger":2`, `"multipleBirthBoolean":true`},
		{"replace an item with an extra", parameters(operation("replace", "Patient.name.given[1]", part("value", `"valueString":"Z"`))), `"B"],"_given":[null,{"id":"g"}]`, `"Z"]`},
		{"move forward", parameters(operation("move", "Patient.identifier", index("source", "0"), index("destination", "2"))),
			`{"system":"s","value":"1"},{"value":"2"},{"value":"3"}`, `{"value":"2"},{"value":"3"},{"system":"s","value":"1"}`},
		{"move back with extras", parameters(operation("move", "Patient.name.given", index("source", "1"), index("destination", "0"))),
			`["A","B"],"_given":[null,{"id":"g"}]`, `["B","A"],"_given":[{"id":"g"},null]`},
		{"operations see those before", parameters(operation("add", "Patient", name("gender"), part("value", `"valueCode":"male"`)), operation("replace", "Patient.gender", part("value", `"valueCode":"female"`))),
			`"c"}}]}`, `"c"}}],"gender":"female"}`},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got, err := patch.FHIRPath(r4.Model, []byte(patched), tt.patch)
			if err != nil {
				t.Fatal(err)
			}
			if !strings.Contains(patched, tt.old) {
				t.Fatal("the test does not change its input")
			}
			if want := strings.Replace(patched, tt.old, tt.want, 1); string(got) != want {
				t.Errorf("got  %s\nwant %s", got, want)
			}
		})
	}
}

func TestFHIRPathErrors(t *testing.T) {
	value := part("value", `"valueString":"x"`)
	tests := []struct {
		name       string
		patch      []byte
		wantStatus int
		want       string
	}{
		{"no parameters", []byte(`{"resourceType":"Patient"}`), 400, "is a Parameters resource, found Patient"},
		{"another parameter", []byte(`{"resourceType":"Parameters","parameter":[{"name":"x","valueString":"y"}]}`), 400, `its name is "x"`},
		{"unknown type", parameters(operation("drop", "Patient.name")), 400, `type is "drop"`},
		{"value missing", parameters(operation("replace", "Patient.birthDate")), 400, "replace needs the part value"},
		{"path does not parse", parameters(operation("delete", "Patient.(")), 422, "syntax error"},
		{"unknown element", parameters(operation("delete", "Patient.nam")), 422, "did you mean 'name'"},
		{"several elements", parameters(operation("delete", "Patient.identifier")), 422, "the path names 3"},
		{"nothing to replace", parameters(operation("replace", "Patient.gender", value)), 422, "it names 0"},
		{"add what is there", parameters(operation("add", "Patient", part("name", `"valueString":"birthDate"`), value)), 422, "there already"},
		{"add an unknown element", parameters(operation("add", "Patient", part("name", `"valueString":"foo"`), value)), 422, `Patient has no element "foo"`},
		{"add a wrong type", parameters(operation("add", "Patient", part("name", `"valueString":"maritalStatus"`), part("value", `"valuePeriod":{"start":"2020"}`))), 422, "is a CodeableConcept, the value is a Period"},
		{"index behind the end", parameters(operation("insert", "Patient.identifier", part("index", `"valueInteger":4`), part("value", `"valueIdentifier":{"value":"4"}`))), 422, "behind the end of a list of 3"},
		{"move outside", parameters(operation("move", "Patient.identifier", part("source", `"valueInteger":3`), part("destination", `"valueInteger":0`))), 422, "must lie in a list of 3"},
		{"a bad value", parameters(operation("replace", "Patient.birthDate", part("value", `"valueString":"soon"`))), 422, "birthDate"},
		{"delete everything", parameters(operation("delete", "Patient")), 422, "inside the resource"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			_, err := patch.FHIRPath(r4.Model, []byte(patched), tt.patch)
			e, ok := outcome.From(err)
			if !ok {
				t.Fatalf("error is %v, want an outcome", err)
			}
			if e.HTTPStatus() != tt.wantStatus || !strings.Contains(e.Error(), tt.want) {
				t.Errorf("got %d %v, want %d %s", e.HTTPStatus(), e, tt.wantStatus, tt.want)
			}
		})
	}
}

func FuzzFHIRPath(f *testing.F) {
	f.Add("insert", "Patient.name.given", "name", 1, 0, `"valueString":"x"`)
	f.Add("move", "Patient.identifier", "", 0, 2, "")
	f.Add("delete", "Patient.contact.name.text", "", 0, 0, "")
	f.Add("add", "Patient.birthDate", "extension", 0, 0, `"valueExtension":{"url":"http://y"}`)
	f.Add("replace", "Patient.multipleBirth", "", 0, 0, `"valueBoolean":true,"_valueBoolean":{"id":"z"}`)
	f.Fuzz(func(t *testing.T, kind, path, name string, index, destination int, value string) {
		op := map[string]any{"name": "operation", "part": []any{
			map[string]any{"name": "type", "valueCode": kind}, map[string]any{"name": "path", "valueString": path},
			map[string]any{"name": "name", "valueString": name}, map[string]any{"name": "index", "valueInteger": index},
			map[string]any{"name": "source", "valueInteger": index}, map[string]any{"name": "destination", "valueInteger": destination},
			json.RawMessage(`{"name":"value",` + value + `}`),
		}}
		b, err := json.Marshal(map[string]any{"resourceType": "Parameters", "parameter": []any{op}})
		if err != nil {
			return
		}
		got, err := patch.FHIRPath(r4.Model, []byte(patched), b)
		if err != nil {
			if _, ok := outcome.From(err); !ok {
				t.Errorf("fails with %T", err)
			}
			return
		}
		if _, err := fhir.Decode(r4.Model, got); err != nil {
			t.Errorf("the result does not decode: %v\n%s", err, got)
		}
	})
}

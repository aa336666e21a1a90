package validate

import (
	"testing"

	"kiln/gen/r4"
	"kiln/server/fhir"
)

func TestOffsetOf(t *testing.T) {
	const object = ` { "resourceType" : "X", "s":"a\"{,", "n": 1.5e3 , "list":[ {"a":[1,2]}, {"a" : "b", "c":[[],{}]} ],
		"valueQuantity":{"value":1}, "given":["x",null], "_given":[null,{"extension":[{"url":"u"}]}], "last":null}`
	text, quantity := (*fhir.String)(nil).Type(), (*r4.Quantity)(nil).Type()
	for _, c := range []struct {
		name string
		path []segment
		want string // what begins there
	}{
		{"the object itself", nil, `{ "resourceType"`},
		{"a string with a quote", []segment{{"s", -1, text}}, `"a\"{,"`},
		{"a number", []segment{{"n", -1, nil}}, `1.5e3 ,`},
		{"an item", []segment{{"list", 1, nil}}, `{"a" : "b"`},
		{"in an item", []segment{{"list", 1, nil}, {"c", 1, nil}}, `{}]} ]`},
		{"a choice", []segment{{"value", -1, quantity}, {"value", -1, nil}}, `1}, "given"`},
		{"an extension of a primitive", []segment{{"given", 1, text}, {"extension", 0, nil}}, `{"url":"u"}`},
		{"an item that is not there", []segment{{"list", 7, nil}}, `[ {"a":[1`},
		{"an element that is not there", []segment{{"list", 0, nil}, {"none", -1, nil}}, `{"a":[1,2]}`},
		{"the last", []segment{{"last", -1, nil}}, `null}`},
	} {
		t.Run(c.name, func(t *testing.T) {
			rest := object[offsetOf([]byte(object), c.path):]
			if len(rest) < len(c.want) || rest[:len(c.want)] != c.want {
				t.Errorf("it begins at %.30q, want %q", rest, c.want)
			}
		})
	}
}

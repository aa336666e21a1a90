package fhir_test

import (
	"bytes"
	"testing"
	"time"

	"kiln/server/fhir"
)

func TestSplice(t *testing.T) {
	at := time.Date(2024, 2, 29, 12, 30, 15, 123456000, time.UTC)
	for _, tc := range []struct {
		name, raw, want string
		edits           map[string]string
	}{
		{
			name: "id and meta come first and white space goes",
			raw:  " {\n \"resourceType\" : \"Patient\" , \"active\": true,\t\"id\":\"old\" }",
			want: `{"resourceType":"Patient","id":"new","meta":{"versionId":"7","lastUpdated":"2024-02-29T12:30:15.123Z"},"active":true}`,
		},
		{
			name: "what the client says in meta stays, but for version and time",
			raw:  `{"meta":{"versionId":"3","tag":[{"code":"a b"}],"lastUpdated":"x","profile":["p"]},"resourceType":"Patient","x":[ 1.0e+2 , {"a":{}} ]}`,
			want: `{"resourceType":"Patient","id":"new","meta":{"versionId":"7","lastUpdated":"2024-02-29T12:30:15.123Z","tag":[{"code":"a b"}],"profile":["p"]},"x":[1.0e+2,{"a":{}}]}`,
		},
		{
			name: "strings keep their bytes",
			raw:  `{"resourceType":"Patient","text":{"div":"<div>\n a \\\" } ] \u00e9</div>"}}`,
			want: `{"resourceType":"Patient","id":"new","meta":{"versionId":"7","lastUpdated":"2024-02-29T12:30:15.123Z"},"text":{"div":"<div>\n a \\\" } ] \u00e9</div>"}}`,
		},
		{
			name:  "edits replace whole strings and parts of a narrative",
			raw:   `{"resourceType":"Patient","a":"urn:1","b":["urn:2","urn:1x"],"div":"<a href='urn:3'/><a href='urn:4'/>"}`,
			edits: map[string]string{"urn:2": "Patient/2", "urn:3": "X/\"3\"", "urn:4": "Y"},
			want:  `{"resourceType":"Patient","id":"new","meta":{"versionId":"7","lastUpdated":"2024-02-29T12:30:15.123Z"},"a":"urn:1","b":["Patient/2","urn:1x"],"div":"<a href='X/\"3\"'/><a href='Y'/>"}`,
		},
		{
			name:  "an edit of what is dropped is dropped",
			raw:   `{"resourceType":"Patient","meta":{"versionId":"urn:1"},"id":"urn:2","b":"urn:3"}`,
			edits: map[string]string{"urn:1": "one", "urn:2": "two", "urn:3": "three"},
			want:  `{"resourceType":"Patient","id":"new","meta":{"versionId":"7","lastUpdated":"2024-02-29T12:30:15.123Z"},"b":"three"}`,
		},
	} {
		t.Run(tc.name, func(t *testing.T) {
			raw := []byte(tc.raw)
			var edits []fhir.Edit
			for old, to := range tc.edits {
				i := bytes.Index(raw, []byte(old))
				edits = append(edits, fhir.Edit{Old: raw[i : i+len(old)], New: to})
			}
			body, err := fhir.Splice(raw, edits)
			if err != nil {
				t.Fatal(err)
			}
			got := string(body.Render(nil, "new", 7, at))
			if got != tc.want {
				t.Errorf("got  %s\nwant %s", got, tc.want)
			}
		})
	}
}

func TestSpliceRefusesWhatIsNoObject(t *testing.T) {
	for _, raw := range []string{``, `[]`, `"x"`, `{"resourceType":"P`} {
		if b, err := fhir.Splice([]byte(raw), nil); err == nil {
			t.Errorf("Splice(%q) = %v, want an error", raw, b)
		}
	}
}

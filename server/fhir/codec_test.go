package fhir_test

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"kiln/gen/r4"
	"kiln/server/fhir"
	"kiln/server/outcome"
)

func TestEveryExampleDecodesAndEncodesToTheSameJSON(t *testing.T) {
	files := []string{
		"../../definitions/examples/examples.ndjson.gz",
		"../../definitions/hl7.fhir.r4.examples-4.0.1.ndjson.gz",
	}
	n := 0
	for _, file := range files {
		for line := range lines(t, file) {
			n++
			name := nameOf(t, line)
			r, err := fhir.Decode(r4.Model, line)
			if err != nil {
				t.Errorf("%s: %v", name, err)
				continue
			}
			got := fhir.Encode(nil, r)
			if diff := cmp.Diff(lexemes(t, line), lexemes(t, got)); diff != "" {
				t.Errorf("%s changed (-in +out):\n%s", name, diff)
			}
			body, err := fhir.Splice(line, nil)
			if err != nil {
				t.Errorf("%s: %v", name, err)
				continue
			}
			stored := body.Render(nil, "x", 1, time.Unix(0, 0))
			if diff := cmp.Diff(withoutHead(lexemes(t, line)), withoutHead(lexemes(t, stored))); diff != "" {
				t.Errorf("%s changed when spliced (-in +out):\n%s", name, diff)
			}
		}
	}
	if n < 5000 {
		t.Errorf("%d resources were read, R4's package has more than 5,000", n)
	}
}

func lines(t testing.TB, file string) func(func([]byte) bool) {
	f, err := os.Open(file)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	z, err := gzip.NewReader(f)
	if err != nil {
		t.Fatal(err)
	}
	s := bufio.NewScanner(z)
	s.Buffer(nil, 64<<20)
	return func(yield func([]byte) bool) {
		for s.Scan() {
			if len(s.Bytes()) > 0 && !yield(bytes.Clone(s.Bytes())) {
				return
			}
		}
		if err := s.Err(); err != nil {
			t.Fatal(err)
		}
	}
}

func nameOf(t testing.TB, data []byte) string {
	var head struct{ ResourceType, ID string }
	if err := json.Unmarshal(data, &head); err != nil {
		t.Fatal(err)
	}
	return head.ResourceType + "/" + head.ID
}

// lexemes reads JSON into maps and keeps numbers as they are written.
func lexemes(t testing.TB, data []byte) map[string]any {
	d := json.NewDecoder(bytes.NewReader(data))
	d.UseNumber()
	var v map[string]any
	if err := d.Decode(&v); err != nil {
		t.Fatalf("%v in %.200s", err, data)
	}
	return v
}

func withoutHead(v map[string]any) map[string]any {
	delete(v, "id")
	if meta, ok := v["meta"].(map[string]any); ok {
		delete(meta, "versionId")
		delete(meta, "lastUpdated")
		if len(meta) == 0 {
			delete(v, "meta")
		}
	}
	return v
}

func TestDecodeRefuses(t *testing.T) {
	deep := strings.Repeat(`{"resourceType":"Bundle","type":"batch","entry":[{"resource":`, 5000)
	for _, tc := range []struct {
		name, body string
		wantStatus int
		want       string // in the message
	}{
		{"an empty body", ``, 400, "the body is empty"},
		{"text", `hello`, 400, "expected a resource"},
		{"an array", `[]`, 400, "expected a resource"},
		{"a byte order mark", "\ufeff{\"resourceType\":\"Patient\"}", 400, "found a byte order mark"},
		{"no resourceType", `{"id":"a"}`, 400, "resourceType is missing"},
		{"a resourceType that is no string", `{"resourceType":3}`, 400, "resourceType must be a string"},
		{"an unknown resourceType", `{"resourceType":"Patiant"}`, 400, `"Patiant" is not a resource type`},
		{"text behind the resource", `{"resourceType":"Patient"} x`, 400, "unexpected text"},
		{"a repeated property", `{"resourceType":"Patient","active":true,"active":true}`, 400, `"active" is repeated at line 1, column 50`},
		{"a repeated property in an extension", `{"resourceType":"Patient","extension":[{"url":"u","valueCode":"a","valueCode":"b"}]}`, 400, `"valueCode" is repeated`},
		{"a trailing comma", `{"resourceType":"Patient","active":true,}`, 400, "a comma before '}'"},
		{"a body that ends", `{"resourceType":"Patient","active":`, 400, "expected"},
		{"a string that ends", `{"resourceType":"Patient","gender":"ma`, 400, "inside a string"},
		{"invalid UTF-8", "{\"resourceType\":\"Patient\",\"gender\":\"\xff\"}", 400, "invalid UTF-8 at line 1, column 37"},
		{"NUL as an escape", `{"resourceType":"Patient","gender":"\u0000"}`, 400, "NUL"},
		{"NUL as a byte", "{\"resourceType\":\"Patient\",\"gender\":\"\x00\"}", 400, "control character"},
		{"a lone surrogate", `{"resourceType":"Patient","gender":"\ud800"}`, 400, "surrogates"},
		{"an escaped property name", `{"resourceType":"Patient","\u0069d":"x"}`, 400, "escape in a property name"},
		{"deep nesting", deep, 400, "nesting deeper"},
		{"deep arrays", `{"resourceType":"Patient","name":` + strings.Repeat("[", 10000), 400, "nesting deeper"},
		{"a malformed number", `{"resourceType":"RiskAssessment","prediction":[{"probabilityDecimal":01}]}`, 400, "malformed number"},
		{"a number out of range", `{"resourceType":"RiskAssessment","prediction":[{"probabilityDecimal":1e400}]}`, 422, `RiskAssessment.prediction[0].probability: "1e400" is not a valid decimal`},
		{"an unknown element", `{"resourceType":"Patient","name":[{"famly":"x"}]}`, 422, `Patient.name[0]: unknown element "famly"`},
		{"a string for a boolean", `{"resourceType":"Patient","active":"true"}`, 422, "Patient.active: expected true or false, found a string"},
		{"an object for an array", `{"resourceType":"Patient","name":{"family":"x"}}`, 422, "Patient.name: expected an array, found an object"},
		{"an array for an object", `{"resourceType":"Patient","maritalStatus":[{"text":"x"}]}`, 422, "Patient.maritalStatus: expected an object, found an array"},
		{"null", `{"resourceType":"Patient","gender":null}`, 422, "Patient.gender: expected a string, found null"},
		{"null in an array without extensions", `{"resourceType":"Patient","name":[{"given":["a",null]}]}`, 422, "Patient.name[0].given[1]: null stands"},
		{"an empty array", `{"resourceType":"Patient","name":[]}`, 422, "Patient.name: an array must not be empty"},
		{"an empty object", `{"resourceType":"Patient","name":[{}]}`, 422, "Patient.name[0]: an object must have content"},
		{"an empty string", `{"resourceType":"Patient","gender":""}`, 422, "Patient.gender: a string must not be empty"},
		{"two values of a choice", `{"resourceType":"Patient","deceasedBoolean":true,"deceasedDateTime":"2020"}`, 422, "deceased[x] has more than one value"},
		{"a day that is none", `{"resourceType":"Patient","birthDate":"2023-02-29"}`, 422, `Patient.birthDate: "2023-02-29" is not a valid date`},
		{"a time in a date", `{"resourceType":"Patient","birthDate":"2023-02-28T00:00:00Z"}`, 422, "is not a valid date"},
		{"a dateTime without a zone", `{"resourceType":"Observation","effectiveDateTime":"2023-02-28T00:00:00"}`, 422, "is not a valid dateTime"},
		{"an id with a slash", `{"resourceType":"Patient","meta":{"versionId":"a/b"}}`, 422, "is not a valid id"},
		{"a fraction for an integer", `{"resourceType":"Patient","multipleBirthInteger":1.5}`, 422, "is not a valid integer"},
		{"zero for a positiveInt", `{"resourceType":"Patient","telecom":[{"rank":0}]}`, 422, "is not a valid positiveInt"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			_, err := fhir.Decode(r4.Model, []byte(tc.body))
			var e *outcome.Error
			if !errors.As(err, &e) {
				t.Fatalf("error is %v, want an outcome", err)
			}
			if e.HTTPStatus() != tc.wantStatus || !strings.Contains(e.Error(), tc.want) {
				t.Errorf("got %d %q, want %d %q", e.HTTPStatus(), e.Error(), tc.wantStatus, tc.want)
			}
		})
	}
}

func TestDecodeTellsEveryIssueWithItsPlace(t *testing.T) {
	body := "{\"resourceType\":\"Patient\",\n \"active\":1,\n \"name\":[{\"family\":\"a\"},{\"given\":[\"x\",7]}]}"
	_, err := fhir.Decode(r4.Model, []byte(body))
	e, ok := outcome.From(err)
	if !ok {
		t.Fatal(err)
	}
	var got []string
	for _, i := range e.Issues {
		got = append(got, fmt.Sprintf("%d:%d %s", i.Line, i.Column, i.Expression))
	}
	want := []string{"2:11 Patient.active", "3:39 Patient.name[1].given[1]"}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

func TestPrimitiveExtensions(t *testing.T) {
	for _, body := range []string{
		`{"resourceType":"Patient","birthDate":"1970-03-30","_birthDate":{"id":"314159","extension":[{"url":"u","valueString":"x"}]}}`,
		`{"resourceType":"Patient","_birthDate":{"extension":[{"url":"u","valueDateTime":"2020"}]}}`,
		`{"resourceType":"Patient","name":[{"given":["a",null,"c"],"_given":[null,{"id":"b"},null]}]}`,
		`{"resourceType":"Patient","name":[{"_given":[{"id":"a"}]}]}`,
		`{"resourceType":"Patient","deceasedBoolean":true,"_deceasedBoolean":{"id":"x"}}`,
		`{"resourceType":"Patient","_deceasedDateTime":{"id":"x"}}`,
		`{"resourceType":"Patient","extension":[{"url":"u","_valueCode":{"id":"x"}}]}`,
		`{"resourceType":"Patient","contained":[{"resourceType":"Patient","id":"p"},{"resourceType":"Organization","name":"x"}]}`,
	} {
		r, err := fhir.Decode(r4.Model, []byte(body))
		if err != nil {
			t.Errorf("%s: %v", body, err)
			continue
		}
		if got := string(fhir.Encode(nil, r)); got != body {
			t.Errorf("got  %s\nwant %s", got, body)
		}
	}
	// The extensions may come before the values.
	body := `{"resourceType":"Patient","name":[{"_given":[null,{"id":"b"}],"given":["a","c"]}]}`
	r, err := fhir.Decode(r4.Model, []byte(body))
	if err != nil {
		t.Fatal(err)
	}
	want := `{"resourceType":"Patient","name":[{"given":["a","c"],"_given":[null,{"id":"b"}]}]}`
	if got := string(fhir.Encode(nil, r)); got != want {
		t.Errorf("got %s, want %s", got, want)
	}
}

// FuzzDecode checks three promises for accepted input: its encoding decodes to the same encoding, and both that
// JSON and the spliced body have the contents of the input.
func FuzzDecode(f *testing.F) {
	n := 0
	for line := range lines(f, "../../definitions/examples/examples.ndjson.gz") {
		if n++; n%7 == 0 && len(line) < 4000 {
			f.Add(line)
		}
	}
	f.Add([]byte(`{"resourceType":"Patient","name":[{"_given":[null,{"id":"b"}],"given":["a","c"]}]}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		r, err := fhir.Decode(r4.Model, data)
		if err != nil {
			if _, ok := outcome.From(err); !ok {
				t.Fatalf("not an outcome: %v", err)
			}
			return
		}
		first := fhir.Encode(nil, r)
		again, err := fhir.Decode(r4.Model, first)
		if err != nil {
			t.Fatalf("%v\n in %s\nout %s", err, data, first)
		}
		if second := fhir.Encode(nil, again); !bytes.Equal(first, second) {
			t.Fatalf("encodings differ:\n%s\n%s", first, second)
		}
		body, err := fhir.Splice(data, nil)
		if err != nil {
			t.Fatalf("%v\n in %s", err, data)
		}
		stored, err := fhir.Decode(r4.Model, body.Render(nil, "x", 1, time.Unix(0, 0)))
		if err != nil {
			t.Fatalf("spliced: %v\n in %s\nout %s", err, data, body.Render(nil, "x", 1, time.Unix(0, 0)))
		}
		if diff := cmp.Diff(withoutHead(lexemes(t, first)), withoutHead(lexemes(t, fhir.Encode(nil, stored)))); diff != "" {
			t.Fatal(diff)
		}
	})
}

func BenchmarkDecode(b *testing.B) {
	for _, name := range []string{"Patient/example", "Observation/blood-pressure"} {
		data := example(b, name)
		b.Run(name, func(b *testing.B) {
			b.SetBytes(int64(len(data)))
			b.ReportAllocs()
			for b.Loop() {
				if _, err := fhir.Decode(r4.Model, data); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

func BenchmarkEncode(b *testing.B) {
	for _, name := range []string{"Patient/example", "Observation/blood-pressure"} {
		data := example(b, name)
		r, err := fhir.Decode(r4.Model, data)
		if err != nil {
			b.Fatal(err)
		}
		b.Run(name, func(b *testing.B) {
			b.SetBytes(int64(len(data)))
			b.ReportAllocs()
			var dst []byte
			for b.Loop() {
				dst = fhir.Encode(dst[:0], r)
			}
		})
	}
}

func BenchmarkSplice(b *testing.B) {
	data := example(b, "Observation/blood-pressure")
	b.SetBytes(int64(len(data)))
	b.ReportAllocs()
	for b.Loop() {
		if _, err := fhir.Splice(data, nil); err != nil {
			b.Fatal(err)
		}
	}
}

func example(tb testing.TB, name string) []byte {
	for line := range lines(tb, "../../definitions/examples/examples.ndjson.gz") {
		if nameOf(tb, line) == name {
			return line
		}
	}
	tb.Fatalf("no example %s", name)
	return nil
}

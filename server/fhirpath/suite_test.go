package fhirpath_test

import (
	"bytes"
	"encoding/xml"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"kiln/gen/r4"
	"kiln/server/fhir"
	"kiln/server/fhirpath"
)

// suiteExceptions are the tests of HL7's suite that this engine answers
// otherwise, each with the reason.
var suiteExceptions = map[string]string{
	"testPlusDate19":                   "N1 ignores the fraction of a duration only above seconds: 0.1 s is 100 ms",
	"LowBoundaryDecimal15":             "nothing above -0.1 with one digit is a lower bound of -0.0034; (-1.587).lowBoundary(2) = -1.59 is rounded outwards as well",
	"HighBoundaryDecimal15":            "nothing below 0.1 with one digit is an upper bound of 0.0034; 1.587.highBoundary(2) = 1.59 is rounded outwards as well",
	"HighBoundaryDecimal16":            "as HighBoundaryDecimal15, with the sign applied to the result",
	"HighBoundaryDateTimeMillisecond1": "the last moment of the hour T08 is 08:59:59.999, not 08:00:59.999",
	"HighBoundaryDateTimeMillisecond3": "as HighBoundaryDateTimeMillisecond1",
}

type suite struct {
	Groups []struct {
		Name  string      `xml:"name,attr"`
		Tests []suiteTest `xml:"test"`
	} `xml:"group"`
}

type suiteTest struct {
	Name       string `xml:"name,attr"`
	Input      string `xml:"inputfile,attr"`
	Mode       string `xml:"mode,attr"`
	Predicate  string `xml:"predicate,attr"`
	Ordered    string `xml:"ordered,attr"`
	Expression struct {
		Text    string `xml:",chardata"`
		Invalid string `xml:"invalid,attr"`
		Mode    string `xml:"mode,attr"`
	} `xml:"expression"`
	Outputs []struct {
		Type string `xml:"type,attr"`
		Text string `xml:",chardata"`
	} `xml:"output"`
}

// sharedData is the folder with HL7's test suite.
func sharedData(t testing.TB) string {
	dir := os.Getenv("KILN_SHARED_DATA")
	if dir == "" {
		t.Skip("KILN_SHARED_DATA does not name the folder with fhirpath-tests-fhir-r4.xml")
	}
	return dir
}

func TestOfficialSuite(t *testing.T) {
	dir := sharedData(t)
	b, err := os.ReadFile(filepath.Join(dir, "fhirpath-tests-fhir-r4.xml"))
	if err != nil {
		t.Fatal(err)
	}
	var s suite
	if err := xml.Unmarshal(b, &s); err != nil {
		t.Fatal(err)
	}
	inputs := map[string]fhir.Node{"": {}}
	total, passed := 0, 0
	used := map[string]bool{}
	for _, g := range s.Groups {
		for _, tt := range g.Tests {
			input, ok := inputs[tt.Input]
			if !ok {
				input = suiteInput(t, dir, tt.Input)
				inputs[tt.Input] = input
			}
			total++
			failure := runSuiteTest(tt, input)
			reason, excepted := suiteExceptions[tt.Name]
			used[tt.Name] = true
			switch {
			case failure == nil && !excepted:
				passed++
			case failure == nil:
				t.Errorf("%s/%s passes, but is listed as an exception: %s", g.Name, tt.Name, reason)
			case !excepted:
				t.Errorf("%s/%s: %s\n\t%v", g.Name, tt.Name, strings.TrimSpace(tt.Expression.Text), failure)
			}
		}
	}
	for name := range suiteExceptions {
		if !used[name] {
			t.Errorf("the exception %s is no test", name)
		}
	}
	t.Logf("%d of %d pass, %d exceptions", passed, total, len(suiteExceptions))
	if passed*100 < total*95 {
		t.Errorf("%d of %d pass, want 95%%", passed, total)
	}
}

func suiteInput(t *testing.T, dir, name string) fhir.Node {
	name = strings.TrimSuffix(name, filepath.Ext(name)) + ".json"
	b, err := os.ReadFile(filepath.Join(dir, "fhirpath-inputs", name))
	if err != nil {
		t.Fatal(err)
	}
	// One input carries a primitive as an object.
	b = bytes.ReplaceAll(b, []byte(`{
        "value": "urn:uuid:79a14950-442c-11ed-b878-0242ac120002"
      }`), []byte(`"urn:uuid:79a14950-442c-11ed-b878-0242ac120002"`))
	r, err := fhir.Decode(r4.Model, b)
	if err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	return fhir.NodeOf(r)
}

// runSuiteTest returns how the result differs from the expected one.
func runSuiteTest(tt suiteTest, input fhir.Node) error {
	opts := fhirpath.Options{Model: r4.Model, Input: input.T, Strict: tt.Mode == "strict" || tt.Expression.Mode == "strict"}
	var got fhirpath.Collection
	p, err := fhirpath.Compile(tt.Expression.Text, opts)
	if err == nil {
		got, err = p.Eval(nil, input)
	}
	if tt.Expression.Invalid != "" {
		if err == nil {
			return fmt.Errorf("no error, want one of kind %s; got %v", tt.Expression.Invalid, texts(got))
		}
		var e *fhirpath.Error
		if !errors.As(err, &e) || tt.Expression.Invalid == "syntax" && e.Phase != fhirpath.Syntax {
			return fmt.Errorf("want an error of kind %s, got %w", tt.Expression.Invalid, err)
		}
		return nil
	}
	if err != nil {
		return err
	}
	if tt.Predicate == "true" {
		got = fhirpath.Collection{fhirpath.Boolean(len(got) > 0)}
	}
	if len(got) != len(tt.Outputs) {
		return fmt.Errorf("got %v, want %d items", texts(got), len(tt.Outputs))
	}
	rest := append(fhirpath.Collection(nil), got...)
	for i, want := range tt.Outputs {
		at := -1
		for j, v := range rest {
			if sameOutput(v, want.Type, want.Text) {
				at = j
				break
			}
			if tt.Ordered != "false" {
				break
			}
		}
		if at < 0 {
			return fmt.Errorf("item %d is not %s %q: got %v", i, want.Type, want.Text, texts(got))
		}
		rest = append(rest[:at:at], rest[at+1:]...)
	}
	return nil
}

func texts(c fhirpath.Collection) []string {
	var list []string
	for _, v := range c {
		list = append(list, v.TypeName()+" "+v.String())
	}
	return list
}

func sameOutput(v fhirpath.Value, typ, text string) bool {
	_, name, _ := strings.Cut(v.TypeName(), ".")
	if typ != "" && !strings.EqualFold(name, typ) {
		return false
	}
	want := strings.TrimPrefix(text, "@")
	if v.Kind() == fhirpath.TimeKind {
		want = strings.TrimPrefix(want, "T")
	}
	return v.String() == want
}

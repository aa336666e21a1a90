package interaction

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"kiln/gen/r4"
	"kiln/server/fhir"
	"kiln/server/search"
	"kiln/server/target"
)

var testTime = time.Date(2024, 5, 6, 7, 8, 9, 0, time.UTC)

func testLinker() *linker {
	return &linker{
		targets: map[string]string{
			"urn:uuid:p":                      "Patient/1",
			"http://example.org/fhir/Group/g": "Group/2",
		},
		versions:    func() map[string]int { return map[string]int{"Patient/1": 1} },
		conditional: map[string]string{"Patient?identifier=7": "Patient/3"},
		search: func(text string) (typ, criteria string, ok bool) {
			typ, criteria, ok = strings.Cut(text, "?")
			return typ, criteria, ok && r4.Model.Resources[typ] != nil
		},
	}
}

func TestLinkerKeepsTheRestToTheByte(t *testing.T) {
	for _, tt := range []struct {
		name, fullURL, in, want string
	}{
		{"nothing to do", "", `{"resourceType":"Basic","code":{"text":"x"},"subject":{"reference":"Patient/9"}}`,
			`"code":{"text":"x"},"subject":{"reference":"Patient/9"}`},
		{"a urn", "", `{"resourceType":"Basic","code":{"text":"x"},"subject":{"reference":"urn:uuid:p"}}`,
			`"code":{"text":"x"},"subject":{"reference":"Patient/1"}`},
		{"a urn that is no entry", "", `{"resourceType":"Basic","code":{"text":"x"},"subject":{"reference":"urn:uuid:q"}}`,
			`"code":{"text":"x"},"subject":{"reference":"urn:uuid:q"}`},
		{"an absolute fullUrl", "", `{"resourceType":"Basic","code":{"text":"x"},"subject":{"reference":"http://example.org/fhir/Group/g"}}`,
			`"code":{"text":"x"},"subject":{"reference":"Group/2"}`},
		{"relative to the entry's own fullUrl", "http://example.org/fhir/Basic/b", `{"resourceType":"Basic","code":{"text":"x"},"subject":{"reference":"Group/g"}}`,
			`"code":{"text":"x"},"subject":{"reference":"Group/2"}`},
		{"relative, and the entry is elsewhere", "http://example.com/fhir/Basic/b", `{"resourceType":"Basic","code":{"text":"x"},"subject":{"reference":"Group/g"}}`,
			`"code":{"text":"x"},"subject":{"reference":"Group/g"}`},
		{"conditional", "", `{"resourceType":"Basic","code":{"text":"x"},"subject":{"reference":"Patient?identifier=7"}}`,
			`"code":{"text":"x"},"subject":{"reference":"Patient/3"}`},
		{"of a version", "", `{"resourceType":"Basic","code":{"text":"x"},"subject":{"reference":"urn:uuid:p/_history/7"}}`,
			`"code":{"text":"x"},"subject":{"reference":"Patient/1/_history/1"}`},
		{"of a version that is not known, relative", "http://example.org/fhir/Basic/b", `{"resourceType":"Basic","code":{"text":"x"},"subject":{"reference":"Group/g/_history/7"}}`,
			`"code":{"text":"x"},"subject":{"reference":"Group/2/_history/7"}`},
		{"of a version of what is no entry", "", `{"resourceType":"Basic","code":{"text":"x"},"subject":{"reference":"Patient/9/_history/7"}}`,
			`"code":{"text":"x"},"subject":{"reference":"Patient/9/_history/7"}`},
		{"a uri, and not a canonical", "", `{"resourceType":"Basic","extension":[{"url":"u","valueUri":"urn:uuid:p"},{"url":"u","valueCanonical":"urn:uuid:p"}],"code":{"text":"x"}}`,
			`"extension":[{"url":"u","valueUri":"Patient/1"},{"url":"u","valueCanonical":"urn:uuid:p"}],"code":{"text":"x"}`},
		{"a canonical is not a link to an entry", "", `{"resourceType":"Basic","meta":{"profile":["http://example.org/fhir/Group/g"]},"code":{"text":"x"}}`,
			`"code":{"text":"x"}`},
		{"a code system may be a urn, but is none of the entries", "", `{"resourceType":"Basic","code":{"coding":[{"system":"urn:uuid:q","code":"urn:uuid:p"}]}}`,
			`"code":{"coding":[{"system":"urn:uuid:q","code":"urn:uuid:p"}]}`},
		{"decimals and escapes stay", "", `{"resourceType":"Basic","extension":[{"url":"u","valueDecimal":1.10}],"code":{"text":"\u00e4"},"subject":{"reference":"urn:uuid:p"}}`,
			`"extension":[{"url":"u","valueDecimal":1.10}],"code":{"text":"\u00e4"},"subject":{"reference":"Patient/1"}`},
	} {
		t.Run(tt.name, func(t *testing.T) {
			r, err := fhir.Decode(r4.Model, []byte(tt.in))
			if err != nil {
				t.Fatal(err)
			}
			raw, edits := testLinker().rewriteReferences(r, tt.fullURL)
			body, err := fhir.Splice(raw, edits)
			if err != nil {
				t.Fatal(err)
			}
			got := string(body.Render(nil, "b", 1, testTime))
			if !strings.HasSuffix(got, tt.want+"}") {
				t.Errorf("got  %s\nwant …%s}", got, tt.want)
			}
			// The model is indexed: it must give the same result.
			again, err := fhir.Decode(r4.Model, []byte(got))
			if err != nil {
				t.Fatal(err)
			}
			if was, is := r.(*r4.Basic).Subject, again.(*r4.Basic).Subject; was != nil && was.Reference.Text != is.Reference.Text {
				t.Errorf("the model says %s, the text %s", was.Reference.Text, is.Reference.Text)
			}
		})
	}
}

func TestNarrative(t *testing.T) {
	l := testLinker()
	for _, tt := range []struct{ in, want string }{
		{`<div>none</div>`, ""},
		{`<div><a href="urn:uuid:p">x</a></div>`, `<div><a href="Patient/1">x</a></div>`},
		{`<div><a href='urn:uuid:p'>x</a><img src="urn:uuid:p"/></div>`, `<div><a href='Patient/1'>x</a><img src="Patient/1"/></div>`},
		{`<div><a href="urn:uuid:q">urn:uuid:p</a></div>`, ""},
		{`<div title="urn:uuid:p" href=`, ""},
		{`<div href="urn:uuid:p`, ""},
		{`=`, ""},
	} {
		if got := l.narrative(tt.in); got != tt.want {
			t.Errorf("narrative(%s) = %s, want %s", tt.in, got, tt.want)
		}
	}
}

func TestBaseOf(t *testing.T) {
	for in, want := range map[string]string{
		"http://example.org/fhir/Patient/1": "http://example.org/fhir/",
		"https://example.org/Patient/1":     "https://example.org/",
		"urn:uuid:x":                        "",
		"http://example.org":                "",
		"":                                  "",
	} {
		if got := baseOf(in); got != want {
			t.Errorf("baseOf(%q) = %q, want %q", in, got, want)
		}
	}
}

// onlyTypes knows the resource types and no search parameters.
type onlyTypes struct {
	Parameters
	types *search.Registry
}

func (o onlyTypes) Current() *search.Registry { return o.types }

func TestParseTarget(t *testing.T) {
	s := &Service{Model: r4.Model, BaseURLs: []string{"http://kiln.test/fhir"}, Parameters: onlyTypes{types: search.NewRegistry(r4.Model, nil, nil)}}
	for _, tt := range []struct {
		in   string
		want target.Target
	}{
		{"Patient", target.Target{Type: "Patient"}},
		{"/Patient/", target.Target{Type: "Patient"}},
		{"Patient/1", target.Target{Type: "Patient", ID: "1"}},
		{"http://kiln.test/fhir/Patient/1", target.Target{Type: "Patient", ID: "1"}},
		{"http://kiln.test/fhir", target.Target{}},
		{"Patient?name=http://x|y", target.Target{Type: "Patient", Query: "name=http://x|y", HasQuery: true}},
		{"Patient/1/_history", target.Target{Type: "Patient", ID: "1", History: true}},
		{"Patient/1/_history/2", target.Target{Type: "Patient", ID: "1", History: true, Version: "2"}},
		{"Patient/_history?_count=1", target.Target{Type: "Patient", History: true, Query: "_count=1", HasQuery: true}},
		{"_history", target.Target{History: true}},
		{"?_type=Patient", target.Target{Query: "_type=Patient", HasQuery: true}},
		{"Patient/1/Observation", target.Target{Type: "Patient", ID: "1", Compartment: "Observation"}},
		{"Patient/1/*", target.Target{Type: "Patient", ID: "1", Compartment: "*"}},
		{"Patient/1/$everything", target.Target{Type: "Patient", ID: "1", Operation: "$everything"}},
		{"ValueSet/$expand?url=x", target.Target{Type: "ValueSet", Operation: "$expand", Query: "url=x", HasQuery: true}},
		{"$validate", target.Target{Operation: "$validate"}},
		{"_search", target.Target{Search: true}},
		{"Patient/1/Observation/_search", target.Target{Type: "Patient", ID: "1", Compartment: "Observation", Search: true}},
		{"metadata", target.Target{Operation: "metadata"}},
		{"Patient/_search", target.Target{Type: "Patient", Search: true}},
		{"Patient/a%2Eb", target.Target{Type: "Patient", ID: "a.b"}},
	} {
		got, err := s.parseTarget(tt.in, "")
		if err != nil {
			t.Errorf("%s: %v", tt.in, err)
			continue
		}
		if diff := cmp.Diff(tt.want, got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", tt.in, diff)
		}
	}
	for _, in := range []string{"Patent/1", "http://elsewhere.test/Patient/1", "Patient/1/_history/2/3", "Patient/1/Nothing", "Patient/%zz"} {
		if got, err := s.parseTarget(in, ""); err == nil {
			t.Errorf("%s: %+v, want an error", in, got)
		}
	}
}

func TestReduce(t *testing.T) {
	body := []byte(`{"resourceType":"Observation","id":"1","meta":{"versionId":"1","tag":[{"code":"a"}]},"text":{"div":"<div a=\"}\">,</div>"},"status":"final","_status":{"id":"x"},"code":{"text":"]}"},"valueQuantity":{"value":1.50},"note":[{"text":"n"}]}`)
	keep := func(names ...string) func(*fhir.Field, string, []byte) []byte {
		return func(f *fhir.Field, _ string, value []byte) []byte {
			if slices.Contains(names, f.Name) {
				return value
			}
			return nil
		}
	}
	got := string(reduceBody((*r4.Observation)(nil).Type(), body, keep("value", "status")))
	want := `{"resourceType":"Observation","id":"1","meta":{"versionId":"1","tag":[{"code":"a"},` + subsetted + `]},"status":"final","_status":{"id":"x"},"valueQuantity":{"value":1.50}}`
	if got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
	got = string(reduceBody((*r4.Observation)(nil).Type(), []byte(`{"resourceType":"Observation","meta":{"versionId":"1"}}`), keep()))
	if want := `{"resourceType":"Observation","meta":{"versionId":"1","tag":[` + subsetted + `]}}`; got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
}

func TestParseETag(t *testing.T) {
	for in, want := range map[string]int{`W/"3"`: 3, `"3"`: 3, `3`: 3, ` W/"12" `: 12} {
		if got, err := ParseETag(in); err != nil || got != want {
			t.Errorf("ParseETag(%q) = %d, %v, want %d", in, got, err, want)
		}
	}
	for _, in := range []string{`W/""`, `W/"0"`, `W/"-1"`, `W/"x"`, `W/"99999999999"`} {
		if got, err := ParseETag(in); err != nil || got != NoVersion {
			t.Errorf("ParseETag(%q) = %d, %v, want NoVersion", in, got, err)
		}
	}
	for _, in := range []string{"", "x", "0", `W/"a b"`, `*`} {
		if got, err := ParseETag(in); err == nil {
			t.Errorf("ParseETag(%q) = %d, want an error", in, got)
		}
	}
}

// A transaction the size of a patient's record: the cost of the walk over all resources.
func BenchmarkLinker(b *testing.B) {
	in := []byte(`{"resourceType":"Observation","status":"final","category":[{"coding":[{"system":"http://terminology.hl7.org/CodeSystem/observation-category","code":"vital-signs"}]}],"code":{"coding":[{"system":"http://loinc.org","code":"8302-2"}]},"subject":{"reference":"urn:uuid:p"},"encounter":{"reference":"urn:uuid:q"},"effectiveDateTime":"2020-01-01","valueQuantity":{"value":1.5,"unit":"cm","system":"http://unitsofmeasure.org","code":"cm"}}`)
	l := testLinker()
	r, err := fhir.Decode(r4.Model, in)
	if err != nil {
		b.Fatal(err)
	}
	subject := &r.(*r4.Observation).Subject.Reference
	link := subject.Text
	b.ReportAllocs()
	for b.Loop() {
		subject.Text = link
		if _, edits := l.rewriteReferences(r, ""); len(edits) != 1 {
			b.Fatal(fmt.Sprint(edits))
		}
	}
}

package searchparam

import (
	"encoding/json"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"time"

	"kiln/definitions"
	"kiln/gen/index"
	"kiln/gen/r4"
	"kiln/server/fhir"
	"kiln/server/search"
	"kiln/server/store"
)

func newService() *Service {
	return &Service{Base: search.NewRegistry(r4.Model, index.Parameters, index.Compartments), Value: index.Value, Model: r4.Model,
		Logger: slog.New(slog.DiscardHandler)}
}

// R4's own SearchParameters may all be stored: they equal the compiled ones, and change nothing.
func TestOwnDefinitionsChangeNothing(t *testing.T) {
	lib, err := definitions.Open(definitions.FS)
	if err != nil {
		t.Fatal(err)
	}
	k := newService()
	k.current.Store(&snapshot{registry: k.Base, stored: map[int64]*stored{}})
	n := 0
	var kept []string
	c := search.Compiler{Base: k.Base}
	for e, body := range lib.All("SearchParameter") {
		r, err := fhir.Decode(r4.Model, slices.Clone(body))
		if err != nil {
			t.Fatalf("%s: %v", e.ID, err)
		}
		p := r.(*r4.SearchParameter)
		if len(p.Base) == 0 {
			continue // of the extensions package: nothing has them
		}
		n++
		custom, err := k.compile(&c, definitionOf(p))
		switch {
		case err != nil:
			kept = append(kept, fmt.Sprintf("%s is refused: %v", e.URL, err))
		case custom != nil:
			for _, q := range custom.Parameters {
				if own, ok := k.Base.Lookup(q.Base, q.Code); ok && own.URL != q.URL {
					continue // another definition has the code, and goes first
				}
				kept = append(kept, fmt.Sprintf("%s of %s is %q, compiled %q", e.URL, q.Base, q.Expression, p.Expression.Text))
			}
		}
	}
	slices.Sort(kept)
	if len(kept) > 0 {
		t.Errorf("%d of %d definitions are not what is compiled:\n%s", len(kept), n, strings.Join(kept, "\n"))
	}
	if n < 1300 {
		t.Errorf("only %d definitions were compared", n)
	}
}

func TestNotice(t *testing.T) {
	k := newService()
	c, err := (&search.Compiler{Base: k.Base}).Compile(search.Definition{URL: "http://x/kin", Code: "kin", Type: fhir.SearchString,
		Base: []string{"Patient"}, Expression: "Patient.contact.name.family"})
	if err != nil {
		t.Fatal(err)
	}
	keys := c.Keys("Patient")
	now := time.Now()
	for _, tc := range []struct {
		name string
		jobs []store.ReindexJob
		want string
	}{
		{"no job", nil, ""},
		{"a job of another type", []store.ReindexJob{{ResourceType: "Group", Keys: []fhir.Key{1}}}, ""},
		{"a job of a type that contains such", []store.ReindexJob{{ResourceType: "Group", Keys: keys}}, "is still being built"},
		{"and is done", []store.ReindexJob{{ResourceType: "Group", Keys: keys, Finished: now}}, ""},
		{"a job for another parameter", []store.ReindexJob{{ResourceType: "Patient", Keys: []fhir.Key{1}}}, ""},
		{"its job is under way", []store.ReindexJob{{ResourceType: "Patient", Keys: keys}}, "is still being built"},
		{"its job is done", []store.ReindexJob{{ResourceType: "Patient", Keys: keys, Finished: now}}, ""},
		{"its job could not index everything", []store.ReindexJob{{ResourceType: "Patient", Keys: keys, Finished: now, Failed: 1, FailedKeys: keys}}, "could not be indexed"},
		{"a later job could", []store.ReindexJob{{ResourceType: "Patient", Keys: keys, Finished: now, FailedKeys: keys}, {ResourceType: "Patient", Finished: now}}, ""},
		{"a later job has not ended", []store.ReindexJob{{ResourceType: "Patient", Keys: keys, Finished: now, FailedKeys: keys}, {ResourceType: "Patient"}}, "could not be indexed"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			p, _ := k.buildRegistry(&snapshot{stored: map[int64]*stored{1: {custom: c}}}, tc.jobs).Lookup("Patient", "kin")
			got := p.Notice
			if tc.want == "" && got != "" || !strings.Contains(got, tc.want) {
				t.Errorf("the notice is %q, want %q", got, tc.want)
			}
		})
	}
}

// What forms says can be indexed is what index.Value indexes.
func TestFormsAgreeWithIndexing(t *testing.T) {
	samples := map[string]string{
		"boolean": `true`, "code": `"a"`, "string": `"a"`, "markdown": `"a"`, "id": `"a"`, "uri": `"urn:a"`, "url": `"http://a"`,
		"oid": `"urn:oid:1.2"`, "uuid": `"urn:uuid:c757873d-ec9a-4326-a141-556f43239520"`, "canonical": `"http://a"`, "integer": `1`,
		"positiveInt": `1`, "unsignedInt": `1`, "decimal": `1.5`, "date": `"2020-01-01"`, "dateTime": `"2020-01-01"`, "instant": `"2020-01-01T00:00:00Z"`,
		"time": `"10:00:00"`, "base64Binary": `"AAAA"`,
		"Coding": `{"system":"s","code":"a","display":"A"}`, "CodeableConcept": `{"coding":[{"code":"a"}],"text":"A"}`,
		"Identifier": `{"value":"a"}`, "ContactPoint": `{"value":"a"}`, "Period": `{"start":"2020"}`, "Timing": `{"event":["2020"]}`,
		"Range": `{"low":{"value":1},"high":{"value":2}}`, "Quantity": `{"value":1}`, "Age": `{"value":1}`, "Count": `{"value":1}`,
		"Distance": `{"value":1}`, "Duration": `{"value":1}`, "Money": `{"value":1,"currency":"EUR"}`, "HumanName": `{"family":"a"}`,
		"Address": `{"city":"a"}`, "Annotation": `{"text":"a"}`, "Reference": `{"reference":"Patient/1"}`,
		"Attachment": `{"title":"a"}`, "Ratio": `{"numerator":{"value":1},"denominator":{"value":2}}`, "SampledData": `{"origin":{"value":1},"period":1,"dimensions":1}`,
		"Signature": `{"type":[{"code":"a"}],"when":"2020-01-01T00:00:00Z","who":{"reference":"Patient/1"}}`,
	}
	base := newService().Base
	for name, sample := range samples {
		property := "value" + strings.ToUpper(name[:1]) + name[1:]
		text := fmt.Sprintf(`{"resourceType":"Patient","extension":[{"url":"http://x","%s":%s}]}`, property, sample)
		if !json.Valid([]byte(text)) {
			t.Fatalf("sample of %s is no JSON", name)
		}
		r, err := fhir.Decode(r4.Model, []byte(text))
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		for _, typ := range []fhir.SearchType{fhir.SearchToken, fhir.SearchDate, fhir.SearchNumber, fhir.SearchQuantity, fhir.SearchString, fhir.SearchReference, fhir.SearchURI} {
			c, err := (&search.Compiler{Base: base}).Compile(search.Definition{URL: "http://x/p", Code: "p", Type: typ, Base: []string{"Patient"},
				Expression: fmt.Sprintf("Patient.extension('http://x').value.ofType(%s)", name)})
			var x fhir.Index
			if err != nil {
				index.Value(&x, typ, 1, r.(*r4.Patient).Extension[0].Value)
			} else {
				x.ResourceType = "Patient"
				if err := base.Extended(1, []*search.Custom{c}, index.Value, nil).Extract(&x, r); err != nil {
					t.Errorf("%s as %s: %v", name, typ, err)
				}
			}
			indexed := len(x.Terms)+len(x.Dates)+len(x.Numbers)+len(x.Quantities)+len(x.Strings) > 0
			if accepted := err == nil; accepted != indexed {
				t.Errorf("%s as %s: accepted is %v, indexed is %v (%v)", name, typ, accepted, indexed, err)
			}
		}
	}
}

// A SearchParameter whose path ends in a part of a HumanName has words, whether it goes
// there by a name, an index, a condition or a choice; a search asks for them only then.
func TestWordsOfStoredParameters(t *testing.T) {
	base := newService().Base
	r, err := fhir.Decode(r4.Model, []byte(`{"resourceType":"Patient","name":[{"use":"maiden","family":"de la Cruz"}],"contact":[{"name":{"family":"de la Cruz"},"address":{"city":"de la Cruz"}}],
		"extension":[{"url":"http://x","valueHumanName":{"family":"de la Cruz"}},{"url":"http://y","valueString":"de la Cruz"}]}`))
	if err != nil {
		t.Fatal(err)
	}
	for _, tc := range []struct {
		expression     string
		words, asksFor bool
	}{
		{"Patient.contact.name.family", true, true},
		{"Patient.contact.name", true, true},
		{"Patient.contact[0].name.family", true, true},
		{"Patient.contact.first().name.family[0]", true, true},
		{"Patient.name.where(use = 'maiden').family", true, true},
		{"Patient.extension('http://x').value.ofType(HumanName).family", true, true},
		{"(Patient.extension('http://x').value as HumanName).family", true, true},
		{"Patient.extension('http://x').value.ofType(HumanName)", true, true},
		{"Patient.extension('http://x')", true, true},
		{"Patient.extension('http://y')", false, true}, // whose value might be a name
		{"Patient.extension('http://y').value.ofType(string)", false, false},
		{"Patient.contact.address.city", false, false},
		{"Patient.contact.address", false, false},
		{"Patient.contact.name.family.substring(0, 20)", false, false},
		{"Patient.name.family", false, true}, // the compiled key, whose entries are there
	} {
		t.Run(tc.expression, func(t *testing.T) {
			c, err := (&search.Compiler{Base: base}).Compile(search.Definition{URL: "http://x/p", Code: "p", Type: fhir.SearchString, Base: []string{"Patient"}, Expression: tc.expression})
			if err != nil {
				t.Fatal(err)
			}
			x := fhir.Index{ResourceType: "Patient"}
			if err := base.Extended(1, []*search.Custom{c}, index.Value, nil).Extract(&x, r); err != nil {
				t.Fatal(err)
			}
			for _, word := range []string{"lacruz", "cruz"} {
				if got := slices.ContainsFunc(x.Strings, func(e fhir.StringEntry) bool { return e.Text == word && e.Word }); got != tc.words {
					t.Errorf("%q is indexed: %v, want %v, in %+v", word, got, tc.words, x.Strings)
				}
			}
			if got := len(c.Parameters[0].Words) > 0; got != tc.asksFor {
				t.Errorf("a search asks for words: %v, want %v", got, tc.asksFor)
			}
		})
	}
}

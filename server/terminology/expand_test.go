package terminology

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"kiln/server/outcome"
)

// tree writes the codes of an expansion: "a (b c) d".
func tree(list []Contained) string {
	var out []string
	for _, c := range list {
		out = append(out, c.Code)
		if len(c.Contains) > 0 {
			out = append(out, "("+tree(c.Contains)+")")
		}
	}
	return strings.Join(out, " ")
}

func expand(t testing.TB, s *Service, p ExpandParams) *ValueSet {
	t.Helper()
	body, err := s.Expand(t.Context(), p)
	if err != nil {
		t.Fatal(err)
	}
	var vs ValueSet
	if err := json.Unmarshal(body, &vs); err != nil {
		t.Fatal(err)
	}
	return &vs
}

// animals is a code system with every kind of concept.
const animals = `{"resourceType":"CodeSystem","id":"animals","url":"http://x/animals","version":"2.1.0","name":"Animals",
 "status":"active","content":"complete","caseSensitive":true,"hierarchyMeaning":"is-a","valueSet":"http://x/vs/all-animals",
 "property":[{"code":"legs","type":"integer"},{"code":"parent","type":"code"},{"code":"note","type":"string"}],
 "concept":[
  {"code":"animal","display":"Animal","property":[{"code":"notSelectable","valueBoolean":true}],"concept":[
   {"code":"mammal","display":"Mammal","concept":[
     {"code":"dog","display":"Dog","definition":"Barks.","designation":[{"language":"de","value":"Hund"},{"language":"fr","value":"Chien"}],"property":[{"code":"legs","valueInteger":4}]},
     {"code":"whale","display":"Whale","property":[{"code":"legs","valueInteger":0},{"code":"parent","valueCode":"swimmer"}]},
     {"code":"dodo-dog","display":"Dodo dog","property":[{"code":"status","valueCode":"retired"},{"code":"legs","valueInteger":4}]}]},
   {"code":"swimmer","display":"Swimmer","concept":[{"code":"trout","display":"Trout","property":[{"code":"note","valueString":"river"}]}]}]},
  {"code":"stone","display":"Stone"}]}`

func vs(url, compose string) string {
	return fmt.Sprintf(`{"resourceType":"ValueSet","id":"%s","url":"%s","status":"active","compose":%s}`,
		strings.NewReplacer("http://x/vs/", "", "/", "-").Replace(url), url, compose)
}

func filter(property, op, value string) string {
	return fmt.Sprintf(`{"include":[{"system":"http://x/animals","filter":[{"property":%q,"op":%q,"value":%q}]}]}`, property, op, value)
}

// Spec: https://hl7.org/fhir/R4/valueset.html#compositions.
func TestCompose(t *testing.T) {
	t.Parallel()
	s, have := local(t, animals,
		vs("http://x/vs/mammals", filter("concept", "is-a", "mammal")),
		vs("http://x/vs/swimmers", filter("concept", "is-a", "swimmer")))
	for _, tt := range []struct{ name, compose, want string }{
		{"a whole code system is nested as it is", `{"include":[{"system":"http://x/animals"}]}`,
			"animal (mammal (dog whale dodo-dog) swimmer (trout)) stone"},
		{"listed concepts come in their order", `{"include":[{"system":"http://x/animals","concept":[{"code":"trout"},{"code":"dog"}]}]}`, "trout dog"},
		{"is-a has the concept itself", filter("concept", "is-a", "mammal"), "mammal (dog whale dodo-dog)"},
		{"is-a follows the property parent", filter("concept", "is-a", "swimmer"), "whale swimmer (trout)"},
		{"descendent-of leaves it out", filter("concept", "descendent-of", "mammal"), "dog whale dodo-dog"},
		{"is-not-a is the rest", filter("concept", "is-not-a", "mammal"), "animal (swimmer (trout)) stone"},
		{"generalizes goes up along every parent", filter("concept", "generalizes", "whale"), "animal (mammal (whale) swimmer)"},
		{"equal compares a property", filter("legs", "=", "4"), "dog dodo-dog"},
		{"parent is a property", filter("parent", "=", "swimmer"), "whale trout"},
		{"child is a property", filter("child", "=", "whale"), "mammal swimmer"},
		{"regex matches the whole code", filter("code", "regex", "d.*g"), "dog dodo-dog"},
		{"regex does not match a part", filter("code", "regex", "do"), ""},
		{"in takes a list", filter("code", "in", "dog, stone"), "dog stone"},
		{"not-in is the rest", filter("code", "not-in", "dog,stone,animal,mammal"), "whale dodo-dog swimmer (trout)"},
		{"exists true", filter("note", "exists", "true"), "trout"},
		{"exists false", filter("legs", "exists", "false"), "animal (mammal swimmer (trout)) stone"},
		{"inactive is a property", filter("inactive", "=", "true"), "dodo-dog"},
		{"filters are ANDed", `{"include":[{"system":"http://x/animals","filter":[{"property":"concept","op":"is-a","value":"mammal"},{"property":"legs","op":"=","value":"4"}]}]}`, "dog dodo-dog"},
		{"includes are ORed, each code once", `{"include":[{"system":"http://x/animals","concept":[{"code":"dog"}]},{"system":"http://x/animals","filter":[{"property":"legs","op":"=","value":"4"}]}]}`, "dog dodo-dog"},
		{"exclude takes away, children move up", `{"include":[{"system":"http://x/animals"}],"exclude":[{"system":"http://x/animals","concept":[{"code":"mammal"},{"code":"stone"}]}]}`,
			"animal (dog whale dodo-dog swimmer (trout))"},
		{"value sets of one include are intersected", `{"include":[{"valueSet":["http://x/vs/mammals","http://x/vs/swimmers"]}]}`, "whale"},
		{"value sets of two includes are united", `{"include":[{"valueSet":["http://x/vs/mammals"]},{"valueSet":["http://x/vs/swimmers"]}]}`, "mammal (dog whale dodo-dog) swimmer (trout)"},
		{"system and value set are intersected", `{"include":[{"system":"http://x/animals","valueSet":["http://x/vs/swimmers"],"filter":[{"property":"legs","op":"exists","value":"true"}]}]}`, "whale"},
		{"a whole system and a value set", `{"include":[{"system":"http://x/animals","valueSet":["http://x/vs/swimmers"]}]}`, "whale swimmer (trout)"},
		{"inactive codes can be left out", `{"inactive":false,"include":[{"system":"http://x/animals","filter":[{"property":"legs","op":"=","value":"4"}]}]}`, "dog"},
		{"the version is that of the system", `{"include":[{"system":"http://x/animals","version":"2.1.0","concept":[{"code":"dog"}]}]}`, "dog"},
		{"a value set of a code system that names it", `{"include":[{"valueSet":["http://x/animals?fhir_vs=isa/swimmer"]}]}`, "whale swimmer (trout)"},
		{"codes of a system that nobody knows, listed", `{"include":[{"system":"http://nowhere","concept":[{"code":"a","display":"A"}]}]}`, "a"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			have.put(t, vs("http://x/vs/tested", tt.compose))
			got := expand(t, s, ExpandParams{URL: "http://x/vs/tested"})
			if d := cmp.Diff(tt.want, tree(got.Expansion.Contains)); d != "" {
				t.Errorf("codes (-want +got):\n%s", d)
			}
			total := countOf(got.Expansion.Contains)
			if got.Expansion.Total == nil || *got.Expansion.Total != total {
				t.Errorf("total is %v for %d codes", got.Expansion.Total, total)
			}
		})
	}
}

func TestComposeRefuses(t *testing.T) {
	t.Parallel()
	s, have := local(t, animals,
		vs("http://x/vs/self", `{"include":[{"valueSet":["http://x/vs/self"]}]}`),
		vs("http://x/vs/a", `{"include":[{"valueSet":["http://x/vs/b"]}]}`),
		vs("http://x/vs/b", `{"exclude":[{"valueSet":["http://x/vs/a"]}],"include":[{"system":"http://x/animals"}]}`))
	for _, tt := range []struct {
		name, compose, want string
		status              int
		code                outcome.Code
	}{
		{"a value set that includes itself", `{"include":[{"valueSet":["http://x/vs/self"]}]}`, "http://x/vs/self -> http://x/vs/self", 422, outcome.CodeInvalid},
		{"a circle of two", `{"include":[{"valueSet":["http://x/vs/a"]}]}`, "http://x/vs/a -> http://x/vs/b -> http://x/vs/a", 422, outcome.CodeInvalid},
		{"the tested one itself", `{"include":[{"valueSet":["http://x/vs/tested"]}]}`, "includes itself", 422, outcome.CodeInvalid},
		{"an unknown value set", `{"include":[{"valueSet":["http://x/vs/none"]}]}`, "ValueSet http://x/vs/none not found", 404, outcome.CodeNotFound},
		{"an unknown code system", `{"include":[{"system":"http://nowhere"}]}`, "CodeSystem http://nowhere", 404, outcome.CodeNotFound},
		{"another version of it", `{"include":[{"system":"http://x/animals","version":"3"}]}`, "http://x/animals|3", 404, outcome.CodeNotFound},
		{"a property that does not exist", filter("wings", "=", "2"), "no such property", 422, outcome.CodeInvalid},
		{"an operator that does not exist", filter("legs", "like", "2"), "expected one of", 422, outcome.CodeInvalid},
		{"a regular expression that is none", filter("code", "regex", "a("), "not a regular expression", 422, outcome.CodeInvalid},
		{"a code that does not exist", filter("concept", "is-a", "unicorn"), "no such code", 422, outcome.CodeInvalid},
		{"a grammar", `{"include":[{"system":"urn:ietf:bcp:47"}]}`, "cannot be listed", 400, outcome.CodeTooCostly},
		{"an include of nothing", `{"include":[{}]}`, "neither system nor valueSet", 422, outcome.CodeInvalid},
		{"concepts without a system", `{"include":[{"concept":[{"code":"a"}]}]}`, "no system", 422, outcome.CodeInvalid},
		{"a contained value set that is not there", `{"include":[{"valueSet":["#x"]}]}`, "no contained value set #x", 422, outcome.CodeNotFound},
	} {
		t.Run(tt.name, func(t *testing.T) {
			have.put(t, vs("http://x/vs/tested", tt.compose))
			_, err := s.Expand(t.Context(), ExpandParams{URL: "http://x/vs/tested"})
			refused(t, err, tt.status, tt.code, tt.want)
		})
	}
	_, err := s.Expand(t.Context(), ExpandParams{URL: "http://x/vs/none"})
	refused(t, err, 404, outcome.CodeNotFound, "ValueSet http://x/vs/none not found")
	_, err = s.Expand(t.Context(), ExpandParams{})
	refused(t, err, 400, outcome.CodeRequired, "needs url or valueSet")
}

func refused(t testing.TB, err error, status int, code outcome.Code, want string) {
	t.Helper()
	e, ok := outcome.From(err)
	if !ok {
		t.Fatalf("no outcome.Error: %v", err)
	}
	if e.HTTPStatus() != status || e.Issues[0].Code != code || !strings.Contains(e.Error(), want) {
		t.Errorf("got %d %s %q, want %d %s with %q", e.HTTPStatus(), e.Issues[0].Code, e.Error(), status, code, want)
	}
}

// Spec: https://hl7.org/fhir/R4/valueset-operation-expand.html.
func TestExpandParameters(t *testing.T) {
	t.Parallel()
	s, _ := local(t, animals)
	two, many, none := 2, 100, 0
	for _, tt := range []struct {
		name   string
		params ExpandParams
		want   string
		total  int
	}{
		{"a page", ExpandParams{Count: &two}, "animal mammal", 8},
		{"the next page", ExpandParams{Count: &two, Offset: 2}, "dog whale", 8},
		{"a page past the end", ExpandParams{Count: &two, Offset: 50}, "", 8},
		{"a count of none", ExpandParams{Count: &none}, "", 8},
		{"an offset alone", ExpandParams{Offset: 6}, "trout stone", 8},
		{"a larger page", ExpandParams{Count: &many}, "animal mammal dog whale dodo-dog swimmer trout stone", 8},
		{"the filter is about display", ExpandParams{Filter: "dog"}, "dog dodo-dog", 2},
		{"every word of it", ExpandParams{Filter: "DOG dodo"}, "dodo-dog", 1},
		{"designations too", ExpandParams{Filter: "hund"}, "dog", 1},
		{"filter and page", ExpandParams{Filter: "dog", Count: &two, Offset: 1}, "dodo-dog", 2},
		{"only active codes", ExpandParams{ActiveOnly: true}, "animal (mammal (dog whale) swimmer (trout)) stone", 7},
		{"without nesting", ExpandParams{ExcludeNested: true}, "animal mammal dog whale dodo-dog swimmer trout stone", 8},
	} {
		t.Run(tt.name, func(t *testing.T) {
			tt.params.URL = "http://x/animals?fhir_vs"
			got := expand(t, s, tt.params).Expansion
			if tree(got.Contains) != tt.want || *got.Total != tt.total {
				t.Errorf("got %q of %d, want %q of %d", tree(got.Contains), *got.Total, tt.want, tt.total)
			}
			if got.Identifier == "" || got.Timestamp == "" {
				t.Errorf("identifier %q, timestamp %q", got.Identifier, got.Timestamp)
			}
		})
	}
}

func TestExpandDetails(t *testing.T) {
	t.Parallel()
	s, have := local(t, animals, vs("http://x/vs/one", `{"include":[{"system":"http://x/animals","concept":[{"code":"dog","display":"A good dog"},{"code":"animal"},{"code":"dodo-dog"}]}]}`))
	got := expand(t, s, ExpandParams{URL: "http://x/vs/one", IncludeDesignations: true, DisplayLanguage: "de", IncludeDefinition: true})
	dog, animal, dodo := got.Expansion.Contains[0], got.Expansion.Contains[1], got.Expansion.Contains[2]
	if dog.Display != "Hund" || len(dog.Designation) != 2 {
		t.Errorf("dog is %+v", dog)
	}
	if !animal.Abstract || animal.Inactive || !dodo.Inactive || dodo.Abstract {
		t.Errorf("abstract and inactive are wrong: %+v, %+v", animal, dodo)
	}
	if got.Compose == nil || got.URL != "http://x/vs/one" {
		t.Errorf("the definition is not in the answer: %+v", got)
	}
	told := map[string]bool{}
	for _, p := range got.Expansion.Parameter {
		told[p.Name+strings.TrimSuffix(p.Text(), "true")] = true
	}
	for _, want := range []string{"versionhttp://x/animals|2.1.0", "displayLanguagede", "includeDesignations"} {
		if !told[want] {
			t.Errorf("expansion.parameter lacks %s: %v", want, told)
		}
	}
	if got := expand(t, s, ExpandParams{URL: "http://x/vs/one"}); got.Compose != nil || got.Expansion.Contains[0].Display != "A good dog" || got.Expansion.Contains[0].Designation != nil {
		t.Errorf("without parameters: %+v", got)
	}

	// A stored resource counts at once, and so does a new version.
	have.put(t, vs("http://x/vs/one", `{"include":[{"system":"http://x/animals","concept":[{"code":"stone"}]}]}`))
	if got := tree(expand(t, s, ExpandParams{URL: "http://x/vs/one"}).Expansion.Contains); got != "stone" {
		t.Errorf("after an update: %q", got)
	}
}

func TestExpandGiven(t *testing.T) {
	t.Parallel()
	s, _ := local(t, animals)
	given, err := ParseValueSet([]byte(`{"resourceType":"ValueSet","url":"http://x/vs/given","contained":[
		{"resourceType":"ValueSet","id":"legs","compose":{"include":[{"system":"http://x/animals","filter":[{"property":"legs","op":"exists","value":"true"}]}]}},
		{"resourceType":"Organization","id":"o"}],
		"compose":{"include":[{"valueSet":["#legs"]}]}}`))
	if err != nil {
		t.Fatal(err)
	}
	if got := tree(expand(t, s, ExpandParams{ValueSet: given}).Expansion.Contains); got != "dog whale dodo-dog" {
		t.Errorf("contained: %q", got)
	}
	given.Compose = &Compose{Include: []Include{{ValueSet: []string{"http://x/vs/given"}}}}
	_, err = s.Expand(t.Context(), ExpandParams{ValueSet: given})
	refused(t, err, 422, outcome.CodeInvalid, "includes itself")

	// One that is enumerated already.
	given, err = ParseValueSet([]byte(`{"resourceType":"ValueSet","expansion":{"contains":[{"display":"Group","contains":[{"system":"s","code":"a"},{"system":"s","code":"b","contains":[{"system":"s","code":"c"}]}]}]}}`))
	if err != nil {
		t.Fatal(err)
	}
	if got := tree(expand(t, s, ExpandParams{ValueSet: given}).Expansion.Contains); got != "a b (c)" {
		t.Errorf("enumerated: %q", got)
	}
}

func TestVersions(t *testing.T) {
	t.Parallel()
	version := func(id, v, code string) string {
		return fmt.Sprintf(`{"resourceType":"ValueSet","id":%q,"url":"http://x/vs/v","version":%q,"compose":{"include":[{"system":"http://x/animals","concept":[{"code":%q}]}]}}`, id, v, code)
	}
	s, _ := local(t, animals, version("ten", "1.10.0", "trout"), version("nine", "1.9.0", "dog"),
		`{"resourceType":"ValueSet","id":"gender","url":"http://hl7.org/fhir/ValueSet/administrative-gender","compose":{"include":[{"system":"http://x/animals","concept":[{"code":"stone"}]}]}}`)
	for url, want := range map[string]string{
		"http://x/vs/v": "trout", "http://x/vs/v|1.9.0": "dog",
		"http://hl7.org/fhir/ValueSet/administrative-gender":       "stone", // stored resources come before the packages
		"http://hl7.org/fhir/ValueSet/administrative-gender|4.0.1": "male female other unknown",
	} {
		if got := tree(expand(t, s, ExpandParams{URL: url}).Expansion.Contains); got != want {
			t.Errorf("%s: got %q, want %q", url, got, want)
		}
	}
	if got := tree(expand(t, s, ExpandParams{URL: "http://x/vs/v", Version: "1.9.0"}).Expansion.Contains); got != "dog" {
		t.Errorf("valueSetVersion: got %q", got)
	}
	_, err := s.Expand(t.Context(), ExpandParams{URL: "http://x/vs/v|7"})
	refused(t, err, 404, outcome.CodeNotFound, "http://x/vs/v|7")
}

func TestTooLarge(t *testing.T) {
	t.Parallel()
	var b strings.Builder
	b.WriteString(`{"resourceType":"CodeSystem","id":"big","url":"http://x/big","content":"complete","concept":[`)
	for i := range maxCodes + 1 {
		if i > 0 {
			b.WriteByte(',')
		}
		fmt.Fprintf(&b, `{"code":"c%d"}`, i)
	}
	b.WriteString(`]}`)
	s, _ := local(t, b.String(), vs("http://x/vs/big", `{"include":[{"system":"http://x/big"}]}`))
	_, err := s.Expand(t.Context(), ExpandParams{URL: "http://x/vs/big"})
	refused(t, err, 400, outcome.CodeTooCostly, "at most 250000 codes")
}

func TestDisabled(t *testing.T) {
	t.Parallel()
	s, err := New(Config{Disabled: true, Packages: r4})
	if err != nil {
		t.Fatal(err)
	}
	const gender = "http://hl7.org/fhir/ValueSet/administrative-gender"
	_, err = s.Expand(t.Context(), ExpandParams{URL: gender})
	refused(t, err, 501, outcome.CodeNotSupported, "terminology services disabled")
	if in, known := s.Contains(gender, "", "male"); !in || !known {
		t.Error("bindings are not checked where terminology is disabled")
	}
}

// Value sets that are small to write and endless to expand.
func TestTooComplex(t *testing.T) {
	t.Parallel()
	var codes strings.Builder
	for i := range 20_000 {
		fmt.Fprintf(&codes, `,{"code":"c%d"}`, i)
	}
	s, _ := local(t, `{"resourceType":"CodeSystem","id":"l","url":"http://x/l","content":"complete","concept":[`+codes.String()[1:]+`]}`)
	given := &ValueSet{Compose: &Compose{}}
	for range 5000 {
		given.Compose.Include = append(given.Compose.Include, Include{System: "http://x/l", Filter: []Filter{{Property: "code", Op: "regex", Value: "x"}}})
	}
	_, err := s.Expand(t.Context(), ExpandParams{ValueSet: given})
	refused(t, err, 400, outcome.CodeTooCostly, "too complex")

	// Each contained value set twice in the one before.
	given = &ValueSet{Compose: &Compose{}, contained: make(map[string]*ValueSet)}
	twice := func(i int) *Compose {
		return &Compose{Include: []Include{{ValueSet: []string{fmt.Sprintf("#%d", i)}}, {ValueSet: []string{fmt.Sprintf("#%d", i)}}}}
	}
	given.Compose = twice(0)
	for i := range 30 {
		given.contained[fmt.Sprintf("#%d", i)] = &ValueSet{Compose: twice(i + 1)}
	}
	given.contained["#30"] = &ValueSet{Compose: &Compose{Include: []Include{{System: "http://x/l", Concept: []ConceptReference{{Code: "c1"}}}}}}
	if got := tree(expand(t, s, ExpandParams{ValueSet: given}).Expansion.Contains); got != "c1" {
		t.Errorf("got %q", got)
	}
	given.contained["#30"] = &ValueSet{Compose: twice(31)}
	given.contained["#31"] = &ValueSet{Compose: twice(32)}
	given.contained["#32"] = &ValueSet{Compose: twice(33)}
	given.contained["#33"] = &ValueSet{Compose: &Compose{}}
	_, err = s.Expand(t.Context(), ExpandParams{ValueSet: given})
	refused(t, err, 400, outcome.CodeTooCostly, "32 deep")
}

package conformance

import (
	"fmt"
	"strings"
	"testing"

	"kiln/server"
)

// TERMINOLOGY, 3: codes that a complete system lacks, properties by URI, versions,
// displays by language.
func TestTerminologyVersions(t *testing.T) {
	t.Parallel()
	s := start(t, func(c *server.Config) { c.Validation.Mode = "full" })
	const sys = "http://x.example/cs"
	system := func(id, version, display, more string) string {
		return fmt.Sprintf(`{"resourceType":"CodeSystem","id":%q,"url":%q,"version":%q,"status":"active","content":"complete",
			"property":[{"code":"off","uri":"http://hl7.org/fhir/concept-properties#inactive","type":"boolean"},{"code":"group","uri":"http://hl7.org/fhir/concept-properties#notSelectable","type":"boolean"},
				{"code":"up","uri":"http://hl7.org/fhir/concept-properties#parent","type":"code"},{"code":"inactive","uri":"http://x.example/other","type":"boolean"}],
			"concept":[{"code":"a","display":%q,"designation":[{"language":"de","value":"Ah"}],"property":[{"code":"inactive","valueBoolean":true}]},
				{"code":"off","property":[{"code":"off","valueBoolean":true},{"code":"up","valueCode":"a"}]},{"code":"g","property":[{"code":"group","valueBoolean":true}]}%s]}`, id, sys, version, display, more)
	}
	s.stores(system("one", "1", "First", `,{"code":"old"}`), system("two", "2", "Second", `,{"code":"new"}`),
		`{"resourceType":"ValueSet","id":"listed","url":"http://x.example/vs/listed","status":"active","compose":{"include":[{"system":"`+sys+`","concept":[{"code":"a"},{"code":"none"}]}]}}`,
		`{"resourceType":"ValueSet","id":"both","url":"http://x.example/vs/both","status":"active","compose":{"include":[{"system":"`+sys+`","version":"1"},{"system":"`+sys+`","version":"2"}]}}`,
		`{"resourceType":"ValueSet","id":"less","url":"http://x.example/vs/less","status":"active","compose":{"include":[{"system":"`+sys+`"}],"exclude":[{"system":"`+sys+`","version":"2","concept":[{"code":"a"}]}]}}`,
		`{"resourceType":"ValueSet","id":"any","url":"http://x.example/vs/any","status":"active","compose":{"include":[{"system":"`+sys+`"}]}}`,
		`{"resourceType":"ValueSet","id":"under","url":"http://x.example/vs/under","status":"active","compose":{"include":[{"system":"`+sys+`","filter":[{"property":"concept","op":"is-a","value":"a"}]}]}}`)
	expand := func(name, more string) string {
		return s.get("/ValueSet/" + name + "/$expand" + more).want(200).codes()
	}
	for name, want := range map[string]string{"listed": "a", "both": "a off g old a off g new", "less": "off g new", "any": "a off g new", "under": "a off"} {
		if got := expand(name, ""); got != want {
			t.Errorf("%s expands to %q, want %q", name, got, want)
		}
	}
	if got := expand("any", "?activeOnly=true"); got != "a g new" {
		t.Errorf("active: %q", got)
	}
	result := func(path string) string { return s.get(path).want(200).str("parameter.0.valueBoolean") }
	for _, c := range []struct{ query, want string }{
		{"listed/$validate-code?code=none&system=" + sys, "false"}, {"listed/$validate-code?code=a&system=" + sys, "true"},
		{"any/$validate-code?code=old&system=" + sys, "false"}, {"any/$validate-code?code=old&systemVersion=1&system=" + sys, "true"},
		{"any/$validate-code?code=new&systemVersion=1&system=" + sys, "false"}, {"any/$validate-code?code=new&systemVersion=2&system=" + sys, "true"},
		{"both/$validate-code?code=old&systemVersion=2&system=" + sys, "false"}, {"both/$validate-code?code=old&systemVersion=1&system=" + sys, "true"},
		{"any/$validate-code?code=g&abstract=false&system=" + sys, "false"},
		{"any/$validate-code?code=a&display=Second&system=" + sys, "true"}, {"any/$validate-code?code=a&systemVersion=1&display=First&system=" + sys, "true"},
		{"any/$validate-code?code=a&systemVersion=1&display=Second&system=" + sys, "false"}, {"any/$validate-code?code=a&display=Ah&system=" + sys, "true"},
		{"any/$validate-code?code=a&display=Ah&displayLanguage=de&system=" + sys, "true"}, {"any/$validate-code?code=a&display=Second&displayLanguage=de&system=" + sys, "false"},
		{"any/$validate-code?code=a&display=Second&displayLanguage=fr&system=" + sys, "true"},
	} {
		if got := result("/ValueSet/" + c.query); got != c.want {
			t.Errorf("%s: %s, want %s", c.query, got, c.want)
		}
	}
	// :in, and validation against a system that was posted at run time.
	s.create(`{"resourceType":"Basic","code":{"coding":[{"system":"` + sys + `","code":"a"}]}}`)
	if a := s.get("/Basic?" + encoded("code:in=http://x.example/vs/listed")).want(200); len(a.matches()) != 1 {
		t.Errorf(":in: %s", a.body)
	}
	none := `{"resourceType":"Basic","code":{"coding":[{"system":"` + sys + `","code":"none"}]}}`
	s.post("/Basic", none).want(201)
	if a := s.post("/Basic/$validate", none).want(200); a.str("issue.0.severity") != "error" || !strings.Contains(string(a.body), "none") {
		t.Errorf("a code that a posted system lacks: %s", a.body)
	}
	if a := s.get("/Basic?" + encoded("code:in=http://x.example/vs/listed")).want(200); len(a.matches()) != 1 {
		t.Errorf(":in finds what the system lacks: %s", a.body)
	}
}

package conformance

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"sync"
	"testing"
	"time"

	"kiln/server"
)

// stores puts resources, each under its type and id.
func (s *service) stores(resources ...string) {
	s.t.Helper()
	for _, r := range resources {
		var head struct{ ResourceType, ID string }
		if err := json.Unmarshal([]byte(r), &head); err != nil {
			s.t.Fatal(err)
		}
		if a := s.do("PUT", "/"+head.ResourceType+"/"+head.ID, r); a.status != 201 && a.status != 200 {
			s.t.Fatalf("PUT %s/%s: %d %s", head.ResourceType, head.ID, a.status, a.body)
		}
	}
}

// expanded is the codes of an expansion: "a (b c) d".
func expanded(list []any) string {
	var out []string
	for _, c := range list {
		c := c.(map[string]any)
		out = append(out, fmt.Sprint(c["code"]))
		if below, ok := c["contains"].([]any); ok {
			out = append(out, "("+expanded(below)+")")
		}
	}
	return strings.Join(out, " ")
}

func (a *answer) codes() string {
	a.t.Helper()
	r, _ := a.json.(map[string]any)
	x, ok := r["expansion"].(map[string]any)
	if a.status != 200 || r["resourceType"] != "ValueSet" || !ok {
		a.t.Fatalf("%s: %d, no expansion: %s", a.what, a.status, a.body)
	}
	list, _ := x["contains"].([]any)
	return expanded(list)
}

// parameters is the parameters of an answer: "result=true; display=Male".
func (a *answer) parameters() string {
	a.t.Helper()
	r, _ := a.json.(map[string]any)
	list, ok := r["parameter"].([]any)
	if a.status != 200 || r["resourceType"] != "Parameters" || !ok {
		a.t.Fatalf("%s: %d, no Parameters: %s", a.what, a.status, a.body)
	}
	var out []string
	for _, p := range list {
		p := p.(map[string]any)
		for k, v := range p {
			if k == "part" {
				out = append(out, fmt.Sprint(p["name"]))
			} else if k != "name" {
				out = append(out, fmt.Sprintf("%v=%v", p["name"], v))
			}
		}
	}
	return strings.Join(out, "; ")
}

// fails checks the issue of an error.
func (a *answer) fails(status int, code, diagnostics string) {
	a.t.Helper()
	r, _ := a.json.(map[string]any)
	issues, _ := r["issue"].([]any)
	if len(issues) == 0 {
		a.t.Fatalf("%s: %d, no issue: %s", a.what, a.status, a.body)
	}
	issue := issues[0].(map[string]any)
	if a.status != status || issue["severity"] != "error" || issue["code"] != code || !strings.Contains(fmt.Sprint(issue["diagnostics"]), diagnostics) {
		a.t.Errorf("%s: %d %v; want %d %s with %q", a.what, a.status, issue, status, code, diagnostics)
	}
}

const (
	genderURL = "http://hl7.org/fhir/ValueSet/administrative-gender"
	genderCS  = "http://hl7.org/fhir/administrative-gender"

	colours = `{"resourceType":"CodeSystem","id":"colours","url":"http://x/colours","status":"active","content":"complete","hierarchyMeaning":"is-a","concept":[
		{"code":"red","display":"Red","concept":[{"code":"pink","display":"Pink","designation":[{"language":"de","value":"Rosa"}]}]},{"code":"blue","display":"Blue"}]}`
	warm = `{"resourceType":"ValueSet","id":"warm","url":"http://x/warm","version":"1","status":"active","compose":{"include":[
		{"system":"http://x/colours","filter":[{"property":"concept","op":"is-a","value":"red"}]}]}}`
	shades = `{"resourceType":"ConceptMap","id":"shades","url":"http://x/shades","status":"active","group":[{"source":"http://x/colours","target":"http://x/farben",
		"element":[{"code":"red","target":[{"code":"rot","equivalence":"equivalent"}]}]}]}`
)

// Spec: https://hl7.org/fhir/R4/valueset-operation-expand.html.
func TestExpand(t *testing.T) {
	s := start(t)
	s.stores(colours, warm)
	in := url.QueryEscape
	for _, tt := range []struct{ name, path, body, want string }{
		{"by url", "/ValueSet/$expand?url=" + in(genderURL), "", "male female other unknown"},
		{"by url and version", "/ValueSet/$expand?url=" + in(genderURL+"|4.0.1"), "", "male female other unknown"},
		{"what is stored", "/ValueSet/$expand?url=http://x/warm&valueSetVersion=1", "", "red (pink)"},
		{"the instance", "/ValueSet/warm/$expand", "", "red (pink)"},
		{"an instance of the packages", "/ValueSet/observation-status/$expand?count=2&offset=3", "", "amended corrected"},
		{"filtered", "/ValueSet/$expand?url=" + in(genderURL) + "&filter=fem", "", "female"},
		{"by POST", "/ValueSet/$expand", `{"resourceType":"Parameters","parameter":[{"name":"url","valueUri":"http://x/warm"},{"name":"excludeNested","valueBoolean":true}]}`, "red pink"},
		{"a value set in the body", "/ValueSet/$expand", `{"resourceType":"Parameters","parameter":[{"name":"count","valueInteger":1},{"name":"valueSet","resource":
			{"resourceType":"ValueSet","status":"draft","compose":{"include":[{"valueSet":["http://x/warm"]}],"exclude":[{"system":"http://x/colours","concept":[{"code":"red"}]}]}}}]}`, "pink"},
		{"a value set as the body", "/ValueSet/$expand", `{"resourceType":"ValueSet","status":"draft","compose":{"include":[{"system":"http://x/colours"}]}}`, "red (pink) blue"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			a := s.in(t).get(tt.path)
			if tt.body != "" {
				a = s.in(t).post(tt.path, tt.body)
			}
			if got := a.codes(); got != tt.want {
				t.Errorf("got %q, want %q", got, tt.want)
			}
		})
	}

	s.get("/ValueSet/$expand").fails(400, "required", "needs url or valueSet")
	s.get("/ValueSet/$expand?url=http://x/none").fails(404, "not-found", "ValueSet http://x/none not found")
	s.get("/ValueSet/none/$expand").fails(404, "not-found", "ValueSet/none")
	s.get("/ValueSet/$expand?url=http://x/warm&count=-1").fails(400, "invalid", "count")
	s.get("/ValueSet/$expand?url=http://x/warm&activeOnly=yes").fails(400, "invalid", "expected true or false")
	s.get("/ValueSet/$expand?url=http://x/warm&url=http://x/warm").fails(400, "invalid", "2 times")
	s.get("/ValueSet/$expand?url=http://x/warm&date=2020").fails(400, "invalid", `no parameter "date"`)
	s.get("/ValueSet/warm/$expand?url=http://x/warm").fails(400, "invalid", "one of")
	s.post("/ValueSet/$expand", `{"resourceType":"Patient"}`).fails(400, "invalid", "takes Parameters")
	s.stores(`{"resourceType":"ValueSet","id":"self","url":"http://x/self","status":"active","compose":{"include":[{"valueSet":["http://x/self"]}]}}`)
	s.get("/ValueSet/$expand?url=http://x/self").fails(422, "invalid", "includes itself: http://x/self -> http://x/self")

	// A change counts at once.
	s.stores(strings.Replace(warm, `"value":"red"`, `"value":"pink"`, 1))
	if got := s.get("/ValueSet/$expand?url=http://x/warm").codes(); got != "pink" {
		t.Errorf("after an update: %q", got)
	}
	s.do("DELETE", "/ValueSet/warm", "")
	s.get("/ValueSet/$expand?url=http://x/warm").fails(404, "not-found", "http://x/warm")
	s.get("/ValueSet/warm/$expand").fails(410, "deleted", "ValueSet/warm")
}

// Spec: https://hl7.org/fhir/R4/valueset-operation-validate-code.html,
// codesystem-operation-validate-code.html.
func TestValidateCode(t *testing.T) {
	s := start(t)
	s.stores(colours, warm)
	for _, tt := range []struct{ name, path, body, want string }{
		{"in", "/ValueSet/$validate-code?url=" + genderURL + "&system=" + genderCS + "&code=male", "", "result=true; display=Male; code=male; system=" + genderCS + "; version=4.0.1"},
		{"a code alone", "/ValueSet/$validate-code?url=" + genderURL + "&code=male", "", "result=true; display=Male; code=male; system=" + genderCS + "; version=4.0.1"},
		{"not in", "/ValueSet/$validate-code?url=http://x/warm&system=http://x/colours&code=blue", "", `result=false; message=code "blue" of http://x/colours is not in ValueSet http://x/warm`},
		{"a coding", "/ValueSet/$validate-code", `{"resourceType":"Parameters","parameter":[{"name":"url","valueUri":"http://x/warm"},{"name":"coding","valueCoding":{"system":"http://x/colours","code":"pink","display":"rosa"}}]}`,
			"result=true; display=Pink; code=pink; system=http://x/colours"},
		{"a concept", "/ValueSet/warm/$validate-code", `{"resourceType":"Parameters","parameter":[{"name":"codeableConcept","valueCodeableConcept":{"coding":[{"system":"http://y","code":"a"},{"system":"http://x/colours","code":"red"}]}}]}`,
			"result=true; display=Red; code=red; system=http://x/colours"},
		{"a wrong display", "/ValueSet/$validate-code?url=http://x/warm&system=http://x/colours&code=pink&display=Blue", "",
			`result=false; message=the display of code "pink" is "Pink", not "Blue"; display=Pink; code=pink; system=http://x/colours`},
		{"a code system", "/CodeSystem/$validate-code?url=http://x/colours&code=blue", "", "result=true; display=Blue; code=blue; system=http://x/colours"},
		{"an instance of a code system", "/CodeSystem/colours/$validate-code?code=green", "", `result=false; message=code "green" is not in CodeSystem http://x/colours`},
	} {
		t.Run(tt.name, func(t *testing.T) {
			a := s.in(t).get(tt.path)
			if tt.body != "" {
				a = s.in(t).post(tt.path, tt.body)
			}
			if got := a.parameters(); got != tt.want {
				t.Errorf("got  %s\nwant %s", got, tt.want)
			}
		})
	}
	s.get("/ValueSet/$validate-code?url=http://x/none&system=s&code=c").fails(404, "not-found", "ValueSet http://x/none not found")
	s.get("/ValueSet/$validate-code?system=s&code=c").fails(400, "required", "needs url")
	s.get("/ValueSet/$validate-code?url=http://x/warm").fails(400, "required", "needs code")
	s.get("/CodeSystem/$validate-code?url=http://x/none&code=c").fails(404, "not-found", "CodeSystem http://x/none")
}

// Spec: https://hl7.org/fhir/R4/codesystem-operation-lookup.html,
// codesystem-operation-subsumes.html, conceptmap-operation-translate.html.
func TestLookupSubsumesTranslate(t *testing.T) {
	s := start(t)
	s.stores(colours, shades)
	for _, tt := range []struct{ path, body, want string }{
		{"/CodeSystem/$lookup?system=http://x/colours&code=pink", "", "name=http://x/colours; display=Pink; designation; property"},
		{"/CodeSystem/$lookup", `{"resourceType":"Parameters","parameter":[{"name":"coding","valueCoding":{"system":"` + genderCS + `","code":"male"}}]}`, "name=AdministrativeGender; version=4.0.1; display=Male"},
		{"/CodeSystem/$subsumes?system=http://x/colours&codeA=red&codeB=pink", "", "outcome=subsumes"},
		{"/CodeSystem/colours/$subsumes?codeA=pink&codeB=red", "", "outcome=subsumed-by"},
		{"/CodeSystem/$subsumes", `{"resourceType":"Parameters","parameter":[{"name":"codingA","valueCoding":{"system":"http://x/colours","code":"red"}},{"name":"codingB","valueCoding":{"system":"http://x/colours","code":"blue"}}]}`, "outcome=not-subsumed"},
		{"/ConceptMap/$translate?url=http://x/shades&system=http://x/colours&code=red", "", "result=true; match"},
		{"/ConceptMap/$translate?targetsystem=http://x/farben&system=http://x/colours&code=red", "", "result=true; match"},
		{"/ConceptMap/shades/$translate?system=http://x/colours&code=blue", "", "result=false; message=the concept map has no match"},
	} {
		a := s.get(tt.path)
		if tt.body != "" {
			a = s.post(tt.path, tt.body)
		}
		if got := a.parameters(); got != tt.want {
			t.Errorf("%s: got  %s\nwant %s", tt.path, got, tt.want)
		}
	}
	s.get("/CodeSystem/$lookup?system=http://x/colours&code=green").fails(404, "not-found", `no code "green"`)
	s.get("/CodeSystem/$lookup?system=http://x/none&code=green").fails(404, "not-found", "CodeSystem http://x/none")
	s.get("/CodeSystem/$subsumes?system=http://x/colours&codeA=red").fails(400, "required", "codeB")
	s.get("/ConceptMap/$translate?url=http://x/none&system=s&code=c").fails(404, "not-found", "ConceptMap http://x/none")
}

func observation(id, system, code string) string {
	if id != "" {
		id = fmt.Sprintf(`"id":%q,`, id)
	}
	return fmt.Sprintf(`{"resourceType":"Observation",%s"status":"final","subject":{"reference":"Patient/p"},"code":{"coding":[{"system":%q,"code":%q}]}}`, id, system, code)
}

func (a *answer) total() string {
	a.t.Helper()
	r, _ := a.json.(map[string]any)
	if a.status != 200 || r["resourceType"] != "Bundle" {
		a.t.Fatalf("%s: %d %s", a.what, a.status, a.body)
	}
	return fmt.Sprint(r["total"])
}

// Spec: https://hl7.org/fhir/R4/search.html#token (in, not-in, below, above).
func TestSearchByTerminology(t *testing.T) {
	s := start(t)
	s.stores(colours, warm,
		`{"resourceType":"Patient","id":"p","gender":"female"}`, `{"resourceType":"Patient","id":"q"}`,
		observation("red", "http://x/colours", "red"), observation("pink", "http://x/colours", "pink"),
		observation("blue", "http://x/colours", "blue"), observation("other", "http://y", "pink"))
	s.stores(strings.Replace(observation("elsewhere", "http://x/colours", "pink"), "Patient/p", "Patient/q", 1))
	for _, tt := range []struct{ query, total string }{
		{"Observation?code:in=http://x/warm", "3"},
		{"Observation?code:in=http://x/warm|1", "3"},
		{"Observation?code:in=ValueSet/warm", "3"},
		{"Observation?code:not-in=http://x/warm", "2"},
		{"Observation?code:below=http://x/colours|red", "3"},
		{"Observation?code:above=http://x/colours|pink", "3"},
		{"Observation?code:above=http://x/colours|red", "1"},
		{"Observation?code:below=http://x/colours|red,http://x/colours|blue", "4"},
		{"Observation?subject=Patient/p&code:in=http://x/warm", "2"},
		{"Observation?subject:Patient.gender:in=" + genderURL + "&code:in=http://x/warm", "2"},
		{"Patient?_has:Observation:subject:code:below=http://x/colours|red", "2"},
		{"Patient?gender:in=" + genderURL, "1"},
		{"Patient?gender:not-in=" + genderURL, "1"},
		{"Patient?gender:below=female", "1"},
	} {
		if got := s.get("/" + tt.query).total(); got != tt.total {
			t.Errorf("%s: total %s, want %s", tt.query, got, tt.total)
		}
	}
	s.get("/Observation?code:in=http://x/none").fails(404, "not-found", "ValueSet http://x/none not found")
	s.get("/Observation?code:in=ValueSet/none").fails(404, "not-found", "ValueSet/none")
	s.get("/Observation?code:below=http://x/none|a").fails(404, "not-found", "CodeSystem http://x/none")
	s.get("/Observation?code:below=red").fails(400, "invalid", "system|code")

	// In a batch, and as a condition.
	a := s.post("/", `{"resourceType":"Bundle","type":"batch","entry":[{"request":{"method":"GET","url":"Observation?code:in=http://x/warm&_summary=count"}}]}`)
	if !strings.Contains(string(a.body), `"total":3`) {
		t.Errorf("in a batch: %s", a.body)
	}
	a = s.post("/Observation", observation("", "http://x/colours", "blue"), "If-None-Exist", "code:in=http://x/warm&subject=Patient/q")
	if a.status != 200 {
		t.Errorf("conditional create: %d %s", a.status, a.body)
	}
}

// A set of 40,000 codes.
func TestSearchByLargeValueSet(t *testing.T) {
	var codes strings.Builder
	for i := range 40_000 {
		if i > 0 {
			codes.WriteByte(',')
		}
		fmt.Fprintf(&codes, `{"code":"c%d"}`, i)
	}
	s := start(t)
	s.stores(`{"resourceType":"Patient","id":"p"}`,
		`{"resourceType":"CodeSystem","id":"large","url":"http://x/large","status":"active","content":"complete","concept":[`+codes.String()+`]}`,
		`{"resourceType":"ValueSet","id":"large","url":"http://x/vs/large","status":"active","compose":{"include":[{"system":"http://x/large"}]}}`)
	var entries []string
	for i := range 500 {
		system := "http://x/large"
		if i%5 == 0 {
			system = "http://x/small"
		}
		entries = append(entries, `{"request":{"method":"POST","url":"Observation"},"resource":`+observation("", system, fmt.Sprintf("c%d", i*79))+`}`)
	}
	if a := s.post("/", `{"resourceType":"Bundle","type":"transaction","entry":[`+strings.Join(entries, ",")+`]}`); a.status != 200 {
		t.Fatalf("transaction: %d %s", a.status, a.body)
	}
	for _, tt := range []struct{ query, total string }{
		{"Observation?code:in=http://x/vs/large", "400"},
		{"Observation?code:not-in=http://x/vs/large", "100"},
		{"Observation?code:in=http://x/vs/large&code=http://x/large|c79", "1"},
		{"Observation?code:in=http://x/vs/large,http://x/large?fhir_vs", "400"},
		{"Observation?code:in=http://x/vs/large&_sort=-_lastUpdated&_count=5", "400"},
	} {
		if got := s.get("/" + tt.query).total(); got != tt.total {
			t.Errorf("%s: total %s, want %s", tt.query, got, tt.total)
		}
	}
	begin := time.Now()
	s.get("/Observation?code:in=http://x/vs/large")
	if took := time.Since(begin); took > 2*time.Second {
		t.Errorf("a cached set of 40,000 codes took %v", took)
	}
}

func TestTerminologyDisabled(t *testing.T) {
	s := start(t, func(c *server.Config) { c.Terminology.Enabled = false })
	for _, path := range []string{
		"/ValueSet/$expand?url=" + genderURL, "/ValueSet/$validate-code?url=" + genderURL + "&code=male", "/CodeSystem/$lookup?system=" + genderCS + "&code=male",
		"/CodeSystem/$subsumes?system=" + genderCS + "&codeA=male&codeB=female", "/ConceptMap/$translate?url=http://x&code=a&system=b",
		"/Patient?gender:in=" + genderURL, "/Patient?gender:not-in=" + genderURL, "/Observation?code:below=http://x|a", "/Observation?code:above=http://x|a",
	} {
		s.get(path).fails(501, "not-supported", "terminology services disabled")
	}
}

func TestTerminologyServer(t *testing.T) {
	var mu sync.Mutex
	var asked []string
	down := false
	far := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		mu.Lock()
		defer mu.Unlock()
		asked = append(asked, r.URL.Query().Get("url"))
		w.Header().Set("Content-Type", "application/fhir+json")
		switch {
		case down:
			w.WriteHeader(http.StatusBadGateway)
		case strings.HasPrefix(asked[len(asked)-1], "http://snomed.info/sct?fhir_vs=ecl/<<73211009"):
			fmt.Fprint(w, `{"resourceType":"ValueSet","expansion":{"total":2,"contains":[{"system":"http://snomed.info/sct","code":"73211009"},{"system":"http://snomed.info/sct","code":"44054006"}]}}`)
		default:
			w.WriteHeader(http.StatusNotFound)
		}
	}))
	defer far.Close()
	s := start(t, func(c *server.Config) { c.Terminology.ServerURL = far.URL; c.Terminology.CacheTTLSecs = 1 })
	s.stores(`{"resourceType":"Patient","id":"p"}`, observation("a", "http://snomed.info/sct", "44054006"), observation("b", "http://snomed.info/sct", "22298006"))
	below := "/Observation?code:below=http://snomed.info/sct|73211009"
	if got := s.get(below).total(); got != "1" {
		t.Errorf("below: total %s, want 1", got)
	}
	s.get("/ValueSet/$expand?url=http://far/none").fails(404, "not-found", "ValueSet http://far/none not found")
	if got := s.get("/ValueSet/$expand?url=" + genderURL).codes(); got != "male female other unknown" {
		t.Errorf("local value set: %q", got)
	}
	mu.Lock()
	if len(asked) != 2 {
		t.Errorf("the terminology server was asked for %q", asked)
	}
	down = true
	mu.Unlock()
	a := s.get("/ValueSet/$expand?url=http://far/other")
	a.fails(503, "exception", "terminology server unavailable: it answered 502 Bad Gateway")
	if strings.Contains(string(a.body), far.URL) {
		t.Errorf("the answer tells the address: %s", a.body)
	}
	s.get("/Observation?code:in=http://far/other").fails(503, "exception", "terminology server unavailable")
}

// A Kiln is the terminology server of another one: it is asked by the parameters that the
// OperationDefinitions of R4 name, of which it refuses any other.
func TestTerminologyServerIsStrict(t *testing.T) {
	t.Parallel()
	far := start(t)
	far.post("/CodeSystem", `{"resourceType":"CodeSystem","url":"http://far/cs","version":"1","status":"active","content":"complete","hierarchyMeaning":"is-a",
		"concept":[{"code":"a","display":"Alpha","concept":[{"code":"a1","display":"Alpha one"}]},{"code":"b","display":"Beta"}]}`).want(201)
	far.post("/ValueSet", `{"resourceType":"ValueSet","url":"http://far/vs","status":"active","compose":{"include":[{"system":"http://far/cs","filter":[{"property":"concept","op":"is-a","value":"a"}]}]}}`).want(201)
	s := start(t, func(c *server.Config) { c.Terminology.ServerURL = far.base })
	for query, want := range map[string]string{
		"/CodeSystem/$validate-code?url=http://far/cs&code=a1":                                     "true",
		"/CodeSystem/$validate-code?url=http://far/cs&code=a1&version=1":                           "true",
		"/CodeSystem/$validate-code?url=http://far/cs&code=c":                                      "false",
		"/ValueSet/$validate-code?url=http://far/vs&system=http://far/cs&code=a1":                  "true",
		"/ValueSet/$validate-code?url=http://far/vs&system=http://far/cs&code=a1&systemVersion=1":  "true",
		"/ValueSet/$validate-code?url=http://far/vs&system=http://far/cs&code=b":                   "false",
		"/ValueSet/$validate-code?url=http://far/vs&system=http://far/cs&code=a1&display=Beta":     "false",
		"/ValueSet/$validate-code?url=http://far/vs&system=http://far/cs&code=a1&valueSetVersion=": "true",
	} {
		if got := s.get(query).want(200).str("parameter.0.valueBoolean"); got != want {
			t.Errorf("%s: %s, want %s", query, got, want)
		}
	}
	s.get("/ValueSet/$expand?url=http://far/vs").want(200).equal("expansion.total", "2")
	s.get("/CodeSystem/$lookup?system=http://far/cs&code=a").want(200)
	s.get("/CodeSystem/$subsumes?system=http://far/cs&codeA=a&codeB=a1").want(200).equal("parameter.0.valueCode", "subsumes")

	// Only the version that is named decides.
	a := far.get("/ValueSet/$validate-code?url=http://far/vs&system=http://far/cs&code=a1&systemVersion=9").want(200).equal("parameter.0.valueBoolean", "false")
	if said := a.str("parameter.1.valueString"); !strings.Contains(said, "version 9 is not known here") {
		t.Errorf("another version: %s", a.body)
	}
}

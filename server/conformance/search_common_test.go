package conformance

import (
	"fmt"
	"testing"
	"time"
)

// search.html#all: the parameters of every resource type.
func TestSearchCommonParameters(t *testing.T) {
	s := start(t)
	s.load(
		`{"resourceType":"Patient","id":"tagged","meta":{"source":"http://source.example/a","profile":["http://profile.example/StructureDefinition/p"],"tag":[{"system":"http://tag.example","code":"green"}],"security":[{"system":"http://terminology.hl7.org/CodeSystem/v3-Confidentiality","code":"R"}]}}`,
		`{"resourceType":"Patient","id":"versioned","meta":{"source":"http://source.example/a#1","profile":["http://profile.example/StructureDefinition/p|2.0"],"tag":[{"code":"green"}]}}`,
		`{"resourceType":"Patient","id":"plain"}`,
		`{"resourceType":"Patient","id":"fragment","meta":{"profile":["http://profile.example/StructureDefinition/p|2.0#x"]}}`,
		`{"resourceType":"Observation","id":"versioned","status":"final","code":{"text":"x"},"subject":{"reference":"Patient/versioned"}}`,
		`{"resourceType":"Observation","id":"plain","meta":{"profile":["http://profile.example/StructureDefinition/o|1"]},"status":"final","code":{"text":"x"},"subject":{"reference":"Patient/plain"}}`,
		`{"resourceType":"List","id":"l","status":"current","mode":"working","entry":[{"item":{"reference":"Patient/plain"}},{"item":{"reference":"Observation/plain"}}]}`,
	)
	s.searches(t, "Patient", []searchCase{
		{"#id", "_id=plain", "plain"},
		{"#id: comma is OR", "_id=plain,tagged,nobody", "plain tagged"},
		{"#id: exact, with case", "_id=Plain", ""},
		{"#id: no prefix match", "_id=pla", ""},
		{"#id: not an id", "_id=a b", "400 _id"},
		{"#lastUpdated", "_lastUpdated=gt2000-01-01", "fragment plain tagged versioned"},
		{"#lastUpdated", "_lastUpdated=lt2000-01-01", ""},
		{"#lastUpdated: a range", "_lastUpdated=ge2000&_lastUpdated=lt2001", ""},
		{"#lastUpdated: not a date", "_lastUpdated=now", "400 _lastUpdated now"},
		{"#tag", "_tag=http://tag.example|green", "tagged"},
		{"#tag", "_tag=green", "tagged versioned"},
		{"#tag", "_tag=|green", "versioned"},
		{"#tag: :not", "_tag:not=green", "fragment plain"},
		{"#tag: :missing", "_tag:missing=true", "fragment plain"},
		{"#security", "_security=R", "tagged"},
		{"#security", "_security=http://terminology.hl7.org/CodeSystem/v3-Confidentiality|R", "tagged"},
		{"#profile, #uri: of any version", "_profile=http://profile.example/StructureDefinition/p", "fragment tagged versioned"},
		{"#profile, #uri: precise", "_profile=http://profile.example/StructureDefinition/p|2.0", "fragment versioned"},
		{"#profile, #uri: with its fragment", "_profile=http://profile.example/StructureDefinition/p|2.0#x", "fragment"},
		{"#profile, #uri: another version", "_profile=http://profile.example/StructureDefinition/p|3.0", ""},
		{"#profile: the start of a version", "_profile:below=http://profile.example/StructureDefinition/p|2", "fragment versioned"},
		{"#profile: :above", "_profile:above=http://profile.example/StructureDefinition/p", "fragment tagged versioned"},
		{"#profile: in _filter", "_filter=_profile eq http://profile.example/StructureDefinition/p", "fragment tagged versioned"},
		{"#has: back along a reference", "_has:Observation:subject:_profile=http://profile.example/StructureDefinition/o", "plain"},
		{"#profile: :missing", "_profile:missing=true", "plain"},
		{"#profile: :below", "_profile:below=http://profile.example", "fragment tagged versioned"},
		{"resource.html#search: _source", "_source=http://source.example/a", "tagged"},
		{"resource.html#search: _source, :below", "_source:below=http://source.example", "tagged versioned"},
		{"#list", "_list=l", "plain"},
		{"#list: with its type", "_list=List/l", "plain"},
		{"#list: no List of the name", "_list=nothing", ""},
		{"#list: functional lists", "_list=$current-allergies", "400 _list"},
		{"#combining: two of them", "_tag=green&_security=R", "tagged"},
		{"#query", "_query=x", "400 _query"},
		{"#contained", "_contained=true", "400 _contained"},
		{"#errors: unknown, with an underscore", "_nothing=x", "400 _nothing"},
	})
	s.searches(t, "Observation", []searchCase{
		{"#chaining: by profile", "subject._profile=http://profile.example/StructureDefinition/p", "versioned"},
	})
	t.Run("_lastUpdated of an instant finds what was written then (#lastUpdated)", func(t *testing.T) {
		s := s.in(t)
		at := s.get("/Patient/plain").want(200).str("meta.lastUpdated")
		s.get("/Patient?_id=plain&_lastUpdated="+at).want(200).equal("total", "1")
		s.get("/Patient?_id=plain&_lastUpdated=gt"+at).want(200).equal("total", "0")
		s.get("/Patient?_id=plain&_lastUpdated=ge"+at).want(200).equal("total", "1")
		today := time.Now().UTC().Format(time.DateOnly)
		s.get("/Patient?_lastUpdated=ge"+today+"&_lastUpdated=le"+today).want(200).equal("total", "4")
	})
	t.Run("what is refused is absent from /metadata (#errors)", func(t *testing.T) {
		a := s.in(t).get("/metadata").want(200)
		offered := map[string]bool{}
		for i := range a.len("rest.0.resource") {
			if at := fmt.Sprintf("rest.0.resource.%d.", i); a.str(at+"type") == "Patient" {
				for n := range a.len(at + "searchParam") {
					offered[a.str(fmt.Sprintf("%ssearchParam.%d.name", at, n))] = true
				}
			}
		}
		for _, name := range []string{"_id", "_lastUpdated", "_tag", "_profile", "_security", "_source", "_list", "_has", "_text", "_content", "family", "birthdate"} {
			if !offered[name] {
				t.Errorf("%s is served and not in /metadata", name)
			}
		}
		for _, name := range []string{"_query", "_contained"} {
			if offered[name] {
				t.Errorf("%s is in /metadata and not served", name)
			}
		}
	})
}

// http.html#search: a search of several types or all of them.
func TestSearchSystem(t *testing.T) {
	s := start(t)
	s.load(
		`{"resourceType":"Patient","id":"x","meta":{"tag":[{"code":"t"}]},"identifier":[{"value":"i"}]}`,
		`{"resourceType":"Practitioner","id":"x","meta":{"tag":[{"code":"t"}]},"identifier":[{"value":"i"}]}`,
		`{"resourceType":"Observation","id":"y","status":"final","code":{"text":"x"},"subject":{"reference":"Patient/x"}}`,
	)
	for _, c := range []struct{ query, want string }{
		{"_type=Patient", "x"},
		{"_type=Patient,Practitioner", "x x"},
		{"_type=Patient,Practitioner,Observation", "x x y"},
		{"_type=Patient&_type=Observation", "x y"},
		{"_type=Patient,Observation&_id=x", "x"},
		{"_type=Patient,Practitioner&identifier=i", "x x"},
		{"_tag=t", "x x"},
		{"_id=y", "y"},
		{"_type=Patient&family=z", ""},
		{"_lastUpdated=gt2000", "x x y"},
	} {
		t.Run(c.query+" (http.html#search)", func(t *testing.T) {
			s := s.in(t)
			for _, a := range []*answer{
				s.get("/?" + c.query), s.get("?" + c.query),
				s.post("/_search", c.query, "Content-Type", "application/x-www-form-urlencoded"),
			} {
				got := fmt.Sprint(a.want(200).matches())
				if got != "["+c.want+"]" {
					t.Errorf("%s found %s, want %q", a.what, got, c.want)
				}
			}
		})
	}
	t.Run("refused by name (http.html#search)", func(t *testing.T) {
		s := s.in(t)
		s.get("/?_type=Patent").issue(400, "not-supported", "Patent", "Patient")
		s.get("/?_type=Patient,Observation&family=x").issue(400, "not-supported", "family")
		s.get("/?nothing=x").issue(400, "not-supported", "nothing")
	})
	t.Run("_type belongs to a search of the system (#all)", func(t *testing.T) {
		s.in(t).get("/Patient?_type=Observation").want(400)
	})
}

// http.html#vsearch and compartmentdefinition.html
func TestSearchCompartments(t *testing.T) {
	s := start(t)
	s.load(
		`{"resourceType":"Patient","id":"p"}`,
		`{"resourceType":"Patient","id":"q","link":[{"other":{"reference":"Patient/p"},"type":"seealso"}]}`,
		`{"resourceType":"Practitioner","id":"d"}`,
		`{"resourceType":"Device","id":"m","patient":{"reference":"Patient/p"}}`,
		`{"resourceType":"RelatedPerson","id":"r","patient":{"reference":"Patient/p"}}`,
		`{"resourceType":"Encounter","id":"e","status":"finished","class":{"code":"AMB"},"subject":{"reference":"Patient/p"},"participant":[{"individual":{"reference":"Practitioner/d"}}]}`,
		`{"resourceType":"Encounter","id":"e2","status":"finished","class":{"code":"AMB"},"subject":{"reference":"Patient/q"},"participant":[{"individual":{"reference":"RelatedPerson/r"}}]}`,
		`{"resourceType":"Observation","id":"o","status":"final","code":{"coding":[{"code":"c"}]},"subject":{"reference":"Patient/p"},"encounter":{"reference":"Encounter/e"},"performer":[{"reference":"Practitioner/d"}],"device":{"reference":"Device/m"}}`,
		`{"resourceType":"Observation","id":"byr","status":"final","code":{"coding":[{"code":"d"}]},"subject":{"reference":"Patient/q"},"performer":[{"reference":"RelatedPerson/r"},{"reference":"Patient/p"}]}`,
		`{"resourceType":"Observation","id":"other","status":"final","code":{"coding":[{"code":"c"}]},"subject":{"reference":"Patient/q"}}`,
		`{"resourceType":"Condition","id":"c","subject":{"reference":"Patient/p"},"encounter":{"reference":"Encounter/e"},"asserter":{"reference":"Practitioner/d"}}`,
	)
	for _, c := range []struct{ path, want string }{
		{"/Patient/p/Observation", "byr o"}, // compartmentdefinition-patient.html: subject, performer
		{"/Patient/p/Observation?code=c", "o"},
		{"/Patient/p/Observation?code=d", "byr"},
		{"/Patient/q/Observation", "byr other"},
		{"/Patient/p/Condition", "c"},
		{"/Patient/p/Encounter", "e"},
		{"/Patient/p/RelatedPerson", "r"},
		{"/Patient/p/Patient", "p q"}, // link and the resource itself
		{"/Encounter/e/Observation", "o"},
		{"/Encounter/e/Condition", "c"},
		{"/Encounter/e2/Observation", ""},
		{"/Practitioner/d/Observation", "o"},
		{"/Practitioner/d/Encounter", "e"},
		{"/Practitioner/d/Condition", "c"},
		{"/RelatedPerson/r/Observation", "byr"},
		{"/RelatedPerson/r/Encounter", "e2"},
		{"/Device/m/Observation", "o"},
		{"/Patient/nobody/Observation", ""},
		{"/Encounter/e/*", "c e o"},
		{"/Device/m/*", "m o"},
		{"/Patient/p/*?_type=Condition", "c"},
		{"/Patient/p/*?_type=Condition%2CEncounter", "c e"},
		{"/Patient/p/*?_id=o", "o"},
	} {
		t.Run(c.path+" (http.html#vsearch)", func(t *testing.T) {
			a := s.in(t).get(c.path).want(200)
			if got := fmt.Sprint(a.matches()); got != "["+c.want+"]" {
				t.Errorf("found %s, want %q", got, c.want)
			}
			if got, want := a.link("self"), s.base+c.path; got != want {
				t.Errorf("self link %q, want %q", got, want)
			}
		})
	}
	t.Run("by POST (http.html#search)", func(t *testing.T) {
		s.in(t).post("/Patient/p/Observation/_search", "code=c", "Content-Type", "application/x-www-form-urlencoded").
			want(200).equal("total", "1").equal("entry.0.resource.id", "o")
	})
	t.Run("a page of a compartment leads to the next (http.html#paging)", func(t *testing.T) {
		s := s.in(t)
		a := s.get("/Patient/p/Observation?_count=1&_sort=_id").want(200).equal("total", "2").equal("entry.0.resource.id", "byr")
		s.get(a.link("next")).want(200).equal("total", "2").equal("entry.0.resource.id", "o")
	})
	t.Run("no compartment (compartmentdefinition.html)", func(t *testing.T) {
		s := s.in(t)
		s.get("/Organization/o/Observation").issue(404, "not-supported")
		s.get("/Patient/p/Organization").issue(404, "not-supported", "Organization")
		s.get("/Patient/p/*?_type=Organization").issue(400, "invalid", "_type", "Organization")
	})
}

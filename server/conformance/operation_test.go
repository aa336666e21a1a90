package conformance

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"
)

// operation-patient-everything.html
func TestEverything(t *testing.T) {
	s := start(t)
	s.put("/Practitioner/dr", `{"resourceType":"Practitioner","id":"dr"}`).want(201)
	for _, p := range []string{"p1", "p2"} {
		s.put("/Patient/"+p, `{"resourceType":"Patient","id":"`+p+`","generalPractitioner":[{"reference":"Practitioner/dr"}]}`).want(201)
		for i := range 5 {
			s.put(fmt.Sprintf("/Observation/%s-o%d", p, i), fmt.Sprintf(`{"resourceType":"Observation","id":"%s-o%d","status":"final","code":{"text":"x"},"subject":{"reference":"Patient/%s"}}`, p, i, p)).want(201)
		}
		s.put("/Condition/"+p+"-c", fmt.Sprintf(`{"resourceType":"Condition","id":"%s-c","subject":{"reference":"Patient/%[1]s"}}`, p)).want(201)
	}
	t.Run("the patient, all that is in the compartment, and what it refers to", func(t *testing.T) {
		a := s.in(t).get("/Patient/p1/$everything").want(200).equal("type", "searchset")
		ids := a.ids()
		slices.Sort(ids)
		if got := strings.Join(ids, " "); got != "dr p1 p1-c p1-o0 p1-o1 p1-o2 p1-o3 p1-o4" {
			t.Errorf("everything of p1: %s", got)
		}
	})
	t.Run("_type, _since and pages", func(t *testing.T) {
		s := s.in(t)
		s.get("/Patient/p1/$everything?_type=Condition").want(200).equal("total", "1").equal("entry.0.resource.id", "p1-c")
		s.get("/Patient/p1/$everything?_since=2999-01-01T00:00:00Z").want(200).equal("total", "0")
		seen := make(map[string]bool)
		for next := "/Patient/p1/$everything?_count=2&_type=Observation,Condition"; next != ""; {
			a := s.get(next).want(200).equal("total", "6")
			for _, id := range a.ids() {
				seen[id] = true
			}
			if next = a.link("next"); next != "" && !strings.Contains(next, "/Patient/p1/$everything?") && !strings.Contains(next, "/Patient/p1/%24everything?") {
				t.Fatalf("next link %q", next)
			}
		}
		if len(seen) != 6 {
			t.Errorf("%d resources on all pages, want 6", len(seen))
		}
		s.get("/Patient/p1/$everything?_type=Patent").issue(400, "invalid", "Patent")
		s.get("/Patient/p1/$everything?bogus=1").issue(400, "invalid", "bogus")
		if a := s.get("/Patient/$everything").issue(404, "not-supported", "there is no operation $everything on the type Patient; there are "); strings.Count(string(a.body), "$everything") > 1 {
			t.Errorf("operations of a resource are among those of the type: %s", a.body)
		}
	})
	t.Run("_type of what is only referred to", func(t *testing.T) {
		a := s.in(t).get("/Patient/p1/$everything?_type=Practitioner").want(200)
		if got := fmt.Sprint(a.ids()); got != "[dr]" {
			t.Errorf("practitioners of p1: %s", got)
		}
	})
	t.Run("start and end of care; what has no date stays", func(t *testing.T) {
		s := s.in(t)
		s.put("/Patient/p3", `{"resourceType":"Patient","id":"p3","birthDate":"1950-01-01"}`).want(201)
		for i := range 5 {
			s.put(fmt.Sprintf("/Observation/d%d", i), fmt.Sprintf(`{"resourceType":"Observation","id":"d%d","status":"final","code":{"text":"x"},"subject":{"reference":"Patient/p3"},"effectiveDateTime":"200%[1]d-05-05"}`, i)).want(201)
		}
		s.put("/Encounter/d5", `{"resourceType":"Encounter","id":"d5","status":"finished","class":{"code":"AMB"},"subject":{"reference":"Patient/p3"},"period":{"start":"2000-01-01","end":"2002-06-01"}}`).want(201)
		s.put("/Condition/d6", `{"resourceType":"Condition","id":"d6","subject":{"reference":"Patient/p3"}}`).want(201)
		for query, want := range map[string]string{
			"start=2002-05-05":                "d2 d3 d4 d5 d6 p3",
			"end=2001":                        "d0 d1 d5 d6 p3",
			"start=2002-06-02&end=2003-12-31": "d3 d6 p3",
			"start=2010":                      "d6 p3",
		} {
			ids := s.get("/Patient/p3/$everything?" + query).want(200).ids()
			slices.Sort(ids)
			if got := strings.Join(ids, " "); got != want {
				t.Errorf("%s: %s, want %s", query, got, want)
			}
		}
		s.get("/Patient/p3/$everything?start=soon").issue(400, "invalid", "soon")
	})
	t.Run("by POST, the inputs are in Parameters (operations.html#executing)", func(t *testing.T) {
		s := s.in(t)
		in := func(parameter string) string { return `{"resourceType":"Parameters","parameter":[` + parameter + `]}` }
		s.post("/Patient/p1/$everything", in(`{"name":"_type","valueCode":"Observation"},{"name":"_count","valueInteger":2}`)).want(200).equal("total", "5").equal("entry.1.resource.resourceType", "Observation").equal("entry.2.resource.id", "")
		s.post("/Patient/p1/$everything", in(`{"name":"bogus","valueCode":"x"}`)).issue(400, "invalid", "bogus")
		s.post("/Patient/p1/$everything", ``).want(200).equal("total", "7")
	})
	t.Run("of nobody", func(t *testing.T) {
		s := s.in(t)
		s.get("/Patient/nobody/$everything").issue(404, "not-found")
		s.do("DELETE", "/Patient/p2", "").want(204)
		s.get("/Patient/p2/$everything").issue(410, "deleted")
		s.get("/Observation/p1-o0/$everything").issue(404, "not-supported", "$everything")
	})
}

// resource-operation-meta.html, -meta-add.html, -meta-delete.html
func TestEverythingSubsets(t *testing.T) {
	s := start(t)
	s.put("/Practitioner/gp", `{"resourceType":"Practitioner","id":"gp","birthDate":"1960-01-01","name":[{"family":"Gp"}]}`).want(201)
	s.put("/Patient/p", `{"resourceType":"Patient","id":"p","birthDate":"2001-02-03","name":[{"family":"P"}],"generalPractitioner":[{"reference":"Practitioner/gp"}]}`).want(201)
	s.put("/Observation/o", `{"resourceType":"Observation","id":"o","status":"final","code":{"text":"x"},"subject":{"reference":"Patient/p"},"note":[{"text":"n"}]}`).want(201)
	for _, query := range []string{"_elements=name,code", "_summary=true", "_elements=name&_elements=code"} {
		a := s.get("/Patient/p/$everything?"+query).want(200).equal("total", "2")
		if a.len("entry") != 3 {
			t.Fatalf("%d entries, want 3\n%s", a.len("entry"), clip(a.body))
		}
		for i := range 3 {
			a.equal(fmt.Sprintf("entry.%d.resource.meta.tag.0.code", i), "SUBSETTED")
			if a.at(fmt.Sprintf("entry.%d.resource.note", i)) != nil {
				t.Errorf("%s: note is there", a.what)
			}
		}
	}
	if a := s.get("/Patient/p/$everything?_summary=count").want(200).equal("total", "2"); a.len("entry") != 0 {
		t.Errorf("_summary=count gives %d entries", a.len("entry"))
	}
	a := s.get("/Patient/p/$everything?_elements=name&_count=1").want(200)
	if l := a.link("next"); !strings.Contains(l, "_elements=name") {
		t.Errorf("the next link is %q", l)
	}
	s.get("/Patient/p/$everything?_summary=brief").issue(400, "invalid", "brief")
}

func TestMeta(t *testing.T) {
	s := start(t)
	id := s.create(`{"resourceType":"Patient","meta":{"tag":[{"system":"urn:s","code":"a"}]},"multipleBirthInteger":1}`)
	meta := func(m string) string {
		return `{"resourceType":"Parameters","parameter":[{"name":"meta","valueMeta":` + m + `}]}`
	}
	path := "/Patient/" + id
	s.get(path+"/$meta").want(200).equal("resourceType", "Parameters").equal("parameter.0.name", "return").equal("parameter.0.valueMeta.tag.0.code", "a")
	a := s.post(path+"/$meta-add", meta(`{"tag":[{"system":"urn:s","code":"a"},{"system":"urn:s","code":"b"}],"profile":["http://example.org/p"]}`)).want(200)
	a.equal("parameter.0.valueMeta.versionId", "2").equal("parameter.0.valueMeta.tag.1.code", "b").equal("parameter.0.valueMeta.profile.0", "http://example.org/p")
	s.get(path).want(200).equal("meta.tag.1.code", "b").equal("multipleBirthInteger", "1")
	s.get("/Patient?_tag=urn:s|b").want(200).equal("total", "1")
	s.post(path+"/$meta-delete", meta(`{"tag":[{"system":"urn:s","code":"a"}],"profile":["http://example.org/p"]}`)).want(200)
	s.get(path).want(200).equal("meta.tag.0.code", "b").equal("meta.profile.0", "").equal("meta.versionId", "3")
	s.get("/Patient?_tag=urn:s|a").want(200).equal("total", "0")

	t.Run("of a type and of the server: all that is in use", func(t *testing.T) {
		s := s.in(t)
		if a := s.get("/Observation/$meta").want(200); a.len("parameter") != 0 {
			t.Errorf("a meta of nothing: %s", a.body)
		}
		s.put("/Observation/o", `{"resourceType":"Observation","id":"o","meta":{"tag":[{"system":"urn:s","code":"b"},{"system":"urn:s","code":"c","display":"C"}],"security":[{"system":"urn:l","code":"R"}]},"status":"final","code":{"text":"x"}}`).want(201)
		s.put("/Patient/q", `{"resourceType":"Patient","id":"q","meta":{"profile":["http://example.org/q"],"tag":[{"system":"urn:s","code":"b"}]}}`, "X-Skip-Validation", "true").want(201)
		for path, want := range map[string]string{
			"/Patient/$meta":     `{"profile":["http://example.org/q"],"tag":[{"code":"b","system":"urn:s"}]}`,
			"/Observation/$meta": `{"security":[{"code":"R","system":"urn:l"}],"tag":[{"code":"b","system":"urn:s"},{"code":"c","display":"C","system":"urn:s"}]}`,
			"/$meta":             `{"profile":["http://example.org/q"],"security":[{"code":"R","system":"urn:l"}],"tag":[{"code":"b","system":"urn:s"},{"code":"c","display":"C","system":"urn:s"}]}`,
		} {
			for _, a := range []*answer{s.get(path), s.post(path, `{"resourceType":"Parameters"}`)} {
				if got := jsonText(a.want(200).at("parameter.0.valueMeta")); got != want {
					t.Errorf("%s: %s, want %s", a.what, got, want)
				}
			}
		}
		b := s.post("/", bundle("transaction", entry("GET", "Patient/$meta", "", ""), entry("DELETE", "Patient/q", "", ""))).want(200)
		if got := jsonText(b.at("entry.0.resource.parameter.0.valueMeta")); got != `{"tag":[{"code":"b","system":"urn:s"}]}` {
			t.Errorf("in a transaction: %s", got)
		}
	})
	s.get(path+"/$meta-add").issue(405, "not-supported")
	s.post(path+"/$meta-add", `{"resourceType":"Parameters"}`).want(400)
	s.post(path+"/$meta-add", `{"resourceType":"Patient"}`).issue(400, "invalid", "Parameters")
	s.post("/Patient/nobody/$meta-add", meta(`{"tag":[{"code":"a"}]}`)).issue(404, "not-found")
	s.get("/Patient/nobody/$meta").issue(404, "not-found")
}

// http.html#capabilities
func TestCapabilities(t *testing.T) {
	s := start(t)
	a := s.get("/metadata").want(200)
	a.equal("resourceType", "CapabilityStatement").equal("fhirVersion", "4.0.1").equal("kind", "instance").equal("status", "active").equal("rest.0.mode", "server")
	types := make(map[string]int)
	for i := range a.len("rest.0.resource") {
		types[a.str(fmt.Sprintf("rest.0.resource.%d.type", i))] = i
	}
	if len(types) < 145 {
		t.Errorf("%d resource types, want all of R4", len(types))
	}
	t.Run("it is a valid CapabilityStatement, and speaks of the types that are no FHIR", func(t *testing.T) {
		s.in(t).post("/CapabilityStatement/$validate", string(a.body)).want(200).equal("issue.0.severity", "information")
		if text := a.str("rest.0.documentation"); !strings.Contains(text, "App") || !strings.Contains(text, "SubscriptionStatus") {
			t.Errorf("rest.documentation is %q", text)
		}
	})
	at := fmt.Sprintf("rest.0.resource.%d.", types["Patient"])
	a.equal(at+"conditionalCreate", "true").equal(at+"conditionalDelete", "single").equal(at+"versioning", "versioned")
	params := make(map[string]string)
	for i := range a.len(at + "searchParam") {
		if name := a.str(fmt.Sprintf("%ssearchParam.%d.name", at, i)); params[name] != "" {
			t.Errorf("parameter %s is there twice (cpb-12)", name)
		}
		params[a.str(fmt.Sprintf("%ssearchParam.%d.name", at, i))] = a.str(fmt.Sprintf("%ssearchParam.%d.type", at, i))
	}
	for name, typ := range map[string]string{"_id": "token", "_lastUpdated": "date", "family": "string", "birthdate": "date", "organization": "reference", "identifier": "token"} {
		if params[name] != typ {
			t.Errorf("Patient's parameter %s is of type %q, want %q", name, params[name], typ)
		}
	}
	t.Run("the service is named as the client sees it (CapabilityStatement.implementation.url)", func(t *testing.T) {
		s := s.in(t)
		s.get("/metadata").equal("implementation.url", s.base)
		s.get(strings.TrimSuffix(s.base, "/fhir")+"/metadata").equal("implementation.url", strings.TrimSuffix(s.base, "/fhir"))
		s.post("/", bundle("batch", entry("GET", "metadata", "", ""))).want(200).equal("entry.0.resource.implementation.url", s.base)
	})
	t.Run("_summary, _elements (http.html#parameters)", func(t *testing.T) {
		s := s.in(t)
		cut := s.get("/metadata?_elements=software").want(200).equal("software.name", "Kiln").equal("fhirVersion", "4.0.1").equal("meta.tag.0.code", "SUBSETTED")
		if cut.at("rest") != nil || cut.at("implementation") != nil {
			t.Error("elements that were not asked for")
		}
		s.get("/metadata?_summary=true").want(200).equal("meta.tag.0.code", "SUBSETTED").equal("fhirVersion", "4.0.1")
		s.get("/metadata?_elements=nothing").issue(400, "invalid", "nothing")
		s.get("/metadata?_summary=maybe").issue(400, "invalid", "maybe")
	})
	t.Run("mode (http.html#capabilities)", func(t *testing.T) {
		s := s.in(t)
		for _, mode := range []string{"full", "normative"} {
			s.get("/metadata?mode="+mode).want(200).equal("resourceType", "CapabilityStatement").equal("rest.0.mode", "server")
		}
		a := s.get("/metadata?mode=terminology").want(200).equal("resourceType", "TerminologyCapabilities").equal("kind", "instance").equal("implementation.url", s.base)
		s.post("/TerminologyCapabilities/$validate", string(a.body)).want(200).equal("issue.0.severity", "information")
		s.get("/metadata?mode=partial").issue(400, "invalid", "partial", "terminology")
	})
	t.Run("what it names is served", func(t *testing.T) {
		s := s.in(t)
		for name, typ := range params {
			if typ == "special" || typ == "composite" {
				continue
			}
			value := map[string]string{"date": "2020", "number": "1", "quantity": "1", "reference": "1", "uri": "urn:x"}[typ]
			if value == "" {
				value = "x"
			}
			s.get("/Patient?" + name + "=" + value).want(200)
		}
	})
}

// Over all pages of $everything each resource comes once, those that the
// record refers to behind its last one.
func TestEverythingOncePerResource(t *testing.T) {
	s := start(t)
	s.put("/Practitioner/dr", `{"resourceType":"Practitioner","id":"dr"}`).want(201)
	s.put("/Patient/p", `{"resourceType":"Patient","id":"p","generalPractitioner":[{"reference":"Practitioner/dr"}]}`).want(201)
	want := map[string]bool{"Patient/p": true, "Practitioner/dr": true}
	for i := range 7 {
		id := fmt.Sprintf("o%d", i)
		member := ""
		if i > 0 {
			member = fmt.Sprintf(`,"hasMember":[{"reference":"Observation/o%d"}]`, i-1)
		}
		s.put("/Observation/"+id, `{"resourceType":"Observation","id":"`+id+`","status":"final","code":{"text":"x"},"subject":{"reference":"Patient/p"},"performer":[{"reference":"Practitioner/dr"}]`+member+`}`).want(201)
		want["Observation/"+id] = true
	}
	for _, query := range []string{"", "_count=1", "_count=2", "_count=3", "_count=8", "_count=100", "_count=2&_since=2000-01-01T00:00:00Z", "_count=3&start=2000-01-01"} {
		t.Run("query "+query, func(t *testing.T) {
			s := s.in(t)
			seen := map[string]int{}
			for next := "/Patient/p/$everything?" + query; next != ""; {
				a := s.get(next).want(200)
				for i := range a.len("entry") {
					at := fmt.Sprintf("entry.%d.resource.", i)
					seen[a.str(at+"resourceType")+"/"+a.str(at+"id")]++
				}
				next = a.link("next")
			}
			for name := range want {
				if seen[name] != 1 {
					t.Errorf("%s comes %d times", name, seen[name])
				}
			}
			if len(seen) != len(want) {
				t.Errorf("found %v", seen)
			}
		})
	}
}

// Every OperationDefinition that /metadata claims can be read, and its
// inputs are checked by name, type and number.
func TestOperationDefinitions(t *testing.T) {
	s := start(t)
	var statement struct {
		Rest []struct {
			Operation []struct{ Name, Definition string }
			Resource  []struct {
				Operation []struct{ Name, Definition string }
			}
		}
	}
	if err := json.Unmarshal(s.get("/metadata").want(200).body, &statement); err != nil {
		t.Fatal(err)
	}
	claimed := map[string]string{}
	for _, o := range statement.Rest[0].Operation {
		claimed[o.Definition] = o.Name
	}
	for _, r := range statement.Rest[0].Resource {
		for _, o := range r.Operation {
			claimed[o.Definition] = o.Name
		}
	}
	if len(claimed) < 15 {
		t.Fatalf("only %d operations are claimed: %v", len(claimed), claimed)
	}
	for definition, name := range claimed {
		if strings.HasPrefix(definition, "http://hl7.org/fhir/uv/bulkdata/") {
			continue // $export has the definitions of HL7's guide, which is no part of the server
		}
		id := definition[strings.LastIndexByte(definition, '/')+1:]
		s.get("/OperationDefinition/"+id).want(200).equal("url", definition).equal("code", name)
	}
	s.get("/ValueSet/$expand?url=http://x&count=many").issue(400, "invalid", "count", "integer")
	s.get("/ValueSet/$expand?url=http://x&url=http://y").issue(400, "invalid", "2 times")
	s.get("/ValueSet/$expand?url=http://x&exclude-system=http://y").issue(400, "invalid", "exclude-system")
	s.post("/Patient/p/$meta-add", `{"resourceType":"Parameters"}`).issue(400, "required", "meta")
	s.get("/Patient/p/$everythin").issue(404, "not-supported", "$everything")
}

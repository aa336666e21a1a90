package conformance

import (
	"fmt"
	"net/url"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"kiln/server"
	"kiln/server/store/storetest"
)

// pair runs two servers on one database.
func pair(t testing.TB) (a, b *service) {
	t.Helper()
	url := storetest.New(t)
	on := func(c *server.Config) { c.Database.URL = url }
	return start(t, on), start(t, on)
}

// parameter is a SearchParameter as JSON; more are further properties.
func parameter(id, code, typ, base, expression string, more ...string) string {
	body := fmt.Sprintf(`{"resourceType":"SearchParameter","url":"http://example.org/SearchParameter/%s","name":%q,"status":"active",
		"description":"a test","code":%q,"type":%q,"base":[%q],"expression":%q`, id, "P"+strings.ReplaceAll(id, "-", ""), code, typ, base, expression)
	if id != "" {
		body += fmt.Sprintf(`,"id":%q`, id)
	}
	for _, m := range more {
		body += "," + m
	}
	return body + "}"
}

// finds fails the test when a search does not give exactly these ids.
func (s *service) finds(path string, want ...string) *answer {
	s.t.Helper()
	a := s.get(path).want(200)
	var got []string
	for i := range a.len("entry") {
		if a.str(fmt.Sprintf("entry.%d.search.mode", i)) == "match" {
			got = append(got, a.str(fmt.Sprintf("entry.%d.resource.id", i)))
		}
	}
	slices.Sort(got)
	slices.Sort(want)
	if !slices.Equal(got, want) {
		s.t.Errorf("%s finds %v, want %v", path, got, want)
	}
	return a
}

// warning is the diagnostics of the outcome entry of a searchset, "" without one.
func (a *answer) warning() string {
	for i := range a.len("entry") {
		if a.str(fmt.Sprintf("entry.%d.search.mode", i)) == "outcome" {
			return a.str(fmt.Sprintf("entry.%d.resource.issue.0.diagnostics", i))
		}
	}
	return ""
}

// eventually waits until ok holds.
func eventually(t testing.TB, what string, ok func() bool) {
	t.Helper()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	deadline := time.After(30 * time.Second)
	for !ok() {
		select {
		case <-tick.C:
		case <-deadline:
			t.Fatalf("after 30 s still not: %s", what)
		}
	}
}

// indexed waits until a search has no warning.
func (s *service) indexed(path string) {
	s.t.Helper()
	eventually(s.t, path+" is answered without a warning", func() bool { return s.get(path).want(200).warning() == "" })
}

const patientWithBoth = `{"resourceType":"Patient","id":"%s","birthDate":"%s","maritalStatus":{"coding":[{"system":"http://terminology.hl7.org/CodeSystem/v3-MaritalStatus","code":"%s"}]},
	"multipleBirthInteger":%d,"communication":[{"language":{"text":"%s"},"preferred":true}],"contact":[{"name":{"family":"%s"}}]}`

func TestSearchParameterTakesEffectAtOnce(t *testing.T) {
	a, b := pair(t)
	a.put("/Patient/before", fmt.Sprintf(patientWithBoth, "before", "1970-01-01", "M", 2, "de", "Old")).want(201)
	b.get("/Patient?contact-name=old").issue(400, "not-supported", "unknown search parameter")

	a.put("/SearchParameter/contact-name", parameter("contact-name", "contact-name", "string", "Patient", "Patient.contact.name.family")).want(201)
	a.put("/Patient/new-a", fmt.Sprintf(patientWithBoth, "new-a", "1980-01-01", "S", 1, "de", "Olden")).want(201)
	// The other server knows, too, from the first request after the answer on.
	b.put("/Patient/new-b", fmt.Sprintf(patientWithBoth, "new-b", "1980-01-01", "S", 1, "de", "Older")).want(201)
	for _, s := range []*service{a, b} {
		s.indexed("/Patient?contact-name=old")
		s.finds("/Patient?contact-name=old", "before", "new-a", "new-b")
		s.finds("/Patient?contact-name:exact=Olden", "new-a")
		s.finds("/Patient?contact-name=old&_sort=contact-name", "before", "new-a", "new-b")
		s.finds("/Patient?contact-name:missing=true")
		if !strings.Contains(string(s.get("/metadata").want(200).body), "http://example.org/SearchParameter/contact-name") {
			t.Error("/metadata does not have the parameter")
		}
	}
	// A reindexed resource has no new version.
	a.get("/Patient/before").want(200).equal("meta.versionId", "1")

	// An update changes the matches, of old and new resources alike.
	b.put("/SearchParameter/contact-name", parameter("contact-name", "contact-name", "string", "Patient", "Patient.communication.language.text")).want(200)
	for _, s := range []*service{a, b} {
		s.indexed("/Patient?contact-name=de")
		s.finds("/Patient?contact-name=old")
		s.finds("/Patient?contact-name=de", "before", "new-a", "new-b")
	}

	// A delete makes searches fail at once, everywhere, and leaves the data.
	a.do("DELETE", "/SearchParameter/contact-name", "").want(204)
	for _, s := range []*service{b, a} {
		s.get("/Patient?contact-name=de").issue(400, "not-supported", "unknown search parameter")
		s.get("/Patient?_sort=contact-name").issue(400, "not-supported", "contact-name")
		if strings.Contains(string(s.get("/metadata").want(200).body), "http://example.org/SearchParameter/contact-name") {
			t.Error("/metadata still has the parameter")
		}
		s.get("/Patient/before").want(200).equal("meta.versionId", "1").equal("communication.0.language.text", "de")
	}
}

func TestSearchParameterOfEveryType(t *testing.T) {
	s := start(t)
	for i, c := range []struct {
		code, typ, base, expression string
		more                        string
		query                       string
		want                        []string
	}{
		{"twin", "number", "Patient", "Patient.multipleBirth.ofType(integer)", "", "/Patient?twin=ge2", []string{"p2"}},
		{"marriage", "token", "Patient", "Patient.maritalStatus", "", "/Patient?marriage=http://terminology.hl7.org/CodeSystem/v3-MaritalStatus%7CM", []string{"p1"}},
		{"adult", "token", "Patient", "Patient.birthDate < @1990-01-01", "", "/Patient?adult=true", []string{"p1"}},
		{"born", "date", "Patient", "Patient.birthDate", "", "/Patient?born=lt1990", []string{"p1"}},
		{"sees", "reference", "Patient", "Patient.generalPractitioner.where(resolve() is Practitioner)", "", "/Patient?sees=Practitioner/dr", []string{"p1"}},
		{"sees-org", "reference", "Patient", "Patient.generalPractitioner", `"target":["Organization"]`, "/Patient?sees-org.name=clinic", []string{"p2"}},
		{"home", "uri", "Patient", "Patient.extension('http://example.org/home').value.ofType(uri)", "", "/Patient?home=http://example.org/1", []string{"p1"}},
		{"dose", "quantity", "Observation", "Observation.component.value.ofType(Quantity)", "", "/Observation?dose=gt5", []string{"o1"}},
		{"part-value", "composite", "Observation", "Observation.component",
			`"component":[{"definition":"http://hl7.org/fhir/SearchParameter/clinical-code","expression":"code"},{"definition":"http://hl7.org/fhir/SearchParameter/Observation-value-quantity","expression":"value.ofType(Quantity)"}]`,
			"/Observation?part-value=x$gt5", []string{"o1"}},
		{"anything", "token", "Resource", "Resource.language", "", "/Patient?anything=de", []string{"p1"}},
	} {
		var more []string
		if c.more != "" {
			more = append(more, c.more)
		}
		_ = i
		s.put("/SearchParameter/"+c.code, parameter(c.code, c.code, c.typ, c.base, c.expression, more...)).want(201)
	}
	s.put("/Practitioner/dr", `{"resourceType":"Practitioner","id":"dr"}`).want(201)
	s.put("/Organization/clinic", `{"resourceType":"Organization","id":"clinic","name":"Clinic"}`).want(201)
	s.put("/Patient/p1", `{"resourceType":"Patient","id":"p1","language":"de","birthDate":"1970-01-01","multipleBirthInteger":1,
		"maritalStatus":{"coding":[{"system":"http://terminology.hl7.org/CodeSystem/v3-MaritalStatus","code":"M"}]},
		"extension":[{"url":"http://example.org/home","valueUri":"http://example.org/1"}],"generalPractitioner":[{"reference":"Practitioner/dr"}]}`).want(201)
	s.put("/Patient/p2", `{"resourceType":"Patient","id":"p2","birthDate":"2000-01-01","multipleBirthInteger":2,"generalPractitioner":[{"reference":"Organization/clinic"}]}`).want(201)
	s.put("/Observation/o1", `{"resourceType":"Observation","id":"o1","status":"final","code":{"text":"c"},"component":[
		{"code":{"coding":[{"code":"x"}]},"valueQuantity":{"value":6}},{"code":{"coding":[{"code":"y"}]},"valueQuantity":{"value":1}}]}`).want(201)
	s.put("/Observation/o2", `{"resourceType":"Observation","id":"o2","status":"final","code":{"text":"c"},"component":[
		{"code":{"coding":[{"code":"x"}]},"valueQuantity":{"value":1}},{"code":{"coding":[{"code":"y"}]},"valueQuantity":{"value":5}}]}`).want(201)
	for _, c := range []struct {
		query string
		want  []string
	}{
		{"/Patient?twin=ge2", []string{"p2"}},
		{"/Patient?twin=lt2", []string{"p1"}},
		{"/Patient?marriage=http://terminology.hl7.org/CodeSystem/v3-MaritalStatus%7CM", []string{"p1"}},
		{"/Patient?marriage:missing=true", []string{"p2"}},
		{"/Patient?adult=true", []string{"p1"}},
		{"/Patient?adult=false", []string{"p2"}},
		{"/Patient?born=lt1990", []string{"p1"}},
		{"/Patient?sees=Practitioner/dr", []string{"p1"}},
		{"/Patient?sees-org:Organization.name=clinic", []string{"p2"}},
		{"/Patient?home=" + url.QueryEscape("http://example.org/1"), []string{"p1"}},
		{"/Observation?dose=gt5", []string{"o1"}},
		{"/Observation?part-value=x$gt5", []string{"o1"}},
		{"/Observation?part-value=y$gt5", nil},
		{"/Patient?anything=de", []string{"p1"}},
		{"/Organization?_has:Patient:sees-org:born=gt1990", []string{"clinic"}},
	} {
		s.finds(c.query, c.want...)
	}
	a := s.get("/Patient?_id=p2&_include=Patient:sees-org").want(200)
	if got := a.ids(); !slices.Contains(got, "clinic") {
		t.Errorf("_include by the new parameter gives %v", got)
	}
	s.finds("/Patient?birthdate=lt1990", "p1") // shares its entries with born
}

// What FHIR gives a meaning in every search can be defined once more, as US Core defines _id,
// and stays as it is.
func TestSearchParameterThatRestates(t *testing.T) {
	s := start(t)
	s.put("/Patient/p", `{"resourceType":"Patient","id":"p","meta":{"tag":[{"system":"urn:t","code":"a"}]}}`).want(201)
	for i, c := range [][4]string{
		{"_id", "token", "Patient", "Patient.id"}, {"_id", "token", "Resource", "id"}, {"_lastUpdated", "date", "Observation", "Observation.meta.lastUpdated"},
		{"_tag", "token", "Patient", "Patient.meta.tag"}, {"_tag", "token", "Observation", "Resource.meta.tag"},
	} {
		id := fmt.Sprint("again", i)
		s.put("/SearchParameter/"+id, parameter(id, c[0], c[1], c[2], c[3])).want(201)
		s.get("/Patient?_id=p&_tag=urn:t|a").want(200).equal("total", "1")
		s.get("/Observation?_id=p&_tag=urn:t|a&_lastUpdated=gt2000").want(200).equal("total", "0")
		s.do("DELETE", "/SearchParameter/"+id, "").want(204)
	}
}

func TestSearchParameterThatCannotWork(t *testing.T) {
	s := start(t)
	s.put("/SearchParameter/first", parameter("first", "first", "string", "Patient", "Patient.name.given")).want(201)
	for _, c := range []struct {
		name, body string
		words      []string
	}{
		{"syntax error", parameter("x", "x", "string", "Patient", "Patient.name.("), []string{"invalid FHIRPath expression", "column 14"}},
		{"unknown element", parameter("x", "x", "string", "Patient", "Patient.nickname"), []string{"nickname", "column"}},
		{"unknown function", parameter("x", "x", "string", "Patient", "Patient.name.shout()"), []string{"shout"}},
		{"of another type", parameter("x", "x", "string", "Patient", "Observation.code"), []string{"says nothing of Patient"}},
		{"values without a form", parameter("x", "x", "quantity", "Patient", "Patient.name"), []string{"HumanName", "quantity"}},
		{"unknown base", parameter("x", "x", "string", "Patent", "Patent.name"), []string{"Patent", "Patient"}},
		{"no url", strings.Replace(parameter("x", "x", "string", "Patient", "Patient.name"), `"url"`, `"_comment"`, 1), nil},
		{"no code", strings.Replace(parameter("x", "x", "string", "Patient", "Patient.name"), `"code":"x",`, "", 1), []string{"code"}},
		{"reserved code", parameter("x", "_count", "string", "Patient", "Patient.name"), []string{"_count"}},
		{"code of reverse chaining", parameter("x", "_has", "string", "Patient", "Patient.name"), []string{"_has", "meaning in every search"}},
		{"code of a system search", parameter("x", "_type", "token", "Patient", "Patient.gender"), []string{"_type"}},
		{"code of every type", parameter("x", "_tag", "token", "Patient", "Patient.gender"), []string{"_tag"}},
		{"code of every type, with another type", parameter("x", "_id", "string", "Patient", "Patient.id"), []string{"_id"}},
		{"code that this server refuses", parameter("x", "_query", "token", "Patient", "Patient.gender"), []string{"_query"}},
		{"code of every type, without expression", strings.Replace(parameter("x", "_profile", "uri", "Patient", "Patient.meta.profile"), `"expression"`, `"_comment"`, 1), nil},
		{"code with a dot", parameter("x", "a.b", "string", "Patient", "Patient.name"), []string{"a.b"}},
		{"url taken", strings.Replace(parameter("x", "x", "string", "Patient", "Patient.name"), "SearchParameter/x", "SearchParameter/first", 1), []string{"SearchParameter/first", "unique"}},
		{"url of a compiled one", strings.Replace(parameter("x", "x", "token", "Patient", "Patient.gender"), "http://example.org/SearchParameter/x", "http://hl7.org/fhir/SearchParameter/individual-gender", 1), []string{"gender", "unique"}},
		{"code taken", parameter("x", "first", "string", "Patient", "Patient.name.family"), []string{"SearchParameter/first"}},
		{"version that storing gives", parameter("x", "x", "token", "Patient", "Patient.meta.versionId"), []string{"meta.versionId", "stored"}},
		{"time that storing gives", parameter("x", "x", "date", "Patient", "Patient.birthDate | Patient.meta.lastUpdated"), []string{"meta.lastUpdated", "_lastUpdated"}},
		{"never ends", parameter("x", "x", "string", "Patient", "'a'.repeat($this & 'a')"), []string{"costs too much"}},
		{"another resource", parameter("x", "x", "string", "Patient", "Patient.generalPractitioner.resolve().name.family"), []string{"resolve()", "cannot be indexed", "chain"}},
		{"another resource in a condition", parameter("x", "x", "reference", "Patient", "Patient.generalPractitioner.where(resolve().active)"), []string{"resolve()", "cannot be indexed"}},
		{"another resource in one branch", parameter("x", "x", "string", "Patient", "Patient.name.family | Patient.managingOrganization.resolve().name"), []string{"resolve()", "cannot be indexed"}},
		{"the time of the search", parameter("x", "x", "token", "Patient", "(Patient.birthDate < today())"), []string{"today()", "cannot be indexed"}},
		{"a value set", parameter("x", "x", "token", "Patient", "Patient.maritalStatus.where(memberOf('http://hl7.org/fhir/ValueSet/marital-status'))"), []string{"memberOf()", "cannot be indexed"}},
		{"another resource in a component", parameter("x", "x", "composite", "Patient", "Patient.contact",
			`"component":[{"definition":"http://example.org/SearchParameter/first","expression":"organization.resolve().name"},{"definition":"http://example.org/SearchParameter/first","expression":"name.family"}]`), []string{"resolve()", "cannot be indexed"}},
		{"component unknown", parameter("x", "x", "composite", "Patient", "Patient.contact",
			`"component":[{"definition":"http://example.org/none","expression":"name"},{"definition":"http://example.org/none","expression":"gender"}]`), []string{"http://example.org/none"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := s.in(t)
			a := s.put("/SearchParameter/x", c.body)
			if a.status != 400 && !(len(c.words) == 0 && a.status == 422) {
				t.Fatalf("status %d, want 400\n%s", a.status, clip(a.body))
			}
			for _, w := range c.words {
				if !strings.Contains(string(a.body), w) {
					t.Errorf("the outcome does not say %q: %s", w, clip(a.body))
				}
			}
			s.get("/SearchParameter/x").want(404)
			s.get("/Patient?x=1").issue(400, "not-supported")
			bundle := fmt.Sprintf(`{"resourceType":"Bundle","type":"transaction","entry":[{"resource":{"resourceType":"Basic","id":"beside","code":{"text":"x"}},"request":{"method":"PUT","url":"Basic/beside"}},
				{"resource":%s,"request":{"method":"PUT","url":"SearchParameter/x"}}]}`, c.body)
			if a := s.post("/", bundle); a.status != 400 && a.status != 422 {
				t.Errorf("in a transaction: status %d\n%s", a.status, clip(a.body))
			}
			s.get("/Basic/beside").want(404)
		})
	}
	s.finds("/Patient?first=x")
}

// An expression that cannot be evaluated on a resource refuses the resource: it
// would be missing from searches in silence.
func TestSearchParameterThatAResourceBreaks(t *testing.T) {
	s := start(t)
	s.put("/Patient/old", `{"resourceType":"Patient","id":"old","name":[{"given":["A","B"]}]}`).want(201)
	s.put("/SearchParameter/initial", parameter("initial", "initial", "string", "Patient", "Patient.name.given.substring(0, 1)")).want(201)
	s.put("/SearchParameter/endless", parameter("endless", "endless", "string", "Patient", "Patient.name.family.repeat($this & 'a')")).want(201)
	s.post("/Patient", `{"resourceType":"Patient","name":[{"given":["A"]}]}`).want(201)
	s.post("/Patient", `{"resourceType":"Patient","name":[{"given":["A","B"]}]}`).issue(422, "invalid", "http://example.org/SearchParameter/initial")
	s.post("/Patient", `{"resourceType":"Patient","name":[{"family":"A"}]}`).issue(422, "invalid", "http://example.org/SearchParameter/endless", "steps")
	// Resources stored before stay, and searches say that they may be missing.
	eventually(t, "the job has ended", func() bool {
		w := s.get("/Patient?initial=a").want(200).warning()
		return strings.Contains(w, "could not be indexed")
	})
	s.get("/Patient/old").want(200)
	s.post("/Patient", `{"resourceType":"Patient"}`, "If-None-Exist", "initial=a").issue(409, "incomplete", "could not be indexed")
	s.do("DELETE", "/SearchParameter/initial", "").want(204)
	s.post("/Patient", `{"resourceType":"Patient","name":[{"given":["A","B"]}]}`).want(201)
}

// While servers write, a parameter comes: nothing that was acknowledged is missing
// when its index is built.
func TestSearchParameterWhileOthersWrite(t *testing.T) {
	a, b := pair(t)
	stop := make(chan struct{})
	var wg sync.WaitGroup
	var mu sync.Mutex
	written := 0
	for i, s := range []*service{a, b, a, b} {
		wg.Go(func() {
			for n := 0; ; n++ {
				select {
				case <-stop:
					return
				default:
				}
				resp, err := s.try("PUT", fmt.Sprintf("/Patient/w%d-%d", i, n), fmt.Sprintf(patientWithBoth, fmt.Sprintf("w%d-%d", i, n), "1980-01-01", "S", 3, "de", "Writer"))
				if err != nil || resp.status != 201 {
					t.Errorf("write %d-%d: %v %v", i, n, err, resp)
					return
				}
				mu.Lock()
				written++
				mu.Unlock()
			}
		})
	}
	for i := range 4 {
		code := fmt.Sprintf("family%d", i)
		[]*service{a, b}[i%2].put("/SearchParameter/"+code, parameter(code, code, "string", "Patient", fmt.Sprintf("Patient.contact.name.family | Patient.contact[%d].name.text", i))).want(201)
	}
	close(stop)
	wg.Wait()
	for i := range 4 {
		path := fmt.Sprintf("/Patient?family%d=writer&_count=0", i)
		a.indexed(path)
		b.indexed(path)
		if got := b.get(path).want(200).str("total"); got != fmt.Sprint(written) {
			t.Errorf("family%d finds %s of %d patients", i, got, written)
		}
	}
	if written < 8 {
		t.Errorf("only %d patients were written meanwhile", written)
	}
}

// A bundle may contain parameters and resources that they index, in any order of entries.
func TestSearchParameterInATransaction(t *testing.T) {
	s := start(t)
	s.post("/", `{"resourceType":"Bundle","type":"transaction","entry":[
		{"resource":`+fmt.Sprintf(patientWithBoth, "t1", "1980-01-01", "S", 3, "de", "Inside")+`,"request":{"method":"PUT","url":"Patient/t1"}},
		{"resource":`+parameter("pair", "pair", "composite", "Patient", "Patient.contact",
		`"component":[{"definition":"http://example.org/SearchParameter/inside","expression":"name.family"},{"definition":"http://hl7.org/fhir/SearchParameter/individual-gender","expression":"gender"}]`)+`,"request":{"method":"PUT","url":"SearchParameter/pair"}},
		{"resource":`+parameter("inside", "inside", "string", "Patient", "Patient.contact.name.family")+`,"request":{"method":"PUT","url":"SearchParameter/inside"}}]}`).want(200)
	s.indexed("/Patient?inside=ins")
	s.finds("/Patient?inside=ins", "t1")
	s.finds("/Patient?pair=ins$male")
}

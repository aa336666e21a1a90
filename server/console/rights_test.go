package console_test

import (
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"html"
	"io"
	"maps"
	"net/http"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"testing"

	"kiln/server"
	"kiln/server/store/storetest"
)

var checkedInput = regexp.MustCompile(`<input type="checkbox" id="[^"]+" name="([^"]+)" value="([^"]*)" checked>`)

// checked are the values of the checked boxes of a name.
func (p *page) checked(name string) (values []string) {
	for _, m := range checkedInput.FindAllStringSubmatch(p.body, -1) {
		if m[1] == name {
			values = append(values, html.UnescapeString(m[2]))
		}
	}
	return values
}

// token signs a person in to a client of its own, and returns an access token with the rights that the console has.
func (s *site) token(name string) string {
	s.t.Helper()
	v, verifier := s.visitor(), strings.Repeat("v", 43)
	sum := sha256.Sum256([]byte(verifier))
	const redirect = "https://rest.example.org/cb"
	const scope = "openid fhirUser user/*.cruds"
	p := v.get("/auth/authorize?" + url.Values{"response_type": {"code"}, "client_id": {"rest"}, "redirect_uri": {redirect}, "scope": {scope}, "state": {strings.Repeat("s", 40)}, "aud": {s.base + "/fhir"},
		"code_challenge": {base64.RawURLEncoding.EncodeToString(sum[:])}, "code_challenge_method": {"S256"}}.Encode())
	p = p.want(200)
	p = v.do(http.MethodPost, "/auth/authorize", url.Values{"session_id": {p.hidden("session_id")}, "csrf_token": {p.hidden("csrf_token")}, "action": {"login"}, "username": {name}, "password": {password}})
	if p.status == http.StatusSeeOther && !strings.HasPrefix(p.location, redirect) {
		p = v.get(p.location)
	}
	if p.status == http.StatusOK {
		p = v.do(http.MethodPost, "/auth/authorize", url.Values{"session_id": {p.hidden("session_id")}, "csrf_token": {p.hidden("csrf_token")}, "action": {"authorize"}, "scope": p.checked("scope")})
	}
	u, err := url.Parse(p.want(http.StatusSeeOther).location)
	if err != nil || u.Query().Get("code") == "" {
		s.t.Fatalf("the sign-in of %s leads to %s", name, p.location)
	}
	p = v.do(http.MethodPost, "/auth/token", url.Values{"grant_type": {"authorization_code"}, "code": {u.Query().Get("code")}, "redirect_uri": {redirect}, "client_id": {"rest"}, "code_verifier": {verifier}}).want(200)
	var answer struct {
		Token string `json:"access_token"`
	}
	if err := json.Unmarshal([]byte(p.body), &answer); err != nil {
		s.t.Fatal(err)
	}
	return answer.Token
}

// rest asks by REST with a token.
func (s *site) rest(token, path string) (status int, body string) {
	s.t.Helper()
	r, err := http.NewRequest(http.MethodGet, s.base+path, nil)
	if err != nil {
		s.t.Fatal(err)
	}
	r.Header.Set("Authorization", "Bearer "+token)
	r.Header.Set("Accept", "application/fhir+json")
	w, err := http.DefaultTransport.RoundTrip(r)
	if err != nil {
		s.t.Fatal(err)
	}
	defer w.Body.Close()
	b, err := io.ReadAll(w.Body)
	if err != nil {
		s.t.Fatal(err)
	}
	return w.StatusCode, string(b)
}

// matrixRecords are two patients' disjoint records with shared resources and resources of nobody, as in the tests of access. Each has
// a marker, which no other resource has.
func matrixRecords() (names []string, bodies map[string]string) {
	bodies = make(map[string]string)
	add := func(name, more string) {
		typ, id, _ := strings.Cut(name, "/")
		names = append(names, name)
		bodies[name] = fmt.Sprintf(`{"resourceType":%q,"id":%q,"meta":{"tag":[{"code":"marker-%s-%s"}]},"text":{"status":"generated","div":"<div xmlns=\"http://www.w3.org/1999/xhtml\">marker-%s-%s</div>"},%s}`, typ, id, typ, id, typ, id, more)
	}
	add("Organization/org", `"name":"General Hospital"`)
	add("Practitioner/dr", `"name":[{"family":"Doctor"}]`)
	add("Location/ward", `"name":"Ward"`)
	add("Medication/pill", `"code":{"text":"pill"}`)
	add("Questionnaire/form", `"status":"active"`)
	for _, p := range []string{"a", "b"} {
		each := func(typ, id, more string) {
			add(typ+"/"+id+"-"+p, strings.NewReplacer("REF", `{"reference":"Patient/`+p+`"}`, "MARK", "marker-"+typ+"-"+id+"-"+p).Replace(more))
		}
		add("Patient/"+p, `"name":[{"family":"marker-Patient-`+p+`"}],"generalPractitioner":[{"reference":"Practitioner/dr"}]`)
		each("Patient", "linked", `"link":[{"other":REF,"type":"seealso"}]`)
		each("Observation", "lab", `"status":"final","code":{"coding":[{"system":"urn:c","code":"MARK"}],"text":"MARK"},"subject":REF,"performer":[{"reference":"Practitioner/dr"}],"valueQuantity":{"value":1,"unit":"MARK"},"effectiveDateTime":"2024-01-01"`)
		each("Observation", "own", `"status":"final","code":{"text":"MARK"},"subject":{"reference":"Group/group-`+p+`"},"performer":[REF]`)
		each("AllergyIntolerance", "nut", `"clinicalStatus":{"coding":[{"system":"http://terminology.hl7.org/CodeSystem/allergyintolerance-clinical","code":"active"}]},"patient":REF,"code":{"text":"MARK"}`)
		each("Appointment", "meet", `"status":"proposed","participant":[{"status":"accepted","actor":{"reference":"Practitioner/dr"}},{"status":"accepted","actor":REF}]`)
		each("Condition", "flu", `"subject":REF,"asserter":{"reference":"Practitioner/dr"},"code":{"text":"MARK"}`)
		each("Device", "pump", `"patient":REF,"serialNumber":"MARK"`)
		each("DiagnosticReport", "report", `"status":"final","code":{"text":"MARK"},"subject":REF,"result":[{"reference":"Observation/lab-`+p+`"}]`)
		each("Encounter", "visit", `"status":"finished","class":{"code":"AMB"},"subject":REF,"serviceProvider":{"reference":"Organization/org"}`)
		each("Group", "group", `"type":"person","actual":true,"member":[{"entity":REF}]`)
		each("Immunization", "shot", `"status":"completed","vaccineCode":{"text":"MARK"},"patient":REF,"occurrenceString":"x"`)
		each("List", "list", `"status":"current","mode":"working","subject":REF`)
		each("Person", "person", `"link":[{"target":REF}]`)
		each("Provenance", "prov", `"target":[REF],"recorded":"2024-01-01T00:00:00Z","agent":[{"who":{"reference":"Practitioner/dr"}}]`)
		each("RelatedPerson", "mother", `"patient":REF,"name":[{"family":"MARK"}]`)
		each("Task", "todo", `"status":"requested","intent":"order","for":REF,"requester":{"reference":"Practitioner/dr"}`)
	}
	add("Observation/nobody", `"status":"final","code":{"text":"marker-Observation-nobody"}`)
	add("Device/shelf", `"serialNumber":"marker-Device-shelf"`)
	return names, bodies
}

// A doctor, a patient and a stranger ask each page of each resource. The status is that of REST, and no page has a marker of
// a resource that REST does not give to the person.
func TestPagesGiveWhatRESTGives(t *testing.T) {
	t.Parallel()
	database := storetest.New(t)
	names, bodies := matrixRecords()
	open := start(t, database)
	for _, name := range names {
		open.put(name, bodies[name])
	}
	open.stop()
	s := start(t, database, withAuthorization, withRESTClient, func(c *server.Config) {
		c.Auth.Bootstrap.Users = append(c.Auth.Bootstrap.Users, map[string]any{"username": "stranger", "password": password, "name": "Stranger", "fhirUser": "Patient/none"})
		c.Auth.RateLimiting.Requests, c.Auth.RateLimiting.Searches = 0, 0
	})
	types := make(map[string]bool)
	for _, name := range names {
		typ, _, _ := strings.Cut(name, "/")
		types[typ] = true
	}
	for _, person := range []string{"doctor", "anna", "stranger"} {
		t.Run(person, func(t *testing.T) {
			token, v := s.token(person), s.visitor()
			v.signIn(person, "/console").want(200)
			csrf := v.get("/console/fhirpath").want(200).hidden("csrf_token")
			var hidden []string
			given := make(map[string]int)
			for _, name := range names {
				status, _ := s.rest(token, "/"+name)
				given[name] = status
				if status != http.StatusOK {
					hidden = append(hidden, "marker-"+strings.Replace(name, "/", "-", 1))
				}
			}
			t.Logf("REST gives %d of %d resources", len(names)-len(hidden), len(names))
			pages := 0
			check := func(p *page, asked ...string) *page {
				t.Helper()
				pages++
				for _, marker := range hidden {
					// A marker ends where the name of the resource does.
					for rest := p.body; ; {
						_, after, found := strings.Cut(rest, marker)
						if !found {
							break
						}
						if rest = after; !slices.Contains(asked, marker) && (after == "" || !strings.ContainsAny(after[:1], "-abcdefghijklmnopqrstuvwxyz")) {
							t.Errorf("%s shows %s", p.what, marker)
							break
						}
					}
				}
				return p
			}
			for _, name := range names {
				below := []string{"", "/json", "/download", "/references", "/history", "/history/1", "/edit", "/delete"}
				if strings.HasPrefix(name, "Patient/") {
					below = append(below, "/view")
				}
				for _, b := range below {
					p := check(v.get("/console/" + name + b))
					if given[name] == http.StatusOK && p.status != http.StatusOK || given[name] != http.StatusOK && p.status != given[name] {
						t.Errorf("%s: %d, REST answers %d", p.what, p.status, given[name])
					}
				}
				p := check(v.do(http.MethodPost, "/console/fhirpath", url.Values{"csrf_token": {csrf}, "address": {name}, "expression": {"$this.text.div | meta.tag.code"}}))
				if (p.status == http.StatusOK) != (given[name] == http.StatusOK) {
					t.Errorf("FHIRPath of %s: %d, REST answers %d", name, p.status, given[name])
				}
				marker := "marker-" + strings.Replace(name, "/", "-", 1)
				typ, _, _ := strings.Cut(name, "/")
				found := v.do(http.MethodPost, "/console/search", url.Values{"csrf_token": {csrf}, "type": {typ}, "query": {"_tag=" + marker}}).want(http.StatusSeeOther)
				p = check(v.get(found.location), marker)
				want := "<strong>1 result</strong>"
				if given[name] != http.StatusOK {
					want = "<strong>0 results</strong>"
				}
				if status, _ := s.rest(token, "/"+typ+"?_tag="+marker); status == http.StatusOK && (p.status != http.StatusOK || !strings.Contains(p.body, want)) {
					t.Errorf("the search for %s: %d, without %s", marker, p.status, want)
				}
			}
			for typ := range types {
				check(v.get("/console/resources/" + typ))
				for _, parameter := range []string{"code", "subject", "patient", "identifier", "_tag", "status"} {
					check(v.do(http.MethodPost, "/console/suggest/"+typ, url.Values{"csrf_token": {csrf}, "parameter": {parameter}, "value": {""}}))
				}
			}
			for _, text := range []string{"marker", "Patient?family=marker", "Observation?_include=*&_revinclude=*", "Patient?_revinclude=Observation:subject", "Practitioner?_revinclude=Patient:general-practitioner"} {
				p := v.do(http.MethodPost, "/console/go", url.Values{"csrf_token": {csrf}, "goto": {text}}).want(http.StatusSeeOther)
				check(v.get(p.location))
			}
			for _, path := range []string{"/Patient/b/$everything", "/_history", "/Patient/_history", "/?_tag=marker-Patient-b", "/Observation?_has:Provenance:target:recorded=2024"} {
				p := v.do(http.MethodPost, "/console/requests", url.Values{"csrf_token": {csrf}, "method": {"GET"}, "path": {path}}).want(http.StatusSeeOther)
				check(v.get(p.location), "marker-Patient-b")
			}

			// Counts.
			counts := check(v.get("/console/resources").want(200))
			check(v.get("/console").want(200))
			for typ := range types {
				status, body := s.rest(token, "/"+typ+"?_summary=count")
				var bundle struct{ Total int }
				if status != http.StatusOK || json.Unmarshal([]byte(body), &bundle) != nil {
					continue
				}
				if row := fmt.Sprintf(`<a href="/console/resources/%s">%s</a></th><td class="number">%d</td>`, typ, typ, bundle.Total); !strings.Contains(counts.body, row) {
					t.Errorf("the count of %s is not the %d of REST", typ, bundle.Total)
				}
			}
			t.Logf("%d pages", pages)
		})
	}
}

// Each form of an administrator, sent by a doctor and a patient with a session and a csrf_token of their own: 403, and nothing is done.
func TestFormsOfAdministratorsSentByOthers(t *testing.T) {
	t.Parallel()
	s, _ := signedUp(t, func(c *server.Config) { c.Auth.RateLimiting.Requests = 0 })
	admin := s.visitor()
	admin.signIn("admin", "/console").want(200)
	csrf := admin.get("/console/fhirpath").hidden("csrf_token")
	ask := func(method, path, body string) string {
		t.Helper()
		p := admin.do(http.MethodPost, "/console/requests", url.Values{"csrf_token": {csrf}, "method": {method}, "path": {path}, "body": {body}, "headers": {"Content-Type: application/json"}}).want(http.StatusSeeOther)
		page := admin.get(p.location).want(200).body
		from, to := strings.LastIndex(page[:strings.Index(page, `id="curl"`)], `<pre tabindex="0">`), strings.Index(page, `<section aria-labelledby="curl">`)
		return page[from:to]
	}
	ask("PUT", "/Subscription/s1", `{"resourceType":"Subscription","id":"s1","status":"off","reason":"x","criteria":"Patient?name=x","channel":{"type":"rest-hook","endpoint":"https://app.example.org/hook"}}`)
	ask("PUT", "/App/dose", `{"resourceType":"App","id":"dose","name":"Dose check","version":"1","status":"draft"}`)
	ask("PUT", "/App/dose", `{"resourceType":"App","id":"dose","name":"Dose check","version":"2","status":"draft"}`)
	ask("POST", "/admin/policies", `{"name":"night","active":false,"priority":1,"matcher":{},"effect":"deny"}`)
	made := ask("POST", "/admin/apikeys", `{"name":"loader","scope":"system/*.rs"}`)
	_, key, _ := strings.Cut(made, `&#34;id&#34;: &#34;`)
	key, _, found := strings.Cut(key, `&#34;`)
	if !found {
		t.Fatalf("the key has no id: %s", made)
	}
	state := func() (all []string) {
		for _, path := range []string{"/admin/users", "/admin/clients", "/admin/apikeys", "/admin/policies", "/admin/features", "/admin/jobs", "/$packages", "/Subscription/s1", "/Subscription/s1/_history", "/App/dose/_history", "/SearchParameter?_summary=count",
			"/admin/config/search", "/admin/indexes/suggestions", "/admin/notifications/deliveries", "/admin/views"} {
			all = append(all, path+" "+ask("GET", path, ""))
		}
		return all
	}
	before := state()
	user := url.Values{"username": {"x"}, "name": {"x"}, "password": {"another long password"}, "admin": {"true"}, "active": {"true"}}
	client := url.Values{"clientid": {"x"}, "scopes": {"system/*.cruds"}, "active": {"true"}}
	policy := url.Values{"policy": {`{"name":"x","active":true,"priority":1,"matcher":{},"effect":"allow"}`}}
	for _, person := range []string{"doctor", "anna"} {
		v := s.visitor()
		v.signIn(person, "/console").want(200)
		for _, form := range []struct {
			path   string
			values url.Values
		}{
			{"/console/access/users/new", user}, {"/console/access/users/" + person, user}, {"/console/access/users/admin", url.Values{"active": {"false"}}},
			{"/console/access/clients/new", client}, {"/console/access/clients/app", client}, {"/console/access/clients/kiln-console", client},
			{"/console/access/keys/new", url.Values{"name": {"x"}, "scopes": {"system/*.rs"}}}, {"/console/access/keys/" + key, url.Values{}}, {"/console/access/grants/x", url.Values{}},
			{"/console/access/policies/new", policy}, {"/console/access/policies/night", policy}, {"/console/access/explain", url.Values{"token": {"x"}}},
			{"/console/settings", url.Values{"flag": {"search.explain"}, "on": {"true"}}}, {"/console/settings/search.default_count", url.Values{"action": {"save"}, "value": {"7"}}},
			{"/console/settings/search.default_count", url.Values{"action": {"default"}}}, {"/console/jobs", url.Values{"id": {"x"}}}, {"/console/searches", url.Values{"id": {"x"}}},
			{"/console/definitions", url.Values{}}, {"/console/definitions/remove/x/1", url.Values{}}, {"/console/audit", url.Values{"user": {"admin"}}},
			{"/console/App/dose/run", url.Values{"operation": {"Patient/$count"}}}, {"/console/App/dose/versions", url.Values{"version": {"1"}}}, {"/console/App/dose/grants", url.Values{"scopes": {"system/*.cruds"}}},
			{"/console/Subscription/s1/deliveries", url.Values{"action": {"test"}}}, {"/console/Subscription/s1/deliveries", url.Values{"action": {"again"}}}, {"/console/Subscription/s1/deliveries", url.Values{"action": {"redeliver"}}},
			{"/console/deliveries/x", url.Values{}}, {"/console/views", url.Values{"view": {"ViewDefinition/x"}}}, {"/console/views/x/remove", url.Values{}},
		} {
			v.post(form.path, maps.Clone(form.values)).want(http.StatusForbidden).has("<h1>Not allowed</h1>", "admin")
		}
	}
	for i, now := range state() {
		if now != before[i] {
			t.Errorf("a refused form has an effect: %s, before: %s", now, before[i])
		}
	}
}

package conformance

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"testing"

	"kiln/server"
	"kiln/server/access"
	"kiln/server/outcome"
	"kiln/server/smart"
	"kiln/server/store/storetest"
	"kiln/server/web"
)

// tokens stands in for an authorization server: a token contains its claims in the clear.
type tokens struct{}

func (tokens) Mount(*web.Mux) {}
func (tokens) Close()         {}

// claims are the claims of such a token.
type claims struct {
	Subject, Client, Patient, User, Scope, Issuer string
	Roles                                         []string
	Unbound, APIKey                               bool
}

// token is the header and value that make a request run with scopes.
func (c claims) token() string {
	b, _ := json.Marshal(c)
	return "Bearer " + base64.RawURLEncoding.EncodeToString(b)
}

func (tokens) Verify(_ context.Context, token string) (*access.Principal, error) {
	var c claims
	b, err := base64.RawURLEncoding.DecodeString(token)
	if err == nil {
		err = json.Unmarshal(b, &c)
	}
	if err != nil {
		return nil, outcome.New(outcome.CodeLogin, "the access token is not known")
	}
	scopes, err := smart.Parse(c.Scope)
	if err != nil {
		return nil, err
	}
	return &access.Principal{Subject: c.Subject, Issuer: c.Issuer, ClientID: c.Client, Patient: c.Patient, FHIRUser: c.User, Unbound: c.Unbound, APIKey: c.APIKey, Roles: c.Roles,
		Scopes: scopes, Admin: scopes.Has("admin"), TokenID: token}, nil
}

// authorized starts a service that requires tokens and records no interactions: only the test stores resources.
func authorized(t testing.TB, change ...func(*server.Config)) *service {
	t.Helper()
	return authorizedOn(t, storetest.New(t), change...)
}

// authorizedOn is authorized on a database that there is.
func authorizedOn(t testing.TB, url string, change ...func(*server.Config)) *service {
	t.Helper()
	return startWith(t, url, server.Options{Authorization: func(context.Context, *server.Server) (server.Authorization, error) { return tokens{}, nil }},
		append(change, func(c *server.Config) { c.Auth.Enabled, c.Audit.Rest = true, "off" })...)
}

// as is the service with a token.
func (s *service) as(c claims) *service {
	n := *s
	n.token = c.token()
	return &n
}

// patientApp is a token of the patient's app.
func patientApp(patient, scope string) claims {
	return claims{Subject: "user-" + patient, Client: "app", Patient: patient, Scope: scope}
}

func systemClient(scope string) claims {
	return claims{Subject: "backend", Client: "backend", Scope: scope}
}

// twoPatients stores two disjoint records, a and b, and shared resources.
func twoPatients(s *service) {
	s.t.Helper()
	all := s.as(systemClient("system/*.cruds"))
	put := func(body string) {
		s.t.Helper()
		var head struct{ ResourceType, ID string }
		if err := json.Unmarshal([]byte(body), &head); err != nil {
			s.t.Fatal(err)
		}
		all.put("/"+head.ResourceType+"/"+head.ID, body).want(201)
	}
	put(`{"resourceType":"Organization","id":"org","name":"General Hospital"}`)
	put(`{"resourceType":"Practitioner","id":"dr","name":[{"family":"Doctor"}]}`)
	for _, p := range []string{"a", "b"} {
		secret := "secret-" + p
		put(`{"resourceType":"Patient","id":"` + p + `","name":[{"family":"` + secret + `"}],"generalPractitioner":[{"reference":"Practitioner/dr"}],"managingOrganization":{"reference":"Organization/org"},"identifier":[{"system":"urn:mrn","value":"` + secret + `"}]}`)
		put(`{"resourceType":"Observation","id":"obs-` + p + `","status":"final","code":{"coding":[{"system":"urn:code","code":"x"}],"text":"` + secret + `"},"category":[{"coding":[{"code":"laboratory"}]}],"subject":{"reference":"Patient/` + p + `"},"performer":[{"reference":"Practitioner/dr"}],"identifier":[{"value":"` + secret + `"}]}`)
		put(`{"resourceType":"Observation","id":"vital-` + p + `","status":"final","code":{"coding":[{"system":"urn:code","code":"y"}]},"category":[{"coding":[{"code":"vital-signs"}]}],"subject":{"reference":"Patient/` + p + `"},"derivedFrom":[{"reference":"Observation/obs-` + p + `"}]}`)
		put(`{"resourceType":"Condition","id":"cond-` + p + `","subject":{"reference":"Patient/` + p + `"},"code":{"text":"` + secret + `"},"asserter":{"reference":"Practitioner/dr"}}`)
		put(`{"resourceType":"Device","id":"dev-` + p + `","patient":{"reference":"Patient/` + p + `"},"serialNumber":"` + secret + `"}`)
		put(`{"resourceType":"RelatedPerson","id":"rel-` + p + `","patient":{"reference":"Patient/` + p + `"},"name":[{"family":"` + secret + `"}]}`)
		put(`{"resourceType":"Binary","id":"bin-` + p + `","contentType":"text/plain","data":"c2VjcmV0"}`)
	}
	put(`{"resourceType":"Observation","id":"nobody","status":"final","code":{"text":"secret-nobody"}}`)
	put(`{"resourceType":"List","id":"list-b","status":"current","mode":"working","subject":{"reference":"Patient/b"},"entry":[{"item":{"reference":"Practitioner/dr"}}]}`)
}

// Authorization, Scopes: patient/ reaches the compartment of the token's patient.
// Contract, Authorization 4: **patient/**; hidden resources are absent: read, search and totals,
// includes, history, `$everything`, chains and `_has`.
func TestAccessOfAPatient(t *testing.T) {
	t.Parallel()
	s := authorized(t)
	twoPatients(s)
	a := s.as(patientApp("a", "patient/*.cruds"))

	t.Run("read, vread and history of what is inside", func(t *testing.T) {
		a := a.in(t)
		for _, path := range []string{"Patient/a", "Observation/obs-a", "Device/dev-a", "RelatedPerson/rel-a", "Organization/org", "Practitioner/dr"} {
			a.get("/" + path).want(200)
			a.get("/" + path + "/_history/1").want(200)
			a.get("/"+path+"/_history").want(200).equal("total", "1")
		}
	})
	t.Run("what is outside is absent", func(t *testing.T) {
		a := a.in(t)
		for _, path := range []string{"Patient/%s", "Observation/obs-%s", "Device/dev-%s", "RelatedPerson/rel-%s", "Binary/bin-%s", "List/list-%s"} {
			for _, more := range []string{"", "/_history/1", "/_history", "/$meta"} {
				hidden, absent := fmt.Sprintf("/"+path+more, "b"), fmt.Sprintf("/"+path+more, "z")
				a.sameAsAbsent(hidden, absent, "b", "z")
			}
		}
		a.sameAsAbsent("/Observation/nobody", "/Observation/nobodz", "nobody", "nobodz")
		a.sameAsAbsent("/Patient/b/$everything", "/Patient/z/$everything", "b", "z")
	})
	t.Run("searches, their totals and compartments", func(t *testing.T) {
		a := a.in(t)
		for path, want := range map[string][]string{
			"/Observation":                             {"Observation/obs-a", "Observation/vital-a"},
			"/Observation?subject=Patient/b":           nil,
			"/Observation?subject=Patient/a":           {"Observation/obs-a", "Observation/vital-a"},
			"/Observation?_id=obs-a,obs-b":             {"Observation/obs-a"},
			"/Observation?code:not=x":                  {"Observation/vital-a"},
			"/Observation?subject:missing=true":        nil,
			"/Patient":                                 {"Patient/a"},
			"/Patient?name=secret":                     {"Patient/a"},
			"/Patient?_has:Observation:subject:code=x": {"Patient/a"},
			"/Device":       {"Device/dev-a"},
			"/Practitioner": {"Practitioner/dr"},
			"/Practitioner?_has:Observation:performer:code=x":                               {"Practitioner/dr"},
			"/Practitioner?_has:Patient:general-practitioner:name=secret-a":                 {"Practitioner/dr"},
			"/Practitioner?_has:Patient:general-practitioner:name=secret-b":                 nil,
			"/Practitioner?_has:Observation:performer:subject:Patient.name=secret-b":        nil,
			"/Practitioner?_has:Observation:performer:_has:Observation:derived-from:code=y": {"Practitioner/dr"},
			"/Practitioner?_list=list-b":                                                    nil,
			"/Practitioner?_filter=" + encoded(`_has:Condition:asserter:code eq x`):         nil,
			"/Observation?subject:Patient.name=secret-b":                                    nil,
			"/Observation?subject:Patient.name=secret-a":                                    {"Observation/obs-a", "Observation/vital-a"},
			"/Observation?derived-from:Observation.code=x":                                  {"Observation/vital-a"},
			"/Patient/a/Observation":                                                        {"Observation/obs-a", "Observation/vital-a"},
			"/Patient/b/Observation":                                                        nil,
			"/Practitioner/dr/Observation":                                                  {"Observation/obs-a"},
			"/Patient/b/*":                                                                  nil,
			"/?_type=Patient,Organization":                                                  {"Patient/a", "Organization/org"},
			"/?_type=Observation,Device,Practitioner":                                       {"Observation/obs-a", "Observation/vital-a", "Device/dev-a", "Practitioner/dr"},
			"/?_id=a,b,obs-a,obs-b,org":                                                     {"Patient/a", "Observation/obs-a", "Organization/org"},
			"/Binary":                                                                       nil,
		} {
			got := a.get(path + with(path, "_count=50")).want(200)
			found := got.named("match")
			slices.Sort(want)
			if !slices.Equal(found, want) {
				t.Errorf("%s finds %v, want %v", path, found, want)
			}
			got.equal("total", fmt.Sprint(len(want)))
			a.get(path+with(path, "_summary=count")).want(200).equal("total", fmt.Sprint(len(want)))
			noSecret(t, got)
		}
	})
	t.Run("the whole system", func(t *testing.T) {
		a := a.in(t)
		got := a.get("/?_count=100").want(200)
		noSecret(t, got)
		want := []string{"Condition/cond-a", "Device/dev-a", "Observation/obs-a", "Observation/vital-a", "Organization/org", "Patient/a", "Practitioner/dr", "RelatedPerson/rel-a"}
		found := got.named("match")
		if !slices.Equal(found, want) {
			t.Errorf("/ finds %v, want %v", found, want)
		}
		for _, path := range []string{"/_history?_count=100", "/Observation/_history", "/Patient/_history"} {
			noSecret(t, a.get(path).want(200))
		}
		a.get("/_history").want(200).equal("total", fmt.Sprint(len(want)))
		a.get("/Observation/_history").want(200).equal("total", "2")
		for _, path := range []string{"/_history?_count=1", "/Observation/_history?_count=1", "/_history?_count=2&_total=none"} {
			a.followBothWays(path)
		}
	})
	t.Run("includes", func(t *testing.T) {
		a := a.in(t)
		for path, want := range map[string][]string{
			"/Practitioner?_revinclude=Observation:performer":                                              {"Observation/obs-a"},
			"/Practitioner?_revinclude=*":                                                                  {"Condition/cond-a", "Observation/obs-a", "Patient/a"},
			"/Organization?_revinclude=Patient:organization":                                               {"Patient/a"},
			"/Practitioner?_revinclude=Observation:performer&_revinclude:iterate=Observation:derived-from": {"Observation/obs-a", "Observation/vital-a"},
			"/Observation?_id=obs-a&_include=*":                                                            {"Patient/a", "Practitioner/dr"},
		} {
			got := a.get(path).want(200)
			noSecret(t, got)
			found := got.named("include")
			if !slices.Equal(found, want) {
				t.Errorf("%s includes %v, want %v", path, found, want)
			}
		}
	})
	t.Run("$everything", func(t *testing.T) {
		got := a.in(t).get("/Patient/a/$everything").want(200)
		noSecret(t, got)
		if n := got.len("entry"); n != 7 {
			t.Errorf("%d entries, want 7: %v", n, append(got.matches(), got.includes()...))
		}
		for lacks, scope := range map[string]string{"patient/Patient.s": "patient/*.r", "patient/Patient.r": "patient/*.s"} {
			for _, id := range []string{"a", "b"} {
				s.in(t).as(patientApp("a", scope)).get("/Patient/"+id+"/$everything").issue(403, "forbidden", lacks).has("WWW-Authenticate", `Bearer error="insufficient_scope", scope="`+lacks+`"`)
			}
		}
		of := s.in(t).as(patientApp("a", "patient/Patient.rs patient/Observation.r patient/RelatedPerson.rs")).get("/Patient/a/$everything").want(200)
		if got, want := append(of.named("match"), of.named("include")...), []string{"Patient/a", "RelatedPerson/rel-a"}; !slices.Equal(got, want) {
			t.Errorf("with s for two types it has %v, want %v", got, want)
		}
	})
}

// with is more for the query of path.
func with(path, more string) string {
	if strings.Contains(path, "?") {
		return "&" + more
	}
	return "?" + more
}

// named are the resources of a Bundle with a search mode, "Type/id", sorted.
func (a *answer) named(mode string) []string {
	var out []string
	for i := range a.len("entry") {
		at := fmt.Sprintf("entry.%d.", i)
		if a.str(at+"search.mode") == mode {
			out = append(out, a.str(at+"resource.resourceType")+"/"+a.str(at+"resource.id"))
		}
	}
	slices.Sort(out)
	return out
}

// noSecret fails where an answer has a byte of somebody else than patient a.
func noSecret(t testing.TB, a *answer) {
	t.Helper()
	for _, secret := range []string{"secret-b", "Patient/b\"", "secret-nobody", "bin-a"} {
		// A self link repeats the request.
		if strings.Contains(string(a.body), secret) && !strings.Contains(a.what, secret) {
			t.Errorf("%s tells %q:\n%s", a.what, secret, clip(a.body))
		}
	}
}

// sameAsAbsent fails where the answers about something hidden and something absent
// differ in more than the names.
func (s *service) sameAsAbsent(hidden, absent, hiddenName, absentName string) {
	s.t.Helper()
	s.same(s.get(hidden), s.get(absent), hiddenName, absentName)
}

func (s *service) same(h, n *answer, hiddenName, absentName string) {
	s.t.Helper()
	text := func(a *answer) string {
		head := http.Header{}
		for k, v := range a.header {
			if k != "Date" && k != "X-Request-Id" && k != "Content-Length" {
				head[k] = v
			}
		}
		return fmt.Sprintf("%d %v %s", a.status, head, a.body)
	}
	if got, want := strings.ReplaceAll(text(h), hiddenName, absentName), strings.ReplaceAll(text(n), hiddenName, absentName); got != want {
		s.t.Errorf("%s:\n%s\nbut absent:\n%s", h.what, got, want)
	}
}

// Authorization, Scopes: a missing scope is 403, which names a sufficient scope.
// Contract, Authorization 4: 403 `forbidden` with `WWW-Authenticate: Bearer error="insufficient_scope"`.
func TestAccessRefused(t *testing.T) {
	t.Parallel()
	s := authorized(t)
	twoPatients(s)
	t.Run("no token is 401", func(t *testing.T) {
		s := s.in(t)
		for _, path := range []string{"/Patient/a", "/Patient", "/", "/_history", "/$meta"} {
			s.get(path).issue(401, "login").has("WWW-Authenticate", `Bearer realm="kiln"`)
		}
		s.get("/Patient/a", "Authorization", "Bearer nonsense").issue(401, "login").has("WWW-Authenticate", `Bearer error="invalid_token"`)
		s.get("/metadata").want(200)
	})
	for _, tt := range []struct {
		name string
		who  claims
		do   func(s *service) *answer
		want string // scope
	}{
		{"read without r", patientApp("a", "patient/*.s"), func(s *service) *answer { return s.get("/Observation/obs-a") }, "patient/Observation.r"},
		{"vread without r", patientApp("a", "patient/*.s"), func(s *service) *answer { return s.get("/Observation/obs-a/_history/1") }, "patient/Observation.r"},
		{"history without r", patientApp("a", "patient/*.s"), func(s *service) *answer { return s.get("/Observation/obs-a/_history") }, "patient/Observation.r"},
		{"type history without s", patientApp("a", "patient/*.r"), func(s *service) *answer { return s.get("/Observation/_history") }, "patient/Observation.s"},
		{"search without s", patientApp("a", "patient/*.r"), func(s *service) *answer { return s.get("/Observation") }, "patient/Observation.s"},
		{"search by POST without s", patientApp("a", "patient/*.r"), func(s *service) *answer {
			return s.do("POST", "/Observation/_search", "code=x", "Content-Type", "application/x-www-form-urlencoded")
		}, "patient/Observation.s"},
		{"another type", patientApp("a", "patient/Condition.rs"), func(s *service) *answer { return s.get("/Observation/obs-a") }, "patient/Observation.r"},
		{"a type among others", patientApp("a", "patient/Condition.rs"), func(s *service) *answer { return s.get("/?_type=Condition,Observation") }, "patient/Observation.s"},
		{"system history without s", patientApp("a", "patient/*.r"), func(s *service) *answer { return s.get("/_history") }, "patient/*.s"},
		{"system history with a scope that is about no records", systemClient("launch/context"), func(s *service) *answer { return s.get("/_history") }, "system/*.s"},
		{"system history with admin alone", systemClient("admin"), func(s *service) *answer { return s.get("/_history") }, "system/*.s"},
		{"system history of a user without s", claims{Subject: "u", Client: "app", User: "Practitioner/dr", Scope: "user/*.cru"}, func(s *service) *answer { return s.get("/_history") }, "user/*.s"},
		{"system history without a patient", claims{Subject: "u", Client: "app", Scope: "patient/*.cruds"}, func(s *service) *answer { return s.get("/_history") }, "user/*.s"},
		{"system search without s", systemClient("system/*.crud"), func(s *service) *answer { return s.get("/") }, "system/*.s"},
		{"system search by POST without s", systemClient("system/*.r"), func(s *service) *answer {
			return s.do("POST", "/_search", "_lastUpdated=gt2020", "Content-Type", "application/x-www-form-urlencoded")
		}, "system/*.s"},
		{"system search by a search that no type has", systemClient("system/Observation.s?nonsense=1"), func(s *service) *answer { return s.get("/") }, "system/*.s"},
		{"a type of a system search without s", systemClient("system/*.r"), func(s *service) *answer { return s.get("/?_type=Observation") }, "system/Observation.s"},
		{"a whole compartment without s", patientApp("a", "patient/*.r"), func(s *service) *answer { return s.get("/Patient/a/*") }, "patient/*.s"},
		{"create without c", systemClient("system/*.rs"), func(s *service) *answer { return s.post("/Patient", `{"resourceType":"Patient"}`) }, "system/Patient.c"},
		{"update without u or c", systemClient("system/*.rs"), func(s *service) *answer { return s.put("/Patient/a", `{"resourceType":"Patient","id":"a"}`) }, "system/Patient.cu"},
		{"delete without d", systemClient("system/*.rs"), func(s *service) *answer { return s.do("DELETE", "/Patient/a", "") }, "system/Patient.d"},
		{"patch without u", systemClient("system/*.rs"), func(s *service) *answer {
			return s.do("PATCH", "/Patient/a", `[]`, "Content-Type", "application/json-patch+json")
		}, "system/Patient.u"},
		{"update that would create, with u alone", systemClient("system/*.u"), func(s *service) *answer { return s.put("/Patient/new", `{"resourceType":"Patient","id":"new"}`) }, "system/Patient.cu"},
		{"update of what exists, with c alone", systemClient("system/*.cr"), func(s *service) *answer { return s.put("/Patient/a", `{"resourceType":"Patient","id":"a"}`) }, "system/Patient.cu"},
		{"update of what exists, without r and u", systemClient("system/*.c"), func(s *service) *answer { return s.put("/Patient/a", `{"resourceType":"Patient","id":"a"}`) }, "system/Patient.cu"},
		{"update of one's own, without r and u", patientApp("a", "patient/*.c"), func(s *service) *answer { return s.put("/Patient/a", `{"resourceType":"Patient","id":"a"}`) }, "patient/Patient.cu"},
		{"update of another one's, without r and u", patientApp("a", "patient/*.c"), func(s *service) *answer { return s.put("/Patient/b", `{"resourceType":"Patient","id":"b"}`) }, "patient/Patient.cu"},
		{"update of what exists as a user, without r and u", claims{Subject: "u", Client: "app", User: "Practitioner/dr", Scope: "user/*.c"}, func(s *service) *answer {
			return s.put("/Patient/a", `{"resourceType":"Patient","id":"a"}`)
		}, "user/Patient.cu"},
		{"update within a transaction, without r and u", systemClient("system/*.c"), func(s *service) *answer {
			return s.post("/", bundle("transaction", entry("PUT", "Patient/a", "", `{"resourceType":"Patient","id":"a"}`)))
		}, "system/Patient.cu"},
		{"update of what was deleted, without r and u", systemClient("system/*.c"), func(s *service) *answer {
			all := s.as(systemClient("system/*.cruds"))
			all.put("/Basic/gone", `{"resourceType":"Basic","id":"gone","code":{"text":"x"}}`)
			all.do("DELETE", "/Basic/gone", "").want(204)
			return s.put("/Basic/gone", `{"resourceType":"Basic","id":"gone","code":{"text":"x"}}`)
		}, "system/Basic.cu"},
		{"If-None-Exist without s", systemClient("system/*.cr"), func(s *service) *answer {
			return s.post("/Patient", `{"resourceType":"Patient"}`, "If-None-Exist", "identifier=urn:mrn|none")
		}, "system/Patient.s"},
		{"conditional delete without s", systemClient("system/*.d"), func(s *service) *answer { return s.do("DELETE", "/Patient?identifier=urn:mrn|none", "") }, "system/Patient.s"},
		{"a shared type is never written", patientApp("a", "patient/*.cruds"), func(s *service) *answer { return s.post("/Organization", `{"resourceType":"Organization","name":"x"}`) }, "user/Organization.c"},
		{"a SearchParameter needs admin", systemClient("system/*.cruds"), func(s *service) *answer { return s.post("/SearchParameter", `{"resourceType":"SearchParameter"}`) }, "admin"},
		{"an App needs admin", systemClient("system/*.cruds"), func(s *service) *answer { return s.get("/App") }, "admin"},
		{"$reindex needs admin", systemClient("system/*.cruds"), func(s *service) *answer { return s.post("/$reindex", "") }, "admin"},
		{"admin alone reads no patient's data", systemClient("admin"), func(s *service) *answer { return s.get("/Patient/a") }, "system/Patient.r"},
		{"no patient in the token", claims{Subject: "u", Client: "app", Scope: "patient/*.cruds"}, func(s *service) *answer { return s.get("/Patient/a") }, "user/Patient.r"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			a := tt.do(s.in(t).as(tt.who))
			a.issue(403, "forbidden", tt.want).has("WWW-Authenticate", `Bearer error="insufficient_scope", scope="`+tt.want+`"`)
		})
	}
	t.Run("s for some types is s for a system search", func(t *testing.T) {
		some := s.in(t).as(patientApp("a", "patient/Condition.s patient/*.r"))
		for _, path := range []string{"/", "/_history", "/Patient/a/*"} {
			some.get(path).want(200).equal("total", "1")
		}
	})
	t.Run("a scope that the token has is not named", func(t *testing.T) {
		for _, user := range []string{"Patient/a", "RelatedPerson/r"} {
			a := s.in(t).as(claims{Subject: "u", Client: "app", User: user, Scope: "user/*.cruds"}).post("/Organization", `{"resourceType":"Organization","name":"x"}`)
			a.issue(403, "forbidden", "belongs to no patient")
			if h := a.header.Get("WWW-Authenticate"); h != "" || strings.Contains(string(a.body), "user/Organization.c") {
				t.Errorf("%s asks for what it has: %s %s", user, h, a.body)
			}
		}
	})
	t.Run("each entry of a batch by itself", func(t *testing.T) {
		a := s.in(t).as(patientApp("a", "patient/Observation.rs patient/Patient.r")).post("/", bundle("batch",
			entry("GET", "Observation/obs-a", "", ""), entry("GET", "Observation/obs-b", "", ""), entry("GET", "Condition/cond-a", "", ""),
			entry("GET", "Observation", "", ""), entry("GET", "Patient", "", ""), entry("DELETE", "Observation/obs-a", "", ""))).want(200)
		for i, want := range []string{"200 OK", "404 Not Found", "403 Forbidden", "200 OK", "403 Forbidden", "403 Forbidden"} {
			a.equal(fmt.Sprintf("entry.%d.response.status", i), want)
		}
		a.equal("entry.3.resource.total", "2")
	})
	t.Run("a transaction fails as a whole", func(t *testing.T) {
		app := s.in(t).as(patientApp("a", "patient/*.cruds"))
		own := `{"resourceType":"Observation","status":"final","code":{"text":"t"},"subject":{"reference":"Patient/a"}}`
		app.post("/", bundle("transaction", entry("POST", "Observation", "", own),
			entry("POST", "Observation", "", strings.Replace(own, "Patient/a", "Patient/b", 1)))).issue(403, "forbidden").equal("issue.0.expression.0", "Bundle.entry[1]")
		app.get("/Observation").want(200).equal("total", "2")
	})
}

// Authorization, Scopes: a write must lie in the compartment before and after; a hidden
// id answers like an absent one.
// Contract, Authorization 4: a write lies in the compartment before and after; DELETE, PATCH, If-Match of a
// hidden id; a PUT over a hidden id; criteria count visible matches; `Prefer: return=representation` without
// `r`.
func TestAccessOfWrites(t *testing.T) {
	t.Parallel()
	s := authorized(t)
	twoPatients(s)
	a, all := s.as(patientApp("a", "patient/*.cruds")), s.as(systemClient("system/*.cruds"))
	observation := func(id, patient string) string {
		return `{"resourceType":"Observation","id":"` + id + `","status":"final","code":{"text":"new"},"subject":{"reference":"Patient/` + patient + `"}}`
	}
	a.post("/Observation", observation("x", "a")).want(201)
	a.post("/Observation", observation("x", "b")).issue(403, "forbidden")
	a.post("/Observation", `{"resourceType":"Observation","status":"final","code":{"text":"new"}}`).issue(403, "forbidden")
	a.put("/Observation/own", observation("own", "a")).want(201)
	a.put("/Observation/own", observation("own", "a")).want(200)
	a.put("/Observation/own", observation("own", "b")).issue(403, "forbidden")
	a.put("/Observation/other", observation("other", "b")).issue(403, "forbidden")
	a.post("/Binary", `{"resourceType":"Binary","contentType":"text/plain","data":"eA=="}`).want(403)

	t.Run("a PUT over a hidden id is 403", func(t *testing.T) {
		a := a.in(t)
		a.put("/Observation/obs-b", observation("obs-b", "a")).issue(403, "forbidden")
		a.put("/Observation/obs-b", observation("obs-b", "b")).issue(403, "forbidden")
		all.in(t).get("/Observation/obs-b").want(200).equal("meta.versionId", "1")
	})
	t.Run("DELETE, PATCH and If-Match of a hidden id as for an absent one", func(t *testing.T) {
		a := a.in(t)
		patch := `[{"op":"add","path":"/note","value":[{"text":"x"}]}]`
		do := func(method, path, body string, headers ...string) {
			t.Helper()
			a.same(a.do(method, fmt.Sprintf(path, "obs-b"), strings.ReplaceAll(body, "ID", "obs-b"), headers...),
				a.do(method, fmt.Sprintf(path, "obs-z"), strings.ReplaceAll(body, "ID", "obs-z"), headers...), "obs-b", "obs-z")
		}
		do("DELETE", "/Observation/%s", "")
		do("DELETE", "/Observation/%s", "", "If-Match", `W/"1"`)
		do("DELETE", "/Observation/%s", "", "If-Match", `W/"7"`)
		do("PATCH", "/Observation/%s", patch, "Content-Type", "application/json-patch+json")
		do("PATCH", "/Observation/%s", patch, "Content-Type", "application/json-patch+json", "If-Match", `W/"1"`)
		do("PUT", "/Observation/%s", observation("ID", "a"), "If-Match", `W/"1"`)
		do("POST", "/Observation/%s/$meta-add", `{"resourceType":"Parameters","parameter":[{"name":"meta","valueMeta":{"tag":[{"code":"t"}]}}]}`)
		do("DELETE", "/Observation?_id=%s", "")
		do("PATCH", "/Observation?_id=%s", patch, "Content-Type", "application/json-patch+json")
		all.in(t).get("/Observation/obs-b").want(200).equal("meta.versionId", "1")
		all.in(t).get("/Observation/obs-b/_history").want(200).equal("total", "1")
	})
	t.Run("what was deleted is as hidden as it was", func(t *testing.T) {
		a := a.in(t)
		all := all.in(t)
		all.put("/Observation/gone-b", observation("gone-b", "b")).want(201)
		all.put("/Observation/gone-a", observation("gone-a", "a")).want(201)
		all.do("DELETE", "/Observation/gone-b", "").want(204)
		all.do("DELETE", "/Observation/gone-a", "").want(204)
		a.get("/Observation/gone-a").want(410)
		a.get("/Observation/gone-a/_history/2").want(410)
		a.get("/Observation/gone-a/_history").want(200).equal("total", "2")
		for _, more := range []string{"", "/_history/1", "/_history/2", "/_history"} {
			a.sameAsAbsent("/Observation/gone-b"+more, "/Observation/gone-z"+more, "gone-b", "gone-z")
		}
		a.same(a.do("DELETE", "/Observation/gone-b", ""), a.do("DELETE", "/Observation/gone-z", ""), "gone-b", "gone-z")
		a.put("/Observation/gone-b", observation("gone-b", "a")).issue(403, "forbidden")
		a.put("/Observation/gone-a", observation("gone-a", "a")).want(201)
	})
	t.Run("each version is decided by itself", func(t *testing.T) {
		a, all := a.in(t), all.in(t)
		all.put("/Observation/moved", observation("moved", "b")).want(201)
		all.put("/Observation/moved", observation("moved", "a")).want(200)
		all.put("/Observation/left", observation("left", "a")).want(201)
		all.put("/Observation/left", observation("left", "b")).want(200)
		a.get("/Observation/moved").want(200)
		a.get("/Observation/moved/_history/1").want(404)
		a.get("/Observation/moved/_history").want(200).equal("total", "1").equal("entry.0.resource.meta.versionId", "2")
		a.get("/Observation/left").want(404)
		a.get("/Observation/left/_history/1").want(200)
		a.get("/Observation/left/_history").want(200).equal("total", "1")
		noSecret(t, a.get("/Observation/_history?_count=100").want(200))
	})
	t.Run("criteria count visible matches only", func(t *testing.T) {
		a, all := a.in(t), all.in(t)
		body := strings.Replace(observation("x", "a"), `"status"`, `"identifier":[{"value":"secret-b"}],"status"`, 1)
		id := a.post("/Observation", body, "If-None-Exist", "identifier=secret-b").want(201).str("id")
		a.post("/Observation", body, "If-None-Exist", "identifier=secret-b").want(200).equal("id", id)
		all.post("/Observation", body, "If-None-Exist", "identifier=secret-b").issue(412, "multiple-matches")
		a.put("/Observation?identifier=secret-b", strings.Replace(body, `"id":"x",`, ``, 1)).want(200).equal("id", id)
		a.do("DELETE", "/Observation?identifier=secret-b", "").want(204)
		all.get("/Observation/obs-b").want(200)
		a.put("/Observation?identifier=secret-b", strings.Replace(body, `"id":"x"`, `"id":"obs-b"`, 1)).issue(403, "forbidden")
	})
	t.Run("conditional references see visible resources only", func(t *testing.T) {
		a := a.in(t)
		b := func(value string) string {
			return bundle("transaction", entry("POST", "Observation", "", `{"resourceType":"Observation","status":"final","code":{"text":"t"},"subject":{"reference":"Patient/a"},"focus":[{"reference":"Patient?identifier=`+value+`"}]}`))
		}
		a.post("/", b("secret-a")).want(200)
		a.same(a.post("/", b("secret-b")), a.post("/", b("secret-z")), "secret-b", "secret-z")
	})
	t.Run("without r a patch reads nothing out", func(t *testing.T) {
		const tells = "does not allow to read the reason"
		all := s.in(t).as(systemClient("system/*.cruds"))
		all.put("/Observation/sealed", `{"resourceType":"Observation","id":"sealed","meta":{"tag":[{"code":"sealed-tag"}]},"status":"final","code":{"text":"c"},"subject":{"reference":"Patient/a"},"valueString":"sealed"}`).want(201)
		path := func(expression string) string {
			return `{"resourceType":"Parameters","parameter":[{"name":"operation","part":[{"name":"type","valueCode":"replace"},{"name":"path","valueString":"` + expression + `"},{"name":"value","valueCode":"amended"}]}]}`
		}
		for scope, reads := range map[string]string{"patient/Observation.u": "patient/Observation.r", "patient/Observation.u patient/Observation.r?category=laboratory": "does not allow to read: add"} {
			w := s.in(t).as(patientApp("a", scope))
			do := func(patch string) *answer {
				typ := "application/json-patch+json"
				if patch[0] == '{' {
					typ = "application/fhir+json"
				}
				got := w.do("PATCH", "/Observation/sealed", patch, "Content-Type", typ)
				if strings.Contains(string(got.body), "sealed") {
					t.Errorf("%s: %s answers %s", scope, patch, got.body)
				}
				return got
			}
			for _, patch := range []string{
				`[{"op":"copy","from":"/valueString","path":"/status"}]`, `[{"op":"copy","from":"/meta/tag/0/code","path":"/status"}]`, `[{"op":"move","from":"/valueString","path":"/status"}]`,
				`[{"op":"test","path":"/valueString","value":"sealed"},{"op":"replace","path":"/status","value":"amended"}]`, `[{"op":"test","path":"/valueString","value":"x"}]`,
				path("Observation.where(value.startsWith('s')).status"), path("Observation.where(value.startsWith('q')).status"), path("Observation.status | Observation.valueString"),
			} {
				do(patch).issue(403, "forbidden", reads)
			}
			do(`[{"op":"replace","path":"/status","value":"nonsense"}]`).issue(422, "invalid", tells)
			do(`[{"op":"remove","path":"/note"}]`).issue(422, "invalid", tells)
			do(path("Observation.note[0].text")).issue(422, "invalid", tells)
			do(`[{"op":"replace","path":"/status","value":"amended"},{"op":"add","path":"/valueString","value":"open"},{"op":"add","path":"/valueString","value":"x"}]`).want(200)
			do(path("Observation.status")).want(200)
			all.put("/Observation/sealed", `{"resourceType":"Observation","id":"sealed","meta":{"tag":[{"code":"sealed-tag"}]},"status":"final","code":{"text":"c"},"subject":{"reference":"Patient/a"},"valueString":"sealed"}`).want(200)
			in := w.post("/", bundle("batch", `{"request":{"method":"PATCH","url":"Observation/sealed"},"resource":{"resourceType":"Binary","contentType":"application/json-patch+json","data":"`+
				base64.StdEncoding.EncodeToString([]byte(`[{"op":"test","path":"/valueString","value":"sealed"}]`))+`"}}`)).want(200)
			in.equal("entry.0.response.status", "403 Forbidden")
		}
	})
	t.Run("without r the answer is minimal", func(t *testing.T) {
		w := s.in(t).as(patientApp("a", "patient/*.cu"))
		for _, prefer := range []string{"", "return=representation"} {
			if got := w.post("/Observation", observation("x", "a"), "Prefer", prefer).want(201); len(got.body) > 0 {
				t.Errorf("create answers %s", got.body)
			}
			if got := w.put("/Observation/own", observation("own", "a"), "Prefer", prefer).want(200); len(got.body) > 0 {
				t.Errorf("update answers %s", got.body)
			}
			if got := w.do("PATCH", "/Observation/own", `[{"op":"replace","path":"/status","value":"amended"}]`, "Content-Type", "application/json-patch+json", "Prefer", prefer).want(200); len(got.body) > 0 {
				t.Errorf("patch answers %s", got.body)
			}
			got := w.post("/", bundle("transaction", entry("POST", "Observation", "", observation("x", "a"))), "Prefer", prefer).want(200)
			if got.at("entry.0.resource") != nil {
				t.Errorf("transaction answers %s", got.body)
			}
		}
	})
}

// Authorization, Scopes: user/, system/ and granular scopes, and their union.
// Contract, Authorization 4: **user/**, **system/**, granular scopes; each version is decided by itself; in
// bundles each entry.
func TestAccessScopes(t *testing.T) {
	t.Parallel()
	s := authorized(t)
	twoPatients(s)
	count := func(c claims, path, want string) {
		t.Helper()
		s.in(t).as(c).get(path+with(path, "_summary=count")).want(200).equal("total", want)
	}
	user := func(fhirUser, scope string) claims {
		return claims{Subject: "jane", Client: "app", User: fhirUser, Scope: scope}
	}
	count(user("Practitioner/dr", "user/*.rs"), "/Observation", "5")
	count(user("Person/x", "user/*.rs"), "/Observation", "5")
	count(user("Patient/a", "user/*.rs"), "/Observation", "2")
	count(user("RelatedPerson/rel-b", "user/*.rs"), "/Observation", "2")
	count(user("RelatedPerson/rel-b", "user/*.rs"), "/Practitioner", "1")
	count(user("RelatedPerson/none", "user/*.rs"), "/Practitioner", "1")
	count(user("RelatedPerson/none", "user/*.rs"), "/Observation", "0")
	s.as(user("RelatedPerson/rel-b", "user/*.rs")).get("/Patient/b").want(200)
	s.as(user("RelatedPerson/rel-b", "user/*.rs")).get("/Patient/a").want(404)
	s.as(user("Patient/a", "user/*.cruds")).post("/Organization", `{"resourceType":"Organization","name":"x"}`).issue(403, "forbidden")
	count(systemClient("system/Observation.s"), "/Observation", "5")
	count(systemClient("system/*.read"), "/Observation", "5")

	lab := "patient/Observation.rs?category=laboratory"
	count(patientApp("a", lab), "/Observation", "1")
	count(patientApp("a", lab+" patient/Observation.rs?category=vital-signs"), "/Observation", "2")
	count(patientApp("a", lab+" patient/Observation.rs"), "/Observation", "2")
	count(systemClient("system/Observation.rs?category=laboratory"), "/Observation", "2")
	count(systemClient("system/Observation.rs?category=laboratory system/Patient.rs"), "/?_type=Observation,Patient", "4")
	count(claims{Subject: "j", Client: "app", Patient: "a", User: "Patient/b", Scope: "patient/Observation.s user/Observation.s"}, "/Observation", "4")
	s.as(patientApp("a", lab)).get("/Observation/obs-a").want(200)
	s.as(patientApp("a", lab)).get("/Observation/vital-a").want(404)
	s.as(patientApp("a", "patient/Observation.cu?category=laboratory")).post("/Observation",
		`{"resourceType":"Observation","status":"final","code":{"text":"x"},"subject":{"reference":"Patient/a"},"category":[{"coding":[{"code":"vital-signs"}]}]}`).issue(403, "forbidden")
	s.as(patientApp("a", "patient/Observation.rs?nonsense=1")).get("/Observation").issue(403, "forbidden")

	t.Run("a chain along what is out of reach finds nothing", func(t *testing.T) {
		count(patientApp("a", "patient/Observation.rs"), "/Observation?subject:Patient.name=secret-a", "0")
		got := s.in(t).as(patientApp("a", "patient/Observation.rs")).get("/Observation?_include=Observation:subject").want(200)
		if found := got.includes(); len(found) > 0 {
			t.Errorf("includes %v", found)
		}
	})
	t.Run("any valid token may ask about codes", func(t *testing.T) {
		s.in(t).as(patientApp("a", "patient/Observation.rs")).get("/CodeSystem/$lookup?system=http://hl7.org/fhir/administrative-gender&code=male").want(200)
		s.in(t).get("/CodeSystem/$lookup?system=http://hl7.org/fhir/administrative-gender&code=male").want(401)
	})
	t.Run("$validate needs any valid token", func(t *testing.T) {
		s.in(t).as(patientApp("a", "patient/Observation.rs")).post("/Patient/$validate", `{"resourceType":"Patient"}`).want(200)
	})
}

// Contract, Authorization 4: `c` is each POST in a bundle, too.
func TestAccessOfPostsInBundles(t *testing.T) {
	t.Parallel()
	s := authorized(t)
	post := entry("POST", "Patient", "", `{"resourceType":"Patient"}`)
	put := entry("PUT", "Patient/new", "", `{"resourceType":"Patient","id":"new"}`)
	for _, kind := range []string{"batch", "transaction"} {
		for scope, want := range map[string]int{"system/*.rs": 403, "system/*.u": 403, "system/*.ruds": 403, "system/*.c": 201} {
			a := s.as(systemClient(scope)).post("/", bundle(kind, post))
			status := a.status
			if a.status == 200 {
				status, _ = strconv.Atoi(a.str("entry.0.response.status")[:3])
			}
			if status != want {
				t.Errorf("a %s with %s: %d %s, want %d", kind, scope, a.status, clip(a.body), want)
			}
		}
		a := s.as(systemClient("system/*.u")).post("/", bundle(kind, put))
		if told := a.status == 403 || strings.HasPrefix(a.str("entry.0.response.status"), "403"); !told {
			t.Errorf("a PUT that creates, in a %s with u alone: %d %s", kind, a.status, clip(a.body))
		}
	}
}

// Contract, Authorization 4: hidden resources do not affect `_sort`: the pages of a sorted search, one match each, are
// the pages of a token that sees everything, without the hidden ones.
func TestSortTellsNothingOfTheHidden(t *testing.T) {
	t.Parallel()
	s := authorized(t)
	twoPatients(s)
	all := s.as(systemClient("system/*.cruds"))
	for i, who := range []string{"a", "b", "b", "a", "b", "a"} {
		all.post("/Observation", fmt.Sprintf(`{"resourceType":"Observation","status":"final","code":{"coding":[{"code":"s%d"}]},"effectiveDateTime":"2024-01-%02d","subject":{"reference":"Patient/%s"}}`, 5-i, i%4+1, who)).want(201)
	}
	for _, key := range []string{"date", "-date", "code", "-code", "_lastUpdated", "-_lastUpdated", "_id", "-_id", "patient,-date", "status,-_id"} {
		var want []string
		for _, e := range all.get("/Observation?_count=100&_sort=" + key).want(200).at("entry").([]any) {
			r := e.(map[string]any)["resource"].(map[string]any)
			subject, _ := r["subject"].(map[string]any)
			if subject["reference"] == "Patient/a" {
				want = append(want, r["id"].(string))
			}
		}
		var got []string
		for next := "/Observation?_count=1&_sort=" + key; next != ""; {
			a := s.as(patientApp("a", "patient/*.rs")).get(next).want(200)
			got = append(got, a.ids()...)
			next = a.link("next")
		}
		if len(want) != 5 || !slices.Equal(got, want) {
			t.Errorf("_sort=%s: %v, want %v", key, got, want)
		}
	}
}

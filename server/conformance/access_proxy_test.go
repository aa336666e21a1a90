package conformance

import (
	"encoding/base64"
	"net/url"
	"strings"
	"testing"
	"time"

	"kiln/server"
	"kiln/server/store/storetest"
)

// proxies starts two servers on one database. The user mother is RelatedPerson/rel-a, who
// acts for Patient/a.
func proxies(t testing.TB) (a, b *service) {
	t.Helper()
	database := storetest.New(t)
	open := startOn(t, database)
	twoPatients(open)
	open.stop()
	users := func(c *server.Config) {
		c.Auth.Bootstrap.Users = append(c.Auth.Bootstrap.Users,
			map[string]any{"username": "mother", "password": userPassword, "name": "Mother", "fhirUser": "RelatedPerson/rel-a"})
	}
	a = withAuthorizationOn(t, database, users)
	b = withAuthorizationOn(t, database, users, func(c *server.Config) { c.Auth.Issuer, c.Server.BaseURL = a.origin(), a.base })
	return a, b
}

// relatedPerson is RelatedPerson/rel-a, the user mother, with more fields.
func relatedPerson(patient, more string) string {
	return `{"resourceType":"RelatedPerson","id":"rel-a","patient":{"reference":"` + patient + `"}` + more + `}`
}

// signInAs goes through the pages for Patient/a, and returns the token answer.
func (s *service) signInAs(name string) *answer {
	s.t.Helper()
	p := s.person(name)
	p.visit()
	for range 6 {
		switch actions := p.page.inputs("action"); {
		case p.page.status/100 == 3:
			return p.tokens()
		case contains(actions, "login"):
			p.login()
		case contains(actions, "authorize"):
			p.allow()
		case contains(actions, "select_patient"):
			p.submit("select_patient", "patient", "a")
		}
	}
	return p.tokens()
}

func contains(list []string, text string) bool {
	for _, s := range list {
		if s == text {
			return true
		}
	}
	return false
}

// The end of a relation ends the proxy's tokens on both servers.
// Contract, Authorization 3: refresh asks again whether the user may still have the patient in context; open
// access tokens end when the RelatedPerson changes.
func TestEndOfAProxy(t *testing.T) {
	t.Parallel()
	a, b := proxies(t)
	backend := a.bearer(a.backendToken("backend", "system/*.cruds"))
	basic := "Basic " + base64.StdEncoding.EncodeToString([]byte("backend:"+url.QueryEscape(clientSecret)))
	day := func(days int) string { return time.Now().UTC().AddDate(0, 0, days).Format(time.DateOnly) }
	for name, end := range map[string]func(){
		"inactive": func() { backend.put("/RelatedPerson/rel-a", relatedPerson("Patient/a", `,"active":false`)) },
		"deleted":  func() { backend.do("DELETE", "/RelatedPerson/rel-a", "") },
		"period has ended": func() {
			backend.put("/RelatedPerson/rel-a", relatedPerson("Patient/a", `,"period":{"end":"`+day(-2)+`"}`))
		},
		"period to come": func() {
			backend.put("/RelatedPerson/rel-a", relatedPerson("Patient/a", `,"period":{"start":"`+day(2)+`"}`))
		},
		"another patient": func() { backend.put("/RelatedPerson/rel-a", relatedPerson("Patient/b", "")) },
		"merged by patch": func() {
			backend.do("PATCH", "/RelatedPerson/rel-a", `[{"op":"replace","path":"/patient/reference","value":"Patient/b"}]`, "Content-Type", "application/json-patch+json").want(200)
		},
	} {
		t.Run(name, func(t *testing.T) {
			backend.put("/RelatedPerson/rel-a", relatedPerson("Patient/a", `,"period":{"start":"`+day(-1)+`","end":"`+day(0)+`"}`))
			tokens := a.in(t).signInAs("mother").equal("patient", "a")
			access, refresh := tokens.str("access_token"), tokens.str("refresh_token")
			stream := b.in(t).stream("/Observation/$events", "Authorization", "Bearer "+access)
			active := func(token string) string {
				return b.in(t).form("/auth/introspect", url.Values{"token": {token}}, "Authorization", basic).want(200).str("active")
			}
			for _, s := range []*service{a, b} {
				s.in(t).bearer(access).get("/Patient/a").want(200)
				s.in(t).bearer(access).get("/Observation").want(200).equal("total", "2")
			}
			if active(access) != "true" || active(refresh) != "true" {
				t.Error("introspection does not know the tokens")
			}
			end()
			for _, s := range []*service{a, b} {
				for _, path := range []string{"/Patient/a", "/Observation", "/Observation/obs-a", "/Patient/a/$everything", "/Patient/a/_history"} {
					s.in(t).bearer(access).get(path).want(401)
				}
				s.in(t).bearer(access).get(s.origin() + "/auth/userinfo").want(401)
			}
			if active(access) != "false" || active(refresh) != "false" {
				t.Error("introspection says that the tokens are active")
			}
			b.in(t).form("/auth/token", url.Values{"grant_type": {"refresh_token"}, "refresh_token": {refresh}, "client_id": {"app"}}).want(400).equal("error", "invalid_grant")
			deadline := time.After(patience)
			for open := true; open; {
				select {
				case _, open = <-stream.events:
				case <-deadline:
					t.Fatal("the stream goes on")
				}
			}
			if stream.resp.StatusCode != 200 {
				t.Errorf("the stream: %d", stream.resp.StatusCode)
			}
		})
	}
}

// A policy may hide the patient of a Practitioner's token: then the token cannot be refreshed.
// Contract, Authorization 3: refresh asks again whether the user may still have the patient in context.
func TestRefreshAsksAboutThePatientAgain(t *testing.T) {
	t.Parallel()
	a, b := proxies(t)
	tokens := a.signInAs("doctor")
	refresh := tokens.str("refresh_token")
	seen := func(status int) func() bool {
		return func() bool { return b.bearer(tokens.str("access_token")).get("/Patient/a").status == status }
	}
	try := func(token string) *answer {
		return b.form("/auth/token", url.Values{"grant_type": {"refresh_token"}, "refresh_token": {token}, "client_id": {"app"}})
	}
	refresh = try(refresh).want(200).str("refresh_token")
	admin := a.bearer(a.backendToken("operator", "admin"))
	policy := admin.origin() + "/admin/policies/hide"
	admin.do("PUT", policy, `{"matcher":{"users":["doctor"]},"effect":"deny","condition":"Patient?_id=a"}`, "Content-Type", "application/json").want(201)
	soon(t, "the policy is in force on the other server", seen(404))
	try(refresh).want(400).equal("error", "invalid_grant")
	admin.do("DELETE", policy, "")
	soon(t, "the policy is gone on the other server", seen(200))
	try(refresh).want(200)
}

// A new fhirUser ends the user's tokens, and so does its removal.
// Contract, Authorization 3: open tokens end as well when the user's `fhirUser` changes.
func TestNewFHIRUserEndsTokens(t *testing.T) {
	t.Parallel()
	a, b := proxies(t)
	admin := a.bearer(a.backendToken("operator", "admin"))
	for _, to := range []string{`"RelatedPerson/rel-b"`, `"Patient/b"`, `null`} {
		admin.do("PATCH", a.origin()+"/admin/users/mother", `{"fhirUser":"RelatedPerson/rel-a"}`, "Content-Type", "application/merge-patch+json").want(200)
		tokens := a.signInAs("mother")
		b.bearer(tokens.str("access_token")).get("/Patient/a").want(200)
		admin.do("PATCH", a.origin()+"/admin/users/mother", `{"fhirUser":`+to+`}`, "Content-Type", "application/merge-patch+json").want(200)
		a.bearer(tokens.str("access_token")).get("/Patient/a").want(401)
		soon(t, "the token has ended on the other server", func() bool { return b.bearer(tokens.str("access_token")).get("/Patient/a").status == 401 })
		b.form("/auth/token", url.Values{"grant_type": {"refresh_token"}, "refresh_token": {tokens.str("refresh_token")}, "client_id": {"app"}}).want(400).equal("error", "invalid_grant")
	}
}

// A user without fhirUser reaches nothing through user/, if nobody here has linked the user:
// neither a patient's data nor shared types.
// Contract, Authorization 4: a user without `fhirUser` reaches nothing; 5: `auto_provision`, trusted issuers.
func TestUserWithoutFHIRUser(t *testing.T) {
	t.Parallel()
	s := authorized(t)
	twoPatients(s)
	for name, c := range map[string]claims{
		"made by a sign-in": {Subject: "zoe", Client: "app", Unbound: true},
		"a trusted issuer":  {Subject: "zoe", Client: "app", Issuer: "https://id.example.org"},
	} {
		t.Run(name, func(t *testing.T) {
			c.Scope = "user/*.cruds"
			u := s.in(t).as(c)
			for _, path := range []string{"/Patient/a", "/Patient", "/Observation/obs-a", "/Practitioner/dr", "/_history", "/?_type=Patient", "/Patient/a/$everything", "/Patient/a/_history/1"} {
				u.get(path).issue(403, "forbidden")
			}
			u.post("/Organization", `{"resourceType":"Organization","name":"x"}`).issue(403, "forbidden")
			u.do("DELETE", "/Patient/a", "").issue(403, "forbidden")
			c.Patient, c.Scope = "a", "patient/*.rs user/*.rs"
			s.in(t).as(c).get("/Observation").want(200).equal("total", "2")
			c.Patient, c.Scope = "", "user/*.rs system/*.rs"
			s.in(t).as(c).get("/Observation").want(200).equal("total", "5")
		})
	}
	s.as(claims{Subject: "jane", Client: "app", Scope: "user/*.rs"}).get("/Observation").want(200).equal("total", "5")
}

// A patient who has performed something on somebody else reads it, and neither makes nor changes it.
// Contract, Authorization 4: a write must lie in the compartment by the type's `patient` parameter.
func TestWritesNeedTheSubject(t *testing.T) {
	t.Parallel()
	s := authorized(t)
	twoPatients(s)
	all := s.as(systemClient("system/*.cruds"))
	for name, c := range map[string]claims{
		"patient/": patientApp("a", "patient/*.cruds"),
		"user/":    {Subject: "anna", Client: "app", User: "Patient/a", Scope: "user/*.cruds"},
	} {
		t.Run(name, func(t *testing.T) {
			a := s.in(t).as(c)
			for _, body := range []string{
				`{"resourceType":"Observation","status":"final","code":{"text":"x"},"subject":{"reference":"Patient/b"},"performer":[{"reference":"Patient/a"}]}`,
				`{"resourceType":"Observation","status":"final","code":{"text":"x"},"performer":[{"reference":"Patient/a"}]}`,
				`{"resourceType":"Condition","subject":{"reference":"Patient/b"},"asserter":{"reference":"Patient/a"}}`,
				`{"resourceType":"Patient","link":[{"type":"seealso","other":{"reference":"Patient/a"}}]}`,
			} {
				typ := strings.Split(body, `"`)[3]
				a.post("/"+typ, body).issue(403, "forbidden")
				id := all.in(t).post("/"+typ, body).want(201).str("id")
				a.get("/" + typ + "/" + id).want(200)
				a.do("DELETE", "/"+typ+"/"+id, "").issue(403, "forbidden")
				a.put("/"+typ+"/"+id, strings.Replace(body, `{"resourceType"`, `{"id":"`+id+`","resourceType"`, 1)).issue(403, "forbidden")
			}
			a.post("/Observation", `{"resourceType":"Observation","status":"final","code":{"text":"x"},"subject":{"reference":"Patient/a"},"performer":[{"reference":"Practitioner/dr"}]}`).want(201)
		})
	}
}

// Only system/ scopes create AuditEvents.
// Contract, Authorization 4: only `system/` scopes create AuditEvents.
func TestAuditEventsAreOfServices(t *testing.T) {
	t.Parallel()
	s := authorized(t)
	twoPatients(s)
	body := `{"resourceType":"AuditEvent","type":{"code":"rest"},"recorded":"2026-01-01T00:00:00Z","agent":[{"requestor":true,"who":{"reference":"Patient/a"}}],"source":{"observer":{"display":"x"}}}`
	for _, c := range []claims{patientApp("a", "patient/*.cruds"), {Subject: "doctor", Client: "app", User: "Practitioner/dr", Scope: "user/*.cruds"}} {
		s.as(c).post("/AuditEvent", body).issue(403, "forbidden", "system/AuditEvent.c").has("WWW-Authenticate", `Bearer error="insufficient_scope", scope="system/AuditEvent.c"`)
		s.as(c).post("/", bundle("batch", entry("POST", "AuditEvent", "", body))).want(200).equal("entry.0.response.status", "403 Forbidden")
	}
	s.as(systemClient("system/AuditEvent.c")).post("/AuditEvent", body).want(201)
}

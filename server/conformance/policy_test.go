package conformance

import (
	"strconv"
	"strings"
	"testing"
	"time"

	"kiln/server"
	"kiln/server/store/storetest"
)

// atRoot is the service without /fhir: administration.
func (s *service) atRoot() *service {
	n := *s
	n.base = strings.TrimSuffix(s.base, "/fhir")
	return &n
}

// Authorization, Policies, federation, audit: policies take away from what scopes give.
// Contract, Authorization 5: policies at `/admin/policies`: matcher, effect, condition with placeholders,
// message, `dryRun`.
func TestPolicies(t *testing.T) {
	t.Parallel()
	s := authorized(t)
	twoPatients(s)
	admin := s.atRoot().as(systemClient("admin"))
	app := systemClient("system/*.cruds")
	policy := func(name, body string) {
		t.Helper()
		if a := admin.put("/admin/policies/"+name, `{`+body+`}`); a.status >= 300 {
			t.Fatalf("%s: %d %s", a.what, a.status, a.body)
		}
	}
	remove := func(t *testing.T, names ...string) {
		for _, name := range names {
			admin.in(t).do("DELETE", "/admin/policies/"+name, "").want(204)
		}
	}

	t.Run("create, show, list, replace, merge, delete", func(t *testing.T) {
		admin := admin.in(t)
		if got := admin.get("/admin/policies").want(200); strings.TrimSpace(string(got.body)) != "[]" {
			t.Errorf("no policies: %s", got.body)
		}
		got := admin.post("/admin/policies", `{"name":"first one","priority":5,"matcher":{"clients":["other"]},"effect":"deny","message":"no"}`).want(201).
			has("Location", "/admin/policies/first%20one")
		got.equal("name", "first one").equal("active", "true").equal("dryRun", "false").equal("effect", "deny").equal("priority", "5").equal("matcher.clients.0", "other").equal("message", "no")
		admin.post("/admin/policies", `{"name":"first one","effect":"deny"}`).issue(409, "conflict")
		admin.get("/admin/policies/first%20one").want(200).equal("priority", "5")
		admin.do("PATCH", "/admin/policies/first%20one", `{"active":false,"matcher":{"clients":null}}`).want(200).equal("active", "false").equal("effect", "deny")
		admin.put("/admin/policies/first%20one", `{"effect":"allow"}`).want(200).equal("effect", "allow").equal("active", "true").equal("priority", "0")
		admin.put("/admin/policies/second", `{"effect":"allow","priority":-1}`).want(201)
		admin.get("/admin/policies").want(200).equal("0.name", "second").equal("1.name", "first one")
		remove(t, "first%20one", "second")
		admin.get("/admin/policies/second").issue(404, "not-found")
		admin.do("DELETE", "/admin/policies/second", "").issue(404, "not-found")
	})
	t.Run("what could not be decided on is refused", func(t *testing.T) {
		admin := admin.in(t)
		for body, word := range map[string]string{
			`{"effect":"deny"}`:                      "name",
			`{"name":"x"}`:                           "effect",
			`{"name":"x","effect":"maybe"}`:          "maybe",
			`{"name":"x","effect":"deny","efect":1}`: "efect",
			`{"name":"x","effect":"deny","matcher":{"resourceTypes":["Patien"]}}`:                        "Patient",
			`{"name":"x","effect":"deny","matcher":{"interactions":["look"]}}`:                           "look",
			`{"name":"x","effect":"deny","matcher":{"sourceIps":["10.0.0.300"]}}`:                        "10.0.0.300",
			`{"name":"x","effect":"deny","condition":"category=laboratory"}`:                             "resource type",
			`{"name":"x","effect":"deny","condition":"Observation?nonsense=1"}`:                          "nonsense",
			`{"name":"x","effect":"deny","condition":"Observation?_sort=date"}`:                          "_sort",
			`{"name":"x","effect":"deny","condition":"Observation?subject:Patient.name=x"}`:              "itself",
			`{"name":"x","effect":"deny","condition":"Patient?_has:Observation:subject:status=final"}`:   "itself",
			`{"name":"x","effect":"deny","matcher":{"resourceTypes":["Observation"]},"priority":"high"}`: "priority",

			`{"name":"x","effect":"deny","matcher":{"resourceTypes":["Patient"]},"condition":"Observation?status=final"}`: "never match",

			`{"name":"x","effect":"deny","condition":"Patient?identifier={user.username}"}`:                         "{user.username}",
			`{"name":"x","effect":"deny","condition":"Patient?identifier={patient}{nope"}`:                          "{nope",
			`{"name":"x","effect":"deny","matcher":{"sourceIps":["::ffff:10.0.0.0/8"]}}`:                            "10.0.0.0/8",
			`{"name":"x","effect":"deny","matcher":{"users":[""]}}`:                                                 "users",
			`{"name":"x","effect":"deny","matcher":{"interactions":["create","vread"]}}`:                            "read",
			`{"name":"x","effect":"deny","matcher":{"interactions":["patch"]}}`:                                     "update",
			`{"name":"x","effect":"allow","matcher":{"interactions":["history-system"]}}`:                           "search",
			`{"name":"x","effect":"deny","matcher":{"interactions":["search","history"]}}`:                          "read",
			`{"name":"x","effect":"deny","matcher":{"interactions":["search-system","history-type"]}}`:              "history-type",
			`{"name":"x","effect":"allow","effect":"deny"}`:                                                         "twice",
			`{"name":"x","effect":"allow","Effect":"deny"}`:                                                         "twice",
			`{"name":"x","effect":"deny","matcher":{"users":["a"],"clients":["users","users"],"users":["nobody"]}}`: "twice",
		} {
			admin.post("/admin/policies", body).issue(400, "invalid", word)
		}
		admin.put("/admin/policies/x", `{"effect":"deny","active":false}`).want(201)
		admin.do("PATCH", "/admin/policies/x", `{"priority":1,"priority":2}`).issue(400, "invalid", "twice")
		admin.do("PATCH", "/admin/policies/x", `{"matcher":{"interactions":["patch"]}}`).issue(400, "invalid", "update")
		admin.do("PATCH", "/admin/policies/x", `{"matcher":{"interactions":["patch","update","search-type"],"clients":["a","a"]}}`).want(200)
		remove(t, "x")
		admin.post("/admin/policies", `[]`).want(400)
	})
	t.Run("only administrators", func(t *testing.T) {
		s.atRoot().in(t).get("/admin/policies").want(401)
		s.atRoot().in(t).as(app).get("/admin/policies").issue(403, "forbidden").has("WWW-Authenticate", `Bearer error="insufficient_scope", scope="admin"`)
	})
	t.Run("deny a type", func(t *testing.T) {
		s := s.in(t).as(app)
		policy("no-conditions", `"effect":"deny","matcher":{"resourceTypes":["Condition"]},"message":"conditions are closed"`)
		s.get("/Condition/cond-a").issue(403, "forbidden", "conditions are closed")
		s.get("/Condition").issue(403, "forbidden", "conditions are closed")
		s.get("/Observation/obs-a").want(200)
		if got := s.get("/?_count=100").want(200); strings.Contains(string(got.body), "cond-a") {
			t.Error("a denied type is found")
		}
		remove(t, "no-conditions")
		s.get("/Condition/cond-a").want(200)
	})
	t.Run("a condition hides what it finds, in searches and totals too", func(t *testing.T) {
		s := s.in(t).as(app)
		policy("no-lab", `"effect":"deny","condition":"Observation?category=laboratory"`)
		s.get("/Observation/obs-a").want(404)
		s.get("/Observation/vital-a").want(200)
		s.get("/Observation").want(200).equal("total", "3")
		s.get("/Practitioner?_has:Observation:performer:code=x").want(200).equal("total", "0")
		s.get("/Patient").want(200).equal("total", "2")
		s.get("/?_type=Observation,Patient").want(200).equal("total", "5")
		s.do("DELETE", "/Observation/obs-a", "").want(204)
		s.put("/Observation/vital-a", `{"resourceType":"Observation","id":"vital-a","status":"final","code":{"text":"x"},"category":[{"coding":[{"code":"laboratory"}]}]}`).issue(403, "forbidden")
		remove(t, "no-lab")
		s.get("/Observation/obs-a").want(200).equal("meta.versionId", "1")
	})
	t.Run("the lowest priority number that matches decides", func(t *testing.T) {
		s := s.in(t).as(app)
		policy("deny-all", `"effect":"deny","priority":10,"matcher":{"resourceTypes":["Observation"]}`)
		policy("allow-lab", `"effect":"allow","priority":5,"condition":"Observation?category=laboratory"`)
		s.get("/Observation").want(200).equal("total", "2")
		s.get("/Observation/obs-a").want(200)
		s.get("/Observation/vital-a").want(404)
		policy("deny-first", `"effect":"deny","priority":1,"condition":"Observation?subject=Patient/a"`)
		s.get("/Observation").want(200).equal("total", "1")
		s.get("/Observation/obs-a").want(404)
		policy("deny-first", `"active":false,"effect":"deny","priority":1,"condition":"Observation?subject=Patient/a"`)
		s.get("/Observation").want(200).equal("total", "2")
		remove(t, "deny-all", "allow-lab", "deny-first")
	})
	t.Run("a policy gives nothing that scopes don't", func(t *testing.T) {
		policy("allow", `"effect":"allow"`)
		s.in(t).as(patientApp("a", "patient/Patient.r")).get("/Observation").want(403)
		s.in(t).as(patientApp("a", "patient/*.rs")).get("/Observation/obs-b").want(404)
		remove(t, "allow")
	})
	t.Run("matchers: clients, users, roles, interactions, addresses", func(t *testing.T) {
		s := s.in(t)
		nurse := claims{Subject: "nora", Client: "ward", User: "Practitioner/dr", Roles: []string{"nurse"}, Scope: "user/*.cruds"}
		for _, tt := range []struct {
			matcher       string
			nurse, client int
		}{
			{`"clients":["ward"]`, 403, 200}, {`"users":["nora"]`, 403, 200}, {`"roles":["nurse","doctor"]`, 403, 200},
			{`"clients":["ward"],"roles":["doctor"]`, 200, 200}, {`"interactions":["read"]`, 403, 403}, {`"interactions":["delete","create"]`, 200, 200},
			{`"sourceIps":["127.0.0.0/8","::1"]`, 403, 403}, {`"sourceIps":["10.0.0.0/8"]`, 200, 200},
			{`"sourceIps":["::ffff:127.0.0.1"]`, 403, 403}, {`"sourceIps":["::ffff:127.0.0.0/104"]`, 403, 403}, {``, 403, 403},
		} {
			policy("m", `"effect":"deny","matcher":{`+tt.matcher+`}`)
			s.as(nurse).get("/Patient/a").want(tt.nurse)
			s.as(app).get("/Patient/a").want(tt.client)
		}
		remove(t, "m")
	})
	t.Run("a client is not the user of the same name", func(t *testing.T) {
		s := s.in(t)
		policy("no-nora", `"effect":"deny","matcher":{"users":["nora"]}`)
		s.as(claims{Subject: "nora", Client: "nora", Scope: "system/*.rs"}).get("/Patient/a").want(200)
		s.as(claims{Subject: "nora", Client: "nora", User: "Practitioner/dr", Scope: "user/*.rs"}).get("/Patient/a").want(403)
		s.as(claims{Subject: "nora", Client: "ward", Scope: "user/*.rs"}).get("/Patient/a").want(403)
		remove(t, "no-nora")
	})
	t.Run("a name elsewhere is not the user's here", func(t *testing.T) {
		s := s.in(t)
		here := claims{Subject: "nora", Client: "ward", User: "Practitioner/dr", Scope: "user/*.rs"}
		elsewhere := here
		elsewhere.Issuer = "https://id.example.org"
		policy("own", `"effect":"allow","priority":1,"matcher":{"users":["nora"]}`)
		policy("rest", `"effect":"deny","priority":2,"matcher":{"resourceTypes":["Patient"]}`)
		s.as(here).get("/Patient/a").want(200)
		s.as(elsewhere).get("/Patient/a").want(403)
		policy("own", `"effect":"deny","priority":1,"matcher":{"users":["nora"]}`)
		s.as(elsewhere).get("/Observation/obs-a").want(403)
		remove(t, "own", "rest")
	})
	t.Run("placeholders", func(t *testing.T) {
		s := s.in(t)
		policy("own", `"effect":"allow","priority":1,"condition":"Patient?general-practitioner={user.fhirUser}"`)
		policy("rest", `"effect":"deny","priority":2,"matcher":{"resourceTypes":["Patient"]}`)
		doctor := claims{Subject: "d", Client: "ward", User: "Practitioner/dr", Scope: "user/*.rs"}
		s.as(doctor).get("/Patient").want(200).equal("total", "2")
		doctor.User = "Practitioner/other"
		s.as(doctor).get("/Patient").want(200).equal("total", "0")
		doctor.User = "Practitioner/dr,Practitioner/x&_id=a"
		s.as(doctor).get("/Patient").want(403)
		doctor.User = ""
		s.as(doctor).get("/Patient").want(403)
		policy("own", `"effect":"deny","priority":1,"condition":"Observation?subject=Patient/{patient}"`)
		s.as(patientApp("a", "patient/Observation.rs")).get("/Observation").want(200).equal("total", "0")
		remove(t, "own", "rest")
	})
	t.Run("a dry run only counts", func(t *testing.T) {
		s := s.in(t).as(app)
		policy("dry", `"effect":"deny","dryRun":true,"condition":"Observation?category=laboratory"`)
		admin.in(t).get("/admin/policies/dry").want(200).equal("dryRunDenied", "0")
		s.get("/Observation/obs-a").want(200)
		s.get("/Observation/vital-a").want(200)
		s.get("/Observation").want(200).equal("total", "5")
		admin.in(t).get("/admin/policies/dry").want(200).equal("dryRunDenied", "3")
		if metrics := string(admin.in(t).get("/metrics").want(200).body); !strings.Contains(metrics, `service_access_dry_run_denied_total{policy="dry"} 3`) {
			t.Error("/metrics does not count what the dry run would have denied")
		}
		remove(t, "dry")
	})
	t.Run("a dry run counts what would be denied", func(t *testing.T) {
		s := s.in(t).as(app)
		count := func(what, policy string, more int, do func()) {
			t.Helper()
			before, _ := strconv.Atoi(admin.in(t).get("/admin/policies/" + policy).want(200).str("dryRunDenied"))
			do()
			after, _ := strconv.Atoi(admin.in(t).get("/admin/policies/" + policy).want(200).str("dryRunDenied"))
			if after-before != more {
				t.Errorf("%s: counted %d, want %d", what, after-before, more)
			}
		}
		lab := `{"resourceType":"Observation","id":"dry","status":"final","code":{"text":"x"},"category":[{"coding":[{"code":"laboratory"}]}]}`
		plain := strings.Replace(lab, "laboratory", "exam", 1)
		s.put("/Observation/dry", plain).want(201)
		policy("dry", `"effect":"deny","dryRun":true,"condition":"Observation?category=laboratory"`)
		count("a PUT into the condition", "dry", 1, func() { s.put("/Observation/dry", lab).want(200) })
		count("a PUT out of it", "dry", 1, func() { s.put("/Observation/dry", plain).want(200) })
		count("a vread", "dry", 1, func() { s.get("/Observation/dry/_history/2").want(200) })
		count("a vread of another version", "dry", 0, func() { s.get("/Observation/dry/_history/1").want(200) })
		count("the history of an instance", "dry", 1, func() { s.get("/Observation/dry/_history").want(200) })
		s.do("DELETE", "/Observation/dry", "").want(204)
		remove(t, "dry")

		policy("dry-type", `"effect":"deny","dryRun":true,"matcher":{"resourceTypes":["Observation"]}`)
		count("a read", "dry-type", 1, func() { s.get("/Observation/vital-a").want(200) })
		count("a read of what is not there", "dry-type", 1, func() { s.get("/Observation/absent").want(404) })
		count("a search", "dry-type", 1, func() { s.get("/Observation").want(200) })
		count("a search that finds nothing", "dry-type", 1, func() { s.get("/Observation?code=absent").want(200).equal("total", "0") })
		count("the history of an instance", "dry-type", 1, func() { s.get("/Observation/dry/_history").want(200) })
		count("the history of the type", "dry-type", 1, func() { s.get("/Observation/_history").want(200) })
		count("a PUT", "dry-type", 1, func() { s.put("/Observation/dry", plain).want(201) })
		count("a DELETE", "dry-type", 1, func() { s.do("DELETE", "/Observation/dry", "").want(204) })
		count("a DELETE of what is not there", "dry-type", 1, func() { s.do("DELETE", "/Observation/absent", "").want(204) })
		count("another type", "dry-type", 0, func() { s.get("/Patient").want(200) })
		remove(t, "dry-type")
	})
}

// A policy stored on one server is in force on the others within a second.
// Contract, Authorization 5: policies belong to every server of the database.
func TestPoliciesOnTwoServers(t *testing.T) {
	t.Parallel()
	url := storetest.New(t)
	on := func(c *server.Config) { c.Database.URL = url }
	one, two := authorized(t, on), authorized(t, on)
	twoPatients(one)
	reader := systemClient("system/*.rs")
	two.as(reader).get("/Patient/a").want(200)
	one.atRoot().as(systemClient("admin")).post("/admin/policies", `{"name":"closed","effect":"deny"}`).want(201)
	one.as(reader).get("/Patient/a").want(403)
	deadline := time.Now().Add(time.Second)
	eventually(t, "the policy on the other server", func() bool { return two.as(reader).get("/Patient/a").status == 403 })
	if late := time.Since(deadline); late > 0 {
		t.Errorf("it took %s longer than a second", late)
	}
}

// auth.policy.default_deny: what no policy allows is denied.
// Contract, Authorization 5: `auth.policy.default_deny`.
func TestPolicyDefaultDeny(t *testing.T) {
	t.Parallel()
	s := authorized(t, func(c *server.Config) { c.Auth.Policy.DefaultDeny = true })
	admin, app := s.atRoot().as(systemClient("admin")), s.as(systemClient("system/*.cruds"))
	app.get("/Patient").issue(403, "forbidden", "default_deny")
	admin.post("/admin/policies", `{"name":"patients","effect":"allow","matcher":{"resourceTypes":["Patient"]}}`).want(201)
	app.get("/Patient").want(200)
	app.post("/Patient", `{"resourceType":"Patient"}`).want(201)
	app.get("/Observation").want(403)
}

// auth.audit.log_access_decisions: an AuditEvent of each request that needs a token.
// Contract, Authorization 5: `auth.audit.*`: AuditEvents, none lost when the server ends in order.
func TestAuditOfDecisions(t *testing.T) {
	t.Parallel()
	s := authorized(t, func(c *server.Config) { c.Auth.Audit.LogAccessDecisions = true })
	s.as(systemClient("system/*.cruds")).put("/Patient/p", `{"resourceType":"Patient","id":"p"}`).want(201)
	s.as(patientApp("p", "patient/Patient.r")).get("/Patient/p").want(200)
	s.as(patientApp("p", "patient/Patient.r")).get("/Observation?code=x").want(403)
	s.get("/Patient/p").want(401)
	s.get("/metadata").want(200)
	auditor := s.as(systemClient("system/AuditEvent.s"))
	var found *answer
	eventually(t, "the AuditEvents", func() bool {
		found = auditor.get("/AuditEvent?_count=100&_sort=date").want(200)
		return found.len("entry") >= 4
	})
	for i, want := range []struct{ action, outcome, subtype, detail, who string }{
		{"U", "0", "update", "PUT /fhir/Patient/p: 201", "backend"},
		{"R", "0", "read", "GET /fhir/Patient/p: 200", "user-p"},
		{"E", "4", "search-type", "GET /fhir/Observation: 403", "user-p"},
		{"R", "4", "read", "GET /fhir/Patient/p: 401", "unknown"},
	} {
		at := "entry." + string(rune('0'+i)) + ".resource."
		found.equal(at+"type.code", "rest").equal(at+"action", want.action).equal(at+"outcome", want.outcome).
			equal(at+"outcomeDesc", want.detail).equal(at+"agent.0.who.display", want.who)
	}
	found.equal("entry.1.resource.subtype.0.code", "read").equal("entry.1.resource.entity.0.what.reference", "Patient/p").equal("entry.1.resource.agent.0.network.address", "127.0.0.1")
}

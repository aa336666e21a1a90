package conformance

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"kiln/server"
	"kiln/server/store/storetest"
)

// auditBody is an AuditEvent about Patient/a of some observer.
func auditBody(id, observer string) string {
	return `{"resourceType":"AuditEvent","id":"` + id + `","type":{"code":"rest"},"recorded":"2026-01-01T00:00:00Z","agent":[{"requestor":true,"who":{"reference":"Patient/a"}}],"source":{"observer":{"display":"` + observer + `"}},"entity":[{"what":{"reference":"Patient/a"}}]}`
}

// AuditEvents are hidden from patients, unless the configuration shows them, and are part of
// $everything if `_type` names them.
// Contract, Authorization 4: `audit.visible_to_patients`.
func TestAuditEventsOfPatients(t *testing.T) {
	t.Parallel()
	for _, visible := range []bool{false, true} {
		t.Run(fmt.Sprint(visible), func(t *testing.T) {
			t.Parallel()
			s := authorized(t, func(c *server.Config) { c.Audit.VisibleToPatients = visible })
			twoPatients(s)
			all := s.as(systemClient("system/*.cruds"))
			for _, p := range []string{"a", "b"} {
				all.put("/AuditEvent/event-"+p, strings.ReplaceAll(auditBody("event-"+p, "x"), "Patient/a", "Patient/"+p)).want(201)
			}
			for name, c := range map[string]claims{
				"patient/":           patientApp("a", "patient/*.rs"),
				"user/ of a Patient": {Subject: "anna", Client: "app", User: "Patient/a", Scope: "user/*.rs"},
				"user/ of a proxy":   {Subject: "mother", Client: "app", User: "RelatedPerson/rel-a", Scope: "user/*.rs"},
			} {
				a := s.in(t).as(c)
				status, total := 404, "0"
				if visible {
					status, total = 200, "1"
				}
				for _, path := range []string{"/AuditEvent/event-a", "/AuditEvent/event-a/_history/1", "/AuditEvent/event-a/_history"} {
					if got := a.get(path); got.status != status {
						t.Errorf("%s: %s answers %d, want %d", name, path, got.status, status)
					}
				}
				for _, path := range []string{"/AuditEvent?_id=event-a,event-b", "/Patient/a/AuditEvent?_id=event-a,event-b", "/?_type=AuditEvent&_id=event-a,event-b"} {
					a.get(path).want(200).equal("total", total)
				}
				got := a.get("/Patient/a/$everything?_type=AuditEvent").want(200)
				if strings.Contains(string(got.body), "event-a") != visible || strings.Contains(string(got.body), "event-b") {
					t.Errorf("%s: $everything answers %s", name, clip(got.body))
				}
			}
			for _, c := range []claims{patientApp("a", "patient/*.rs"), systemClient("system/*.rs"), {Subject: "doctor", Client: "app", User: "Practitioner/dr", Scope: "user/*.rs"}} {
				for _, path := range []string{"/Patient/a/$everything", "/Patient/a/$everything?_type=Patient,Observation"} {
					if got := s.in(t).as(c).get(path).want(200); strings.Contains(string(got.body), `"AuditEvent"`) {
						t.Errorf("%s has AuditEvents for %s", path, c.Scope)
					}
				}
			}
			got := s.in(t).as(systemClient("system/*.rs")).get("/Patient/a/$everything?_type=Patient,AuditEvent").want(200)
			if !strings.Contains(string(got.body), `"event-a"`) {
				t.Errorf("the record without event-a: %s", clip(got.body))
			}
		})
	}
}

// A client neither imitates an AuditEvent of the server nor changes an AuditEvent. PUT loads an
// exported one under a new id, with a tag that the server's own never have.
// Contract, Authorization 4: AuditEvents; Operations: audit.
func TestAuditEventsAreAppended(t *testing.T) {
	t.Parallel()
	s := startWith(t, storetest.New(t), server.Options{Authorization: func(context.Context, *server.Server) (server.Authorization, error) { return tokens{}, nil }},
		func(c *server.Config) { c.Auth.Enabled, c.Audit.Rest = true, "writes" })
	twoPatients(s)
	all := s.as(systemClient("system/*.cruds"))
	own := all.events("entity=Patient/a", 1)
	observer := own.str("entry.0.resource.source.observer.display")
	ownID := own.str("entry.0.resource.id")

	for _, name := range []string{observer, " kiln", "Kiln authorization server"} {
		all.post("/AuditEvent", auditBody("x", name)).issue(422, "invalid", "source.observer")
		all.post("/", bundle("transaction", entry("POST", "AuditEvent", "", auditBody("x", name)))).want(422)
		all.post("/", bundle("batch", entry("POST", "AuditEvent", "", auditBody("x", name)))).want(200).equal("entry.0.response.status", "422 Unprocessable Entity")
	}
	all.post("/AuditEvent", auditBody("x", "Kiln of somebody else")).want(201)

	load := s.as(systemClient("system/AuditEvent.crs"))
	for id, put := range map[string]func(id string) *answer{
		"loaded": func(id string) *answer { return load.put("/AuditEvent/"+id, auditBody(id, observer)).want(201) },
		"loaded-tx": func(id string) *answer {
			return load.post("/", bundle("transaction", entry("PUT", "AuditEvent/"+id, "", auditBody(id, observer)))).want(200).equal("entry.0.response.status", "201 Created")
		},
		"loaded-batch": func(id string) *answer {
			return load.post("/", bundle("batch", entry("PUT", "AuditEvent/"+id, "", auditBody(id, observer)))).want(200).equal("entry.0.response.status", "201 Created")
		},
	} {
		put(id)
		load.get("/AuditEvent/"+id).want(200).equal("recorded", "2026-01-01T00:00:00Z").equal("source.observer.display", observer).
			equal("meta.tag.0.code", "loaded").equal("meta.versionId", "1")
		load.put("/AuditEvent/"+id, auditBody(id, "x")).issue(405, "not-supported")
	}
	all.put("/AuditEvent/"+ownID, auditBody(ownID, "x")).issue(405, "not-supported")
	all.put("/AuditEvent?_id="+ownID, auditBody(ownID, "x")).want(405)
	all.put("/AuditEvent/"+ownID, auditBody(ownID, "x"), "If-Match", `W/"1"`).want(405)
	all.do("DELETE", "/AuditEvent/loaded", "").want(405)
	all.post("/AuditEvent/loaded/$meta-delete", `{"resourceType":"Parameters","parameter":[{"name":"meta","valueMeta":{"tag":[{"system":"http://kiln/fhir/CodeSystem/audit-event-origin","code":"loaded"}]}}]}`).want(405)
	all.post("/", bundle("transaction", entry("PUT", "AuditEvent/loaded", "", auditBody("loaded", "x")))).want(405)
	all.get("/AuditEvent/"+ownID).want(200).equal("meta.versionId", "1").equal("meta.tag", "")
	if n := all.get("/AuditEvent?_tag=http://kiln/fhir/CodeSystem/audit-event-origin|loaded").want(200).str("total"); n != "3" {
		t.Errorf("%s loaded AuditEvents, want 3", n)
	}
	for _, c := range []claims{systemClient("system/AuditEvent.u"), systemClient("system/*.uds"), patientApp("a", "patient/*.cruds"), {Subject: "doctor", Client: "app", User: "Practitioner/dr", Scope: "user/*.cruds"}} {
		for _, id := range []string{"new", "loaded"} {
			s.as(c).put("/AuditEvent/"+id, auditBody(id, "x")).issue(403, "forbidden", "system/AuditEvent.c")
		}
	}
}

// PUT of a hidden and of an absent id have one answer where the token cannot create.
// Contract, Authorization 4: a PUT that lacks `c` or `u`.
func TestPutOfHiddenAndAbsent(t *testing.T) {
	t.Parallel()
	s := authorized(t)
	twoPatients(s)
	all := s.as(systemClient("system/*.cruds"))
	all.put("/Observation/gone-b", putBody("gone-b", "b")).want(201)
	all.do("DELETE", "/Observation/gone-b", "").want(204)
	for _, tt := range []struct {
		who      claims
		suffices string
	}{
		{patientApp("a", "patient/*.rus"), "patient/Observation.cu"},
		{patientApp("a", "patient/*.u"), "patient/Observation.cu"},
		{patientApp("a", "patient/*.rs"), "patient/Observation.cu"},
		{patientApp("a", "patient/Observation.u patient/Observation.c?category=laboratory"), ""},
		{patientApp("a", "patient/Patient.cruds"), "patient/Observation.cu"},
		{claims{Subject: "anna", Client: "app", User: "Patient/a", Scope: "user/*.rus"}, "user/Observation.cu"},
		{systemClient("system/Observation.ru?category=none"), "system/Observation.cu"},
	} {
		a := s.in(t).as(tt.who)
		for _, hidden := range []string{"obs-b", "gone-b"} {
			absent := strings.Replace(hidden, "-b", "-z", 1)
			for _, owner := range []string{"a", "b"} {
				for _, headers := range [][]string{nil, {"If-Match", `W/"1"`}, {"If-None-Match", "*"}} {
					h, n := a.put("/Observation/"+hidden, putBody(hidden, owner), headers...), a.put("/Observation/"+absent, putBody(absent, owner), headers...)
					a.same(h, n, hidden, absent)
					if got, want := h.header.Get("WWW-Authenticate"), n.header.Get("WWW-Authenticate"); got != want {
						t.Errorf("%s: the challenges are %q and %q", tt.who.Scope, got, want)
					}
					if h.status == 403 && tt.suffices != "" && h.header.Get("WWW-Authenticate") != `Bearer error="insufficient_scope", scope="`+tt.suffices+`"` {
						t.Errorf("%s: the challenge is %q, want the scope %s", tt.who.Scope, h.header.Get("WWW-Authenticate"), tt.suffices)
					}
				}
				put := func(id string) *answer {
					return a.post("/", bundle("batch", entry("PUT", "Observation/"+id, "", putBody(id, owner)))).want(200)
				}
				a.same(put(hidden), put(absent), hidden, absent)
			}
		}
	}
}

// putBody is Observation/id about a patient.
func putBody(id, patient string) string {
	return `{"resourceType":"Observation","id":"` + id + `","status":"final","code":{"text":"x"},"subject":{"reference":"Patient/` + patient + `"}}`
}

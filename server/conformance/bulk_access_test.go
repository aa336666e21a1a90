package conformance

import (
	"fmt"
	"net/url"
	"slices"
	"strings"
	"testing"

	"kiln/server"
	"kiln/server/store/storetest"
)

// Contract: Bulk data, Rights and audit.
func TestBulkRights(t *testing.T) {
	t.Parallel()
	s := withAuthorizationOn(t, storetest.New(t), func(c *server.Config) { c.Jobs.MaxPerClient, c.Audit.Rest = 1000, "writes" })
	all := s.bearer(s.backendToken("backend", "system/*.cruds"))
	all.putAll(`{"resourceType":"Patient","id":"1","gender":"male"}`, `{"resourceType":"Patient","id":"2","gender":"female"}`,
		`{"resourceType":"Observation","id":"of1","status":"final","code":{"text":"c"},"subject":{"reference":"Patient/1"}}`,
		`{"resourceType":"Observation","id":"of2","status":"final","code":{"text":"c"},"subject":{"reference":"Patient/2"}}`,
		`{"resourceType":"Group","id":"g","type":"person","actual":true,"member":[{"entity":{"reference":"Patient/1"}},{"entity":{"reference":"Patient/2"}}]}`)
	t.Run("no token is 401", func(t *testing.T) {
		s.in(t).do("GET", "/$export", "").issue(401, "login")
		s.in(t).do("GET", "/$job/x", "").issue(401, "login")
	})
	t.Run("types without rs are left out, or 403 where they are named", func(t *testing.T) {
		one := s.bearer(s.backendToken("backend", "system/Patient.rs system/Observation.s")).in(t)
		one.bulk("GET", "/$export", "").want("Patient/1", "Patient/2")
		one.do("GET", "/$export?_type=Observation", "").issue(403, "forbidden", "Observation")
		one.do("GET", "/$export?_typeFilter=Observation%3Fcode=c", "").issue(403, "forbidden", "Observation")
		none := s.bearer(s.backendToken("backend", "system/Patient.c")).in(t)
		none.do("GET", "/$export", "").issue(403, "forbidden")
	})
	t.Run("hidden resources are absent", func(t *testing.T) {
		women := s.bearer(s.backendToken("backend", "system/Patient.rs?gender=female system/Observation.rs system/Group.rs")).in(t)
		women.bulk("GET", "/Group/g/$export", "").want("Patient/2", "Observation/of2", "Group/g")
		women.do("GET", "/Group/g/$export?patient=Patient/1", "").issue(400, "invalid", "Patient/1")
		women.bulk("GET", "/Patient?_id=1,2", "").want("Patient/2")
		first := women.bulk("GET", "/$export?_type=Patient", "")
		all.do("DELETE", "/Observation/of1", "").want(204)
		all.do("DELETE", "/Patient/1", "").want(204)
		next := women.bulk("GET", "/$export?_type=Patient&_since="+url.QueryEscape(first.manifest.TransactionTime), "")
		if got := next.deleted(); len(got) > 0 {
			t.Errorf("deletions tell of %v", got)
		}
		next = all.in(t).bulk("GET", "/$export?_type=Patient&_since="+url.QueryEscape(first.manifest.TransactionTime), "")
		if got := next.deleted(); !slices.Equal(got, []string{"Patient/1"}) {
			t.Errorf("deletions tell of %v", got)
		}
	})
	t.Run("status and files are the owner's", func(t *testing.T) {
		r := all.in(t).bulk("GET", "/$export?_type=Patient", "")
		if !r.manifest.RequiresAccessToken {
			t.Error("requiresAccessToken is false")
		}
		other := s.bearer(s.backendToken("operator", "system/Patient.rs")).in(t)
		other.do("GET", r.status, "").issue(404, "not-found")
		other.do("DELETE", r.status, "").issue(404, "not-found")
		other.do("GET", r.manifest.Output[0].URL, "").issue(404, "not-found")
		admin := s.bearer(s.backendToken("operator", "admin")).in(t)
		admin.do("GET", r.status, "").want(200)
		admin.do("GET", r.manifest.Output[0].URL, "").issue(404, "not-found")
		narrow := s.bearer(s.backendToken("backend", "system/Observation.rs")).in(t)
		narrow.do("GET", r.manifest.Output[0].URL, "").issue(403, "forbidden", "Patient")
		if list := admin.do("GET", s.origin()+"/admin/jobs?type=export&state=done", "").want(200); !strings.Contains(string(list.body), r.status[strings.LastIndexByte(r.status, '/')+1:]) {
			t.Errorf("/admin/jobs does not list it: %s", list.body)
		}
	})
	t.Run("jobs of a disabled client are cancelled", func(t *testing.T) {
		admin := s.bearer(s.backendToken("operator", "admin")).in(t)
		s.workers(admin, 0)
		at := all.in(t).kickOff("GET", "/$export", "")
		id := at[strings.LastIndexByte(at, '/')+1:]
		admin.do("PATCH", s.origin()+"/admin/clients/backend", `{"active": false}`, "Content-Type", "application/merge-patch+json").want(200)
		eventually(t, "the job is cancelled", func() bool {
			return admin.do("GET", s.origin()+"/admin/jobs/"+id, "").want(200).str("state") == "cancelled"
		})
		admin.do("GET", at, "").issue(404, "not-found")
		admin.do("PATCH", s.origin()+"/admin/clients/backend", `{"active": true}`, "Content-Type", "application/merge-patch+json").want(200)
		s.workers(admin, 2)
		all = s.bearer(s.backendToken("backend", "system/*.cruds"))
	})
	t.Run("AuditEvents", func(t *testing.T) {
		all.in(t).bulk("GET", "/$export?_type=Group", "")
		for _, what := range []string{"export-kickoff", "export-end", "export-download"} {
			eventually(t, "the AuditEvent of "+what, func() bool {
				return all.in(t).do("GET", "/AuditEvent?type=http://dicom.nema.org/resources/ontology/DCM|110106&subtype=urn:kiln:audit|"+what, "").len("entry") > 0
			})
		}
	})
}

// workers sets jobs.workers.
func (s *service) workers(admin *service, n int) {
	admin.do("PUT", s.origin()+"/admin/config/jobs/workers", fmt.Sprintf(`{"value": %d}`, n), "Content-Type", "application/json").want(200)
}

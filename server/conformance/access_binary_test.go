package conformance

import (
	"slices"
	"strings"
	"testing"
)

// binaries are Binaries with and without a security context, beside twoPatients.
func binaries(s *service) {
	s.t.Helper()
	all := s.as(systemClient("system/*.cruds"))
	for _, p := range []string{"a", "b"} {
		all.put("/DocumentReference/doc-"+p, `{"resourceType":"DocumentReference","id":"doc-`+p+`","status":"current","subject":{"reference":"Patient/`+p+`"},"content":[{"attachment":{"url":"Binary/by-doc-`+p+`"}}]}`).want(201)
	}
	all.put("/DocumentReference/gone", `{"resourceType":"DocumentReference","id":"gone","status":"current","subject":{"reference":"Patient/a"},"content":[{"attachment":{"title":"x"}}]}`).want(201)
	for id, to := range map[string]string{
		"by-patient-a": "Patient/a", "by-patient-b": "Patient/b", "by-doc-a": "DocumentReference/doc-a", "by-doc-b": "DocumentReference/doc-b",
		"by-version": "DocumentReference/doc-a/_history/1", "by-obs": "Observation/obs-a", "by-org": "Organization/org", "by-gone": "DocumentReference/gone",
		"by-absent": "DocumentReference/absent", "by-binary": "Binary/by-patient-a", "moved": "Patient/b", "left": "Patient/a",
	} {
		all.put("/Binary/"+id, binaryOf(id, to)).want(201)
	}
	all.put("/Binary/moved", binaryOf("moved", "Patient/a")).want(200)
	all.put("/Binary/left", binaryOf("left", "Patient/b")).want(200)
	all.do("DELETE", "/DocumentReference/gone", "").want(204)
}

// binaryOf is a Binary whose security context is the resource to.
func binaryOf(id, to string) string {
	return `{"resourceType":"Binary","id":"` + id + `","contentType":"text/plain","securityContext":{"reference":"` + to + `"},"data":"c2VjcmV0"}`
}

// A Binary is read by a token that may read its security context.
// Contract, Authorization 4: a Binary with `securityContext`.
func TestBinaryBySecurityContext(t *testing.T) {
	t.Parallel()
	s := authorized(t)
	twoPatients(s)
	binaries(s)
	own := []string{"by-doc-a", "by-obs", "by-org", "by-patient-a", "by-version", "moved"}
	hidden := []string{"by-doc-b", "by-patient-b", "by-gone", "by-absent", "by-binary", "left", "bin-a"}
	for name, c := range map[string]claims{
		"patient/":             patientApp("a", "patient/*.rs"),
		"patient/ of v1":       patientApp("a", "patient/*.read"),
		"user/ of a Patient":   {Subject: "anna", Client: "app", User: "Patient/a", Scope: "user/*.rs"},
		"user/ of a proxy":     {Subject: "mother", Client: "app", User: "RelatedPerson/rel-a", Scope: "user/*.rs"},
		"patient/ of a doctor": {Subject: "doctor", Client: "app", Patient: "a", User: "Practitioner/dr", Scope: "patient/*.rs"},
	} {
		t.Run(name, func(t *testing.T) {
			a := s.in(t).as(c)
			for _, id := range own {
				a.get("/Binary/" + id).want(200)
				a.get("/Binary/"+id, "Accept", "application/fhir+json").want(200).equal("id", id)
				if got := a.get("/Binary/"+id, "Accept", "text/plain").want(200); string(got.body) != "secret" {
					t.Errorf("%s: %q", id, got.body)
				}
			}
			for _, id := range hidden {
				for _, more := range []string{"", "/_history/7"} {
					a.sameAsAbsent("/Binary/"+id+more, "/Binary/zz"+more, id, "zz")
				}
			}
			for _, path := range []string{"/Binary?_count=50", "/Binary?security-context:missing=false&_count=50"} {
				got := a.get(path).want(200).equal("total", "6")
				ids := got.ids()
				if slices.Sort(ids); !slices.Equal(ids, own) {
					t.Errorf("%s finds %v", path, ids)
				}
			}
			a.get("/?_type=Binary,Patient&_summary=count").want(200).equal("total", "7")
			a.get("/Binary?security-context=Patient/b").want(200).equal("total", "0")
			a.get("/Binary/moved/_history").want(200).equal("total", "1")
			a.get("/Binary/moved/_history/1").want(404)
			a.get("/Binary/left/_history").want(200).equal("total", "1")
			a.get("/Binary/left/_history/1").want(200)
			noSecretOfB(t, a.get("/Binary/_history?_count=100").want(200))
		})
	}
	t.Run("the scope names the type of the security context too", func(t *testing.T) {
		count := func(scope, want string) {
			t.Helper()
			s.in(t).as(patientApp("a", scope)).get("/Binary?_summary=count").want(200).equal("total", want)
		}
		count("patient/Binary.rs patient/DocumentReference.rs", "2")
		count("patient/Binary.rs patient/Patient.rs", "2")
		count("patient/Binary.rs patient/Observation.rs?category=laboratory", "1")
		count("patient/Binary.rs patient/Observation.rs?category=vital-signs", "0")
		count("patient/Binary.rs", "0")
		s.in(t).as(patientApp("a", "patient/Patient.rs")).get("/Binary/by-patient-a").issue(403, "forbidden")
		s.in(t).as(systemClient("system/Binary.rs")).get("/Binary/bin-a").want(200)
	})
	t.Run("writes", func(t *testing.T) {
		a := s.in(t).as(patientApp("a", "patient/*.cruds"))
		id := a.post("/Binary", "hello", "Content-Type", "text/plain", "X-Security-Context", "Patient/a").want(201).str("id")
		a.get("/Binary/"+id, "Accept", "text/plain").want(200)
		a.post("/Binary", "hello", "Content-Type", "text/plain", "X-Security-Context", "DocumentReference/doc-a").want(201)
		for _, to := range []string{"Patient/b", "DocumentReference/doc-b", "Organization/org", "DocumentReference/absent", "Binary/" + id} {
			a.post("/Binary", "hello", "Content-Type", "text/plain", "X-Security-Context", to).issue(403, "forbidden")
			a.put("/Binary/"+id, binaryOf(id, to)).issue(403, "forbidden")
		}
		a.post("/Binary", "hello", "Content-Type", "text/plain").issue(403, "forbidden")
		a.put("/Binary/by-patient-b", binaryOf("by-patient-b", "Patient/a")).issue(403, "forbidden")
		a.same(a.do("DELETE", "/Binary/by-doc-b", ""), a.do("DELETE", "/Binary/by-doc-z", ""), "by-doc-b", "by-doc-z")
		s.in(t).as(systemClient("system/*.rs")).get("/Binary/by-doc-b").want(200)
		a.do("DELETE", "/Binary/"+id, "").want(204)
		a.get("/Binary/" + id).want(410)
	})
	t.Run("a policy that hides the security context hides the Binary", func(t *testing.T) {
		doctor := s.in(t).as(claims{Subject: "doctor", Client: "app", User: "Practitioner/dr", Scope: "user/*.rs"})
		doctor.get("/Binary/by-patient-b").want(200)
		admin := s.in(t).as(claims{Subject: "root", Client: "app", Scope: "admin"})
		policy := s.origin() + "/admin/policies/vip"
		admin.do("PUT", policy, `{"matcher":{"users":["doctor"]},"effect":"deny","condition":"Patient?_id=b"}`, "Content-Type", "application/json").want(201)
		doctor.get("/Binary/by-patient-b").want(404)
		doctor.get("/Binary/by-patient-a").want(200)
		doctor.get("/Binary/bin-b").want(200)
		for _, id := range doctor.get("/Binary?_count=50").want(200).ids() {
			if id == "by-patient-b" || id == "left" {
				t.Errorf("the search finds %s", id)
			}
		}
		admin.do("DELETE", policy, "")
	})
}

// noSecretOfB fails the test if an answer names a security context of Patient/b.
func noSecretOfB(t *testing.T, a *answer) {
	t.Helper()
	for _, name := range []string{"Patient/b", "doc-b"} {
		if strings.Contains(string(a.body), name) {
			t.Errorf("the answer has %s: %s", name, clip(a.body))
		}
	}
}

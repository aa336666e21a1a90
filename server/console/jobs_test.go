package console_test

import (
	"net/http"
	"net/url"
	"regexp"
	"strings"
	"testing"
	"time"
)

var fileLink = regexp.MustCompile(`href="(/console/jobs/[A-Z0-9]+/[^"]+)"`)

// An export is started and downloaded by forms and links. Only the owner of a job may read its files.
func TestExportByPages(t *testing.T) {
	t.Parallel()
	s, _ := signedUp(t)
	admin, doctor := s.visitor(), s.visitor()
	admin.signIn("admin", "/console").want(200)
	doctor.signIn("doctor", "/console").want(200)

	// The address of a kick-off starts nothing: another site can link to it.
	to := admin.do(http.MethodGet, "/$export", nil, "Accept", "text/html").want(http.StatusSeeOther).location
	admin.get(to).want(200).has("This request starts a job. It is not sent yet.", `value="/$export"`, "Prefer: respond-async").lacks("202 Accepted")
	admin.get("/console/jobs").want(200).has("There are none.")

	doctor.post("/console/jobs", url.Values{"action": {"export"}}).want(http.StatusForbidden)
	admin.post("/console/jobs", url.Values{"action": {"export"}, "types": {"Nonsense"}}).want(http.StatusBadRequest).has("Nonsense")
	job := admin.post("/console/jobs", url.Values{"action": {"export"}, "types": {"Patient, Practitioner"}}).want(http.StatusSeeOther).location
	p := admin.get(job).want(200).has("The export is started.")
	for deadline := time.Now().Add(time.Minute); !strings.Contains(p.body, `<span class="tag done">`); <-time.After(50 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("the export does not end: %s", p.body)
		}
		p = admin.get(job).want(200)
	}
	admin.get("/console/jobs").want(200).has(`href="` + job + `"`)
	lines, links := 0, fileLink.FindAllStringSubmatch(p.body, -1)
	for _, m := range links {
		f := admin.get(m[1]).want(200)
		if f.header.Get("Content-Type") != "application/fhir+ndjson" || !strings.HasPrefix(f.header.Get("Content-Disposition"), "attachment; ") || !strings.HasSuffix(f.header.Get("Content-Security-Policy"), "sandbox") {
			t.Errorf("%s: %v", m[1], f.header)
		}
		lines += strings.Count(f.body, "\n")
		doctor.get(m[1]).want(http.StatusNotFound).lacks("Ashford")
	}
	if len(links) != 2 || lines != 3 {
		t.Errorf("%d files with %d lines: %s", len(links), lines, p.body)
	}
	admin.get(job + "/none").want(http.StatusNotFound).has("<h1>Not found</h1>")
	doctor.get(job).want(http.StatusForbidden)
}

package conformance

import (
	"net/http"
	"strings"
	"testing"

	"kiln/server"
)

// FORMATS, 7: every answer has X-Content-Type-Options: nosniff, and every JSON answer ends
// with one line feed. The content of a Binary stays as it is.
func TestEveryAnswer(t *testing.T) {
	t.Parallel()
	s := start(t, func(c *server.Config) { c.Server.AllowedOrigins = []string{"*"} })
	check := func(t *testing.T, a *answer) {
		t.Helper()
		if got := a.header["X-Content-Type-Options"]; len(got) != 1 || got[0] != "nosniff" {
			t.Errorf("%s: %d, X-Content-Type-Options: %q", a.what, a.status, got)
		}
		isJSON := strings.Contains(a.header.Get("Content-Type"), "json")
		if text := string(a.body); isJSON && text != "" && (!strings.HasSuffix(text, "\n") || strings.HasSuffix(text, "\n\n")) {
			t.Errorf("%s: %d, the JSON answer ends with %q", a.what, a.status, text[max(0, len(text)-10):])
		}
	}
	patient := `{"resourceType":"Patient","id":"a","name":[{"family":"` + strings.Repeat("x", 5000) + `"}]}`
	s.put("/Patient/a", patient).want(201)
	content := `{"a":1}`
	b := s.post("/Binary", content, "Content-Type", "application/octet-stream").want(201)
	root := strings.TrimSuffix(s.base, "/fhir")
	for _, c := range []struct{ method, path, body, accept string }{
		{"GET", "/Patient/a", "", ""}, {"GET", "/Patient/a", "", "application/json"}, {"HEAD", "/Patient/a", "", ""}, {"GET", "/Patient/a?_pretty=true", "", ""},
		{"GET", "/Patient", "", ""}, {"GET", "/Patient/a/_history", "", ""}, {"GET", "/Patient/a/_history/1", "", ""}, {"GET", "/metadata", "", ""}, {"GET", "/metadata?mode=terminology", "", ""},
		{"PUT", "/Patient/b", `{"resourceType":"Patient","id":"b"}`, ""}, {"POST", "/Patient", `{"resourceType":"Patient"}`, ""}, {"DELETE", "/Patient/b", "", ""},
		{"POST", "/", `{"resourceType":"Bundle","type":"batch","entry":[{"request":{"method":"GET","url":"Patient/a"}}]}`, ""},
		{"POST", "/Patient/$validate", `{"resourceType":"Patient"}`, ""}, {"GET", "/Patient/a/$everything", "", ""}, {"GET", "/Patient/a/$meta", "", ""},
		{"GET", "/Patient/none", "", ""}, {"GET", "/Nothing", "", ""}, {"POST", "/Patient", "{", ""}, {"PATCH", "/Patient/a", "[]", ""}, {"GET", "/Patient/a", "", "image/png"},
		{"GET", "//Patient", "", ""}, {"OPTIONS", "/Patient", "", ""}, {"TRACE", "/Patient", "", ""}, {"GET", "/Binary/" + b.str("id"), "", "*/*"}, {"GET", "/Binary/" + b.str("id"), "", "application/fhir+json"},
		{"GET", root + "/health", "", ""}, {"GET", root + "/health/live", "", ""}, {"GET", root + "/health/ready", "", ""}, {"GET", root + "/metrics", "", ""},
		{"GET", root + "/admin/config", "", ""}, {"GET", root + "/admin/jobs", "", ""}, {"GET", root + "/admin/none", "", ""}, {"GET", root + "/.well-known/smart-configuration", "", ""},
		{"GET", root + "/auth/none", "", ""}, {"GET", "/Patient/a?_format=xxx", "", ""}, {"GET", "/" + strings.Repeat("x", 65<<10), "", ""}, {"GET", "/notifications/none", "", ""},
		{"GET", "/Patient/a", "", "application/fhir+json;q=0"}, {"GET", "/App", "", ""},
	} {
		for _, encoding := range []string{"identity", "gzip"} {
			if c.method != "GET" && encoding == "gzip" {
				continue
			}
			a := s.do(c.method, c.path, c.body, "Accept", c.accept, "Accept-Encoding", encoding)
			if encoding == "gzip" {
				a.header.Set("Content-Type", "") // the body is still compressed
			}
			check(t, a)
		}
	}
	check(t, s.do("OPTIONS", "/Patient", "", "Origin", "https://x.example", "Access-Control-Request-Method", "PUT").want(http.StatusNoContent))
	check(t, s.get("/Patient/a", "If-None-Match", `W/"1"`).want(304))
	if a := s.get("/Binary/"+b.str("id"), "Accept", "*/*").want(200); string(a.body) != content {
		t.Errorf("the content of a Binary: %q", a.body)
	}
}

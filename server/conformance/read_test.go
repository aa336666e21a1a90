package conformance

import (
	"compress/gzip"
	"encoding/json"
	"io"
	"net/http"
	"strings"
	"testing"

	"kiln/server"
)

// http.html#read
func TestRead(t *testing.T) {
	s := start(t)
	id := s.create(`{"resourceType":"Patient","birthDate":"1970-03-30"}`)

	t.Run("the current version, with its ETag and date (http.html#read)", func(t *testing.T) {
		a := s.in(t).get("/Patient/" + id).want(200)
		a.equal("resourceType", "Patient").equal("id", id).equal("meta.versionId", "1").equal("birthDate", "1970-03-30")
		a.has("ETag", `W/"1"`).has("Content-Type", "application/fhir+json; charset=utf-8")
		a.has("Content-Location", s.base+"/Patient/"+id+"/_history/1")
		if _, err := http.ParseTime(a.header.Get("Last-Modified")); err != nil {
			t.Errorf("Last-Modified: %v", err)
		}
	})
	t.Run("never existed is 404, not-found (http.html#read)", func(t *testing.T) {
		s.in(t).get("/Patient/nobody").issue(404, "not-found", "Patient/nobody")
	})
	t.Run("what cannot be an id never existed (datatypes.html#id)", func(t *testing.T) {
		s.in(t).get("/Patient/"+strings.Repeat("x", 65)).issue(404, "not-found")
		s.in(t).get("/Patient/a_b").issue(404, "not-found")
	})
	t.Run("deleted is 410 (http.html#read)", func(t *testing.T) {
		gone := s.create(`{"resourceType":"Patient"}`)
		s.in(t).do("DELETE", "/Patient/"+gone, "").want(204)
		s.in(t).get("/Patient/"+gone).issue(410, "deleted", "Patient/"+gone)
	})
	t.Run("an unknown type is 404, not-supported (contract)", func(t *testing.T) {
		s.in(t).get("/Patent/1").issue(404, "not-supported", `Patent`, `did you mean \"Patient\"?`)
		s.in(t).get("/patient/1").issue(404, "not-supported", `did you mean \"Patient\"?`)
		if a := s.in(t).get("/Patient/a%00b").issue(404, "not-found"); strings.Contains(string(a.body), "u0000") {
			t.Errorf("the outcome is no FHIR: %s", a.body)
		}
	})
	t.Run("conditional read (http.html#cread)", func(t *testing.T) {
		s := s.in(t)
		a := s.get("/Patient/"+id, "If-None-Match", `W/"1"`).want(304)
		if len(a.body) != 0 {
			t.Errorf("304 with a body: %s", a.body)
		}
		a.has("ETag", `W/"1"`)
		s.get("/Patient/"+id, "If-None-Match", `W/"7", W/"1"`).want(304)
		s.get("/Patient/"+id, "If-None-Match", `W/"2"`).want(200)
		modified := s.get("/Patient/" + id).header.Get("Last-Modified")
		s.get("/Patient/"+id, "If-Modified-Since", modified).want(304)
		s.get("/Patient/"+id, "If-Modified-Since", "Mon, 01 Jan 2001 00:00:00 GMT").want(200)
		s.get("/Patient/"+id, "If-Modified-Since", "yesterday").want(200)
	})
	t.Run("definitions that the server is built with, until one is stored there (contract: all of R4)", func(t *testing.T) {
		s := s.in(t)
		a := s.get("/StructureDefinition/Patient").want(200).equal("url", "http://hl7.org/fhir/StructureDefinition/Patient").equal("type", "Patient").
			equal("meta.tag.0.code", "SUBSETTED").has("Content-Location", "")
		if tag := a.header.Get("ETag"); !strings.HasPrefix(tag, `W/"`) {
			t.Errorf("ETag %q", tag)
		}
		if a.len("snapshot.element") == 0 {
			t.Error("no snapshot")
		}
		s.get("/StructureDefinition/Patient?_elements=type").want(200).equal("type", "Patient").equal("meta.tag.1.code", "").equal("snapshot", "")
		for _, path := range []string{"/SearchParameter/individual-birthdate", "/ValueSet/administrative-gender", "/CodeSystem/administrative-gender", "/OperationDefinition/Patient-everything", "/CompartmentDefinition/patient"} {
			s.get(path).want(200)
		}
		s.get("/StructureDefinition/Patent").issue(404, "not-found")
		s.put("/ValueSet/administrative-gender", `{"resourceType":"ValueSet","id":"administrative-gender","status":"draft"}`).want(201)
		s.get("/ValueSet/administrative-gender").want(200).equal("status", "draft").has("ETag", `W/"1"`)
		s.do("DELETE", "/ValueSet/administrative-gender", "").want(204)
		s.get("/ValueSet/administrative-gender").issue(410, "deleted")
	})
	t.Run("HEAD is GET without the body (http.html#read)", func(t *testing.T) {
		a := s.in(t).do("HEAD", "/Patient/"+id, "").want(200)
		if len(a.body) != 0 || a.header.Get("Content-Length") == "0" {
			t.Errorf("HEAD: body %q, Content-Length %q", a.body, a.header.Get("Content-Length"))
		}
		a.has("ETag", `W/"1"`)
		s.in(t).do("HEAD", "/Patient/nobody", "").want(404)
	})
	t.Run("_summary and _elements mark what is not whole (search.html#summary, #elements)", func(t *testing.T) {
		full := s.create(`{"resourceType":"Patient","text":{"status":"generated","div":"<div xmlns=\"http://www.w3.org/1999/xhtml\">x</div>"},"active":true,"name":[{"family":"A"}],"photo":[{"title":"p"}],"meta":{"tag":[{"code":"t"}]}}`)
		s := s.in(t)
		a := s.get("/Patient/"+full+"?_summary=true").want(200).equal("name.0.family", "A").equal("photo.0.title", "").equal("text.status", "")
		a.equal("meta.tag.0.code", "t").equal("meta.tag.1.code", "SUBSETTED")
		s.get("/Patient/"+full+"?_summary=text").want(200).equal("text.status", "generated").equal("active", "").equal("id", full)
		s.get("/Patient/"+full+"?_summary=data").want(200).equal("text.status", "").equal("active", "true")
		s.get("/Patient/"+full+"?_elements=active").want(200).equal("active", "true").equal("name.0.family", "").equal("meta.tag.1.code", "SUBSETTED")
		s.get("/Patient/"+full+"?_summary=maybe").issue(400, "invalid", "maybe")
	})
}

// http.html#vread
func TestVRead(t *testing.T) {
	s := start(t)
	id := s.create(`{"resourceType":"Patient","active":true}`)
	s.put("/Patient/"+id, `{"resourceType":"Patient","id":"`+id+`","active":false}`).want(200)
	s.do("DELETE", "/Patient/"+id, "").want(204)

	s.get("/Patient/"+id+"/_history/1").want(200).equal("active", "true").equal("meta.versionId", "1").has("ETag", `W/"1"`)
	s.get("/Patient/"+id+"/_history/2").want(200).equal("active", "false").equal("meta.versionId", "2")
	s.get("/Patient/"+id+"/_history/3").issue(410, "deleted")
	s.get("/Patient/"+id+"/_history/4").issue(404, "not-found")
	s.get("/Patient/"+id+"/_history/0").issue(404, "not-found")
	s.get("/Patient/"+id+"/_history/01").issue(404, "not-found")
	s.get("/Patient/"+id+"/_history/one").issue(404, "not-found")
	s.get("/Patient/nobody/_history/1").issue(404, "not-found")
}

// http.html#mime-type
func TestContentNegotiation(t *testing.T) {
	s := start(t)
	id := s.create(`{"resourceType":"Patient"}`)
	for _, tt := range []struct {
		name, accept, format string
		wantStatus           int
		wantType             string
	}{
		{"no preference", "", "", 200, "application/fhir+json; charset=utf-8"},
		{"anything", "*/*", "", 200, "application/fhir+json; charset=utf-8"},
		{"FHIR's own type", "application/fhir+json", "", 200, "application/fhir+json; charset=utf-8"},
		{"with FHIR's version", "application/fhir+json; fhirVersion=4.0", "", 200, "application/fhir+json; charset=utf-8"},
		{"another version of FHIR", "application/fhir+json; fhirVersion=3.0", "", 406, ""},
		{"plain JSON", "application/json", "", 200, "application/json; charset=utf-8"},
		{"a browser that asks for JSON", "text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8", "json", 200, "application/fhir+json; charset=utf-8"},
		{"quality decides", "application/json;q=0.5, application/fhir+json;q=0.9", "", 200, "application/fhir+json; charset=utf-8"},
		{"XML is not served", "application/fhir+xml", "", 406, ""},
		{"refused by quality 0", "application/fhir+json;q=0", "", 406, ""},
		{"a range says nothing of a type that is named (RFC 9110 §12.5.1)", "application/fhir+json;q=0, */*", "", 200, "application/json; charset=utf-8"},
		{"the range is liked better than the type that is named", "*/*;q=0.5, application/fhir+json;q=0.1", "", 200, "application/json; charset=utf-8"},
		{"both are named and refused", "application/json;q=0, */*, application/fhir+json;q=0", "", 406, ""},
		{"the type that is named is liked better", "application/fhir+json;q=0.9, application/*;q=0.1", "", 200, "application/fhir+json; charset=utf-8"},
		{"_format wins over Accept", "application/fhir+xml", "json", 200, "application/fhir+json; charset=utf-8"},
		{"_format as a type", "", "application/fhir%2Bjson", 200, "application/fhir+json; charset=utf-8"},
		{"_format with an unescaped plus", "", "application/fhir+json", 200, "application/fhir+json; charset=utf-8"},
		{"_format=application/json", "", "application/json", 200, "application/json; charset=utf-8"},
		{"_format=xml", "", "xml", 406, ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			path := "/Patient/" + id
			if tt.format != "" {
				path += "?_format=" + tt.format
			}
			a := s.in(t).get(path, "Accept", tt.accept)
			if tt.wantStatus != 200 {
				a.issue(tt.wantStatus, "not-supported")
				return
			}
			a.want(200).has("Content-Type", tt.wantType)
		})
	}
	for _, tt := range []struct {
		name, contentType string
		wantStatus        int
	}{
		{"FHIR's own type", "application/fhir+json", 201},
		{"with a charset", "application/fhir+json; charset=UTF-8", 201},
		{"plain JSON", "application/json", 201},
		{"another charset", "application/fhir+json; charset=latin1", 415},
		{"a form", "application/x-www-form-urlencoded", 415},
		{"XML", "application/fhir+xml", 415},
		{"nonsense", ";;", 415},
	} {
		t.Run("body: "+tt.name, func(t *testing.T) {
			a := s.in(t).post("/Patient", `{"resourceType":"Patient"}`, "Content-Type", tt.contentType)
			if tt.wantStatus == 415 {
				a.issue(415, "not-supported", "is not served")
				return
			}
			a.want(tt.wantStatus)
		})
	}
}

// http.html#general (compression, pretty printing), contract (request id, prefixes)
func TestHTTP(t *testing.T) {
	s := start(t)
	id := s.create(`{"resourceType":"Patient","name":[{"family":"` + strings.Repeat("x", 3000) + `"}]}`)

	t.Run("gzip when asked for and worth it", func(t *testing.T) {
		a := s.in(t).get("/Patient/"+id, "Accept-Encoding", "gzip").want(200).has("Content-Encoding", "gzip")
		if vary := strings.Join(a.header.Values("Vary"), ", "); !strings.Contains(vary, "Accept-Encoding") {
			t.Errorf("Vary %q", vary)
		}
		z, err := gzip.NewReader(strings.NewReader(string(a.body)))
		if err != nil {
			t.Fatal(err)
		}
		plain, err := io.ReadAll(z)
		if err != nil || !json.Valid(plain) {
			t.Errorf("unpacked: %v, %.80s", err, plain)
		}
		s.in(t).get("/Patient/"+id, "Accept-Encoding", "gzip;q=0").has("Content-Encoding", "")
	})
	t.Run("gzip of a request", func(t *testing.T) {
		var b strings.Builder
		z := gzip.NewWriter(&b)
		io.WriteString(z, `{"resourceType":"Patient","active":true}`)
		z.Close()
		s.in(t).post("/Patient", b.String(), "Content-Encoding", "gzip").want(201).equal("active", "true")
		s.in(t).post("/Patient", `{"resourceType":"Patient"}`, "Content-Encoding", "gzip").issue(400, "structure", "gzip")
		s.in(t).post("/Patient", `{"resourceType":"Patient"}`, "Content-Encoding", "br").issue(415, "not-supported", "br")
	})
	t.Run("_pretty", func(t *testing.T) {
		if a := s.in(t).get("/Patient/" + id + "?_pretty=true").want(200); !strings.Contains(string(a.body), "\n  \"id\"") {
			t.Errorf("not indented: %.100s", a.body)
		}
	})
	t.Run("every path with and without /fhir, links as asked", func(t *testing.T) {
		root := strings.TrimSuffix(s.base, "/fhir")
		s.in(t).get(root + "/Patient/" + id).want(200)
		s.in(t).get(root+"/Patient?_count=1").want(200).equal("link.0.url", root+"/Patient?_count=1")
		s.in(t).get("/Patient?_count=1").want(200).equal("link.0.url", s.base+"/Patient?_count=1")
	})
	t.Run("a request id is echoed, or made", func(t *testing.T) {
		s.in(t).get("/Patient/"+id, "X-Request-Id", "abc-123").has("X-Request-Id", "abc-123")
		if a := s.in(t).get("/Patient/" + id); a.header.Get("X-Request-Id") == "" {
			t.Error("no X-Request-Id")
		}
		if a := s.in(t).get("/Patient/"+id, "X-Request-Id", strings.Repeat("x", 300)); len(a.header.Get("X-Request-Id")) > 128 {
			t.Error("an oversized X-Request-Id was echoed")
		}
	})
	t.Run("405 names what is allowed", func(t *testing.T) {
		a := s.in(t).do("DELETE", "/metadata", "").issue(405, "not-supported")
		if !strings.Contains(a.header.Get("Allow"), "GET") {
			t.Errorf("Allow: %q", a.header.Get("Allow"))
		}
		s.in(t).post("/Patient/"+id, `{"resourceType":"Patient"}`).issue(405, "not-supported")
		s.in(t).put("/Patient", `{"resourceType":"Patient"}`).issue(405, "not-supported")
		for request, want := range map[string]string{
			"POST /Patient/" + id:                "GET, HEAD, PUT, PATCH, DELETE",
			"POST /Patient/_history":             "GET, HEAD",
			"DELETE /Patient/_history":           "GET, HEAD",
			"PUT /Patient/_search":               "POST",
			"GET /Patient/_search":               "POST",
			"DELETE /Patient/$meta":              "GET, HEAD, POST",
			"POST /Patient/" + id + "/_history":  "GET, HEAD",
			"GET /Patient/" + id + "/$meta-add":  "POST",
			"HEAD /Patient/" + id + "/$meta-add": "POST",
		} {
			method, path, _ := strings.Cut(request, " ")
			if got := s.in(t).do(method, path, "").want(405).header.Get("Allow"); got != want {
				t.Errorf("%s: Allow is %q, want %q", request, got, want)
			}
		}
		s.in(t).post("/Patient/"+id+"/nothing", "{}").issue(404, "not-supported", "nothing")
	})
	t.Run("OPTIONS says what a path takes", func(t *testing.T) {
		for path, want := range map[string]string{
			"/Patient/" + id: "GET, HEAD, PUT, PATCH, DELETE",
			"/Patient":       "GET, HEAD, POST",
			"/metadata":      "GET, HEAD, OPTIONS",
			"/":              "GET, HEAD, POST, OPTIONS",
		} {
			a := s.in(t).do("OPTIONS", path, "").want(204)
			if path == "/Patient/"+id && strings.Contains(a.header.Get("Allow"), "POST") {
				t.Errorf("OPTIONS %s: Allow is %q, and POST is not served", path, a.header.Get("Allow"))
			}
			for m := range strings.SplitSeq(want, ", ") {
				if !strings.Contains(a.header.Get("Allow"), m) {
					t.Errorf("OPTIONS %s: Allow is %q, want %s", path, a.header.Get("Allow"), want)
				}
			}
		}
		s.in(t).do("OPTIONS", "/Patent", "").issue(404, "not-supported", "Patent")
	})
	t.Run("a URL that is too long is 414", func(t *testing.T) {
		s.in(t).get("/Patient?name="+strings.Repeat("x", 100_000)).issue(414, "too-long", "_search")
		s.in(t).get("/Patient?name=" + strings.Repeat("x", 50_000)).want(200)
	})
	t.Run("what cannot be answered is not done", func(t *testing.T) {
		s := s.in(t)
		xml := "application/fhir+xml"
		s.post("/", bundle("transaction", entry("PUT", "Basic/b", "", `{"resourceType":"Basic","id":"b","code":{"text":"x"}}`)), "Accept", xml).issue(406, "not-supported")
		s.put("/Basic/b", `{"resourceType":"Basic","id":"b","code":{"text":"x"}}`, "Accept", xml).issue(406, "not-supported")
		s.get("/Basic/b").want(404)
		s.do("PATCH", "/Patient/"+id, `[{"op":"add","path":"/active","value":true}]`, "Content-Type", "application/json-patch+json", "Accept", xml).issue(406, "not-supported")
		s.get("/Patient/"+id).want(200).equal("meta.versionId", "1")
	})
	t.Run("404 on every other path is an OperationOutcome", func(t *testing.T) {
		for _, path := range []string{"/nowhere", "/Patient/" + id + "/nowhere", "/Patient/" + id + "/_history/1/2", "//Patient", "/Patient/../metadata", "/$nothing", "/Patient/$nothing", "/Patient/" + id + "/$nothing"} {
			s.in(t).get(path).issue(404, "not-supported")
		}
	})
	t.Run("CORS (contract)", func(t *testing.T) {
		a := s.in(t).do("OPTIONS", "/Patient", "", "Origin", "https://app.example.org", "Access-Control-Request-Method", "PUT").want(204)
		a.has("Access-Control-Allow-Origin", "*")
		for _, m := range []string{"GET", "POST", "PUT", "DELETE", "OPTIONS"} {
			if !strings.Contains(a.header.Get("Access-Control-Allow-Methods"), m) {
				t.Errorf("Access-Control-Allow-Methods lacks %s", m)
			}
		}
		for _, h := range []string{"Content-Type", "Authorization", "Accept", "X-Request-Id"} {
			if !strings.Contains(a.header.Get("Access-Control-Allow-Headers"), h) {
				t.Errorf("Access-Control-Allow-Headers lacks %s", h)
			}
		}
		s.in(t).get("/Patient/"+id, "Origin", "https://app.example.org").want(200).has("Access-Control-Allow-Origin", "*")
	})
	t.Run("forwarding headers of strangers are not believed (contract)", func(t *testing.T) {
		s.in(t).get("/Patient?_count=1", "X-Forwarded-Host", "evil.example.org").want(200).equal("link.0.url", s.base+"/Patient?_count=1")
	})
	t.Run("health and metrics (contract)", func(t *testing.T) {
		for _, path := range []string{"/health", "/health/live", "/health/ready"} {
			s.in(t).get(path).want(200).equal("status", "ok")
		}
		a := s.in(t).get("/metrics").want(200)
		for _, name := range []string{"service_requests_total", "service_request_duration_seconds", "service_database_connections_open"} {
			if !strings.Contains(string(a.body), name) {
				t.Errorf("no %s in /metrics", name)
			}
		}
		s.in(t).get("/debug/pprof/").issue(404, "not-supported")
	})
}

func TestBaseURL(t *testing.T) {
	s := start(t, func(c *server.Config) {
		c.Server.BaseURL = "https://fhir.example.org/r4/"
		c.Server.AllowedOrigins = []string{"https://app.example.org"}
	})
	a := s.post("/Patient", `{"resourceType":"Patient"}`).want(201)
	if want := "https://fhir.example.org/r4/Patient/" + a.str("id") + "/_history/1"; a.header.Get("Location") != want {
		t.Errorf("Location %q, want %q", a.header.Get("Location"), want)
	}
	s.get("/Patient", "Origin", "https://app.example.org").has("Access-Control-Allow-Origin", "https://app.example.org")
	s.get("/Patient", "Origin", "https://evil.example.org").has("Access-Control-Allow-Origin", "")
}

func TestTrustedProxy(t *testing.T) {
	s := start(t, func(c *server.Config) { c.Server.TrustedProxies = []string{"127.0.0.0/8"} })
	s.get("/Patient", "X-Forwarded-Host", "fhir.example.org", "X-Forwarded-Proto", "https").want(200).
		equal("link.0.url", "https://fhir.example.org/fhir/Patient")
}
